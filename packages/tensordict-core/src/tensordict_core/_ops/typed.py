"""What type checkers see of an operation that a factory made.

At run time a factory returns a plain function with the right signature and docstring, because that is what is fastest
to call and what tracers follow. These protocols say of it what the function cannot: that the result has the type of the
tensordict it is called on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, overload

from torch import Tensor

if TYPE_CHECKING:
    from .._base import TensorCollection

__all__ = ["BinaryMethod", "Operand", "ScaledMethod", "UnaryMethod"]

Operand: TypeAlias = "TensorCollection | Tensor | complex | int | float | bool"
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

    def __call__(self, other: Operand, *, default: Any = ...) -> R_co: ...


class BinaryMethod(Protocol):
    """``td.op(other, default=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> BinaryCall[T]: ...


class ScaledCall(Protocol[R_co]):
    """The call of a bound binary operation whose operand can be scaled."""

    def __call__(self, other: Operand, *, alpha: float | None = ..., default: Any = ...) -> R_co: ...


class ScaledMethod(Protocol):
    """``td.op(other, alpha=..., default=...)``."""

    @overload
    def __get__(self, instance: None, owner: Any = ...) -> Callable[..., Any]: ...
    @overload
    def __get__(self, instance: T, owner: Any = ...) -> ScaledCall[T]: ...
