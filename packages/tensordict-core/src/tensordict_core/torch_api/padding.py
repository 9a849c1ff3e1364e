"""Padding of sequences: `pad_sequence` stacks tensordicts of different lengths, `unpad_sequence` reverses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import UNLOCKED, How
from tensordict_core.containers.collection import is_tensordict
from tensordict_core.containers.lazy.columns import check_padding_side, padded_to
from tensordict_core.ops.factories.reduction import batched
from tensordict_core.ops.masking import pad_values
from tensordict_core.ops.shape.combine import check_out, lazy_stack, stack


def pad(tensordict: Any, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False, safe: bool = True) -> Any:
    """Pad the batch dimensions of a tensordict at both ends: ``tensordict.pad(...)``.

    Args:
        tensordict: The tensordict.
        pad_size: The numbers of positions added before and after the first batch dimension, the second, ...
        value: The value at the new positions.
        inplace: Whether ``tensordict`` itself is padded.
        safe: Whether ``pad_size`` is checked first.

    Raises:
        RuntimeError: ``pad_size`` does not fit the batch dimensions.

    >>> pad(TensorDict({"a": torch.ones(2)}, [2]), [0, 1])["a"]
    tensor([1., 1., 0.])
    """
    return tensordict.pad(pad_size, value, inplace, safe)


_Ends = tuple[int, int]
"""The padding before the data, and behind it."""


def _ends(length: int, longest: int, side: str) -> _Ends:
    return (longest - length, 0) if side == "left" else (0, longest - length)


def pad_tensors(tensors: Sequence[Tensor], value: float) -> tuple[Tensor, Tensor]:
    """Pad tensors that differ in their first dimension, stack them, and return the mask of the data.

    Args:
        tensors: The tensors.
        value: The padding value.

    Returns:
        The tensor ``[len(tensors), longest, ...]`` and the mask ``[len(tensors), longest]``.

    >>> pad_tensors([torch.ones(1), torch.ones(2)], 0.0)[1]
    tensor([[ True, False],
            [ True,  True]])
    """
    rows, ends = _pad_rows(tensors, 0, value, "right")
    padded = torch.stack(rows)
    return padded, _mask(ends, padded.shape[1], padded.device)


def _pad_rows(tensors: Sequence[Tensor], dim: int, value: float, side: str) -> tuple[list[Tensor], list[_Ends]]:
    """Pad tensors that differ along ``dim`` to the longest; return them and the padding at both ends of each."""
    longest = max(tensor.shape[dim] for tensor in tensors)
    ends = [_ends(tensor.shape[dim], longest, side) for tensor in tensors]
    shapes = [(*tensor.shape[:dim], longest, *tensor.shape[dim + 1 :]) for tensor in tensors]
    return [padded_to(tensor, shape, side, value) for tensor, shape in zip(tensors, shapes, strict=True)], ends


def _mask(ends: Sequence[_Ends], length: int, device: torch.device) -> Tensor:
    """Return the mask of the data, ``[len(ends), length]``."""
    before, after = torch.tensor(ends, device=device).T.unsqueeze(-1)
    positions = torch.arange(length, device=device)
    mask: Tensor = (positions >= before) & (positions < length - after)
    return mask


def _pad_dims(first: Any, keys: list[Any], columns: list[list[Tensor]], pad_dim: int) -> tuple[list[int], bool]:
    """Return the padded dimension of each leaf, counted from the front; and whether it is a batch dimension."""
    batch_dims = len(first._meta.batch_size)
    dims = []
    for key, leaf in zip(keys, [column[0] for column in columns], strict=True):
        dim = pad_dim + leaf.ndim if pad_dim < 0 else pad_dim
        if not 0 <= dim < leaf.ndim:
            raise IndexError(
                f"pad_dim {pad_dim} is out of range for key {unravel_key(key)!r} of shape {list(leaf.shape)}; use "
                "a dimension that all entries have"
            )
        dims.append(dim)
    # entries of one length keep it, whatever the dimension is
    differ = [
        len({leaf.shape[dim : dim + 1] for leaf in column}) > 1 for dim, column in zip(dims, columns, strict=True)
    ]
    changed = [dim for dim, changes in zip(dims, differ, strict=True) if changes] or dims
    in_batch = [dim < batch_dims for dim in changed]
    if any(in_batch) and (not all(dim < batch_dims for dim in dims) or len(set(dims)) > 1):
        raise ValueError(
            f"pad_dim {pad_dim} is a batch dimension of some entries and another dimension of others (batch size "
            f"{list(first._meta.batch_size)}); count it from the front"
        )
    return dims, all(in_batch) if dims else 0 <= pad_dim < batch_dims


def _values_by_key(padding_value: Any, keys: list[Any]) -> list[float]:
    if not isinstance(padding_value, Mapping):
        return [padding_value] * len(keys)
    given = {unravel_key_to_tuple(key): value for key, value in padding_value.items()}
    unknown = [unravel_key(key) for key in given if key not in set(keys)]
    if unknown:
        raise KeyError(
            f"padding_value has keys {unknown} that name no entry of the tensordicts; their keys are "
            f"{[unravel_key(key) for key in keys]}"
        )
    return [given.get(key, 0) for key in keys]


def pad_sequence(
    list_of_tensordicts: Sequence[Any],
    pad_dim: int = 0,
    padding_value: float | Mapping[NestedKey, float] = 0.0,
    out: Any = None,
    return_mask: bool | NestedKey = False,
    padding_side: str = "right",
) -> Any:
    """Pad tensordicts whose entries differ in length along one dimension to the longest, and stack them densely.

    Args:
        list_of_tensordicts: The tensordicts, of the same keys.
        pad_dim: The dimension of the entries that is padded, counting the batch dimensions. If it is a batch dimension,
            the batch size is padded too, and non-tensor entries with ``None``.
        padding_value: The padding value, or one for each key (0 for other keys).
        out: A tensordict into which the result is written.
        return_mask: Whether to store masks of the data too, under ``"masks"`` or the key given here: a tensordict of
            the same keys, with masks of shape ``[len, *batch_size]``, or ``[..., length]`` if ``pad_dim`` is not a
            batch dimension.
        padding_side: ``"right"`` for padding after the data, ``"left"`` for padding before it.

    Raises:
        RuntimeError: There are no tensordicts, or entries differ in another dimension.
        KeyError: ``padding_value`` names an entry that does not exist.

    >>> tds = [TensorDict({"a": torch.ones(n)}, [n]) for n in (1, 2)]
    >>> padded = pad_sequence(tds, return_mask=True)
    >>> padded["a"], padded["masks", "a"]
    (tensor([[1., 0.],
             [1., 1.]]), tensor([[ True, False],
                                 [ True,  True]]))
    """
    check_padding_side(padding_side)
    nodes = [td._solid() for td in list_of_tensordicts]
    if not nodes:
        raise RuntimeError("list_of_tensordicts cannot be empty; give at least one tensordict")
    if return_mask is not False and not is_tensordict(nodes[0]):
        raise RuntimeError(
            f"return_mask needs an entry for the masks, which {type(nodes[0]).__name__} has no field for; convert "
            "it to a TensorDict first"
        )
    first = nodes[0]
    names = first._leaf_keys()
    # an unbatched tensor has no rows to pad
    found = [
        pair for pair, has in zip(zip(names, _columns(nodes, names), strict=True), batched(first), strict=True) if has
    ]
    keys, columns = [key for key, _ in found], [column for _, column in found]
    dims, in_batch = _pad_dims(first, keys, columns, pad_dim)
    values = _values_by_key(padding_value, keys)
    padded: list[list[Tensor]] = []
    masks = []
    for key, column, dim, value in zip(keys, columns, dims, values, strict=True):
        if len({(*leaf.shape[:dim], *leaf.shape[dim + 1 :]) for leaf in column}) > 1:
            shapes = [list(leaf.shape) for leaf in column]
            raise RuntimeError(
                f"pad_sequence failed for key {unravel_key(key)!r}: the shapes {shapes} differ in another "
                f"dimension than {dim}; pad along that one first"
            )
        rows, ends = _pad_rows(column, dim, value, padding_side)
        padded.append(rows)
        if return_mask is not False:
            masks.append(_mask(ends, rows[0].shape[dim], rows[0].device))
    result = _stack_padded(nodes, keys, padded, dims[0] if dims else pad_dim, in_batch, padding_side)
    if return_mask is not False:
        _store_masks(result, keys, masks, dims, in_batch, "masks" if return_mask is True else return_mask)
    if out is None:
        return result
    check_out("pad_sequence", out)
    return out.update(result, inplace=True)


def _columns(nodes: list[Any], keys: list[Any]) -> list[list[Tensor]]:
    """Return the leaves of all nodes under each key."""
    tables = [dict(zip(node._leaf_keys(), node._leaves(), strict=True)) for node in nodes]
    for table in tables:
        if len(table) != len(keys):
            mine, theirs = set(keys), set(table)
            raise errors.keys_mismatch(map(unravel_key, mine - theirs), map(unravel_key, theirs - mine))
        for key in keys:
            if key not in table:
                raise errors.missing_key(unravel_key(key), [unravel_key(k) for k in table])
    return [[table[key] for table in tables] for key in keys]


def _stack_padded(
    nodes: list[Any], keys: list[Any], padded: list[list[Tensor]], dim: int, in_batch: bool, side: str
) -> Any:
    """Return the tensordicts with their padded leaves, stacked."""
    longest = max(node._meta.batch_size[dim] for node in nodes) if in_batch else 0
    rows = []
    for i, node in enumerate(nodes):
        by_key = dict(zip(node._leaf_keys(), node._leaves(), strict=True))
        by_key.update({key: column[i] for key, column in zip(keys, padded, strict=True)})
        leaves = iter([by_key[key] for key in node._leaf_keys()])
        if not in_batch:
            rows.append(node._rebuild(leaves, UNLOCKED))
            continue
        ends = _ends(node._meta.batch_size[dim], longest, side)
        size = How(
            size=lambda own: torch.Size([longest if d == dim else n for d, n in enumerate(own)]), names=lambda own: own
        )
        row = node._rebuild(leaves, size)
        if any(ends):
            pad_values(row, node, [(0, 0)] * dim + [ends])
        rows.append(row)
    return stack(rows, 0)


def _store_masks(
    result: Any, keys: list[Any], masks: list[Tensor], dims: list[int], in_batch: bool, where: Any
) -> None:
    size = result._meta.batch_size
    tree = result._new({}, result._meta)
    for key, mask, dim in zip(keys, masks, dims, strict=True):
        if in_batch:
            shaped = mask.reshape(len(mask), *(1,) * dim, -1, *(1,) * (len(size) - dim - 2)).expand(size)
        else:
            shaped = mask.reshape(len(mask), *(1,) * (len(size) - 1), -1).expand(*size, mask.shape[1])
        tree.set(key, shaped.contiguous())
    result.set(where, tree)


def _run(mask: Tensor, key: Any) -> list[tuple[int, int]]:
    """Return the start and the number of the marked positions of each row of a mask ``[rows, length]``."""
    runs = []
    for row, marks in enumerate(mask.tolist()):
        count = sum(marks)
        start = marks.index(True) if count else 0
        if not all(marks[start : start + count]):
            raise ValueError(
                f"the mask of key {unravel_key(key)!r} marks positions of row {row} that are not contiguous; give "
                "masks as pad_sequence makes them"
            )
        runs.append((start, count))
    return runs


def unpad_sequence(padded: Any, mask: Any = None, *, pad_dim: int = 0) -> Any:
    """Reverse `pad_sequence`: return a lazy stack of views without padding. The lengths are read on the host.

    Args:
        padded: The batch, with a row for each tensordict.
        mask: The mask of the data: a tensordict of masks, or one bool tensor ``[len(padded), length]`` for all entries;
            by default the entry ``"masks"``, which is removed.
        pad_dim: The dimension that was padded, of each row's entries.

    Raises:
        ValueError: There is no mask, its shape does not match, or the positions that it marks in a row are not
            contiguous.
        KeyError: An entry has no mask.

    >>> tds = [TensorDict({"a": torch.ones(n)}, [n]) for n in (1, 2)]
    >>> [td.batch_size[0] for td in unpad_sequence(pad_sequence(tds, return_mask=True)).unbind(0)]
    [1, 2]
    """
    size = padded._meta.batch_size
    if not size:
        raise ValueError(
            "unpad_sequence needs the rows along a batch dimension, and the batch size is []; set it first"
        )
    if pad_dim < 0:
        raise ValueError(f"pad_dim counts from the front of each row's entries, got {pad_dim}; give a number from 0 on")
    if mask is None:
        mask = padded._get("masks")
        if mask is None:
            raise ValueError(
                "unpad_sequence needs a mask: pass mask=..., or pad with pad_sequence(..., return_mask=True)"
            )
        padded = padded.exclude("masks")
    padded = padded._solid()
    in_batch = pad_dim < len(size) - 1
    runs = [
        _run(_row_mask(mask, key, leaf, pad_dim, in_batch, len(size)), key)
        for key, leaf in zip(padded._leaf_keys(), padded._leaves(), strict=True)
    ]
    rows = []
    for i, row in enumerate(padded.unbind(0)):
        own = [run[i] for run in runs]
        if in_batch and len(set(own)) > 1:
            raise ValueError(
                f"pad_dim {pad_dim} is a batch dimension, but the masks of row {i} differ between entries: {own}; "
                "give masks that agree"
            )
        if in_batch:
            start, length = own[0] if own else (0, size[pad_dim + 1])
            rows.append(row[(slice(None),) * pad_dim + (slice(start, start + length),)])
        else:
            leaves = [leaf.narrow(pad_dim, *run) for leaf, run in zip(row._leaves(), own, strict=True)]
            rows.append(row._rebuild(iter(leaves), UNLOCKED))
    return lazy_stack(rows, 0)


def _row_mask(mask: Any, key: Any, leaf: Tensor, pad_dim: int, in_batch: bool, batch_dims: int) -> Tensor:
    """Return the mask of one entry as ``[rows, length]``."""
    if leaf.ndim < pad_dim + 2:
        raise ValueError(
            f"key {unravel_key(key)!r} of shape {list(leaf.shape)} has no dimension {pad_dim} in its rows; give a "
            "smaller pad_dim"
        )
    wanted = [leaf.shape[0], leaf.shape[pad_dim + 1]]
    if isinstance(mask, Node):
        own: Any = mask.get(key, None)
        if own is None:
            raise errors.missing_key(unravel_key(key), [unravel_key(k) for k in mask._leaf_keys()], "the masks")
        at = pad_dim + 1 if in_batch else batch_dims
        flat: Tensor = own.movedim(at, 1).flatten(2).any(-1) if own.ndim > 2 else own
    else:
        flat = mask
    if list(flat.shape) != wanted:
        raise ValueError(
            f"the mask for key {unravel_key(key)!r} has shape {list(flat.shape)}, and unpad_sequence needs "
            f"[len(padded), length]; give one of shape {wanted}"
        )
    return flat
