"""Stored nodes: the base of the containers of files and of those of servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensordict_core import is_tensorclass
from tensordict_core.extension import Meta, annotate, annotation, find_type, register_value_writer, type_name

_SAVE = "store_save"
"""Annotation of non-tensor data that was read from a store: stores new values of it."""


def save_by(value: Any, save: Callable[[Any], None]) -> None:
    """Note on non-tensor data that was read from a store how new values of it are stored."""
    annotate(value, _SAVE, save)


def _save(old: Any, new: Any) -> None:
    save = annotation(old, _SAVE)
    if save is not None:
        save(new)


register_value_writer(_save)


def facts_of(meta: Meta) -> dict[str, Any]:
    """Return the metadata of a node as they are stored.

    >>> facts_of(Meta(torch.Size([2]), names=("a",)))
    {'batch_size': [2], 'names': ['a']}
    """
    facts: dict[str, Any] = {"batch_size": list(meta.batch_size)}
    return facts if meta.names is None else facts | {"names": list(meta.names)}


def names_of(names: Any, size: torch.Size) -> tuple[str | None, ...] | None:
    """Return stored names of the dimensions of a batch size; ``None`` if there are none, or not as many."""
    return tuple(names) if names and len(names) == len(size) else None


def child_meta(facts: dict[str, Any], own: Meta) -> Meta:
    """Return the metadata of a nested node.

    Args:
        facts: The metadata of the node in the store; empty if another program wrote it.
        own: The metadata of the node that holds it.

    >>> child_meta({"batch_size": [2, 3], "names": ["a", None]}, Meta(torch.Size([2])))
    Meta(batch_size=[2, 3], device=None, names=('a', None))
    """
    size = torch.Size(facts.get("batch_size", own.batch_size))
    names = facts.get("names", own.names if "batch_size" not in facts else None)
    if size[: len(own.batch_size)] != own.batch_size:
        size, names = own.batch_size, own.names
    return Meta(size, own.device, names_of(names, size))


def locked_if(td: Any, locked: bool) -> Any:
    """Return a container, locked on request."""
    return td.lock_() if locked else td


def inside(value: Any) -> Any:
    """Return the tensordict inside a tensorclass; ``None`` of any other entry."""
    form = value._disk_form() if is_tensorclass(value) else None
    return None if form is None else form[1]["_tensordict"]


def around(cls: Any, td: Any) -> Any:
    """Return a tensorclass around a tensordict, without a copy; the reverse of `inside`."""
    return cls._from_disk_form({}, {"_tensordict": td})


def wrapped(child: Any, facts: dict[str, Any], locked: bool) -> Any:
    """Return a nested node, locked on request, in the tensorclass that the store names, if that is registered here."""
    child = locked_if(child, locked)
    cls = find_type(facts["class"]) if "class" in facts else None
    return around(cls, child) if cls is not None and is_tensorclass(cls) else child


def unwrapped(key: str, value: Any, where: str) -> tuple[Any, dict[str, Any]]:
    """Return the tensordict of a nested node to store, and its metadata: the class of a tensorclass.

    Args:
        key: The name of the node, for errors.
        value: The node.
        where: The place where it is stored, for errors.

    Raises:
        TypeError: The node has no batch dimensions.

    >>> unwrapped("a", TensorDict(), "in a file")[1]
    {}
    """
    if is_tensorclass(value):
        return inside(value), {"class": type_name(type(value))}
    if value._is_opaque:
        raise TypeError(
            f"the entry {key!r} is {type(value).__name__}, which has no batch dimensions and cannot be stored {where}; "
            "store it as a tensor of the batch size"
        )
    return value, {}
