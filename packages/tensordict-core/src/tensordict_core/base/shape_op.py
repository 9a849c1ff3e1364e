"""Shape operations: objects that apply ``view``, ``permute``, ``unsqueeze`` etc. to leaves, batch sizes and names.

One object is created per call, for the root, and applied to every node, because the batch size of a nested node starts
with the root's. ``through_stack`` converts an operation to one on the elements of a lazy stack, so a lazy stack is
reshaped without stacking its elements.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.meta import Meta, Names, names_or_none
from tensordict_core.base.node import Node
from tensordict_core.base.write_back import WriteBack


def normal_dim(dim: int, batch_size: torch.Size, extra: int = 0, rule: str = "") -> int:
    """Return a dimension as a non-negative number; ``rule`` is the start of the error message.

    Raises:
        IndexError: It is outside the batch dimensions.
        TypeError: It is not an integer.
    """
    if type(dim) is not int and not isinstance(dim, numbers.Integral | torch.SymInt):
        raise errors.not_a_dim(dim)
    dims = len(batch_size) + extra
    found = dim + dims if dim < 0 else dim
    if not 0 <= found < dims:
        raise errors.bad_dim(dim, batch_size, extra, rule)
    return found


class ShapeOp(WriteBack):
    """An operation on the batch dimensions of a root.

    Attributes:
        old: The root's batch size.
        new: The batch size of the result.
        lock: Whether the result of a locked tensordict is locked (true for views).
    """

    __slots__ = ("_last", "lock", "new", "old")

    def __init__(self, old: torch.Size, new: torch.Size, lock: bool = True) -> None:
        self.old = old
        self.new = new
        self.lock = lock
        self._last: tuple[Meta, Meta] | None = None

    def leaf(self, tensor: Tensor) -> Tensor:
        """Apply the operation to a leaf, whose shape starts with ``old``."""
        raise TypeError(f"{type(self).__name__} has no operation on leaves; define leaf()")

    def entries(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the operation to all entries of a node."""
        leaf = self.leaf
        return {
            key: leaf(value) if type(value) is Tensor or not isinstance(value, Node) else value._reshape(self)
            for key, value in entries.items()
        }

    def root_names(self, names: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """Return the names of the new batch dimensions from those of the old ones; none by default."""
        return (None,) * len(self.new)

    def through_stack(self, stack_dim: int) -> tuple[ShapeOp, int] | None:
        """Return the operation on the elements of a lazy stack, and the new stack dimension, or ``None``."""
        return None

    def resized(self, old: torch.Size) -> ShapeOp:
        """Return the same operation for another root with as many batch dimensions.

        Raises:
            RuntimeError: The operation depends on the sizes.
        """
        raise RuntimeError(
            "the elements of the lazy stack have different batch sizes, so it cannot be reshaped or expanded; "
            "give the elements one batch size"
        )

    def inverse(self) -> ShapeOp:
        """Return the operation that restores the shape of an entry of the source."""
        return Reshape(self.new, self.old, True)

    def back(self, value: Any, old: Any) -> Any:
        """Return an entry of the result in the shape that it has in the source."""
        inverse, node = self.inverse(), isinstance(value, Node)
        size = value._meta.batch_size if node else value.shape
        if size[: len(self.new)] != self.new:
            raise errors.not_of_the_block(size, self.new, self.old)
        return value._reshape(inverse) if node else inverse.leaf(value)

    def inside(self, source: Any, result: Any) -> ShapeOp | None:
        """Return the operation for the elements of two lazy stacks."""
        op, dim = self.through_stack(source.stack_dim) or (None, None)
        alike = all(one._meta.batch_size == source.tensordicts[0]._meta.batch_size for one in source.tensordicts)
        return op if alike and dim == result.stack_dim else None

    def names(self, names: Names) -> Names:
        """Return the names of a node of the result."""
        if names is None:
            return None
        dims = len(self.old)
        out = self.root_names(names[:dims]) + names[dims:]
        return names_or_none(out)

    def meta(self, meta: Meta) -> Meta:
        """Return the metadata of a node of the result; nodes that share a record share the new one."""
        last = self._last  # one attribute, because threads that share an operation may each replace it
        if last is not None and last[0] is meta:
            return last[1]
        own, dims = meta.batch_size, len(self.old)
        size = self.new if len(own) == dims else self.new + own[dims:]
        made = Meta(size, meta.device, self.names(meta.names))
        self._last = (meta, made)
        return made


def _without(size: Sequence[int], dim: int) -> torch.Size:
    return torch.Size((*size[:dim], *size[dim + 1 :]))


class Unsqueeze(ShapeOp):
    """Adds a dimension of size 1."""

    __slots__ = ("dim",)

    def __init__(self, old: torch.Size, dim: int) -> None:
        new = [*old]  # slices of a torch.Size are several times as slow
        new.insert(dim, 1)
        ShapeOp.__init__(self, old, torch.Size(new))  # super() costs as much as the call
        self.dim = dim

    def leaf(self, tensor: Tensor) -> Tensor:
        """Apply the operation to a leaf."""
        return torch.unsqueeze(tensor, self.dim)

    def root_names(self, names: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """Return the names of the new batch dimensions."""
        return (*names[: self.dim], None, *names[self.dim :])

    def resized(self, old: torch.Size) -> ShapeOp:
        """Return the same operation for another root."""
        return Unsqueeze(old, self.dim)

    def through_stack(self, stack_dim: int) -> tuple[ShapeOp, int] | None:
        """Return the operation on the elements of a lazy stack, and the new stack dimension."""
        inner = _without(self.old, stack_dim)
        if self.dim <= stack_dim:
            return Unsqueeze(inner, self.dim), stack_dim + 1
        return Unsqueeze(inner, self.dim - 1), stack_dim


class Squeeze(ShapeOp):
    """Removes dimensions of size 1."""

    __slots__ = ("dims",)

    def __init__(self, old: torch.Size, dims: tuple[int, ...]) -> None:
        super().__init__(old, torch.Size(n for i, n in enumerate(old) if i not in dims))
        self.dims = dims

    def leaf(self, tensor: Tensor) -> Tensor:
        """Apply the operation to a leaf."""
        return torch.squeeze(tensor, self.dims if len(self.dims) != 1 else self.dims[0])  # parsed faster than a tuple

    def root_names(self, names: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """Return the names of the new batch dimensions."""
        return tuple(name for i, name in enumerate(names) if i not in self.dims)

    def resized(self, old: torch.Size) -> ShapeOp:
        """Return the same operation for another root."""
        return Squeeze(old, self.dims)

    def through_stack(self, stack_dim: int) -> tuple[ShapeOp, int] | None:
        """Return the operation on the elements of a lazy stack, and the new stack dimension."""
        if stack_dim in self.dims:
            return None
        inner = tuple(d - (d > stack_dim) for d in self.dims)
        return Squeeze(_without(self.old, stack_dim), inner), stack_dim - sum(d < stack_dim for d in self.dims)


class Permute(ShapeOp):
    """Reorders the batch dimensions."""

    __slots__ = ("dims",)

    def __init__(self, old: torch.Size, dims: tuple[int, ...]) -> None:
        super().__init__(old, torch.Size(old[d] for d in dims))
        self.dims = dims

    def leaf(self, tensor: Tensor) -> Tensor:
        """Apply the operation to a leaf."""
        return torch.permute(tensor, (*self.dims, *range(len(self.dims), tensor.ndim)))

    def inverse(self) -> ShapeOp:
        """Return the inverse operation."""
        return Permute(self.new, tuple(self.dims.index(dim) for dim in range(len(self.dims))))

    def root_names(self, names: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """Return the names of the new batch dimensions."""
        return tuple(names[d] for d in self.dims)

    def resized(self, old: torch.Size) -> ShapeOp:
        """Return the same operation for another root."""
        return Permute(old, self.dims)

    def through_stack(self, stack_dim: int) -> tuple[ShapeOp, int] | None:
        """Return the operation on the elements of a lazy stack, and the new stack dimension."""
        inner = tuple(d - (d > stack_dim) for d in self.dims if d != stack_dim)
        return Permute(_without(self.old, stack_dim), inner), self.dims.index(stack_dim)


class ToSize(ShapeOp):
    """An operation by a function of torch that takes a leaf and its new shape.

    It is a function and no method of a tensor, because torch parses the shape that a method takes in twice the time.
    """

    __slots__ = ("_function",)

    def __init__(self, old: torch.Size, new: torch.Size, function: Callable[[Tensor, torch.Size], Tensor]) -> None:
        ShapeOp.__init__(self, old, new)  # as in Unsqueeze
        self._function = function

    def leaf(self, tensor: Tensor) -> Tensor:
        """Apply the operation to a leaf."""
        return self._function(tensor, self.new + tensor.shape[len(self.old) :])

    def entries(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the operation to all entries of a node."""
        # entries in a row often have one shape, and computing the new shape costs as much as the view
        function, new, dims = self._function, self.new, len(self.old)
        known: torch.Size | None = None
        to = new
        out: dict[str, Any] = {}
        for key, value in entries.items():
            if type(value) is Tensor or not isinstance(value, Node):
                shape = value.shape
                if shape != known:
                    known, to = shape, new + shape[dims:]
                out[key] = function(value, to)
            else:
                out[key] = value._reshape(self)
        return out


class Expand(ToSize):
    """Broadcasts the batch dimensions to a size without a copy.

    Attributes:
        one_value: Whether a non-tensor value for all positions stays one; else new dimensions have a value for each.
    """

    __slots__ = ("one_value",)

    def __init__(self, old: torch.Size, new: torch.Size, one_value: bool = False) -> None:
        ToSize.__init__(self, old, new, torch.broadcast_to)
        self.one_value = one_value

    def root_names(self, names: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """Return the names of the new batch dimensions."""
        return (None,) * (len(self.new) - len(self.old)) + names

    def through_stack(self, stack_dim: int) -> tuple[ShapeOp, int] | None:
        """Return the operation on the elements of a lazy stack, and the new stack dimension."""
        new_dim = stack_dim + len(self.new) - len(self.old)
        if self.new[new_dim] != self.old[stack_dim]:
            return None
        return Expand(_without(self.old, stack_dim), _without(self.new, new_dim), self.one_value), new_dim


def _same(tensor: Tensor, size: torch.Size) -> Tensor:
    return tensor


def _view(tensor: Tensor, shape: torch.Size) -> Tensor:
    # there is no function in place of the method, which needs at least one size
    return tensor.view(*shape) if shape else torch.reshape(tensor, shape)


class Reshape(ToSize):
    """Reshapes the batch dimensions by ``view``, which never copies, or ``reshape``."""

    __slots__ = ("copies",)

    def __init__(self, old: torch.Size, new: torch.Size, copies: bool) -> None:
        # the result of torch.flatten of one dimension is the tensor itself
        ToSize.__init__(self, old, new, _same if old == new else torch.reshape if copies else _view)
        self.copies = copies

    def root_names(self, names: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """Return the names of the new batch dimensions."""
        # the first and last dimensions that keep their sizes keep their names
        most = min(len(self.old), len(self.new))
        front = next((i for i in range(most) if self.old[i] != self.new[i]), most)
        back = next((i for i in range(most - front) if self.old[-1 - i] != self.new[-1 - i]), most - front)
        return names[:front] + (None,) * (len(self.new) - front - back) + names[len(names) - back :]

    def through_stack(self, stack_dim: int) -> tuple[ShapeOp, int] | None:
        """Return the operation on the elements of a lazy stack, and the new stack dimension."""
        # possible if the stack dimension is neither split nor merged; the dimensions before and after it are reshaped
        size = self.old[stack_dim]
        before = self.old[:stack_dim].numel()
        seen = 1
        for new_dim, n in enumerate(self.new):
            if seen == before and n == size:
                return Reshape(_without(self.old, stack_dim), _without(self.new, new_dim), self.copies), new_dim
            seen *= n
        return None


class BatchOp(ShapeOp):
    """A shape operation defined by a function of a leaf, which may need leaves on some device.

    Args:
        stacked: Whether the result of a lazy stack is a lazy stack along the same dimension.
    """

    __slots__ = ("_names", "device", "leaf", "stacked")

    def __init__(
        self,
        old: torch.Size,
        new: torch.Size,
        function: Callable[[Tensor], Tensor],
        *,
        names: Callable[[tuple[str | None, ...]], tuple[str | None, ...]] | None = None,
        lock: bool = False,
        device: torch.device | None = None,
        stacked: bool = False,
    ) -> None:
        super().__init__(old, new, lock)
        self.stacked = stacked
        self.leaf = function  # type: ignore[assignment]  # a method that calls it would take longer for each leaf
        self.device = device
        self._names = names

    def root_names(self, names: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """Return the names of the new batch dimensions."""
        if self._names is not None:
            return self._names(names)
        return names if len(names) == len(self.new) else (None,) * len(self.new)


def infer_size(shape: tuple[Any, ...], numel: int, what: str) -> torch.Size:
    """Return a shape with its ``-1`` filled in.

    Raises:
        RuntimeError: The shape does not hold ``numel`` elements.
    """
    if len(shape) == 1 and isinstance(shape[0], list | tuple):
        shape = tuple(shape[0])
    unknown, known = 0, 1
    for n in shape:
        if type(n) is not int and not hasattr(n, "__index__"):
            raise TypeError(f"{what} takes integers as sizes, got {list(shape)}; pass an integer for each dimension")
        if n == -1:
            unknown += 1
        else:
            known *= n
    if unknown > 1:
        raise RuntimeError(f"{what} infers one dimension at most, got {list(shape)}; replace the other -1 by sizes")
    if unknown:
        if known == 0 or numel % known:
            raise RuntimeError(
                f"{what}: invalid shape {list(shape)} for a batch of {numel} elements; sizes must divide it"
            )
        filled = list(shape)
        filled[shape.index(-1)] = numel // known
        return torch.Size(filled)
    if known != numel:
        raise RuntimeError(
            f"{what}: invalid shape {list(shape)} for a batch of {numel} elements; "
            "the product of the sizes must be that"
        )
    return torch.Size(shape)
