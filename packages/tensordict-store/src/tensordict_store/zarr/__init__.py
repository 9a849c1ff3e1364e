"""Zarr: groups and arrays of a store that zarr opens: a folder, memory, or anything of fsspec."""

from __future__ import annotations
