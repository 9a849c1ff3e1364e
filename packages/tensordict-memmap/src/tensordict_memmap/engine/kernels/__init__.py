"""Kernels compiled by Numba, and the cache of their machine code."""

from __future__ import annotations
