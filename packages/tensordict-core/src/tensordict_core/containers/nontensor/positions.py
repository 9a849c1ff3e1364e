"""Index arithmetic for non-tensor values, which are stored in a flat list with a batch size.

An index or a shape operation is a list of flat positions: for each value of the result, its position in the source.
Integers, slices, stacks and permutations are computed in plain Python, which tracers can follow; for everything else
PyTorch moves a tensor of positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base.index import Index
from tensordict_core.base.shape_op import BatchOp, Expand, Permute, Reshape, ShapeOp, Squeeze, Unsqueeze
from tensordict_core.base.write_plan import broadcasts


def product_positions(
    size: Sequence[int], choices: Sequence[Sequence[int]], order: Sequence[int] | None = None
) -> list[int]:
    """Return the flat positions of the product of coordinates, with the dimensions in ``order``.

    >>> product_positions([2, 3], [[1], [0, 2]])
    [3, 5]
    """
    strides = [1] * len(size)
    for i in range(len(size) - 2, -1, -1):
        strides[i] = strides[i + 1] * size[i + 1]
    dims = range(len(size)) if order is None else order
    steps = [[i * strides[d] for i in choices[d]] for d in dims]
    return [sum(parts) for parts in itertools.product(*steps)]


def unbind_positions(size: Sequence[int], dim: int) -> list[list[int]]:
    """Return the flat positions of each slice along a dimension.

    >>> unbind_positions([2, 3], 1)
    [[0, 3], [1, 4], [2, 5]]
    """
    whole: list[Sequence[int]] = [range(n) for n in size]
    return [product_positions(size, [*whole[:dim], [i], *whole[dim + 1 :]]) for i in whole[dim]]


def index_positions(size: Sequence[int], index: Index) -> list[int]:
    """Return the flat positions that an index of the leading dimensions selects.

    >>> from tensordict_core.extension import Index
    >>> index_positions([2, 3], Index((slice(None), -1), torch.Size([2, 3])))
    [2, 5]
    """
    if index.has_dims:
        raise ValueError(
            "non-tensor values of several positions cannot be indexed by first-class dimensions; exclude their keys"
        )
    if any(isinstance(part, Tensor | bool) for part in index.parts):
        return moved_positions(size, lambda numbers: numbers[index.idx], index.device)
    choices: list[Sequence[int]] = []
    for part in index.parts:
        if part is None:
            continue
        n = size[len(choices)]
        choices.append(range(n)[part] if isinstance(part, slice) else [range(n)[int(part)]])
    return product_positions(size, [*choices, *(range(n) for n in size[len(choices) :])])


def moved_positions(
    size: Sequence[int], move: Callable[[Tensor], Tensor], device: torch.device | None = None
) -> list[int]:
    """Return the flat positions after an operation on a tensor of this size, on a device or on the CPU.

    >>> moved_positions([2, 2], lambda numbers: numbers.flip(0))
    [2, 3, 0, 1]
    """
    n = torch.Size(size).numel()
    result: list[int] = move(torch.arange(n, device=device or "cpu").reshape(tuple(size))).reshape(-1).tolist()
    return result


def reshape_positions(size: Sequence[int], op: ShapeOp) -> list[int] | None:
    """Return the flat positions after a shape operation; ``None`` if their order does not change."""
    if isinstance(op, Reshape | Unsqueeze | Squeeze):
        return None
    if isinstance(op, Permute):
        return product_positions(size, [range(n) for n in size], [*op.dims, *range(len(op.dims), len(size))])
    if isinstance(op, Expand):
        return _expanded_positions(size, (*op.new, *size[len(op.old) :]))
    return moved_positions(size, op.leaf, op.device if isinstance(op, BatchOp) else None)


def broadcast(values: list[Any], size: Sequence[int], target: Sequence[int]) -> list[Any]:
    """Return the values, expanded to another size by PyTorch's broadcasting rules.

    Raises:
        RuntimeError: The sizes do not broadcast.

    >>> broadcast(["a", "b"], [2, 1], [2, 2])
    ['a', 'a', 'b', 'b']
    """
    if tuple(size) == tuple(target):
        return values
    if not broadcasts(size, torch.Size(target)):
        raise RuntimeError(
            f"one value for each position of the batch size {list(size)} does not fit the batch size {list(target)}; "
            "index or expand the values first"
        )
    return [values[i] for i in _expanded_positions(size, target)]


def _expanded_positions(size: Sequence[int], target: Sequence[int]) -> list[int]:
    """Return the flat position of the value at each position of a size that this size broadcasts to."""
    added = len(target) - len(size)
    size = [1] * added + list(size[max(-added, 0) :])  # those in front of it are 1
    choices = [range(n) if n == wanted else [0] * wanted for n, wanted in zip(size, target, strict=True)]
    return product_positions(size, choices)


def nested(values: list[Any], size: Sequence[int]) -> Any:
    """Return the values as nested lists of a size; the one value if it has no dimensions.

    >>> nested([1, 2, 3, 4], [2, 2])
    [[1, 2], [3, 4]]
    """
    if not size:
        return values[0]
    for dim in range(len(size) - 1, 0, -1):
        n = size[dim]
        lists = range(0, len(values), n) if n else range(math.prod(size[:dim]))
        values = [values[i : i + n] for i in lists]
    return values


def nested_size(values: list[Any]) -> torch.Size:
    """Return the lengths of nested lists, as deep as all lists of a level have one length.

    >>> nested_size([["a", "b"], ["c", "d"]]), nested_size([["a", "b"], ["c"]])
    (torch.Size([2, 2]), torch.Size([2]))
    """
    size, level = [len(values)], values
    while level and all(isinstance(item, list) and len(item) == len(level[0]) for item in level):
        size.append(len(level[0]))
        level = [one for item in level for one in item]
    return torch.Size(size)
