"""Tracing checks: whether ``torch.compile`` or a ``torch.func`` transform traces the caller.

Some fast paths of eager code cannot be traced: ``torch._foreach_*`` has no batching rule for ``vmap``, and Dynamo does
not support weak references, so lock holders are not recorded during tracing. All tracing checks are in this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

_peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack
_level_of = torch._C._functorch.maybe_get_level
_dim_of = torch._C._functorch.maybe_get_bdim


# Whether `torch.compile` or `torch.export` traces the caller; Dynamo folds the call to a constant. This is an alias,
# because a wrapper function would add a guard to every compiled call.
is_compiling = torch.compiler.is_compiling


def in_functorch() -> bool:
    """Return whether the caller runs inside a ``torch.func`` transform (``vmap``, ``grad``, ``jvp``).

    >>> in_functorch()
    False
    """
    return _peek_interpreter_stack() is not None


def may_fuse() -> bool:
    """Return whether ``torch._foreach_*`` may replace a loop over leaves, which holds in plain eager code only.

    >>> may_fuse()
    True
    """
    return not torch.compiler.is_compiling() and _peek_interpreter_stack() is None


def with_own_gradients(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], *columns: Sequence[Any]
) -> Sequence[torch.Tensor]:
    """Return the results of a ``torch._foreach_*`` call, of which those require gradients whose operands do.

    If one operand of the call requires gradients, torch records all results.

    Args:
        results: The results; those that need no gradients are detached in place.
        leaves: The first operand of each result.
        *columns: The other operands: tensors or numbers.

    >>> x, w = torch.ones(2), torch.ones(2, requires_grad=True)
    >>> [result.requires_grad for result in with_own_gradients(torch._foreach_exp([x, w]), [x, w])]
    [False, True]
    """
    if results[0].requires_grad:
        for i, leaf in enumerate(leaves):
            if not (leaf.requires_grad or any([getattr(column[i], "requires_grad", False) for column in columns])):
                results[i].detach_()
    return results


def transform_level() -> int | None:
    """Return the level of the innermost ``torch.func`` transform around the caller, or ``None`` outside transforms.

    >>> transform_level() is None
    True
    """
    interpreter: Any = _peek_interpreter_stack()
    return None if interpreter is None else interpreter.level()


def mapped_dim(tensor: torch.Tensor, level: int) -> int | None:
    """Return the dimension of a tensor that ``vmap`` at ``level`` maps, or ``None`` if it does not map the tensor.

    >>> mapped_dim(torch.zeros(2), 1) is None
    True
    """
    if _level_of(tensor) != level:
        return None
    dim: int = _dim_of(tensor)
    return None if dim < 0 else dim  # negative: wrapped by another transform


def mapped_strides(tensor: torch.Tensor, level: int) -> tuple[int, tuple[int, ...]] | None:
    """Return the stride of the dimension that ``vmap`` at ``level`` maps, and the strides of the other dimensions.

    The first stride is 0 for a tensor that is not mapped, because ``vmap`` repeats it without a copy. Returns ``None``
    for tensors without strides and under ``torch.compile``, which does not expose them.

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
    """Return the size of the mapped dimension if the innermost transform is a ``vmap``, otherwise ``None``.

    >>> mapped_size() is None
    True
    """
    interpreter: Any = _peek_interpreter_stack()
    if interpreter is None or interpreter.key() != torch._C._functorch.TransformType.Vmap:
        return None
    size: int = torch._C._functorch.CVmapInterpreterPtr(interpreter).batchSize()
    return size


def are_differentiated(tensors: Iterable[Any]) -> bool:
    """Return whether the innermost ``torch.func`` transform differentiates with respect to these tensors.

    >>> are_differentiated([torch.zeros(1)])
    False
    """
    return _in_grad() and all([tensor.is_leaf for tensor in tensors if isinstance(tensor, torch.Tensor)])


def _in_grad() -> bool:
    interpreter: Any = _peek_interpreter_stack()
    return interpreter is not None and interpreter.key() == torch._C._functorch.TransformType.Grad


F = TypeVar("F", bound=Callable[..., Any])


def constant_when_traced(function: F) -> F:
    """Mark a function that Dynamo calls during tracing and whose result it treats as a constant.

    Equivalent to ``torch.compiler.assume_constant_result``, which would import Dynamo and take a second.

    Args:
        function: A function of constant arguments that Dynamo cannot trace, such as one that evaluates an annotation.

    >>> constant_when_traced(lambda: 3)()
    3
    """
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010 (no attribute that a type checker knows)
    return function


for _function in (transform_level, mapped_dim, mapped_size, _in_grad):
    # levels and mapped dimensions are constant within a trace, and Dynamo cannot trace the functions that return them
    constant_when_traced(_function)
