"""State: state dicts, pickling and deep copies."""

from __future__ import annotations

from ._primitives import Primitives

__all__ = ["State"]


class State(Primitives):
    """``state_dict``, ``load_state_dict`` and copying."""

    __slots__ = ()
