"""Kernels: what Numba compiles, and how compiled code is cached and loaded."""

from __future__ import annotations
