"""Tensordicts of zeros from a schema, and NumPy structured arrays as tensordicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tensordict_core.base import errors
from tensordict_core.base.entry import structured
from tensordict_core.base.keys import NestedKey
from tensordict_core.base.meta import as_batch_size
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.registry.plugins import satellite
from tensordict_core.base.registry.types import containers
from tensordict_core.ops.io.to_python import constructed

_STORAGES = (None, "shared", "memmap")
_STORES = ("h5", "zarr", "redis", "dragonfly")
_KINDS = "biufc"
"""The kinds of NumPy dtypes that become tensors: bools, integers, floating-point and complex numbers."""


def _fields(schema: Mapping[Any, Any], prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[int, ...], Any]]:
    for key, field in schema.items():
        path = (*prefix, key)
        if isinstance(field, Mapping):
            yield from _fields(field, path)
            continue
        try:
            shape, dtype = field
        except (TypeError, ValueError):
            raise ValueError(
                f"the field {path} of the schema is {field!r}; give a shape and a dtype, such as ([4], torch.float32)"
            ) from None
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"the field {path} of the schema has the dtype {dtype!r}; give one of torch")
        yield path, tuple(as_batch_size(shape)), dtype


class Schemas(Node):
    """``from_schema``, ``from_struct_array`` and ``to_struct_array``."""

    __slots__ = ()

    @classmethod
    def from_schema(
        cls,
        schema: Mapping[NestedKey, Any],
        *,
        batch_size: Sequence[int] | int | None = None,
        storage: str | None = None,
        prefix: Any = None,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return a tensordict of zeros with the shapes and dtypes of a schema, to be filled row by row.

        Args:
            schema: For each key the shape behind the batch dimensions and the dtype; a dictionary nests.
            batch_size: The batch size; by default none.
            storage: ``None`` for memory, ``"shared"`` for shared memory, ``"memmap"`` for memory-mapped files; with
                ``tensordict-store``, ``"h5"`` and ``"zarr"`` for a file, ``"redis"`` and ``"dragonfly"`` for a server.
            prefix: The folder of the memory-mapped files, by default anonymous ones; the prefix of names on a server.
            device: The device of the tensors; for a store, that of tensors that are read.
            **kwargs: For a store: ``filename`` or ``host`` and ``port``, and how entries are stored.

        Raises:
            ValueError: The storage is unknown, or a field is not a shape and a dtype.
            ImportError: ``tensordict-store`` is not installed.

        >>> td = TensorDict.from_schema({"obs": ([4], torch.float32), ("n", "done"): ([], torch.bool)}, batch_size=[8])
        >>> td["obs"].shape, td["n", "done"].dtype
        (torch.Size([8, 4]), torch.bool)
        """
        if storage in _STORES:
            more = kwargs if prefix is None else {"prefix": prefix, **kwargs}
            return satellite("tensordict_store", f"TensorDict.from_schema(storage={storage!r})").from_schema(
                schema, batch_size=batch_size, storage=storage, device=device, **more
            )
        if storage not in _STORAGES:
            names = ", ".join(repr(name) for name in (*_STORAGES, *_STORES))
            raise ValueError(f"storage={storage!r} is unknown; pass one of {names}")
        if kwargs:
            raise TypeError(
                f"from_schema() got {min(kwargs)!r}, which is for stores; pass storage='h5' or another store"
            )
        if prefix is not None and storage != "memmap":
            raise ValueError(f"prefix is the folder of memory-mapped files; pass storage='memmap' too, not {storage!r}")
        size = as_batch_size(batch_size)
        td = containers.dense(batch_size=size, device=device)
        for path, shape, dtype in _fields(schema):
            whole = (*size, *shape)
            filled = torch.zeros((), dtype=dtype, device="cpu" if storage else device).expand(whole)
            td.set(path, filled if storage == "memmap" else filled.clone())  # files need the shape alone
        if storage == "memmap":
            return td.memmap_like(prefix)
        return td.share_memory_() if storage == "shared" else td

    @classmethod
    def from_struct_array(
        cls,
        struct_array: np.ndarray[Any, Any],
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: torch.device | str | int | None = None,
        batch_size: Sequence[int] | int | None = None,
    ) -> Any:
        """Return a tensordict over a NumPy structured array; its batch size is the shape of the array.

        Fields share the memory of the array where their alignment allows it; strings and objects are non-tensor data.

        Args:
            struct_array: The array; structured fields become nested tensordicts.
            auto_batch_size: Whether the batch size is the longest that all entries share.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            device: The device to which every entry is moved.
            batch_size: The batch size; by default the shape of the array.

        Raises:
            TypeError: It is not a structured array, or both ``batch_size`` and ``auto_batch_size`` are given.

        >>> array = np.zeros(3, dtype=[("x", "f4"), ("y", "i8", (2,))])
        >>> td = TensorDict.from_struct_array(array)
        >>> td.batch_size, td["y"].shape
        (torch.Size([3]), torch.Size([3, 2]))
        """
        names = getattr(getattr(struct_array, "dtype", None), "names", None)
        if names is None:
            raise errors.not_convertible("from_struct_array", "a structured array of NumPy", struct_array)
        if auto_batch_size and batch_size is not None:
            raise TypeError("batch_size and auto_batch_size both set the batch size; pass one of them")
        td = structured(struct_array, device)
        if auto_batch_size:
            td.auto_batch_size_(batch_dims)
        elif batch_size is not None:
            td.batch_size = as_batch_size(batch_size)
        return constructed(cls, td)

    def to_struct_array(self) -> np.ndarray[Any, Any]:
        """Return the entries as a NumPy structured array of the shape of the batch.

        Raises:
            TypeError: NumPy has no dtype of a leaf.

        >>> TensorDict({"x": torch.zeros(2), "n": {"y": torch.ones(2, 3)}}, [2]).to_struct_array().dtype.names
        ('x', 'n')
        """
        columns = {key: _column(value) for key, value in self._items()}
        size = tuple(self._meta.batch_size)
        dims = len(size)
        dtype = np.dtype([(key, column.dtype, column.shape[dims:]) for key, column in columns.items()])
        out = np.empty(size, dtype=dtype)
        for key, column in columns.items():
            out[key] = column
        return out


def from_struct_array(
    struct_array: np.ndarray[Any, Any],
    *,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    device: torch.device | str | int | None = None,
    batch_size: Sequence[int] | int | None = None,
) -> Any:
    """Return a tensordict over a NumPy structured array; its batch size is the shape of the array.

    Fields share the memory of the array where their alignment allows it; strings and objects are non-tensor data.

    Args:
        struct_array: The array; structured fields become nested tensordicts.
        auto_batch_size: Whether the batch size is the longest that all entries share.
        batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
        device: The device to which every entry is moved.
        batch_size: The batch size; by default the shape of the array.

    Raises:
        TypeError: It is not a structured array, or both ``batch_size`` and ``auto_batch_size`` are given.

    >>> from_struct_array(np.zeros((2, 3), dtype=[("x", "f4")])).batch_size
    torch.Size([2, 3])
    """
    return containers.dense.from_struct_array(
        struct_array, auto_batch_size=auto_batch_size, batch_dims=batch_dims, device=device, batch_size=batch_size
    )


_WIDTH = 10
"""The least width of a column of strings, so that longer ones can be assigned later."""


def _column(value: Any) -> np.ndarray[Any, Any]:
    if is_leaf_tensor(value):
        column: np.ndarray[Any, Any] = value.detach().cpu().numpy()
        return column
    if value._is_non_tensor:
        column = np.array(value.maybe_to_stack().tolist())
        short = column.dtype.kind in "US" and column.dtype < np.dtype(f"{column.dtype.kind}{_WIDTH}")
        return column.astype(f"{column.dtype.kind}{_WIDTH}") if short else column
    nested: np.ndarray[Any, Any] = value.to_struct_array()
    return nested
