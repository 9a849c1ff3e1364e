"""State of parameters as modules: names and unbatched tensors in state dicts, and buffers that a cast keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tensordict_core import UnbatchedTensor, is_non_tensor
from tensordict_core.extension import TensorCollection
from tensordict_nn import errors


def check_names(keys: Iterable[str], state: Mapping[str, Any], prefix: str) -> None:
    """Raise an error if a state dict has an entry under the name of a key."""
    for key in keys:
        if prefix + key in state:
            raise errors.same_name(prefix + key)


def joined_keys(state: Any) -> Any:
    """Return a state dict whose nested keys are joined by dots, from dictionaries or tensordicts in each other.

    Raises:
        KeyError: A joined key is the name of another entry.

    >>> joined_keys({"a": 1, "n": {"b": 2}})
    {'a': 1, 'n.b': 2}
    """
    if not _is_nested(state) or not (isinstance(state, TensorCollection) or any(map(_is_nested, state.values()))):
        return state
    joined: dict[str, Any] = {}
    for key, value in state.items():
        parts = (
            {f"{key}.{name}": leaf for name, leaf in joined_keys(value).items()} if _is_nested(value) else {key: value}
        )
        check_names(parts, joined, "")
        joined.update(parts)
    return joined


def _is_nested(value: Any) -> bool:
    if isinstance(value, TensorCollection):
        return not is_non_tensor(value) and not isinstance(value, UnbatchedTensor)
    return isinstance(value, Mapping)


def save_unbatched(values: Mapping[str, Any], state: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """Add the unbatched tensors among the values of a node to a state dict."""
    for key, value in values.items():
        if isinstance(value, UnbatchedTensor):
            check_names([key], state, prefix)
            state[prefix + key] = value if keep_vars else value.detach()


def load_unbatched(
    values: Mapping[str, Any], state: Mapping[str, Any], prefix: str, missing: list[str], failed: list[str]
) -> list[str]:
    """Copy entries of a state dict into the unbatched tensors of a node, and return the names of these tensors.

    Args:
        values: The values of the node, by key.
        state: The state dict.
        prefix: The name of the node in the state dict, with a dot.
        missing: The list that receives the names that have no entry.
        failed: The list that receives a message for each entry that is not copied: one of another shape, or no tensor.
    """
    tensors = {prefix + key: value for key, value in values.items() if isinstance(value, UnbatchedTensor)}
    for name, value in tensors.items():
        if name not in state:
            missing.append(name)
        elif not isinstance(state[name], Tensor) or state[name].shape != value.shape:
            failed.append(errors.state_mismatch(name, state[name], value.shape))
        else:
            with torch.no_grad():
                value.copy_(state[name])
    return list(tensors)


def keep_buffers(module: nn.Module, held: dict[str, Tensor | None]) -> None:
    """Give the data of a module's new buffers to the tensors held before, as modules do for parameters.

    Programs that hold a buffer of a module then see that it was cast. A buffer whose type or memory does not allow it
    (a move to the meta device) is replaced.
    """
    for key, new in module._buffers.items():
        old = held[key]
        if new is None or old is None or old is new or type(old) is not type(new):
            continue
        if torch._has_compatible_shallow_copy_type(old, new):
            old.data = new
            module._buffers[key] = old
