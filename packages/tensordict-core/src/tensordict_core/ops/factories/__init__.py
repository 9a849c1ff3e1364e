"""Factories: operations as records, and the one algorithm behind each kind of them."""

from __future__ import annotations
