"""`UnbatchedTensor`: an entry without batch dimensions, such as a lookup table.

It is a tensor for programs and an opaque node for containers. Its batch size is that of the tensordict that stores it,
whatever the shape of its tensor is. Operations on leaves (arithmetic, casts, ``apply``) run on the tensor; operations
on the batch of a tensordict (indexing, reshaping, stacking) change only the batch size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tensordict_core.base import errors
from tensordict_core.base.entry import as_tensor
from tensordict_core.base.index import Index
from tensordict_core.base.keys import unravel_key
from tensordict_core.base.meta import Meta, as_batch_size
from tensordict_core.base.node import Place
from tensordict_core.base.rebuild import KEEP, How, IsLeaf
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import ShapeOp
from tensordict_core.base.tracing import is_compiling, mapped_dim, transform_level
from tensordict_core.base.write_plan import WritePlan
from tensordict_core.containers.opaque import OpaqueNode


class NotNumericError(TypeError, ValueError, RuntimeError):
    """A value that is written into an unbatched tensor is not numeric."""


class UnbatchedTensor(Tensor, OpaqueNode):  # type: ignore[misc]  # names that both define are those of the tensor
    """A tensor that the shape operations of the tensordict that holds it do not change.

    It behaves like the tensor that it holds: functions of ``torch`` and methods run on that tensor, and tensors in
    their results are unbatched tensors of the same batch size.

    Tensordicts of equal unbatched tensors are stacked to one that holds that of the first. Those of different values
    have no dense stack, and `lazy_stack` keeps each.

    Args:
        data: The tensor, or numeric data to convert to one.
        batch_size: The batch size; replaced by that of a tensordict that stores the object.

    Raises:
        TypeError: ``data`` is neither a tensor nor numeric.

    >>> td = TensorDict({"a": torch.zeros(3), "table": UnbatchedTensor(torch.arange(5))}, [3])
    >>> td[0]["table"], td["table"].batch_size
    (UnbatchedTensor(tensor([0, 1, 2, 3, 4])), torch.Size([3]))
    >>> td["table"][1:3] * 2, isinstance(td["table"], torch.Tensor)
    (UnbatchedTensor(tensor([2, 4])), True)
    """

    _locked = False
    _holders = None
    _annotations = None
    _last_exit = None

    _tensor: Tensor
    """The tensor. The object itself is an alias of it, for torch code that does not check for overrides."""

    def __new__(
        cls, data: Tensor | np.ndarray[Any, Any] | Sequence[Any] | float | UnbatchedTensor, batch_size: Any = None
    ) -> Self:
        """Return an unbatched tensor that shares memory with ``data`` if that is a tensor."""
        tensor = data._tensor if isinstance(data, UnbatchedTensor) else as_tensor(data)
        if tensor is None:
            raise TypeError(
                f"UnbatchedTensor takes a tensor or numeric data, got {type(data).__name__}; use NonTensorData"
            )
        return cls._make(tensor, Meta(as_batch_size(batch_size)))

    @classmethod
    def _make(cls, tensor: Tensor, meta: Meta) -> Self:
        self: Self = _alias(tensor, cls)
        self._tensor = tensor
        self._meta = meta
        return self

    @classmethod
    def _blank(cls) -> Self:
        blank: Self = _alias(torch.empty(0), cls)
        return blank

    # a tensor --------------------------------------------------------------------------------------------------------

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a ``torch`` function on the tensors; tensors in its result are unbatched too."""
        held: list[Any] = []
        plain = [_unwrapped(arg, held) for arg in args]
        if kwargs:
            kwargs = {key: _unwrapped(arg, held) for key, arg in kwargs.items()}
        result = func(*plain, **(kwargs or {}))
        return result if func is torch.autograd.grad else _wrapped(result, held)

    @property
    def batch_size(self) -> torch.Size:
        """The batch size of the tensordict that holds the tensor; settable.

        >>> UnbatchedTensor(torch.zeros(5), batch_size=[2]).batch_size
        torch.Size([2])
        """
        return self._meta.batch_size

    @batch_size.setter
    def batch_size(self, value: Any) -> None:
        self._meta = Meta(as_batch_size(value))

    @property
    def tensor(self) -> Tensor:
        """The tensor.

        >>> UnbatchedTensor(torch.arange(2)).tensor
        tensor([0, 1])
        """
        return self._tensor

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]  # torch has no types here
        return f"{type(self).__name__}({self._tensor!r})"

    def __str__(self) -> str:
        return str(self._tensor)

    def __format__(self, spec: str) -> str:
        return format(self._tensor, spec)

    def __iter__(self) -> Iterator[Any]:
        meta = self._meta
        return iter([self._make(row, meta) for row in self._tensor])

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._make(copy.deepcopy(self._tensor, memo), self._meta)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restored, (type(self), self._tensor, self._meta, self._locked)

    __reduce__ = OpaqueNode.__reduce__
    __setstate__ = OpaqueNode.__setstate__  # of pickles of releases where this was no tensor
    __hash__ = Tensor.__hash__  # a tensor has one, and a tensordict has none

    # reads and writes ------------------------------------------------------------------------------------------------

    def _entry_value(self, holder: Any = None, key: str = "") -> Any:
        return self

    def _plan_value(
        self, holder: Any, key: str, index: Index | None, value: Any, plan: WritePlan, prefix: tuple[str, ...]
    ) -> None:
        """Add a write of a value to the plan; a write at an index takes only unbatched tensors."""
        path = (*prefix, key) if prefix else key
        if index is not None and not isinstance(value, UnbatchedTensor):
            raise errors.unbatched_at(path)
        tensor = value._tensor if isinstance(value, UnbatchedTensor) else as_tensor(value)
        if tensor is None:
            raise NotNumericError(
                f"key {unravel_key(path)!r} is an unbatched tensor, which takes a tensor or numeric data in place, got "
                f"{type(value).__name__}; use set() to replace the entry"
            )
        plan.add(path, self._tensor, tensor)

    def _replace_value(self, value: Any) -> None:
        plan = WritePlan()
        self._plan_value(None, "of the unbatched tensor", None, value, plan, ())
        plan.run()

    def _set(self, key: str, value: Any) -> None:
        raise errors.not_a_node(key, self._tensor)

    # one leaf --------------------------------------------------------------------------------------------------------

    def _collect(self, out: list[Any], is_leaf: IsLeaf | None) -> None:
        out.append(self._tensor)

    def _collect_places(self, out: list[Place], prefix: tuple[str, ...], is_leaf: IsLeaf | None) -> None:
        out.append((prefix, torch.Size(())))

    def _collect_aligned(
        self, other: Any, out: list[Any], missing: Any, is_leaf: IsLeaf | None, prefix: tuple[str, ...]
    ) -> None:
        if other is None and missing is KEEP:
            raise errors.unmatched_key(prefix, None)
        out.append(missing if other is None else other._tensor if isinstance(other, UnbatchedTensor) else other)

    def _line_up(self, operand: Tensor, dims: int, out: list[Tensor]) -> None:
        raise RuntimeError(
            f"an operand of shape {list(operand.shape)} has batch dimensions, and an unbatched tensor has none; use a "
            "number, or exclude the unbatched entries first"
        )

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        new = next(leaves)
        if new is None:
            return None
        meta = how.meta(self._meta)
        if how.check:
            if as_tensor(new) is None:
                return new  # a function of apply may return any value
            new = as_tensor(type(self)(new)._tensor, meta.device)
        if how.size is not None and meta.batch_size != self._meta.batch_size:
            return self._make(self._tensor, meta)
        return self._make(new._tensor if isinstance(new, UnbatchedTensor) else new, meta)

    # shape operations of the tensordict change only the batch size ---------------------------------------------------

    def _index(self, index: Index) -> Any:
        return self._make(self._tensor, index.meta(self._meta))

    def _index_put(self, index: Index, value: Any) -> None:
        if isinstance(value, UnbatchedTensor):
            self._replace_value(value)

    def _unwritten(self, size: torch.Size) -> Any:
        return self._make(torch.zeros_like(self._tensor), Meta(size))

    def _reshape(self, op: ShapeOp) -> Any:
        return self._make(self._tensor, op.meta(self._meta))

    def _split(self, sizes: list[int], dim: int) -> Sequence[Any]:
        size = self._meta.batch_size
        return [self._make(self._tensor, Meta(torch.Size((*size[:dim], n, *size[dim + 1 :])))) for n in sizes]

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        size = self._meta.batch_size
        meta = Meta(size[:dim] + size[dim + 1 :])
        return tuple(self._make(self._tensor, meta) for _ in range(size[dim]))

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        if not _have_one_value(items):  # the tensor has no batch dimension, so the result has one for all
            raise errors.unbatched_values_differ("stack")
        size = items[0]._meta.batch_size
        return cls._make(items[0]._tensor, Meta(torch.Size((*size[:dim], len(items), *size[dim:]))))

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        if not _have_one_value(items):
            raise errors.unbatched_values_differ("cat")
        size = list(items[0]._meta.batch_size)
        size[dim] = sum(item._meta.batch_size[dim] for item in items)
        return cls._make(items[0]._tensor, Meta(torch.Size(size)))

    @classmethod
    def _stacks(cls, items: Sequence[Any]) -> bool:
        return all(isinstance(item, UnbatchedTensor) for item in items) and _have_one_value(items)

    # life ------------------------------------------------------------------------------------------------------------

    def _clone(self, recurse: bool) -> Self:
        return self._make(self._tensor.clone() if recurse else self._tensor, self._meta)


def _alias(tensor: Tensor, cls: type[Any]) -> Any:
    """Return an alias of a tensor as an instance of a subclass; of no data where the tensor is of a subclass itself.

    A stand-in for a tensor, such as a place in a message, has no alias either.
    """
    with torch._C.DisableTorchFunctionSubclass():
        if not isinstance(tensor, Tensor):
            return torch.empty(0).as_subclass(cls)
        if is_compiling():
            return tensor.as_subclass(cls)
        try:
            return tensor.as_subclass(cls)
        except (RuntimeError, NotImplementedError):  # jagged, fake and sparse tensors have no storage to share
            with _disable_current_modes():
                return torch.empty(0).as_subclass(cls)


def _restored(cls: type[Any], tensor: Tensor, meta: Meta, locked: bool) -> Any:
    """Return the unbatched tensor of a pickle."""
    new = cls._make(tensor, meta)
    if locked:
        new._locked = True
    return new


def _unwrapped(arg: Any, held: list[Any]) -> Any:
    """Return an argument with the tensors of unbatched tensors, which are added to ``held``."""
    if isinstance(arg, UnbatchedTensor):
        held.append(arg)
        return arg._tensor
    if type(arg) in (tuple, list):
        return type(arg)([_unwrapped(one, held) for one in arg])
    return arg


def _wrapped(result: Any, held: list[Any]) -> Any:
    """Return a result whose tensors are unbatched, with the batch size of the first argument."""
    if isinstance(result, Tensor):
        for one in held:
            if result is one._tensor:  # an operation in place
                return one
        if isinstance(result, UnbatchedTensor) or _is_mapped(result, held):
            return result
        return held[0]._make(result, held[0]._meta)
    if isinstance(result, tuple) and type(result) is not torch.Size:
        parts = [_wrapped(one, held) for one in result]
        return type(result)(parts) if type(result) is tuple or not hasattr(result, "_fields") else type(result)(*parts)
    if type(result) is list:
        return [_wrapped(one, held) for one in result]
    return result


def _is_mapped(result: Tensor, held: list[Any]) -> bool:
    """Return whether ``vmap`` maps a result of unbatched tensors that it does not map: then it is no unbatched one."""
    level = transform_level()
    if level is None or mapped_dim(result, level) is None:
        return False
    return all(mapped_dim(one._tensor, level) is None for one in held)


def _have_one_value(items: Sequence[Any]) -> bool:
    """Return whether the tensors of unbatched tensors are equal, so that that of the first stands for all.

    Tensors that share their memory are not compared, because a comparison waits for an accelerator. Compiled code and
    CUDA graphs cannot branch on values: they compare shapes and dtypes, and an assertion fails where the values differ.
    """
    first = items[0]._tensor
    others = [item._tensor for item in items if item._tensor is not first]
    if any(other.shape != first.shape or other.dtype != first.dtype for other in others):
        return False
    if not others or first.is_meta:
        return True
    if is_compiling() or (first.is_cuda and torch.cuda.is_current_stream_capturing()):
        if transform_level() is None:
            for other in others:
                torch._assert_async(
                    _are_equal(first.detach(), other.detach()), str(errors.unbatched_values_differ("combine"))
                )
        return True
    if any(other.device != first.device or other.layout != first.layout for other in others):
        return False
    try:
        distinct = {(other.data_ptr(), other.stride()): other for other in others}
        distinct.pop((first.data_ptr(), first.stride()), None)
        if first.device.type == "cpu":
            return all(torch.equal(first, other) or _equal(first, other) for other in distinct.values())
        return not distinct or _equal(first, torch.stack(list(distinct.values())))  # waits for the device once
    except (RuntimeError, AttributeError):  # sparse and jagged tensors, and those that vmap maps
        return False


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors that broadcast are equal, NaN included."""
    return bool(_are_equal(a, b))


def _are_equal(a: Tensor, b: Tensor) -> Tensor:
    return (a.eq(b) | (a.ne(a) & b.ne(b))).all()


containers.unbatched = UnbatchedTensor
