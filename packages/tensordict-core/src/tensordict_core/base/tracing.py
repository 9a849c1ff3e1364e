"""Tracing checks: the one place that knows whether code is being traced, and by what.

Eager code takes short cuts that tracers cannot follow: ``torch._foreach_*`` has no batching rule, so it gives way under
``vmap``, and weak references break Dynamo, so lock holders are not recorded while it traces. Nothing else in the
project asks PyTorch these questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

__all__ = [
    "are_differentiated",
    "constant_when_traced",
    "in_functorch",
    "is_compiling",
    "mapped_dim",
    "mapped_size",
    "mapped_strides",
    "may_fuse",
    "transform_level",
]

_peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack
_level_of = torch._C._functorch.maybe_get_level
_dim_of = torch._C._functorch.maybe_get_bdim


# Whether `torch.compile` or `torch.export` is tracing the caller: Dynamo folds it to a constant. It is torch's own
# function, since each compiled call would compare one of ours with the one that was traced.
is_compiling = torch.compiler.is_compiling


def in_functorch() -> bool:
    """Whether the caller runs inside a ``torch.func`` transform (``vmap``, ``grad``, ``jvp``).

    >>> in_functorch()
    False
    """
    return _peek_interpreter_stack() is not None


def may_fuse() -> bool:
    """Whether ``torch._foreach_*`` may stand for a loop over leaves: plain eager code only.

    >>> may_fuse()
    True
    """
    return not torch.compiler.is_compiling() and _peek_interpreter_stack() is None


def transform_level() -> int | None:
    """The level of the innermost ``torch.func`` transform around the caller; ``None`` outside of all.

    >>> transform_level() is None
    True
    """
    interpreter: Any = _peek_interpreter_stack()
    return None if interpreter is None else interpreter.level()


def mapped_dim(tensor: torch.Tensor, level: int) -> int | None:
    """The dimension that ``vmap`` at ``level`` took from a tensor; ``None`` where it does not map the tensor.

    >>> mapped_dim(torch.zeros(2), 1) is None
    True
    """
    if _level_of(tensor) != level:
        return None
    dim: int = _dim_of(tensor)
    return None if dim < 0 else dim  # negative: wrapped by another transform


def mapped_strides(tensor: torch.Tensor, level: int) -> tuple[int, tuple[int, ...]] | None:
    """How ``vmap`` at ``level`` lays a tensor out: the stride of the dimension that it maps, and those of the others.

    A tensor that it does not map is repeated without a copy, so that stride is 0. ``None`` where nothing has strides,
    or a trace does not tell.

    >>> mapped_strides(torch.zeros(2, 3), 1)
    (0, (3, 1))
    """
    if torch.compiler.is_compiling() or tensor.layout is not torch.strided:
        return None
    dim = mapped_dim(tensor, level)
    if dim is None:
        return 0, tensor.stride()
    strides = torch._C._functorch.get_unwrapped(tensor).stride()
    return strides[dim], (*strides[:dim], *strides[dim + 1 :])


def mapped_size() -> int | None:
    """How many examples the innermost transform maps, where it is a ``vmap``.

    >>> mapped_size() is None
    True
    """
    interpreter: Any = _peek_interpreter_stack()
    if interpreter is None or interpreter.key() != torch._C._functorch.TransformType.Vmap:
        return None
    size: int = torch._C._functorch.CVmapInterpreterPtr(interpreter).batchSize()
    return size


def are_differentiated(tensors: Iterable[Any]) -> bool:
    """Whether the innermost ``torch.func`` transform takes gradients with respect to these very tensors.

    >>> are_differentiated([torch.zeros(1)])
    False
    """
    interpreter: Any = _peek_interpreter_stack()
    if interpreter is None or interpreter.key() != torch._C._functorch.TransformType.Grad:
        return False
    return all(tensor.is_leaf for tensor in tensors if isinstance(tensor, torch.Tensor))


F = TypeVar("F", bound=Callable[..., Any])


def constant_when_traced(function: F) -> F:
    """Have Dynamo call a function while it traces, and take the number that it gives for a constant.

    What ``torch.compiler.assume_constant_result`` does, without its import of Dynamo, which costs a second.

    Args:
        function: A function of constants that Dynamo cannot follow, such as one that evaluates an annotation.

    >>> constant_when_traced(lambda: 3)()
    3
    """
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010 (no attribute that a type checker knows)
    return function


for _function in (transform_level, mapped_dim, mapped_size):
    # levels and mapped dimensions are facts of the trace, and Dynamo cannot follow the calls that ask for them
    constant_when_traced(_function)
