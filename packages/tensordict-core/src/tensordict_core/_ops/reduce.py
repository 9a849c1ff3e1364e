"""Reductions: over batch dimensions, over the entries' own dimensions, or over everything."""

from __future__ import annotations

from .._primitives import Primitives

__all__ = ["Reduction"]


class Reduction(Primitives):
    """Sums, means, extremes and their kind."""

    __slots__ = ()
