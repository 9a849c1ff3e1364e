"""Casts: to another device, dtype, memory layout or container."""

from __future__ import annotations

from ._primitives import Primitives

__all__ = ["Casting"]


class Casting(Primitives):
    """``to`` and its kind."""

    __slots__ = ()
