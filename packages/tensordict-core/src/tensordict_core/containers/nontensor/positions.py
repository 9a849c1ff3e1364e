"""Grids: values that are no tensors, in a flat list with a batch size, and where each of them goes.

A shape operation is a list of positions: the result's values in order, by their place in the source. What programs are
traced with (integers, slices, stacks, permutations) is counted out in plain Python; the rest asks PyTorch to move the
numbers of the positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tensordict_core.base.index import Index
    from tensordict_core.base.shape_op import ShapeOp

__all__ = ["broadcast", "moved", "nested", "places", "reshaped", "selected"]


def places(size: Sequence[int], choices: Sequence[Sequence[int]], order: Sequence[int] | None = None) -> list[int]:
    """The positions of the chosen coordinates, dimension by dimension, the dimensions taken in ``order``.

    >>> places([2, 3], [[1], [0, 2]])
    [3, 5]
    """
    strides = [1] * len(size)
    for i in range(len(size) - 2, -1, -1):
        strides[i] = strides[i + 1] * size[i + 1]
    dims = range(len(size)) if order is None else order
    steps = [[place * strides[d] for place in choices[d]] for d in dims]
    return [sum(parts) for parts in itertools.product(*steps)]


def selected(size: Sequence[int], index: Index) -> list[int]:
    """The positions that an index of the leading dimensions selects.

    >>> from tensordict_core.extension import Index
    >>> selected([2, 3], Index((slice(None), -1), torch.Size([2, 3])))
    [2, 5]
    """
    if any(isinstance(part, Tensor | bool) for part in index.parts):
        return moved(size, lambda numbers: numbers[index.idx])
    choices: list[Sequence[int]] = []
    for part in index.parts:
        if part is None:
            continue
        n = size[len(choices)]
        choices.append(range(n)[part] if isinstance(part, slice) else [range(n)[int(part)]])
    return places(size, [*choices, *(range(n) for n in size[len(choices) :])])


def moved(size: Sequence[int], move: Callable[[Tensor], Tensor]) -> list[int]:
    """The positions in the order that an operation on tensors of this size puts them in.

    >>> moved([2, 2], lambda numbers: numbers.flip(0))
    [2, 3, 0, 1]
    """
    n = torch.Size(size).numel()
    result: list[int] = move(torch.arange(n).reshape(tuple(size))).reshape(-1).tolist()
    return result


def reshaped(size: Sequence[int], op: ShapeOp) -> list[int] | None:
    """The positions after a shape operation; ``None`` where they stay in order."""
    dims = getattr(op, "dims", None)
    kind = type(op).__name__
    if kind in ("Reshape", "Unsqueeze", "Squeeze"):
        return None
    if kind == "Permute" and dims is not None:
        return places(size, [range(n) for n in size], [*dims, *range(len(dims), len(size))])
    return moved(size, op.leaf)


def broadcast(values: list[Any], size: Sequence[int], target: Sequence[int]) -> list[Any]:
    """The values of a grid, repeated to a larger size by PyTorch's rules.

    >>> broadcast(["a", "b"], [2, 1], [2, 2])
    ['a', 'a', 'b', 'b']
    """
    if tuple(size) == tuple(target):
        return values
    return [values[i] for i in moved(size, lambda numbers: numbers.expand(tuple(target)))]


def nested(values: list[Any], size: Sequence[int]) -> Any:
    """The values as nested lists; the one value where there is no dimension.

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
