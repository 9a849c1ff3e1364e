"""State dicts of instances: the part of a state dict that fits the fields."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tensordict_class import errors
from tensordict_core.extension import TensorCollection, is_compiling

_RESERVED = "__"
_VALUES = ("__value", "__values")


def loadable_state(instance: Any, state: Mapping[str, Any], strict: bool) -> Mapping[str, Any]:
    """Return a state dict whose entries are fields, with the non-tensor values that it lacks.

    Args:
        instance: The instance that it will be loaded into.
        state: The state dict.
        strict: Whether an entry that is no field is an error; otherwise it is left out.

    Raises:
        StateKeyError: An entry is no field, and ``strict`` is true.
    """
    if isinstance(state, TensorCollection):
        state = state.state_dict(keep_vars=True)
    rules = type(instance)._rules
    if instance._is_lazy_stack or "__stack_dim" in state:  # entries start with the positions of elements
        return state
    foreign = [name for name in state if not name.startswith(_RESERVED) and name.split(".")[0] not in rules]
    if foreign and strict:
        raise errors.foreign_state(type(instance), foreign, rules)
    described = None if is_compiling() else getattr(state, "_metadata", None)
    values = {} if described or any(isinstance(value, Mapping) for value in state.values()) else _values(instance)
    absent = {name: value for name, value in values.items() if not _covered(name, state)}
    if not foreign and not absent:
        return state
    kept: OrderedDict[str, Any] = OrderedDict((name, value) for name, value in state.items() if name not in foreign)
    kept.update(absent)
    if described:
        vars(kept)["_metadata"] = described
    return kept


def _values(instance: Any) -> dict[str, Any]:
    """Return the non-tensor entries of the state dict of an instance."""
    return {name: value for name, value in instance.state_dict().items() if name.rpartition(".")[2] in _VALUES}


def _covered(name: str, state: Mapping[str, Any]) -> bool:
    """Return whether a state dict has an entry for the value that another one has under a name."""
    field = name.rpartition(".")[0]
    return field in state or any(f"{field}.{suffix}" in state for suffix in _VALUES)
