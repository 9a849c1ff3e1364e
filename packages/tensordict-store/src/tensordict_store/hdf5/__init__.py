"""HDF5: groups and arrays of a file that h5py opens."""

from __future__ import annotations
