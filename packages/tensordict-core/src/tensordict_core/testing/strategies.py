"""Examples for property tests: batch sizes, tensordicts of them, and indices that fit.

The strategies for hypothesis make small examples on purpose, so that a failing property fails on a small one.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.lazy import LazyStackedTensorDict
from tensordict_core.containers.nontensor.data import NonTensorData, NonTensorStack
from tensordict_core.containers.nontensor.positions import nested

_NAMES = st.sampled_from(["a", "b", "c", "d e", "_f", "é"])
_DTYPES = (torch.float32, torch.float64, torch.int64)


def batch_sizes(*, min_dims: int = 0, max_dims: int = 3, min_size: int = 0) -> st.SearchStrategy[torch.Size]:
    """Batch sizes, with empty dimensions and dimensions of size 1 among them.

    >>> batch_sizes(min_dims=1).example()  # doctest: +SKIP
    torch.Size([2, 0])
    """
    return st.lists(st.integers(min_size, 4), min_size=min_dims, max_size=max_dims).map(torch.Size)


@st.composite
def tensors(draw: Any, batch_size: torch.Size) -> Tensor:
    """Tensors whose shape starts with a batch size, numbered so that all elements differ."""
    shape = (*batch_size, *draw(st.lists(st.integers(1, 3), max_size=2)))
    dtype = draw(st.sampled_from(_DTYPES))
    start = draw(st.integers(-3, 3))
    return torch.arange(start, start + torch.Size(shape).numel()).reshape(shape).to(dtype)


@st.composite
def tensordicts(
    draw: Any, batch_size: torch.Size | None = None, *, depth: int = 2, values: bool = True, min_dims: int = 0
) -> TensorDict:
    """Dense tensordicts, nested ones and (unless ``values`` is false) non-tensor data among their entries.

    Nested tensordicts may have longer batch sizes than their parents.
    """
    size = draw(batch_sizes(min_dims=min_dims)) if batch_size is None else batch_size
    entries: dict[str, Any] = {}
    for name in draw(st.lists(_NAMES, min_size=1, max_size=3, unique=True)):
        kind = draw(st.sampled_from(["tensor", "tensor", "node", "value", "values"]))
        if kind == "node" and depth > 1:
            longer = torch.Size((*size, *draw(st.lists(st.integers(1, 2), max_size=1))))
            entries[name] = draw(tensordicts(longer, depth=depth - 1, values=values))
        elif kind == "value" and values:
            entries[name] = NonTensorData(draw(st.sampled_from(["text", 1, None, (1, "x")])), batch_size=size)
        elif kind == "values" and values and size:
            # few different ones, so that some stacks hold equal values only
            count = size.numel()
            flat = draw(st.lists(st.sampled_from(["p", "q"]), min_size=count, max_size=count))
            entries[name] = NonTensorStack.from_list(nested(flat, size), batch_size=size)
        else:
            entries[name] = draw(tensors(size))
    return TensorDict(entries, batch_size=size)


@st.composite
def lazy_stacks(draw: Any, *, min_dims: int = 1) -> LazyStackedTensorDict:
    """Lazy stacks of slices of a dense tensordict, along any dimension."""
    size = draw(batch_sizes(min_dims=max(min_dims, 1), min_size=1))
    td = draw(tensordicts(size))
    dim = draw(st.integers(0, len(size) - 1))
    return LazyStackedTensorDict(*td.unbind(dim), stack_dim=dim)


def containers(*, min_dims: int = 1) -> st.SearchStrategy[Any]:
    """Dense tensordicts and lazy stacks."""
    return st.one_of(tensordicts(min_dims=min_dims), lazy_stacks(min_dims=min_dims))


def _part(draw: Any, n: int) -> Any:
    kinds = ["slice", "full"] + (["integer", "numbers", "mask"] if n else ["mask"])
    kind = draw(st.sampled_from(kinds))
    if kind == "integer":
        return draw(st.integers(-n, n - 1))
    if kind == "slice":
        start, stop = draw(st.integers(-n - 1, n + 1)), draw(st.integers(-n - 1, n + 1))
        return slice(start, stop, draw(st.sampled_from([None, 1, 2])))
    if kind == "numbers":
        return torch.tensor(draw(st.lists(st.integers(-n, n - 1), max_size=3)), dtype=torch.long)
    if kind == "mask":
        return torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=torch.bool)
    return slice(None)


@st.composite
def indices(draw: Any, batch_size: torch.Size) -> Any:
    """Draw indices that fit a batch size: integers, slices, ``None``, bools, ``...``, numbers and masks, also together.

    At most one part is a tensor, because tensors must agree with each other.
    """
    parts: list[Any] = []
    advanced = False
    for n in batch_size[: draw(st.integers(0, len(batch_size)))]:
        part = _part(draw, n)
        while advanced and isinstance(part, Tensor):
            part = _part(draw, n)
        advanced = advanced or isinstance(part, Tensor)
        parts.append(part)
    if draw(st.booleans()):
        parts.append(...)
    if draw(st.booleans()):
        # of nothing and of tensors, only one can be asked for
        added = [None, None, True] if advanced else [None, None, True, False]
        parts.insert(draw(st.integers(0, len(parts))), draw(st.sampled_from(added)))
    if len(parts) == 1 and draw(st.booleans()):
        return parts[0]
    return tuple(parts)
