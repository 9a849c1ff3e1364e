"""`collate` for a ``DataLoader``: stacks the tensordicts of samples, also those inside tuples and mappings.

A worker of a ``DataLoader`` sends its batch through shared memory. There, leaves are stacked into one shared block, so
the batch is copied once and its pickle holds one file descriptor, however many leaves it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from tensordict_core.base.keys import NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import How
from tensordict_core.containers.collection import TensorCollection
from tensordict_core.containers.dense import TensorDict
from tensordict_core.ops.io.pickling import over_buffer
from tensordict_core.ops.parallel.packing import is_plain, packed_size, slots_of, unpack
from tensordict_core.ops.shape.combine import maybe_dense_stack
from tensordict_core.torch_api.padding import pad_tensors


def dense_stack_tds(td_list: Any, dim: int | None = None) -> Any:
    """Stack tensordicts, or those of a lazy stack, densely if their keys and shapes allow it.

    Args:
        td_list: The tensordicts, or a lazy stack of them; any other tensordict is returned as it is.
        dim: The position of the new dimension; for a lazy stack, its stack dimension.

    Raises:
        ValueError: ``td_list`` is a list and ``dim`` is not given.

    >>> dense_stack_tds([TensorDict({"a": torch.ones(2)}) for _ in range(3)], 0)["a"].shape
    torch.Size([3, 2])
    """
    if isinstance(td_list, Node):
        if (stack := td_list._lazy_stack) is None:
            return td_list
        dim = stack.stack_dim
        return maybe_dense_stack(td_list.unbind(dim), dim)
    if dim is None:
        raise ValueError("If a list of tensordicts is provided, stack_dim must not be None; pass a dimension")
    return maybe_dense_stack(td_list, dim)


def collate(
    batch: Any,
    *,
    pad_keys: Mapping[NestedKey, float] | None = None,
    nested_keys: Sequence[NestedKey] | None = None,
    mask_key: NestedKey | None = None,
) -> Any:
    """Return one batch of a list of samples: a ``collate_fn`` for samples that are, or contain, tensordicts.

    Tensordicts are stacked (densely if they can be), tensors stacked, mappings and tuples collated entry by entry, and
    anything else goes through `torch.utils.data.default_collate`.

    Args:
        batch: The samples; anything but a list with samples in it is returned as it is.
        pad_keys: Entries of the tensordicts that are padded along their first dimension, each with its padding value.
        nested_keys: Entries that become nested tensors of the ``torch.jagged`` layout.
        mask_key: The key under which the masks of the padded entries are stored, as a tensordict of those keys.

    Raises:
        KeyError: A sample lacks one of the keys.
        ValueError: The options contradict each other or do not match the samples.

    >>> collate([(TensorDict({"a": torch.ones(2)}), 0), (TensorDict({"a": torch.ones(2)}), 1)])[1]
    tensor([0, 1])
    """
    if pad_keys is None and nested_keys is None and mask_key is None:  # the usual call
        return _collate(batch, {}, [], None)
    pads = {unravel_key_to_tuple(key): value for key, value in (pad_keys or {}).items()}
    nested = [unravel_key_to_tuple(key) for key in nested_keys or ()]
    if mask_key is not None and not pads:
        raise ValueError(f"collate got the mask_key {mask_key!r} but no pad_keys to mask; name the entries to pad")
    both = [unravel_key(key) for key in nested if key in pads]
    if both:
        raise ValueError(f"collate got the keys {both} in both pad_keys and nested_keys; leave them out of one")
    return _collate(batch, pads, nested, mask_key)


def _collate(batch: Any, pads: dict[Any, float], nested: list[Any], mask_key: NestedKey | None) -> Any:
    if not isinstance(batch, list) or not batch:
        return batch
    first = batch[0]
    if isinstance(first, Node):
        return _collate_nodes(batch, pads, nested, mask_key) if pads or nested else _stack(batch)
    if isinstance(first, Tensor):
        return torch.stack(batch)
    if isinstance(first, Mapping):
        return {key: _collate([sample[key] for sample in batch], pads, nested, mask_key) for key in first}
    if isinstance(first, tuple):
        if any(len(sample) != len(first) for sample in batch):
            raise ValueError("collate needs tuples of one length; give every sample the same fields")
        columns = [_collate(list(column), pads, nested, mask_key) for column in zip(*batch, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return default_collate(batch)


def _collate_nodes(batch: list[Any], pads: dict[Any, float], nested: list[Any], mask_key: NestedKey | None) -> Any:
    size = batch[0]._meta.batch_size
    if pads and size:
        raise ValueError(
            "collate(pad_keys=...) pads the first dimension of each entry, which is a batch dimension of samples "
            f"of batch size {list(size)}; use pad_sequence, or samples of batch size []"
        )
    columns = {key: [_entry(sample, key) for sample in batch] for key in (*pads, *nested)}
    if mask_key is not None and any(sample.get(mask_key, None) is not None for sample in batch):
        raise ValueError(f"collate got the mask_key {mask_key!r}, which is an entry of the samples; use another key")
    result = maybe_dense_stack([sample.exclude(*columns) for sample in batch])
    if nested and result._lazy_stack is not None:
        raise ValueError(
            "collate(nested_keys=...) needs the other entries to stack densely, and they do not; name every entry of "
            "varying length in pad_keys or nested_keys"
        )
    masks = {}
    for key, column in columns.items():
        if key in pads:
            entry, masks[key] = pad_tensors(column, pads[key])
        else:
            entry = torch.nested.as_nested_tensor(column, layout=torch.jagged)
        result.set(key, entry)
    if mask_key is not None:
        tree = result._new({}, result._meta)
        for key, mask in masks.items():
            tree.set(key, mask)
        result.set(mask_key, tree)
    return result


def _entry(sample: Any, key: Any) -> Tensor:
    value = sample.get(key, None)
    if value is None:
        raise KeyError(
            f"collate got the key {unravel_key(key)!r}, which a sample lacks; its keys are "
            f"{[unravel_key(k) for k in sample._leaf_keys()]}"
        )
    if not isinstance(value, Tensor) or not value.ndim:
        raise ValueError(
            f"collate can pad or nest tensors with a dimension only; the entry {unravel_key(key)!r} is "
            f"{type(value).__name__}"
        )
    return value


def _stack(samples: list[Any]) -> Any:
    """Stack tensordicts; in a worker of a ``DataLoader``, into one block of shared memory where they allow it."""
    if get_worker_info() is None:
        return maybe_dense_stack(samples)
    first = samples[0]
    same = all(_same_structure(first, sample) for sample in samples)
    columns = list(zip(*[sample._leaves() for sample in samples], strict=True)) if same else []
    if not columns or not all(map(_is_column, columns)):
        return maybe_dense_stack(samples)
    n = len(samples)
    places = slots_of([column[0].expand(n, *column[0].shape) for column in columns])
    buffer = torch.empty(0, dtype=torch.uint8, device="cpu").set_(torch.UntypedStorage._new_shared(packed_size(places)))
    how = How(size=lambda size: torch.Size((n, *size)), names=lambda own: None if own is None else (None, *own))
    result = unpack(first._rebuild(iter(places), how), buffer)
    for column, leaf in zip(columns, result._leaves(), strict=True):
        torch.stack(column, out=leaf)
    return over_buffer(result, buffer)


def _same_structure(one: Any, other: Any) -> bool:
    """Return whether both are dense tensordicts of tensors with the same keys and metadata."""
    if type(one) is not TensorDict or type(other) is not TensorDict:
        return False
    mine, theirs = one._meta, other._meta
    if (mine.batch_size, mine.device, mine.names) != (theirs.batch_size, theirs.device, theirs.names):
        return False
    if [*one._entries] != [*other._entries]:
        return False
    return all(
        (type(a) is Tensor and type(b) is Tensor) or _same_structure(a, b)
        for a, b in zip(one._entries.values(), other._entries.values(), strict=True)
    )


def _is_column(column: tuple[Tensor, ...]) -> bool:
    """Return whether tensors are plain, on the CPU and of one shape and dtype, and need no gradient."""
    first = column[0]
    return all(
        is_plain(leaf)
        and leaf.is_cpu
        and not leaf.requires_grad
        and leaf.dtype == first.dtype
        and leaf.shape == first.shape
        for leaf in column
    )


def _default_collate(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    return _stack(batch)


# a DataLoader without a collate_fn of ours stacks tensordicts too: https://pytorch.org/docs/stable/data.html#working-with-collate-fn
default_collate_fn_map[TensorCollection] = _default_collate
