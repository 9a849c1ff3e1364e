"""Gradients: what autograd knows of the leaves."""

from __future__ import annotations

from ._primitives import Primitives

__all__ = ["Autograd"]


class Autograd(Primitives):
    """``detach``, ``grad``, ``backward`` and their kind."""

    __slots__ = ()
