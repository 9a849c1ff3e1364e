"""`make_memmap` and variants: add a mapped entry to a mapped tensordict, in its folder or in shared memory.

The entry is committed to the folder in one transaction, like any save. Existing files do not change, so existing
mappings stay connected to them, in this process and in others.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from tensordict_core import TensorCollection, TensorDict, is_non_tensor, unravel_key_to_tuple
from tensordict_core.extension import annotation
from tensordict_memmap.loading.mapped import is_memmap
from tensordict_memmap.saving.add_entry import add_entry
from tensordict_memmap.schema.nested import count_of, nested_of
from tensordict_memmap.schema.node import show
from tensordict_memmap.tensor.memmap import MemoryMappedTensor


def make_memmap(
    td: Any,
    key: str | tuple[str, ...],
    shape: Sequence[int] | torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    robust_key: bool | None = None,
) -> torch.Tensor:
    """Make a mapped entry of zeros in a mapped tensordict, which may be locked.

    If the folder was saved with checksums, they are removed, because the entry is written later; save again with
    ``checksum=True`` when its values are complete.

    Args:
        td: The tensordict.
        key: The key of the new entry; missing tensordicts above it are created.
        shape: Its shape; for a nested tensor, a 2D integer tensor with the shape of one component in each row.
        dtype: Its dtype; torch's default if None.
        robust_key: Accepted for compatibility and ignored: file names always escape unusual characters of keys.

    Raises:
        RuntimeError: The tensordict is not mapped, or the key exists.

    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"a": torch.ones(2)}).memmap("growing")
    >>> make_memmap(td, "b", (3,), dtype=torch.int64)
    MemoryMappedTensor([0, 0, 0])
    >>> TensorDict.load_memmap("growing")["b"].shape
    torch.Size([3])
    """
    dtype = dtype or torch.get_default_dtype()
    if isinstance(shape, torch.Tensor) and shape.dim() == 2:
        zeros = torch.zeros(count_of(shape), dtype=dtype, device="cpu")
        return _put(td, key, nested_of(zeros, shape.tolist(), jagged=False), copy_data=True)
    size = torch.Size(shape.tolist() if isinstance(shape, torch.Tensor) else shape)
    return _put(td, key, torch.empty(size, dtype=dtype, device="meta"), copy_data=False)


def make_memmap_from_tensor(
    td: Any,
    key: str | tuple[str, ...],
    tensor: torch.Tensor,
    *,
    copy_data: bool = True,
    robust_key: bool | None = None,
) -> torch.Tensor:
    """Make a mapped entry with the shape and dtype of a tensor, as `make_memmap` does.

    Args:
        td: The tensordict, which may be locked.
        key: The key of the new entry; missing tensordicts above it are created.
        tensor: The tensor.
        copy_data: Whether its values are written; otherwise the entry has zeros.
        robust_key: Accepted for compatibility and ignored.

    Raises:
        RuntimeError: The tensordict is not mapped, or the key exists.

    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"a": torch.ones(2)}).memmap()
    >>> make_memmap_from_tensor(td, "b", torch.arange(3))
    MemoryMappedTensor([0, 1, 2])
    """
    return _put(td, key, tensor, copy_data=copy_data)


def make_memmap_from_storage(
    td: Any,
    key: str | tuple[str, ...],
    storage: torch.UntypedStorage,
    shape: Sequence[int] | torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    robust_key: bool | None = None,
) -> torch.Tensor:
    """Make a mapped entry with the values of a storage, as `make_memmap` does; in shared memory it shares the storage.

    Args:
        td: The tensordict, which may be locked.
        key: The key of the new entry; missing tensordicts above it are created.
        storage: The storage; its first elements are those of the entry.
        shape: The shape of the entry; for a nested tensor, a 2D integer tensor with the shape of one component in each
            row.
        dtype: Its dtype; torch's default if None.
        robust_key: Accepted for compatibility and ignored.

    Raises:
        RuntimeError: The tensordict is not mapped, the key exists, or the storage is too small for the shape.

    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"a": torch.ones(2)}).memmap("with_storage")
    >>> make_memmap_from_storage(td, "b", torch.arange(3).untyped_storage(), (3,), dtype=torch.int64)
    MemoryMappedTensor([0, 1, 2])
    """
    dtype = dtype or torch.get_default_dtype()
    rows: list[Any] = shape.tolist() if isinstance(shape, torch.Tensor) else list(shape)
    is_nested = isinstance(shape, torch.Tensor) and shape.dim() == 2
    size = torch.Size([sum(map(prod, rows))] if is_nested else rows)
    if storage.nbytes() < size.numel() * dtype.itemsize:
        raise RuntimeError(
            f"the storage has {storage.nbytes()} bytes, and shape {rows} of dtype {dtype} needs "
            f"{size.numel() * dtype.itemsize}; pass a shape that fits into it"
        )
    if not is_nested and annotation(_node(td, key)[0], "saved_path") is None:
        return _put(td, key, MemoryMappedTensor.from_storage(storage, shape=size, dtype=dtype), copy_data=True)
    values = torch.empty(0, dtype=dtype, device="cpu").set_(storage)[: size.numel()]
    return _put(td, key, nested_of(values, rows, jagged=False) if is_nested else values.view(size), copy_data=True)


def _node(td: Any, key: str | tuple[str, ...]) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
    """Return the deepest existing tensordict above an entry, the rest of the key, and the whole key."""
    path = (key,) if isinstance(key, str) else unravel_key_to_tuple(key)
    node = td._inmost()
    for depth, name in enumerate(path[:-1]):
        child = node.get(name, None) if name in node._keys() else None
        if child is None:
            return node, path[depth:], path
        if not isinstance(child, TensorCollection) or is_non_tensor(child):
            raise RuntimeError(
                f"key {show(path)} is below {show(path[: depth + 1])}, which is not a tensordict; choose another key"
            )
        node = child._inmost()
    return node, path[-1:], path


def _put(td: Any, key: str | tuple[str, ...], tensor: torch.Tensor, *, copy_data: bool) -> torch.Tensor:
    if td._is_lazy_stack:
        raise RuntimeError(
            f"Cannot call `make_memmap` on a {type(td).__name__}, whose elements have a folder each; call it on the "
            "elements, or on a dense tensordict"
        )
    node, rest, path = _node(td, key)
    place: Path | None = annotation(node, "saved_path")
    if place is None and not is_memmap(td):
        raise RuntimeError(
            "Can only make a memmap tensor within a memory-mapped tensordict, and that of key "
            f"{show(path)} is not; call memmap_() first"
        )
    if rest[0] in node._keys():
        raise RuntimeError(
            f"The key {show(path)} already exists within the target tensordict; delete it first or write into it"
        )
    size = node.batch_size
    shape = (tensor.size(0),) if tensor.is_nested else tuple(tensor.shape)  # strided nested tensors have no shape
    if shape[: len(size)] != tuple(size):
        raise RuntimeError(
            f"batch dimension mismatch: the shape {list(shape)} of key {show(path)} does not start with the batch size "
            f"{list(size)}; pass a shape that does"
        )
    # a mapped tensordict is locked, and new nodes are added to it
    with td.unlock_() if len(rest) > 1 else contextlib.nullcontext():
        if place is None:
            made: Any = (
                # torch warns of every strided nested tensor that `detach` makes
                MemoryMappedTensor.from_tensor(tensor.detach() if tensor.requires_grad else tensor)
                if copy_data
                else MemoryMappedTensor.zeros(shape=tensor.shape, dtype=tensor.dtype)
            )
            for name in reversed(rest[1:]):
                made = TensorDict({name: made}, size)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about values that were pickled before
                made = add_entry(node, place, rest, tensor, copy_data=copy_data)
        node._set(rest[0], made)
    added: torch.Tensor = made if len(rest) == 1 else made[rest[1:]]
    return added
