"""Build: converts a schema to the tensordict over its files; saves and loads use the same traversal."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tensordict_core import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorCollection,
    TensorDict,
    is_non_tensor,
)
from tensordict_core.extension import Meta, annotate
from tensordict_memmap.schema.node import STACKED, WRAPPED, Dense, Leaf, Node, Parts, Value, show
from tensordict_memmap.schema.node import Path as Key
from tensordict_memmap.schema.select import Part

VALUE_FOLDER = "value_folder"
"""The annotation of non-tensor data with the folder that its changes are saved to."""

VALUE_IN_FILE = "value_in_one_file"
"""The annotation of non-tensor data in one file, where it cannot change."""


OpenLeaf = Callable[[Leaf], torch.Tensor]


def build(
    node: Node,
    open_leaf: OpenLeaf,
    *,
    saved: Path | None = None,
    device: torch.device | None = None,
    fallback: type[Any] | None = None,
) -> Any:
    """Return the tensordict, lazy stack, tensorclass or non-tensor data of a schema.

    Args:
        node: The schema.
        open_leaf: A function that returns the tensor of a leaf.
        saved: The folder of the save, which each node remembers as its ``saved_path``.
        device: The device of every node.
        fallback: The class of a root whose class is not known, where the caller has one.

    Warns:
        UserWarning: A class is not known here, and its content becomes a plain tensordict.
    """
    made: Any
    if isinstance(node, Dense):
        made = TensorDict({}, batch_size=node.batch_size, device=device, names=node.names)
        if isinstance(node.origin, TensorDict) and type(node.origin) is not TensorDict:
            made = type(node.origin)._make({}, made._meta)
        put = made._set
        for name, entry in node.entries.items():
            if isinstance(entry, Leaf):
                put(name, open_leaf(entry))
            else:
                value = build(entry, open_leaf, saved=saved, device=device)
                if node.names is not None and is_non_tensor(value):  # a value is saved without names
                    further = (None,) * (len(value.batch_size) - len(node.names))
                    value._set_meta(value._meta.named((*node.names, *further)))
                put(name, value)
    elif isinstance(node, Parts):
        parts = {name: build(part, open_leaf, saved=saved, device=device) for name, part in node.parts.items()}
        made = _assemble(node, parts, fallback)
    elif node.stack:
        made = NonTensorStack.from_list(node.value, batch_size=node.batch_size, device=device)
    else:
        made = (MetaData if node.metadata else NonTensorData)(node.value, batch_size=node.batch_size, device=device)
    if saved is not None:
        _remember(made, node, saved, open_leaf)
    return made


def build_part(
    part: Part,
    open_leaf: OpenLeaf,
    *,
    saved: Path | None = None,
    device: torch.device | None = None,
    cls: type[Any] | None = None,
) -> Any:
    """Return the tensordict or tensor of a part of a schema; ``cls`` is the class of a root whose own is not known."""
    if isinstance(part.entry, Leaf):
        made: Any = open_leaf(part.entry)
    else:
        made = build(part.entry, open_leaf, saved=saved, device=device, fallback=cls)
        if cls is not None and isinstance(part.entry, Dense):
            made = cls._from_disk_form({}, {WRAPPED: made})
    return made[part.place] if part.place else made


def _assemble(node: Parts, parts: dict[str, Any], fallback: type[Any] | None) -> Any:
    where = f"key {show(node.key)}" if node.key else "the saved object"
    cls = fallback if node.cls is None else node.cls
    try:
        if STACKED in parts:
            unbound = parts[STACKED].unbind(node.facts["stack_dim"])
            parts = {str(n): part for n, part in enumerate(unbound)}
        if cls is LazyStackedTensorDict or cls is NonTensorStack:
            return cls(*parts.values(), **node.facts)
        if cls is not None:
            return cls._from_disk_form(node.facts, parts)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{where} is a {node.type_name or node.class_string} that cannot be rebuilt from its saved parts: {error}; "
            f"restore its files, or load it with the code that wrote them"
        ) from error
    warnings.warn(
        f"classes are found by their registered names, and that of {where}, {node.class_string}, is not registered "
        "here, so its content is loaded as a plain tensordict; import the module that defines the class first",
        UserWarning,
        stacklevel=2,
    )
    return parts[WRAPPED]


def _remember(made: Any, node: Node, saved: Path, open_leaf: OpenLeaf) -> None:
    place = saved / node.folder if node.folder else saved
    annotate(made, "saved_path", place)
    if isinstance(node, Value):
        annotate(made, "mapped", True)
    # as with tensors, writes stay in this process where files are mapped to be read
    if isinstance(node, Value) and getattr(open_leaf, "mode", None) in (None, "r+"):
        annotate(made, VALUE_FOLDER, place)


def fill(node: Node, open_leaf: OpenLeaf, *, saved: Path | None = None) -> None:
    """Put the tensors over the files into the containers that the schema was planned from."""
    origin = node.origin
    if isinstance(node, Dense):
        for name, entry in node.entries.items():
            if isinstance(entry, Leaf):
                origin._set(name, open_leaf(entry))
            else:
                fill(entry, open_leaf, saved=saved)
    elif isinstance(node, Parts):
        for part in node.parts.values():
            fill(part, open_leaf, saved=saved)
    if isinstance(node, Dense | Value) or origin._is_lazy_stack or origin._meta.device is not None:
        meta = origin._meta
        origin._set_meta(Meta(meta.batch_size, torch.device("cpu"), meta.names))
    if saved is not None:
        _remember(origin, node, saved, open_leaf)


def check_on_meta(layout: str, key: Key) -> None:
    """Refuse a nested tensor that torch cannot create on the meta device: one that is not jagged.

    Raises:
        RuntimeError: It is such a tensor.
    """
    if layout != "jagged":
        raise RuntimeError(
            f"on the meta device torch has nested tensors of the layout torch.jagged only, and key {show(key)} is a "
            "strided one; load it on the CPU, where no byte is read before it is used, or leave it out by keys="
        )


def remember_file(td: Any, path: Path | None, mode: str | None) -> None:
    """Note on a tensordict the one file that it is mapped onto; its non-tensor values then refuse to change there."""
    annotate(td, "saved_path", path)
    annotate(td, "mode", mode)
    waiting = [td] if mode == "r+" else []
    while waiting:
        node = waiting.pop()
        if is_non_tensor(node):
            annotate(node, VALUE_IN_FILE, True)
        elif isinstance(node, TensorCollection):
            waiting += node._nodes()
