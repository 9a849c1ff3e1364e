"""Low-level calls of h5py: create datasets and attributes without its classes, which take longer than HDF5 itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tensordict_store.extras import require


@lru_cache(maxsize=64)
def memory_type(dtype: Any) -> Any:
    """Return the type of HDF5 of a NumPy dtype; types are kept, and never change.

    >>> memory_type(np.dtype("<f4")).get_size()
    4
    """
    kind = require("h5", "PersistentTensorDict").h5t.py_create(dtype, logical=True)
    kind.lock()
    return kind


@lru_cache(maxsize=1)
def _plain_layout() -> Any:
    """Return the properties of a dataset that h5py gives one without options."""
    h5p = require("h5", "PersistentTensorDict").h5p
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_obj_track_times(False)
    return properties


def is_plain_name(name: str) -> bool:
    r"""Return whether a name is the same bytes in every encoding of HDF5, with no null, and is no path.

    >>> is_plain_name("obs"), is_plain_name("caf\u00e9"), is_plain_name("a\0b")
    (True, False, False)
    """
    return name.isascii() and name.isprintable() and "/" not in name and name not in ("", ".")


def create_contiguous(group: Any, name: str, shape: Sequence[int], dtype: Any) -> Any:
    """Create a dataset without chunks and filters; return it as h5py does.

    Args:
        group: A group of h5py that has nothing of the name.
        name: A plain name.
        shape: The shape.
        dtype: The NumPy dtype.
    """
    h5py = require("h5", "PersistentTensorDict")
    space = h5py.h5s.create_simple(tuple(shape)) if len(shape) else h5py.h5s.create(h5py.h5s.SCALAR)
    return h5py.Dataset(h5py.h5d.create(group.id, name.encode(), memory_type(dtype), space, _plain_layout()))


def put_text(item: Any, name: str, text: str) -> None:
    """Put an attribute of text in place of an earlier one.

    Args:
        item: A group or dataset of h5py.
        name: A plain name.
        text: The text.
    """
    h5py = require("h5", "PersistentTensorDict")
    encoded = name.encode()
    if h5py.h5a.exists(item.id, encoded):
        item.attrs[name] = text  # h5py replaces it such that a fault leaves one of them
        return
    kind = memory_type(h5py.string_dtype())
    attribute = h5py.h5a.create(item.id, encoded, kind, h5py.h5s.create(h5py.h5s.SCALAR))
    attribute.write(np.array(text, dtype=h5py.string_dtype()))


def address(item: Any) -> Any:
    """Return the address of the header of a group or dataset in its file, which a hard link has."""
    return require("h5", "PersistentTensorDict").h5o.get_info(item.id).addr
