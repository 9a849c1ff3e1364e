"""Conversion: from and to Python structures, state dicts, pickles and text."""

from __future__ import annotations
