"""Flat and nested keys: ``a.b`` against ``('a', 'b')``."""

from __future__ import annotations

from ._primitives import Primitives

__all__ = ["KeyFlattening"]


class KeyFlattening(Primitives):
    """``flatten_keys``, ``unflatten_keys`` and what combines entries under one key."""

    __slots__ = ()
