"""Entries and operations of parameters: in-place ones change values, moves return parameters, casts keep ties."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tensordict_core import TensorDict
from tensordict_core.extension import (
    SAME,
    Index,
    TensorCollection,
    TensorDictBase,
    entries,
    is_compiling,
    may_fuse,
    operations,
)
from tensordict_nn.params.leaves import as_buffer, as_parameter, can_be_trained


def is_entry(value: Any) -> bool:
    """Return whether a value among the parameters, buffers and modules of a node is an entry, not a plain module."""
    return isinstance(value, TensorCollection) or not isinstance(value, nn.Module)


def attribute_of(module: Any, name: str) -> Any:
    """Return an attribute that is no member of the class; the name may be one of ``named_parameters``, with dots.

    Raises:
        AttributeError: There is none.

    >>> from tensordict_nn import TensorDictParams
    >>> getattr(TensorDictParams({"layer": {"bias": torch.ones(2)}}), "layer.bias").shape
    torch.Size([2])
    """
    head, _, rest = name.partition(".")
    if rest and name not in module._parameters and name not in module._buffers:
        below = module._modules.get(head)
        if below is not None and hasattr(below, rest):
            return getattr(below, rest)
    return nn.Module.__getattr__(module, name)


def _method(name: str, around: Callable[..., Any]) -> Any:
    """Make the method ``name`` of parameters: a call of ``around`` with the general operation and the arguments."""
    general = getattr(TensorDictBase, name)

    @functools.wraps(general)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(general, self, *args, **kwargs)

    method.__qualname__ = f"TensorDictParams.{name}"
    return method


def _on_values(general: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an in-place operation, which changes the values of the parameters."""
    with torch.no_grad():
        leaves = params._leaves()
        # Dynamo sees tied tensors as different ones
        if len({*leaves}) == len(leaves) and not is_compiling():
            return general(params, *args, **kwargs)
        changed = params._now().clone()  # so that tied weights are changed once
        general(changed, *args, **kwargs)
        params.update_(changed)
        return params


def _rewrapped(general: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation whose results are parameters."""
    result = general(params, *args, **kwargs)
    if not isinstance(result, TensorDict):
        return result
    made = _params_like(params, result)
    made._last_exit = result._last_exit  # a context manager of the result writes back into these parameters
    return made


def _params_like(params: Any, td: Any) -> Any:
    """Convert a tensordict with the structure of parameters to parameters; buffers stay buffers."""
    leaves = dict(zip(td._leaf_keys(), td._leaves(), strict=True))
    made = _node_like(params, td, (), leaves, {})
    return made.lock_() if params._locked else made


def _node_like(node: Any, td: Any, prefix: tuple[str, ...], leaves: dict[Any, Tensor], again: dict[Tensor, Any]) -> Any:
    """Convert one node; ``again`` holds what each tensor became, so that tied weights stay tied."""
    made = object.__new__(type(node))
    made._begin(td._meta, node.no_convert)
    made._order.update(node._order)
    for key, value in node._items():
        if isinstance(value, torch.nn.Module):
            made._modules[key] = _node_like(value, td._get(key), (*prefix, key), leaves, again)
        elif isinstance(value, Tensor):
            leaf = leaves[(*prefix, key)]
            is_buffer = key in node._buffers or not can_be_trained(leaf)
            if value not in again:
                again[value] = as_buffer(leaf) if is_buffer else as_parameter(leaf, value)
            (made._buffers if is_buffer else made._parameters)[key] = again[value]
        else:
            made._values[key] = td._get(key)  # with the device of the result
    return made


def _tied(general: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a cast, whose result has one tensor for a parameter under several keys."""
    result = general(params, *args, **kwargs)
    leaves = params._leaves()
    if len({*leaves}) == len(leaves) or is_compiling():
        return result
    made: dict[Tensor, Tensor] = {}
    casts = [made.setdefault(leaf, cast) for leaf, cast in zip(leaves, result._leaves(), strict=True)]
    return result._rebuild(iter(casts), SAME)


def pairs_of_leaves(params: Any, other: Any) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return the matched leaves of parameters and another node; ``None`` if one has values or changes its reads."""
    is_plain = type(other._entries) is dict or (isinstance(other, type(params)) and not other._get_hooks)
    if params._get_hooks or params._values or not is_plain:
        return None
    mine, theirs = dict(params._items()), dict(other._items())
    if mine.keys() != theirs.keys():
        return None
    leaves: list[Tensor] = []
    operands: list[Tensor] = []
    for key, value in mine.items():
        operand = theirs[key]
        if isinstance(value, type(params)) and isinstance(operand, TensorCollection):
            pairs = pairs_of_leaves(value, operand)
            if pairs is None or not pairs[0]:
                return None
            leaves += pairs[0]
            operands += pairs[1]
        elif isinstance(value, TensorCollection) or isinstance(operand, TensorCollection):
            return None
        else:
            leaves.append(value)
            operands.append(operand)
    return leaves, operands


def plan_write(params: Any, index: Index | None, source: Any, plan: Any, prefix: tuple[str, ...]) -> None:
    """Plan an update in place as other nodes do, but the usual values together: plain tensors, for whole parameters."""
    is_plain = type(source) is dict or type(source) is TensorDict
    if is_plain and index is None and not params._get_hooks and may_fuse():
        table = source if type(source) is dict else entries(source)
        source, leaf_of = {}, params._parameters.get
        for key, value in table.items():
            leaf = leaf_of(key)
            if type(leaf) is nn.Parameter and type(value) is Tensor:
                new = value.detach() if value.requires_grad else value
                plan.add((*prefix, key) if prefix else key, leaf.detach(), new)
            else:
                source[key] = value
    TensorDictBase._plan_write(params, index, source, plan, prefix)


def add_operations(cls: type[Any]) -> None:
    """Add the operations that are others than those of plain tensordicts to the class of parameters."""
    around = dict.fromkeys(("apply_", "fill_", "masked_fill_", "zero_"), _on_values)  # operations without a record
    for spec in operations():
        if spec.parameters == "data" and hasattr(TensorDictBase, spec.name):
            around[spec.name] = _on_values
        elif spec.family == "cast":
            around[spec.name] = _tied
    for name, function in (around | dict.fromkeys(("to", "cpu", "cuda"), _rewrapped)).items():
        setattr(cls, name, _method(name, function))
