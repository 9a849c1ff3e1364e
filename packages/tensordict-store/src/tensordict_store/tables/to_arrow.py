"""Tensordicts to Arrow tables: tensors whose memory has the layout of Arrow are viewed, others copied."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tensordict_core import LazyStackedTensorDict, UnbatchedTensor, is_non_tensor
from tensordict_store.extras import require


def to_arrow(td: Any) -> Any:
    """Return a ``pyarrow.Table`` with a column for each entry of a tensordict, the inverse of `from_arrow`.

    Tensors of one dimension become columns of numbers, which view their memory; tensors of more dimensions columns of
    ``arrow.fixed_shape_tensor``; jagged nested tensors columns of lists; nested tensordicts structs.

    Args:
        td: A tensordict or tensorclass with one batch dimension. Entries of a lazy stack whose shapes differ become
            lists.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: The number of batch dimensions is not one, or a tensor has no elements in a row.
        TypeError: Arrow has no type for an entry; the error names its key.

    >>> to_arrow(TensorDict({"x": torch.zeros(2, 3), "n": {"y": torch.arange(2)}}, [2])).schema.names
    ['x', 'n']
    """
    pa = require("arrow", "to_arrow")
    if len(td.batch_size) != 1:
        raise ValueError(
            f"the batch size is {list(td.batch_size)}, and a table has one dimension of rows; reshape the tensordict, "
            "for example with td.reshape(-1)"
        )
    columns = _columns(pa, td, td.batch_size[0], ())
    return pa.table(columns) if columns else pa.table({})


def _columns(pa: Any, td: Any, rows: int, path: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(td, LazyStackedTensorDict):
        td = td.densify(layout=torch.jagged)
    out = {}
    for key, value in td.items():
        try:
            out[key] = _column(pa, value, rows, (*path, key))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise TypeError(f"key {(*path, key)} has values that Arrow cannot hold ({error}); convert them") from error
    return out


def _column(pa: Any, value: Any, rows: int, path: tuple[str, ...]) -> Any:
    if isinstance(value, UnbatchedTensor):
        raise TypeError(f"key {path} is an UnbatchedTensor, which has no rows; leave it out with exclude()")
    if isinstance(value, Tensor):
        return _jagged(pa, value, path) if value.is_nested else _tensor(pa, value.detach().cpu(), path)
    if is_non_tensor(value):
        return pa.array(value.maybe_to_stack().tolist())
    columns = _columns(pa, value, rows, path)
    if not columns:
        return pa.array([{}] * rows, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _tensor(pa: Any, value: Tensor, path: tuple[str, ...]) -> Any:
    try:
        numbers = value.resolve_conj().resolve_neg().contiguous().numpy()
    except (TypeError, RuntimeError):
        numbers = None
    if numbers is None or value.is_complex():
        raise TypeError(f"key {path} has the dtype {value.dtype}, which Arrow does not have; cast it first")
    flat = pa.array(numbers.reshape(-1))
    if value.ndim == 1:
        return flat
    shape = tuple(value.shape[1:])
    size = math.prod(shape)
    if not size:
        raise ValueError(f"key {path} has the shape {list(value.shape)}, without elements in a row; leave it out")
    rows = pa.FixedSizeListArray.from_arrays(flat, size)
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, shape), rows)


def _jagged(pa: Any, value: Tensor, path: tuple[str, ...]) -> Any:
    jagged: Any = value.detach().cpu()  # whose methods have no annotations
    if value.layout is not torch.jagged or value.ndim != 2:
        raise ValueError(
            f"key {path} is a nested tensor of {value.ndim} dimensions, and a column of lists takes jagged ones of 2; "
            "pad it, or store its dimensions apart"
        )
    if jagged.lengths() is not None:  # with holes between the rows
        parts = [part.contiguous() for part in jagged.unbind()]
        jagged = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    offsets = pa.array(jagged.offsets().to(torch.int64).numpy())
    return pa.LargeListArray.from_arrays(offsets, _tensor(pa, jagged.values(), path))
