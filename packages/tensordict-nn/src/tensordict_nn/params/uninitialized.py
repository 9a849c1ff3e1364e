"""Stacked parameters of lazy modules: one parameter without shape for those of several modules that have not run.

Its `materialize` takes the shape of one of them, so a lazy module initializes the whole stack. Inside of ``torch.vmap``
a stand-in takes its place: it has the module initialize the stack, and is its row in the functions that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, UninitializedBuffer, UninitializedParameter


class _Stacked:
    """The base class of parameters and buffers without a shape."""

    _stacked_size: torch.Size
    materialize: Callable[..., None]

    def _materialize_all(self, materialize: Callable[..., None], shape: Sequence[int], *options: Any) -> None:
        size = self.__dict__.pop("_stacked_size")
        materialize(self, (*size, *shape), *options)

    def _mapped_without_shape(self, dim: int, level: int) -> Tensor:
        return _Unmapped._of(self, dim, level)


class BatchedUninitializedParameter(_Stacked, UninitializedParameter):
    """The stack of parameters without shape.

    >>> from tensordict_nn import from_modules
    >>> stack = from_modules(torch.nn.LazyLinear(3), torch.nn.LazyLinear(3))["weight"]
    >>> stack.materialize((3, 4))
    >>> stack.shape, type(stack).__name__
    (torch.Size([2, 3, 4]), 'Parameter')
    """

    def materialize(self, shape: Sequence[int], device: Any = None, dtype: Any = None) -> None:
        """Make it a parameter, in place.

        Args:
            shape: The shape of the parameter of one module.
            device: The device; by default that of the modules.
            dtype: The dtype; by default that of the modules.
        """
        self._materialize_all(UninitializedParameter.materialize, shape, device, dtype)


class BatchedUninitializedBuffer(_Stacked, UninitializedBuffer):
    """The stack of buffers without shape.

    >>> from tensordict_nn import from_modules
    >>> stack = from_modules(torch.nn.LazyBatchNorm1d(), torch.nn.LazyBatchNorm1d())["running_mean"]
    >>> stack.materialize(4)
    >>> stack.shape
    torch.Size([2, 4])
    """

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Make it a tensor, in place.

        Args:
            shape: The shape of the buffer of one module.
            device: The device; by default that of the modules.
            dtype: The dtype; by default that of the modules.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        self._materialize_all(UninitializedBuffer.materialize, shape, device, dtype)


def stack_lazy(column: Sequence[Any]) -> Tensor:
    """Stack parameters or buffers without shape.

    >>> stack_lazy([torch.nn.LazyLinear(3).weight] * 2)
    <BatchedUninitializedParameter>
    """
    first = column[0]
    made: Any
    options: dict[str, Any] = {"device": first.device, "dtype": first.dtype}
    if isinstance(first, UninitializedParameter):
        made = BatchedUninitializedParameter(requires_grad=first.requires_grad, **options)
    else:
        made = BatchedUninitializedBuffer(**options)
    made._stacked_size = torch.Size([len(column), *getattr(first, "_stacked_size", ())])
    stacked: Tensor = made
    return stacked


class _Row(Parameter):
    """A row of a stack that its module made in this call of ``vmap``.

    Functions in place, with which modules initialize their parameters, change the stack; others take the row.
    """

    _source: Any
    _at: tuple[int, int]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        fills = name.endswith("_") and not name.endswith("__")
        args, kwargs = torch.utils._pytree.tree_map_only(
            _Row, lambda row: row._source if fills else row._row(), (args, kwargs or {})
        )
        return func(*args, **kwargs)

    def _row(self) -> Tensor:
        source = self._source
        row: Tensor = torch._C._functorch._add_batch_dim(
            source._row() if isinstance(source, _Row) else source, *self._at
        )
        return row


class _Unmapped(_Stacked, UninitializedParameter):
    """Stands for a row of a stack without shape, in a function that ``vmap`` maps."""

    cls_to_become = _Row
    _source: Any
    _at: tuple[int, int]

    @classmethod
    def _of(cls, source: Any, dim: int, level: int) -> _Unmapped:
        options: dict[str, Any] = {"device": source.device, "dtype": source.dtype}
        made = cls(requires_grad=source.requires_grad, **options)
        size = source._stacked_size
        made._source, made._at, made._stacked_size = source, (dim, level), size[:dim] + size[dim + 1 :]
        return made

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Make the whole stack, and this its row."""
        self._source.materialize(shape, device, dtype)
        self.__class__ = self.cls_to_become  # type: ignore[assignment]  # as torch's parameters do


def is_mapped_without_shape(leaf: Any) -> bool:
    """Return whether a leaf is the replacement of a row of a stack without shape, in a function that ``vmap`` maps.

    >>> is_mapped_without_shape(torch.nn.LazyLinear(3).weight)
    False
    """
    return type(leaf) is _Unmapped
