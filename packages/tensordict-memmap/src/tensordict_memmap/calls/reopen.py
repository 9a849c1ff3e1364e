"""Reopening: `memmap_like` of a folder that holds a save of the same structure keeps its values.

A buffer on disk is found again by the call that created it, as a program that was restarted makes it. A save of another
structure is replaced.
"""

from __future__ import annotations

import os
from typing import Any

from tensordict_core import LazyStackedTensorDict, is_non_tensor
from tensordict_core.extension import Node as TensorNode
from tensordict_memmap.calls.load import describe_saved
from tensordict_memmap.engine.syscalls import reserve
from tensordict_memmap.loading.open import open_any
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.schema.diff import differences
from tensordict_memmap.schema.node import Dense, Leaf, Node, Parts, Value, leaves, nodes
from tensordict_memmap.schema.plan import plan


def reopened(td: Any, path: str | os.PathLike[str], *, allocate: bool = False) -> Any:
    """Return the locked tensordict that is mapped onto a folder if it holds a save of the structure of ``td``, or None.

    Non-tensor values become those of ``td``.

    Args:
        td: The tensordict.
        path: The folder.
        allocate: Whether to reserve the disk blocks of the files.

    >>> import torch
    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"a": torch.ones(2)})
    >>> _ = td.memmap("buffer")
    >>> reopened(td, "buffer")["a"].tolist(), reopened(td.select(), "buffer")
    ([1.0, 1.0], None)
    """
    try:
        saved = describe_saved(path)
    except (OSError, ValueError, KeyError):  # there is no save, or a damaged one
        return None
    if isinstance(saved, Leaf) or not _has_structure(saved, plan(td)):
        return None
    found = open_any(path, LoadRequest(mode="r+", allow_pickle=None))  # unpickles nothing: values are those of ``td``
    _take_values(found, td)
    if allocate:
        for leaf in found.values(True, True):
            _reserve(leaf)
    return found.lock_()


def _has_structure(saved: Node, wanted: Node) -> bool:
    plain = all(leaf.layout == "strided" and leaf.alias is None for leaf in leaves(saved))
    return plain and not differences(saved, wanted) and _shape(saved) == _shape(wanted)


def _shape(node: Node) -> list[Any]:
    """Return what the nodes of a schema are, in the order of their keys."""
    return sorted(((one.key, _facts(one)) for one in nodes(node)), key=lambda item: item[0])


def _facts(node: Node) -> Any:
    if isinstance(node, Dense):
        names = node.names if node.names is not None and any(node.names) else None
        return "dense", tuple(node.batch_size), names, node.type_name
    if isinstance(node, Value):
        return "value", tuple(node.batch_size), node.metadata
    assert isinstance(node, Parts)
    return "parts", node.cls, node.class_string if node.cls is None else None, node.facts


def _take_values(found: Any, td: Any) -> None:
    """Write the non-tensor values of a tensordict into a save."""
    if isinstance(td, LazyStackedTensorDict):
        for part, element in zip(found.tensordicts, td.tensordicts, strict=True):
            _take_values(part, element)
        return
    for key in list(td.keys()):
        value = td.get(key)
        if is_non_tensor(value):
            found.set_(key, value)
        elif isinstance(value, TensorNode) and not value._is_opaque:
            _take_values(found.get(key), value)


def _reserve(leaf: Any) -> None:
    fd = os.open(leaf.filename, os.O_RDWR | os.O_CLOEXEC)
    try:
        reserve(fd, 0, os.fstat(fd).st_size)
    finally:
        os.close(fd)
