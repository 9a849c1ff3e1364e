"""Schema of a new dataset: planned from one row, with its ragged columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tensordict_core import NonTensorData, NonTensorStack, set_capture_non_tensor_stack, stack
from tensordict_memmap.dataset import encoding
from tensordict_memmap.formats import tree
from tensordict_memmap.schema.node import WRAPPED, Dense, Leaf, Node, Parts, leaves, show
from tensordict_memmap.schema.plan import check_source, plan
from tensordict_memmap.storage.rows_committed import RaggedState

Key = str | tuple[str, ...]


def plan_rows(like: Any, ragged: Sequence[Key]) -> tuple[Node, dict[str, RaggedState]]:
    """Return the schema of a dataset without rows, and the states of its ragged columns by their files.

    Args:
        like: One row.
        ragged: The keys of the ragged columns.

    Raises:
        KeyError: The row has no such key.
        ValueError: The value there is a tensordict, or a tensor without dimensions.
    """
    paths = [key if isinstance(key, tuple) else (key,) for key in ragged]
    examples = {path: _example(like, path) for path in paths}
    if examples:
        like = like.clone(recurse=True) if like.is_locked else like.clone(recurse=False)
        for path in paths:
            size = _entry(like, path[:-1]).batch_size
            like.set(path, torch.zeros(size, device="cpu"))  # a leaf in its place, which `_ragged_leaf` replaces
    with set_capture_non_tensor_stack(True):  # one value for all rows, not a list of them
        node = plan(stack([like])[:0])
    for leaf in leaves(node):
        check_source(leaf, like=True)
    states = [(_ragged_leaf(node, path, value), value) for path, value in examples.items()]
    tree.name_files(node, tie=False, check=not states)
    return node, {leaf.file: _state(value) for leaf, value in states}


def _example(like: Any, path: tuple[str, ...]) -> Any:
    value = _entry(like, path)
    if value is None:
        raise KeyError(
            f"the row has no key {show(path)}, which ragged= names; pass one of {sorted(map(str, like.keys()))}"
        )
    if isinstance(value, NonTensorData):
        return value.data
    if isinstance(value, NonTensorStack):
        return value.tolist()
    if isinstance(value, torch.Tensor) and (value.is_nested or not value.ndim):
        raise ValueError(
            f"key {show(path)} is {'a nested tensor' if value.is_nested else 'a number'}, and one row of a ragged "
            "column is a tensor of at least one dimension; pass one, such as torch.zeros(0)"
        )
    if hasattr(value, "batch_size"):
        raise ValueError(f"key {show(path)} is a tensordict, and ragged= takes keys of entries; name those below it")
    return value


def _entry(node: Any, path: tuple[str, ...]) -> Any:
    """Return the entry at a key, non-tensor data included; None if there is none."""
    for name in path:
        inmost = node._inmost() if hasattr(node, "_inmost") else None
        node = inmost._get(name) if inmost is not None and name in inmost._keys() else None
    return node


def _ragged_leaf(node: Node, path: tuple[str, ...], value: Any) -> Leaf:
    table: Any = node
    for name in path[:-1]:
        table = _dense(table).entries[name]
    table = _dense(table)
    is_tensor = isinstance(value, torch.Tensor)
    made: Leaf = replace(
        table.entries[path[-1]],
        dtype=value.dtype if is_tensor else torch.uint8,
        shape=(0, value.ndim if is_tensor else 1),
        layout="jagged",
        source=None,
        address=0,
    )
    table.entries[path[-1]] = made
    return made


def _dense(node: Any) -> Dense:
    while isinstance(node, Parts):
        node = node.parts[WRAPPED]
    assert isinstance(node, Dense)
    return node


def _state(value: Any) -> RaggedState:
    if isinstance(value, torch.Tensor):
        return RaggedState(0, 0, tuple(value.shape[1:]))
    return RaggedState(0, 0, (), encoding.kind_of(value))
