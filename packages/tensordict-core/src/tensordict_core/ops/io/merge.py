"""Merging of tensordicts: the entries of several in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.rebuild import UNLOCKED


def merge_tensordicts(
    *tensordicts: Any,
    callback_exist: Callable[..., Any] | Mapping[NestedKey, Callable[..., Any]] | None = None,
) -> Any:
    """Merge tensordicts, nested ones included; a value is that of the first tensordict with its key.

    Args:
        *tensordicts: At least two tensordicts; the batch size is that of the first.
        callback_exist: A function that combines the values under one key and is called with them in order, or a mapping
            from keys to such functions.

    Raises:
        TypeError: One of them is not a tensordict.
        RuntimeError: There are fewer than two tensordicts, or an entry does not start with the batch size of the first.

    >>> from tensordict_core import merge_tensordicts
    >>> left, right = TensorDict({"a": 1, "b": 2}), TensorDict({"b": 3, "c": 4})
    >>> merge_tensordicts(left, right).to_dict()
    {'a': tensor(1), 'b': tensor(2), 'c': tensor(4)}
    >>> merge_tensordicts(left, right, left, callback_exist=lambda *values: torch.stack(values))["b"]
    tensor([2, 3, 2])
    """
    if len(tensordicts) < 2:
        raise RuntimeError(f"at least 2 tensordicts must be provided, got {len(tensordicts)}; use clone for one")
    for td in tensordicts:
        if not isinstance(td, Node):
            raise errors.not_convertible("merge_tensordicts", "tensordicts", td)
    callbacks: Any = callback_exist
    if isinstance(callback_exist, Mapping):
        callbacks = {unravel_key(key): callback for key, callback in callback_exist.items()}
    merged = tensordicts[0]._rebuild(iter(tensordicts[0]._leaves()), UNLOCKED)  # plain where it holds parameters
    _merge(merged, tensordicts, callbacks, ())
    return merged


def _merge(target: Any, tds: Sequence[Any], callbacks: Any, prefix: tuple[str, ...]) -> None:
    """Store the merged entries of several nodes in ``target``, a copy of the first."""
    partial = _partial_keys(tds)
    if partial:
        _merge_elements(target, tds, callbacks, prefix, partial)
    for key in dict.fromkeys(key for td in tds for key in td._keys()):
        if key not in partial:
            values = [value for value in [td._get(key) for td in tds] if value is not None]
            _merge_values(target, key, values, callbacks, prefix)


def _merge_values(target: Any, key: str, values: list[Any], callbacks: Any, prefix: tuple[str, ...]) -> None:
    """Store the merged value of several nodes under one key; ``target`` may hold a copy of the first."""
    first = values[0]
    nodes = [value for value in values if has_entries(value)]
    callback = callbacks.get(unravel_key((*prefix, key))) if isinstance(callbacks, Mapping) else callbacks
    if len(nodes) == len(values) or (callback is None and nodes and nodes[0] is first):
        if target._get(key) is None:
            target._store(key, first._clone(False))
        _merge(target._get(key), nodes, callbacks, (*prefix, key))
    elif callback is not None and len(values) > 1:
        result = callback(*[value._entry_value() if isinstance(value, Node) else value for value in values])
        if isinstance(result, dict) and not nodes:  # one of the values, and no nested tensordict
            target.set_non_tensor(key, result)
        else:
            target._store(key, result)
    elif target._get(key) is None:
        target._store(key, first._clone(False) if isinstance(first, Node) else first)


def _partial_keys(tds: Sequence[Any]) -> set[str]:
    """Return the keys that only some elements of a lazy stack have."""
    return {key for td in tds for keys in td._inmost()._exclusive_keys().values() for key in keys}


def _merge_elements(target: Any, tds: Sequence[Any], callbacks: Any, prefix: tuple[str, ...], keys: set[str]) -> None:
    """Merge the entries under keys that only some elements of lazy stacks have, element by element."""
    if (stack := target._lazy_stack) is None:
        own = next(own for td in tds if (own := td._inmost()._exclusive_keys()))
        raise errors.exclusive_keys("merge_tensordicts", own)
    dim, dims = stack.stack_dim, len(stack._meta.batch_size)
    for td in tds:
        if td._meta.batch_size[:dims] != stack._meta.batch_size:
            raise errors.source_batch_size(td._meta.batch_size, stack._meta.batch_size, False)
    rows = [td._inmost()._unbind(dim) for td in tds]
    for element, *parts in zip(stack.tensordicts, *rows, strict=True):
        _merge(element, [part.select(*keys, strict=False) for part in parts], callbacks, prefix)
