"""Memory that processes share."""

from __future__ import annotations

from .._primitives import Primitives

__all__ = ["Sharing"]


class Sharing(Primitives):
    """``share_memory_``, ``pin_memory`` and their kind."""

    __slots__ = ()
