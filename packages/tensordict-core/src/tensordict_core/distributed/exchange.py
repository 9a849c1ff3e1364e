"""Point to point: ``send``, ``recv`` and their asynchronous forms."""

from __future__ import annotations

from .._primitives import Primitives

__all__ = ["PointToPoint"]


class PointToPoint(Primitives):
    """``send``, ``recv``, ``isend``, ``irecv``."""

    __slots__ = ()
