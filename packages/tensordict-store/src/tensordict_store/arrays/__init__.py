"""Arrays: how a tensordict lies in groups of arrays; HDF5 and zarr share it."""

from __future__ import annotations
