"""Shape operations on batch dimensions: ``reshape``, ``permute``, ``expand``, ``flatten``, ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.meta import as_batch_size
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.options import current as options
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import (
    Expand,
    Permute,
    Reshape,
    ShapeOp,
    Squeeze,
    Unsqueeze,
    infer_size,
    normal_dim,
)
from tensordict_core.ops.factories.operands import with_leaves_as


def as_ints(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return sizes or dims that were given one by one or as one sequence."""
    if len(args) == 1 and isinstance(args[0], list | tuple | torch.Size):
        return tuple(args[0])
    return args


def _either(name: str, args: tuple[Any, ...], keyword: str, value: Any) -> Any:
    """Return an argument that is given by position or by name.

    Raises:
        TypeError: It is given twice, or several are given by position.
    """
    if not args:
        return value
    if value is not None or len(args) > 1:
        raise TypeError(f"{name} takes one {keyword}, got {args} and {keyword}={value}; give it once")
    return args[0]


def sizes_of(name: str, args: tuple[Any, ...], keyword: str, value: Any) -> tuple[Any, ...]:
    """Return sizes or dims that are given one by one, as one sequence, or by name.

    Raises:
        TypeError: They are given by position and by name.
    """
    if value is None:
        return as_ints(args)
    if args:
        raise TypeError(f"{name} got {args} and {keyword}={value}; give the {keyword} once")
    return (value,) if isinstance(value, int) else tuple(value)


class Shape(Node):
    """Reshaping, reordering and expanding the batch dimensions."""

    __slots__ = ()

    def _rearranged(self, op: ShapeOp) -> Self:
        """Return the result of an invertible operation, which writes back at the end of a ``with`` block."""
        if options.lazy_legacy and not (isinstance(op, Reshape) and op.copies):
            view: Self | None = containers.reshaped._of(self, op)
            if view is not None:
                return view
        result = self._reshape(op)
        op.remember(self)
        result._set_exit(op)
        return result

    def _unchanged(self) -> Self:
        """Return this tensordict, as the result of an operation that changes nothing."""
        self._set_exit(None)
        return self

    def view(self, *shape: Any, size: Sequence[int] | None = None, batch_size: Sequence[int] | None = None) -> Self:
        """Return a view of the data with another batch size, or with another dtype.

        Args:
            *shape: The new batch size, in which one size may be ``-1`` and is inferred; or the dtype of the view.
            size: The new batch size, by name.
            batch_size: With a dtype, the batch size of the result; otherwise the new batch size, which may be given
                beside the same shape.

        Raises:
            RuntimeError: The sizes do not fit, or a leaf's strides do not allow a view.

        >>> TensorDict({"a": torch.zeros(4, 3)}, [4]).view(2, -1)["a"].shape
        torch.Size([2, 2, 3])
        """
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            dtype = shape[0]
            viewed: Self = self.apply(lambda leaf: leaf.view(dtype), batch_size=batch_size)
            return viewed
        if batch_size is None or (not shape and size is None):
            given = size if batch_size is None else batch_size
            return self._regroup(sizes_of("view", shape, "size", given), "view", False)
        view = self.view(*shape, size=size)
        if view.batch_size != as_batch_size(batch_size):
            raise TypeError(f"view got the shape {list(view.batch_size)} and batch_size={batch_size}; give one of them")
        return view

    def reshape(self, *shape: Any, size: Sequence[int] | None = None, inplace: bool = False) -> Self:
        """Return the data with another batch size; leaves that cannot be viewed are copied.

        Args:
            *shape: The new batch size; ``-1`` infers one dimension.
            size: The same as one argument.
            inplace: Whether this tensordict takes the result.

        Raises:
            RuntimeError: The sizes do not fit.

        >>> TensorDict({"a": torch.zeros(4, 3)}, [4]).reshape(2, 2).batch_size
        torch.Size([2, 2])
        """
        result = self._regroup(sizes_of("reshape", shape, "size", size), "reshape", True)
        return self._in_place(result, inplace)

    def _regroup(self, shape: tuple[Any, ...], what: str, copies: bool) -> Self:
        old = self._meta.batch_size
        new = infer_size(shape, old.numel(), what)
        if new == old:
            return self._unchanged()
        return self._rearranged(Reshape(old, new, copies))

    def unsqueeze(self, *args: int, dim: int | None = None) -> Self:
        """Add a batch dimension of size 1 at ``dim``.

        Raises:
            IndexError: ``dim`` is outside the range that the batch dimensions allow.

        >>> TensorDict({"a": torch.zeros(4, 3)}, [4]).unsqueeze(-1)["a"].shape
        torch.Size([4, 1, 3])
        """
        at = _either("unsqueeze", args, "dim", dim)
        size = self._meta.batch_size
        rule = "unsqueezing is allowed for dims comprised between `-td.batch_dims - 1` and `td.batch_dims`"
        return self._rearranged(Unsqueeze(size, normal_dim(at, size, extra=1, rule=rule)))

    def squeeze(self, *args: Any, dim: int | Sequence[int] | None = None) -> Self:
        """Remove batch dimensions of size 1: the dimension ``dim`` or several; by default all of them.

        Dimensions of other sizes stay.

        Raises:
            IndexError: There is no such dimension.

        >>> TensorDict({"a": torch.zeros(1, 4)}, [1, 4]).squeeze().batch_size
        torch.Size([4])
        """
        at = _either("squeeze", args, "dim", dim)
        size = self._meta.batch_size
        if at is None:
            dims = tuple([i for i, n in enumerate(size) if n == 1])
        else:
            found = [normal_dim(d, size) for d in ((at,) if not isinstance(at, list | tuple) else at)]
            dims = tuple(sorted(d for d in found if size[d] == 1))
        return self._rearranged(Squeeze(size, dims)) if dims else self._unchanged()

    def permute(self, *args: Any, dims: Sequence[int] | None = None) -> Self:
        """Return the batch dimensions in another order.

        Dimensions after those that are named stay in their places.

        Raises:
            ValueError: The order does not name the first batch dimensions once each.

        >>> TensorDict({"a": torch.zeros(3, 4, 5)}, [3, 4]).permute(1, 0)["a"].shape
        torch.Size([4, 3, 5])
        """
        order = sizes_of("permute", args, "dims", dims)
        size = self._meta.batch_size
        try:
            normal = tuple(normal_dim(d, size) for d in order)
        except IndexError:
            normal = ()
        if len(normal) != len(order) or sorted(normal) != list(range(len(normal))):
            raise ValueError(
                f"Cannot compute the permutation, got dims={list(order)} but expected a permutation of "
                f"{list(range(len(size)))}: Received an permutation order incompatible with the tensordict shape; name "
                "each batch dimension once, and no dimension of the entries"
            )
        normal += tuple(range(len(normal), len(size)))
        if normal == tuple(range(len(size))) and self._lazy_stack is None:
            return self._unchanged()
        return self._rearranged(Permute(size, normal))

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Swap two batch dimensions.

        >>> TensorDict({"a": torch.zeros(3, 4, 5)}, [3, 4]).transpose(0, 1).batch_size
        torch.Size([4, 3])
        """
        size = self._meta.batch_size
        order = list(range(len(size)))
        rule = "dim0 and dim1 must be within the range of the number of dimensions"
        a, b = normal_dim(dim0, size, rule=rule), normal_dim(dim1, size, rule=rule)
        if a == b:
            return self._unchanged()
        order[a], order[b] = order[b], order[a]
        return self.permute(order)

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Swap two batch dimensions, as ``transpose``.

        >>> TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3]).swapaxes(0, 1)["a"].shape
        torch.Size([3, 2, 4])
        """
        return self.transpose(axis0, axis1)

    def swapdims(self, axis0: int, axis1: int) -> Self:
        """Swap two batch dimensions, as ``transpose``.

        >>> TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3]).swapdims(0, 1)["a"].shape
        torch.Size([3, 2, 4])
        """
        return self.transpose(axis0, axis1)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move batch dimensions from ``source`` to ``destination``; the others keep their order.

        Raises:
            ValueError: A dimension is named twice, or the numbers of sources and destinations differ.

        >>> TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3, 4]).movedim(0, -1).batch_size
        torch.Size([3, 4, 2])
        """
        size = self._meta.batch_size
        sources = [source] if isinstance(source, int) else list(source)
        targets = [destination] if isinstance(destination, int) else list(destination)
        if len(sources) != len(targets):
            raise errors.SizeError(
                f"movedim got {len(targets)} destinations for {len(sources)} sources; give one for each"
            )
        placed = {normal_dim(t, size): normal_dim(s, size) for s, t in zip(sources, targets, strict=True)}
        if not len(sources) == len(placed) == len(set(placed.values())):
            raise errors.SizeError(
                f"movedim moves each dimension once, got {sources} to {targets}; name each source and each destination "
                "once"
            )
        rest = iter(d for d in range(len(size)) if d not in placed.values())
        order = [placed[i] if i in placed else next(rest) for i in range(len(size))]
        return self._unchanged() if order == list(range(len(size))) else self.permute(order)

    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move batch dimensions, as ``movedim``.

        >>> TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3]).moveaxis(0, 1)["a"].shape
        torch.Size([3, 2, 4])
        """
        return self.movedim(source, destination)

    def expand(self, *args: Any, size: Sequence[int] | None = None) -> Self:
        """Broadcast the batch dimensions to a shape without a copy; ``-1`` keeps a size.

        Raises:
            RuntimeError: A size other than 1 would change.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).expand(2, 3)["a"].shape
        torch.Size([2, 3])
        """
        return self._expand_batch(sizes_of("expand", args, "size", size))

    def _expand_batch(self, sizes: Sequence[int], one_value: bool = False) -> Self:
        old = self._meta.batch_size
        target = list(sizes)
        extra = len(target) - len(old)
        if extra < 0:
            raise RuntimeError(
                f"expand: the number of sizes provided ({len(target)}) must be greater or equal to the number of "
                f"dimensions in the batch size {list(old)}; pass at least as many"
            )
        for i, n in enumerate(old):
            wanted = target[extra + i]
            if type(wanted) is int and wanted == -1:  # a symbolic size of a traced program is not compared
                target[extra + i] = n
            elif n not in (1, wanted):
                raise RuntimeError(
                    f"Incompatible expanded shape: {target} is not {list(old)} at a non-singleton dimension, and only "
                    "sizes of 1 can be expanded; use repeat to copy rows"
                )
        known = (None,) * extra + tuple(old)  # -1 is a size of the batch where elements of a lazy stack differ
        if any(type(n) is int and n < 0 and n != size for n, size in zip(target, known, strict=True)):
            raise RuntimeError(
                f"expand: the shape {target} has a negative size; only -1 keeps an existing size, pass a number"
            )
        return self._reshape(Expand(old, torch.Size(target), one_value or not extra))

    def expand_as(self, other: Any) -> Self:
        """Expand to the shape of a tensor, or to the batch size and the leaf shapes of a tensordict.

        Args:
            other: The tensor or the tensordict; entries that this tensordict lacks are ignored.

        Raises:
            KeyError: ``other`` lacks a leaf.
            RuntimeError: A size other than 1 would change.

        >>> td, other = TensorDict({"a": torch.zeros(3, 1)}, [3]), TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3])
        >>> td.expand_as(other)["a"].shape
        torch.Size([2, 3, 4])
        """
        if not isinstance(other, Node):
            return self.expand(other.shape)
        expanded: Self = with_leaves_as(self._expand_batch(other.shape, one_value=True), other)
        return expanded

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Broadcast the batch dimensions to a shape, as ``expand``.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).broadcast_to([2, 3]).batch_size
        torch.Size([2, 3])
        """
        if isinstance(shape, Tensor) and shape.ndim != 1:
            raise TypeError(f"broadcast_to takes a shape as a sequence of integers, got {shape!r}; pass shape.tolist()")
        size = tuple(shape)
        for item in size:
            if not hasattr(item, "__index__"):
                kind = type(item).__name__
                raise TypeError(f"broadcast_to takes a sequence of integers, got {item!r} ({kind}); pass a torch.Size")
        return self._expand_batch(size, one_value=True)

    def flatten(self, start_dim: int = 0, end_dim: int = -1, *, inplace: bool = False) -> Self:
        """Return the batch dimensions from ``start_dim`` to ``end_dim`` (included) as one.

        Args:
            start_dim: The first dimension.
            end_dim: The last dimension.
            inplace: Whether the result replaces the entries of this tensordict.

        >>> TensorDict({"a": torch.zeros(2, 3, 4)}, [2, 3]).flatten(0, 1)["a"].shape
        torch.Size([6, 4])
        """
        size = self._meta.batch_size
        if not size:
            for dim in (start_dim, end_dim):
                normal_dim(dim, torch.Size([1]))
            return self._in_place(self.unsqueeze(0), inplace)
        start, end = normal_dim(start_dim, size), normal_dim(end_dim, size)
        if end < start:
            raise ValueError(
                f"The end dimension must be greater or equal to the start dim, got {start_dim} to {end_dim}; exchange "
                "them"
            )
        if start == end and (inplace or self._lazy_stack is not None):
            return self if inplace else self._unchanged()
        new = torch.Size((*size[:start], size[start : end + 1].numel(), *size[end + 1 :]))
        return self._in_place(self._rearranged(Reshape(size, new, True)), inplace)

    def unflatten(self, dim: int, unflattened_size: Sequence[int], *, inplace: bool = False) -> Self:
        """Return the batch dimension ``dim`` split into several.

        Args:
            dim: The dimension.
            unflattened_size: The sizes of the new dimensions; one may be ``-1`` and is inferred.
            inplace: Whether the result replaces the entries of this tensordict.

        >>> TensorDict({"a": torch.zeros(6, 4)}, [6]).unflatten(0, (2, 3)).batch_size
        torch.Size([2, 3])
        """
        size = self._meta.batch_size
        at = normal_dim(dim, size)
        what = f"unflatten: Provided sizes {unflattened_size} don't multiply up to the size of dim {dim} ({size[at]})"
        inner = infer_size(tuple(unflattened_size), size[at], what)
        return self._in_place(self.reshape(*size[:at], *inner, *size[at + 1 :]), inplace)

    def atleast_1d(self) -> Self:
        """Return the tensordict with at least one batch dimension, added in front.

        >>> TensorDict({"a": torch.zeros(3)}, []).atleast_1d()["a"].shape
        torch.Size([1, 3])
        """
        return self if self._meta.batch_size else self.unsqueeze(0)

    def atleast_2d(self) -> Self:
        """Return the tensordict with at least two batch dimensions, added as `torch.atleast_2d` does.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).atleast_2d().batch_size
        torch.Size([1, 3])
        """
        td = self.atleast_1d()
        return td if len(td._meta.batch_size) > 1 else td.unsqueeze(0)

    def atleast_3d(self) -> Self:
        """Return the tensordict with at least three batch dimensions, added as `torch.atleast_3d` does.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).atleast_3d().batch_size
        torch.Size([1, 3, 1])
        """
        td = self.atleast_2d()
        return td if len(td._meta.batch_size) > 2 else td.unsqueeze(-1)

    def _in_place(self, result: Self, inplace: bool) -> Self:
        """Return the result; with ``inplace``, replace the entries of this tensordict by its entries."""
        if not inplace or result is self:  # an unchanged tensordict may be locked
            return result
        if self._locked:
            raise errors.locked("the operation replaces entries")
        if (stack := self._lazy_stack) is not None:
            at = stack.stack_dim
            if at >= len(result._meta.batch_size):
                raise RuntimeError(
                    f"the result of batch size {list(result._meta.batch_size)} has no dimension {at}, the stack "
                    "dimension of this lazy stack; leave out inplace=True"
                )
            parts = result._inmost().unbind(at)
            # rows of elements with other keys stay apart, in parts that are lazy stacks themselves
            mixed = any(part._is_lazy_stack and part._inmost()._is_ragged() for part in parts)
            if len(parts) == len(stack.tensordicts) and not mixed:
                for element, part in zip(stack.tensordicts, parts, strict=True):
                    kept = set(part._keys())
                    for key in [key for key in element._keys() if key not in kept]:
                        element._del(key)  # moved to another element
                    element._in_place(part, True)
            else:
                stack.tensordicts[:] = parts
            self._set_meta(result._meta)
            return self
        for key in list(result._keys()):
            new, old = result._get(key), self._peek(key)
            if has_entries(new) and has_entries(old):
                old._in_place(new, True)  # who holds the nested tensordict sees the change
            elif isinstance(new, Node) and isinstance(old, Node) and new._holds_values and old._holds_values:
                old._in_place(new, True)
            else:
                self._set(key, new)
        self._set_meta(result._meta)
        return self
