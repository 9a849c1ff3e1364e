"""Collectives: ``broadcast``, ``all_reduce`` and their kind."""

from __future__ import annotations

from .._primitives import Primitives

__all__ = ["Collectives"]


class Collectives(Primitives):
    """Operations of a whole process group."""

    __slots__ = ()
