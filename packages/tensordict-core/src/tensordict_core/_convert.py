"""Conversions: from and to dictionaries, lists, tuples, dataclasses, pytrees and arrays."""

from __future__ import annotations

from ._primitives import Primitives

__all__ = ["Conversion"]


class Conversion(Primitives):
    """``from_dict``, ``to_dict`` and their kind."""

    __slots__ = ()
