"""Static types of generated methods, for type checkers.

At run time a factory returns a plain function with the right signature and docstring, which is fast to call and can be
traced. These protocols tell type checkers that the result has the type of the tensordict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.ops.factories.reduction import KeyTransform

Operand: TypeAlias = "Node | Tensor | complex | int | float | bool"
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class UnaryMethod(Protocol):
    """``td.op()``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[[Any], Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> Callable[[], T]: ...


class BinaryCall(Protocol[R_co]):
    """The call of a bound binary operation."""

    def __call__(self, other: Operand, default: Any = ...) -> R_co:
        """Return the result with another operand."""


class BinaryMethod(Protocol):
    """``td.op(other, default=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> BinaryCall[T]: ...


class ScaledCall(Protocol[R_co]):
    """The call of a bound binary operation with a factor for the operand."""

    def __call__(self, other: Operand, *, alpha: float | None = ..., default: Any = ...) -> R_co:
        """Return the result with another operand times ``alpha``."""


class ScaledMethod(Protocol):
    """``td.op(other, alpha=..., default=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> ScaledCall[T]: ...


Dims: TypeAlias = "int | Sequence[int] | Literal['feature'] | None"


class CastReductionCall(Protocol[R_co]):
    """The call of a bound reduction with a ``dtype``."""

    @overload
    def __call__(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        dtype: torch.dtype | None = ...,
        reduce: Literal[False] | None = ...,
        key_transform: KeyTransform | None = ...,
    ) -> R_co: ...
    @overload
    def __call__(
        self, dim: Dims = ..., keepdim: bool = ..., *, dtype: torch.dtype | None = ..., reduce: Literal[True]
    ) -> Tensor: ...


class CastReduction(Protocol):
    """``td.op(dim, keepdim, dtype=..., reduce=..., key_transform=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> CastReductionCall[T]: ...


class SpreadReductionCall(Protocol[R_co]):
    """The call of a bound reduction with a correction."""

    @overload
    def __call__(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        correction: float = ...,
        reduce: Literal[False] | None = ...,
        key_transform: KeyTransform | None = ...,
    ) -> R_co: ...
    @overload
    def __call__(
        self, dim: Dims = ..., keepdim: bool = ..., *, correction: float = ..., reduce: Literal[True]
    ) -> Tensor: ...


class SpreadReduction(Protocol):
    """``td.op(dim, keepdim, correction=..., reduce=..., key_transform=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> SpreadReductionCall[T]: ...


class ValueReductionCall(Protocol[R_co]):
    """The call of a bound reduction without further options."""

    @overload
    def __call__(
        self,
        dim: Dims = ...,
        keepdim: bool = ...,
        *,
        reduce: Literal[False] | None = ...,
        key_transform: KeyTransform | None = ...,
    ) -> R_co: ...
    @overload
    def __call__(self, dim: Dims = ..., keepdim: bool = ..., *, reduce: Literal[True]) -> Tensor: ...


class ValueReduction(Protocol):
    """``td.op(dim, keepdim, reduce=..., key_transform=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> ValueReductionCall[T]: ...


class CastCall(Protocol[R_co]):
    """The call of a bound cast."""

    def __call__(self, *, cast_filter: Callable[[tuple[str, ...], Any], bool] | None = ...) -> R_co:
        """Return the result of the cast."""


class ValuesAndIndices(tuple[R_co, R_co]):
    """The result of ``td.max(dim)``: a named tuple of tensordicts, as `torch.return_types.max` is one of tensors."""

    values: R_co
    indices: R_co


class IndexedReductionCall(Protocol[R_co]):
    """The call of a bound reduction that returns indices along a dimension."""

    @overload
    def __call__(self, dim: None = ..., keepdim: bool = ..., *, reduce: Literal[True]) -> Tensor: ...
    @overload
    def __call__(
        self, dim: None = ..., keepdim: bool = ..., *, reduce: Literal[False] | None = ..., return_indices: bool = ...
    ) -> R_co: ...
    @overload
    def __call__(
        self,
        dim: int | Sequence[int] | Literal["feature"],
        keepdim: bool = ...,
        *,
        reduce: Literal[False] | None = ...,
        return_indices: Literal[False],
    ) -> R_co: ...
    @overload
    def __call__(
        self, dim: int | Literal["feature"], keepdim: bool = ..., *, reduce: Literal[True]
    ) -> ValuesAndIndices[Tensor]: ...
    @overload
    def __call__(
        self, dim: int | Literal["feature"], keepdim: bool = ..., *, reduce: Literal[False] | None = ...
    ) -> ValuesAndIndices[R_co]: ...


class IndexedReduction(Protocol):
    """``td.max(dim, keepdim, reduce=..., return_indices=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> IndexedReductionCall[T]: ...


class CumulativeCall(Protocol[R_co]):
    """The call of a bound cumulative operation."""

    @overload
    def __call__(self, dim: int, *, reduce: Literal[False] | None = ..., return_indices: Literal[False]) -> R_co: ...
    @overload
    def __call__(
        self, dim: int, *, reduce: Literal[False] | None = ..., return_indices: Literal[True] = ...
    ) -> ValuesAndIndices[R_co]: ...
    @overload
    def __call__(self, dim: int, *, reduce: Literal[True]) -> ValuesAndIndices[Tensor]: ...


class CumulativeMethod(Protocol):
    """``td.cummax(dim, reduce=..., return_indices=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> CumulativeCall[T]: ...


class CastMethod(Protocol):
    """``td.float(cast_filter=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> CastCall[T]: ...
