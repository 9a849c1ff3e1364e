"""Tensordicts that are mapped onto saved files: `is_memmap` and `memmap_refresh_`."""

from __future__ import annotations

from typing import Any

import torch

from tensordict_core import is_leaf_nontensor
from tensordict_core.extension import Meta, annotate, annotation, on_exit
from tensordict_memmap.loading.open import open_any
from tensordict_memmap.loading.request import LoadRequest, selection_of
from tensordict_memmap.schema.node import Dense, Leaf, Node, Parts, leaves
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.tensor.mapping import are_mapped
from tensordict_memmap.tensor.memmap import MemoryMappedTensor


def memmap_refresh_(td: Any, *, allow_pickle: bool | None = None) -> Any:
    """Update a mapped tensordict with entries that were added to its folder or replaced there.

    Args:
        td: The tensordict, which may be locked.
        allow_pickle: Whether values without a JSON form may be unpickled, which can run arbitrary code.

    Raises:
        RuntimeError: The tensordict is not mapped onto a folder.

    >>> mine, theirs = TensorDict({"a": torch.ones(2)}).memmap("shared"), TensorDict.load_memmap("shared")
    >>> _ = mine.make_memmap("b", torch.Size([3]))
    >>> sorted(memmap_refresh_(theirs).keys())
    ['a', 'b']
    """
    place = annotation(td, "saved_path")
    if place is None:
        raise RuntimeError(
            "Cannot refresh a TensorDict that is not memory mapped or has no path associated; load it with "
            "load_memmap, or save it with memmap(path)"
        )
    request = LoadRequest(
        selection=selection_of(annotation(td, "keys")), mode=annotation(td, "mode"), allow_pickle=bool(allow_pickle)
    )
    return take_over(td, open_any(place, request))


def is_memmap(td: Any) -> bool:
    """Return whether all leaves of a tensordict are memory-mapped; without leaves, whether it is locked as mapped.

    >>> is_memmap(TensorDict({"a": torch.ones(2)}).memmap())
    True
    """
    sources = [leaf.source for leaf in leaves(plan(td)) if leaf.source is not None]
    # torch creates nested tensors over a file, so their values have the address
    found = [source.values() if source.is_nested else source for source in sources]
    if not any(tensor.numel() or isinstance(tensor, MemoryMappedTensor) for tensor in found):
        values = [leaf for leaf in td._leaves(is_leaf_nontensor) if not isinstance(leaf, torch.Tensor)]
        if values:
            return all(value.is_memmap() for value in values)
        is_saved = annotation(td, "saved_path") is not None or annotation(td, "mapped", False)
        return bool(td.is_locked and is_saved)
    return are_mapped([tensor for tensor in found if not isinstance(tensor, MemoryMappedTensor)])


def lock_mapped(td: Any) -> Any:
    """Lock a tensordict that was mapped, and return it; a ``with`` block over it does not unlock it at its end.

    >>> with lock_mapped(TensorDict({"a": torch.ones(2)})) as td:
    ...     pass
    >>> td.is_locked
    True
    """
    td.lock_()
    on_exit(td, None)
    return td


def take_over(td: Any, fresh: Any) -> Any:
    """Move the entries of ``fresh`` to the nodes of ``td``, keeping nodes of the same type and the lock of ``td``."""
    locked, old, new = td.is_locked, plan(td), plan(fresh)
    _refresh_node(old, new)
    annotate(td, "mode", annotation(fresh, "mode"))
    return td.lock_() if locked else td


def _refresh_node(old: Node, new: Node) -> bool:
    """Update a node in place; return False if the nodes have different types."""
    if (
        isinstance(old, Parts)
        and isinstance(new, Parts)
        and old.cls is new.cls
        and old.parts.keys() == new.parts.keys()
    ):
        return all(_refresh_node(part, new.parts[name]) for name, part in old.parts.items())
    if not (isinstance(old, Dense) and isinstance(new, Dense)):
        return False
    for name in old.entries.keys() - new.entries.keys():
        old.origin._del(name)
    for name, entry in new.entries.items():
        before = old.entries.get(name)
        if isinstance(entry, Leaf):
            if not (isinstance(before, Leaf) and _is_same(before.source, entry.source)):
                old.origin._set(name, entry.source)
        elif before is None or isinstance(before, Leaf) or not _refresh_node(before, entry):
            old.origin._set(name, entry.origin)
    old.origin._set_meta(Meta(torch.Size(new.batch_size), new.origin._meta.device, new.names))
    annotate(old.origin, "saved_path", annotation(new.origin, "saved_path"))
    return True


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two tensors are mapped onto the same part of the same file."""
    if not (isinstance(old, MemoryMappedTensor) and isinstance(new, MemoryMappedTensor)):
        return False
    place = (new.handler.identity, new.offset, new.shape, new.dtype, new.stride())
    return (old.handler.identity, old.offset, old.shape, old.dtype, old.stride()) == place and bool(new.numel())
