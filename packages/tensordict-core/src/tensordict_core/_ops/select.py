"""Selections by content: ``where``, ``gather``, ``masked_select`` and padding."""

from __future__ import annotations

from .._primitives import Primitives

__all__ = ["Selection"]


class Selection(Primitives):
    """Parts of a tensordict chosen by tensors."""

    __slots__ = ()
