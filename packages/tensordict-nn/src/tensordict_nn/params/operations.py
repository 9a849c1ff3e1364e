"""Operations of parameters: in-place ones change values, moves return parameters, casts keep weights tied."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tensordict_core import TensorDict
from tensordict_core.extension import SAME, TensorDictBase, is_compiling, operations
from tensordict_nn.params.leaves import as_buffer, as_parameter, can_be_trained

__all__ = ["add_operations"]


def _on_values(name: str) -> Any:
    """Makes the in-place operation ``name``, which changes the values of the parameters."""
    general = getattr(TensorDictBase, name)

    @functools.wraps(general)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            leaves = self._leaves()
            # Dynamo sees tied tensors as different ones
            if len({*leaves}) == len(leaves) and not is_compiling():
                return general(self, *args, **kwargs)
            changed = self._now().clone()  # so that tied weights are changed once
            general(changed, *args, **kwargs)
            self.update_(changed)
            return self

    method.__qualname__ = f"TensorDictParams.{name}"
    return method


def _rewrapped(name: str) -> Any:
    """Makes the operation ``name``, whose results are parameters."""
    general = getattr(TensorDictBase, name)

    @functools.wraps(general)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = general(self, *args, **kwargs)
        if not isinstance(result, TensorDict):
            return result
        made = _again(self, result)
        made._last_exit = result._last_exit  # a context manager of the result writes back into these parameters
        return made

    method.__qualname__ = f"TensorDictParams.{name}"
    return method


def _again(params: Any, td: Any) -> Any:
    """Converts a tensordict with the structure of parameters to parameters; buffers stay buffers."""
    leaves = dict(zip(td._leaf_keys(), td._leaves(), strict=True))
    again: dict[Tensor, Any] = {}  # tied weights stay tied

    def build(node: Any, made: Any, prefix: tuple[str, ...]) -> Any:
        new = object.__new__(type(node))
        new._begin(made._meta, node.no_convert)
        new._order.update(node._order)
        for key, value in node._items():
            if isinstance(value, type(params)):
                new._modules[key] = build(value, made._get(key), (*prefix, key))
            elif isinstance(value, Tensor):
                leaf = leaves[(*prefix, key)]
                is_buffer = key in node._buffers or not can_be_trained(leaf)
                if value not in again:
                    again[value] = as_buffer(leaf) if is_buffer else as_parameter(leaf, value)
                (new._buffers if is_buffer else new._parameters)[key] = again[value]
            else:
                new._values[key] = value
        return new

    made = build(params, td, ())
    return made.lock_() if params._locked else made


def _tied(name: str) -> Any:
    """Makes the cast ``name``, whose result has one tensor for a parameter under several keys."""
    general = getattr(TensorDictBase, name)

    @functools.wraps(general)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = general(self, *args, **kwargs)
        leaves = self._leaves()
        if len({*leaves}) == len(leaves) or is_compiling():
            return result
        made: dict[Tensor, Tensor] = {}
        casts = [made.setdefault(leaf, cast) for leaf, cast in zip(leaves, result._leaves(), strict=True)]
        return result._rebuild(iter(casts), SAME)

    method.__qualname__ = f"TensorDictParams.{name}"
    return method


def add_operations(cls: type[Any]) -> None:
    """Adds the operations that are others than those of plain tensordicts to the class of parameters."""
    for spec in operations():
        if spec.parameters == "data" and hasattr(TensorDictBase, spec.name):
            setattr(cls, spec.name, _on_values(spec.name))
        elif spec.family == "cast":
            setattr(cls, spec.name, _tied(spec.name))
    for name in ("apply_", "fill_", "masked_fill_", "zero_"):  # operations without a record
        setattr(cls, name, _on_values(name))
    for name in ("to", "cpu", "cuda"):
        setattr(cls, name, _rewrapped(name))
