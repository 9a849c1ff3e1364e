"""Handlers of ``torch`` functions that call a method of the tensordict or need other code.

Functions of operations on leaves are in `tensordict_core.torch_api.dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.meta import as_device
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import KEEP, UNLOCKED, How
from tensordict_core.base.registry.torch_functions import find_handler, implements
from tensordict_core.base.registry.types import containers
from tensordict_core.base.shape_op import normal_dim
from tensordict_core.ops.factories.reduction import over_leaves
from tensordict_core.ops.shape.combine import cat, stack, write_out
from tensordict_core.torch_api.dispatch import as_method, by_leaf, line_up, with_out

METHODS: tuple[tuple[Any, str, dict[str, str]], ...] = (
    (torch.split, "split", {"split_size_or_sections": "split_size"}),
    (torch.tensor_split, "tensor_split", {}),
    (torch.unbind, "unbind", {}),
    (torch.chunk, "chunk", {}),
    (torch.narrow, "narrow", {}),
    (torch.squeeze, "squeeze", {}),
    (torch.unsqueeze, "unsqueeze", {}),
    (torch.permute, "permute", {}),
    (torch.transpose, "transpose", {}),
    (torch.swapaxes, "swapaxes", {}),
    (torch.swapdims, "swapdims", {"dim0": "axis0", "dim1": "axis1"}),
    (torch.movedim, "movedim", {}),
    (torch.moveaxis, "moveaxis", {}),
    (torch.reshape, "reshape", {"shape": "size"}),
    (torch.flatten, "flatten", {}),
    (torch.unflatten, "unflatten", {"sizes": "unflattened_size"}),
    (torch.broadcast_to, "broadcast_to", {"size": "shape"}),
    (torch.repeat_interleave, "repeat_interleave", {}),
    (torch.fliplr, "fliplr", {}),
    (torch.flipud, "flipud", {}),
    (torch.roll, "roll", {}),
    (torch.rot90, "rot90", {}),
    (torch.gather, "gather", {}),
    (torch.masked_select, "masked_select", {}),
    (torch.masked_fill, "masked_fill", {}),
    (torch.softmax, "softmax", {}),
    (torch.detach, "detach", {}),
    (torch.numel, "numel", {}),
    (torch.is_floating_point, "is_floating_point", {}),
)
"""Functions, their methods, and arguments with other names in torch, mapped to those of the method."""

ALIASES: tuple[tuple[Any, Any], ...] = (
    (torch.absolute, torch.abs),
    (torch.negative, torch.neg),
    (torch.multiply, torch.mul),
    (torch.subtract, torch.sub),
    (torch.divide, torch.div),
    (torch.true_divide, torch.div),
)
"""Aliases in torch of functions that have a handler."""

LIKE: tuple[Any, ...] = (
    torch.zeros_like,
    torch.ones_like,
    torch.empty_like,
    torch.full_like,
    torch.rand_like,
    torch.randn_like,
    torch.randint_like,
)
"""Functions that return a new tensordict of the same keys and shapes."""

_WITH_EQUAL_RESULTS = (torch.zeros_like, torch.ones_like, torch.full_like)
"""Those of `LIKE` whose results for equal leaves are equal."""


def register() -> None:
    """Register handlers for `METHODS`, `ALIASES` and `LIKE`."""
    for function, name, renamed in METHODS:
        implements(function)(as_method(name, **renamed))
    for alias, function in ALIASES:
        implements(alias)(cast(Callable[..., Any], find_handler(function)))
    for function in LIKE:
        implements(function)(_like(function))
    # these have handlers of their own: those of the operation records take the arguments of methods
    for function in (torch.all, torch.any):
        implements(function)(_all_or_any(function))
    for name in ("std", "var"):
        implements(getattr(torch, name))(_deviation(name))
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        implements(getattr(torch, name), getattr(torch.functional, name))(_each(name))
    for name, of_two in (("max", "maximum"), ("min", "minimum")):
        implements(getattr(torch, name))(_largest(name, of_two))


def _first_of_equal(td: Any) -> list[int]:
    """Return for each leaf its position, or that of an equal unbatched tensor under its key in an earlier element.

    Unbatched tensors of the elements of a lazy stack are read as one, if they are equal.
    """
    leaves = td._leaves(lambda kind: issubclass(kind, containers.unbatched))
    firsts = list(range(len(leaves)))
    found: dict[Any, list[int]] = {}
    for i, (leaf, path) in enumerate(zip(leaves, td._leaf_keys(), strict=True)):
        if isinstance(leaf, containers.unbatched):
            earlier = found.setdefault(path, [])
            firsts[i] = next((first for first in earlier if leaf._stacks([leaves[first], leaf])), i)
            earlier.append(i)
    return firsts


def _like(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the handler of a ``*_like`` function."""

    def handler(input: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is not None:
            options["device"] = as_device(device)
        leaves = [function(leaf, *args, **options) for leaf in input._leaves()]
        if function not in _WITH_EQUAL_RESULTS:
            leaves = [leaves[i] for i in _first_of_equal(input)]
        return input._rebuild(iter(leaves), How(device=KEEP if device is None else options["device"], lock=True))

    return handler


@implements(torch.stack)
def _stack(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    return stack(tensors, dim, out=out)


@implements(torch.cat, torch.concat, torch.concatenate)
def _cat(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    return cat(tensors, dim, out=out)


def _each(name: str) -> Callable[..., Any]:
    """Return the handler of ``atleast_1d`` and its siblings, which take several operands."""

    def handler(*tensors: Any) -> Any:
        if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
            tensors = tuple(tensors[0])
        results = tuple(getattr(one, name)() for one in tensors)
        return results[0] if len(results) == 1 else results

    return handler


@implements(torch.ravel)
def _ravel(input: Any) -> Any:
    return input.reshape(-1)


@implements(torch.clone)
def _clone(input: Any, *, memory_format: torch.memory_format | None = None) -> Any:
    if memory_format is None or memory_format is torch.preserve_format:
        return input.clone()
    return input._rebuild(iter([leaf.clone(memory_format=memory_format) for leaf in input._leaves()]), UNLOCKED)


@implements(torch.where)
def _where(condition: Tensor, input: Any, other: Any, *, out: Any = None) -> Any:
    if isinstance(condition, Node):
        raise TypeError("torch.where takes a bool tensor as condition, got a tensordict; combine its entries first")
    if isinstance(input, Node):
        return input.where(condition, other, out=out)
    return other.where(~condition, input, out=out)


@implements(torch.tile)
def _tile(input: Any, dims: Sequence[int]) -> Any:
    return input.tile(*dims)


@implements(torch.flip)
def _flip(input: Any, dims: Sequence[int]) -> Any:
    return input.flip(dims)


@implements(torch.clamp, torch.clip)
def _clamp(input: Any, min: Any = None, max: Any = None, *, out: Any = None) -> Any:
    if isinstance(input, Node):
        td: Any = input
        return td.clamp(min, max, out=out)
    return with_out("clamp", by_leaf("clamp", torch.clamp, (input, min, max)), out)


@implements(torch.rsub)
def _rsub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    if not isinstance(input, Node):
        return other.sub(input, alpha=alpha)
    td: Any = input
    return td.rsub(other, alpha=alpha)


@implements(torch.select)
def _select(input: Any, dim: int, index: int) -> Any:
    return input[(slice(None),) * normal_dim(dim, input._meta.batch_size) + (index,)]


@implements(torch.index_select)
def _index_select(input: Any, dim: int, index: Tensor, *, out: Any = None) -> Any:
    result = input._select_rows((slice(None),) * normal_dim(dim, input._meta.batch_size) + (index,))
    return result if out is None else write_out("index_select", result, out)


@implements(torch.broadcast_tensors, torch.functional.broadcast_tensors)
def _broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tuple(tensors[0])
    size = torch.broadcast_shapes(*(one.shape for one in tensors))
    return tuple(one.expand(size) for one in tensors)


# reductions whose arguments in torch depend on their types ------------------------------------------------------------


def _all_or_any(function: Any) -> Callable[..., Any]:
    def handler(input: Any, dim: Any = None, keepdim: bool = False, *, out: Any = None) -> Any:
        if dim is None:
            if out is not None:
                raise errors.unknown_argument(function.__name__, "out")
            return getattr(input, function.__name__)()
        result = over_leaves(input, lambda leaf, dims, keep: function(leaf, dims, keep), dim, keepdim)
        return with_out(function.__name__, result, out)

    return handler


def _deviation(name: str) -> Callable[..., Any]:
    """Return the handler of ``std`` or ``var``: ``(input, unbiased)`` or ``(input, dim, unbiased, keepdim)``."""

    def handler(
        input: Any,
        dim: Any = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        out: Any = None,
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None else int(unbiased)
        elif unbiased is not None:
            raise errors.unknown_argument(name, "unbiased")
        return with_out(name, getattr(input, name)(dim, keepdim, correction=correction), out)

    return handler


def _largest(name: str, of_two: str) -> Callable[..., Any]:
    """Return the handler of ``max`` or ``min``: of one operand along a dimension, or of two operands."""

    def handler(
        input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None, out: Any = None, **options: Any
    ) -> Any:
        other = dim if isinstance(dim, Node | Tensor) else other
        if other is not None:
            first, second = (input, other) if isinstance(input, Node) else (other, input)
            return with_out(name, getattr(first, of_two)(second, **options), out)
        if isinstance(out, tuple):
            raise errors.unknown_argument(name, "out")
        return with_out(name, getattr(input, name)(dim, keepdim, **options), out)

    return handler


# comparisons of two tensordicts --------------------------------------------------------------------------------------


@implements(torch.equal)
def _equal(input: Any, other: Any) -> bool:
    """Return whether two tensordicts have the same batch size and keys, and equal tensors and non-tensor values."""
    if not isinstance(input, Node) or not isinstance(other, Node):
        return False
    if input._meta.batch_size != other._meta.batch_size or set(input._leaf_keys()) != set(other._leaf_keys()):
        return False
    pairs = zip(input._leaves(), input._align(other, None), strict=True)
    return all(torch.equal(a, b) for a, b in pairs) and _same_values(input, other)


def _same_values(left: Any, right: Any) -> bool:
    if set(left._keys()) != set(right._keys()):
        return False
    for key in left._keys():
        mine, theirs = left._get(key), right._get(key)
        if not isinstance(mine, Node):
            continue
        if not isinstance(theirs, Node):
            return False
        equal: Any = mine == theirs if mine._is_non_tensor else None
        same = _same_values(mine, theirs) if equal is None else bool(equal.all())
        if not same:
            return False
    return True


@implements(torch.allclose)
def _allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    return all(torch.allclose(a, b, rtol, atol, equal_nan) for a, b in line_up("allclose", (input, other))[1])


@implements(torch.isclose)
def _isclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    td, pairs, how = line_up("isclose", (input, other))
    return td._rebuild(iter([torch.isclose(a, b, rtol, atol, equal_nan) for a, b in pairs]), how)


# gradients -----------------------------------------------------------------------------------------------------------


def _flat(tensors: Any) -> list[Any]:
    """Return the tensors of a sequence of tensors and tensordicts."""
    if isinstance(tensors, Node | Tensor):
        tensors = (tensors,)
    return [leaf for one in tensors for leaf in (one._leaves() if isinstance(one, Node) else [one])]


def _flat_grads(grads: Any, outputs: Sequence[Any]) -> list[Any] | None:
    """Return the gradients of the outputs in the order of their leaves."""
    if grads is None:
        return None
    if isinstance(grads, Node | Tensor):
        grads = (grads,)
    out: list[Any] = []
    for grad, output in zip(grads, outputs, strict=True):
        if isinstance(output, Tensor):
            out.append(grad)
        elif grad is None:
            out.extend([None] * len(output._leaves()))
        elif isinstance(grad, Node):
            out.extend(output._align(grad, KEEP))
        else:
            raise TypeError(
                f"{type(grad).__name__} is not the gradient of a tensordict; give a tensordict with the same keys"
            )
    return out


def _restored(flat: Sequence[Any], like: Sequence[Any]) -> Any:
    """Return gradients in the structure of the inputs, without entries that have no gradient."""
    leaves = iter(flat)
    results = [one._rebuild(leaves, UNLOCKED) if isinstance(one, Node) else next(leaves) for one in like]
    # torch passes a single input as a tuple; the gradient of a single tensordict is a tensordict
    return results[0] if len(results) == 1 and isinstance(like[0], Node) else tuple(results)


@implements(torch.autograd.grad)
def _grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    flat = torch.autograd.grad(
        _flat(outputs),
        _flat(inputs),
        _flat_grads(grad_outputs, outputs),
        retain_graph=retain_graph,
        create_graph=create_graph,
        only_inputs=only_inputs,
        allow_unused=allow_unused,
        is_grads_batched=is_grads_batched,
        materialize_grads=materialize_grads,
    )
    return _restored(flat, inputs)


@implements(torch.autograd.backward)
def _backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    given = grad_variables if grad_tensors is None else grad_tensors
    torch.autograd.backward(
        _flat(tensors),
        _flat_grads(given, tensors),
        retain_graph=retain_graph,
        create_graph=create_graph,
        inputs=None if inputs is None else _flat(inputs),
    )
