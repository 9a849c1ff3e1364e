"""Arrays: how a tensordict is stored in groups of arrays, for HDF5 and zarr."""

from __future__ import annotations
