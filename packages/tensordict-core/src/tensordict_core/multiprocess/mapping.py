"""`map`: a function on the parts of a tensordict, in workers."""

from __future__ import annotations

from .._primitives import Primitives

__all__ = ["ProcessMapping"]


class ProcessMapping(Primitives):
    """``map`` and ``map_iter``."""

    __slots__ = ()
