"""Tensordicts in shared memory: `memmap` and its variants without a path."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from tensordict_core import is_leaf_nontensor, is_non_tensor
from tensordict_core.extension import annotate, annotate_empty, share_values
from tensordict_memmap.engine.sink import error_context, reserve_file
from tensordict_memmap.engine.sources import check_memory
from tensordict_memmap.formats import tree
from tensordict_memmap.loading.mapped import lock_mapped
from tensordict_memmap.schema.build import build, fill
from tensordict_memmap.schema.nested import nested_of
from tensordict_memmap.schema.node import Leaf, plain
from tensordict_memmap.schema.plan import check_source, plan
from tensordict_memmap.tensor.memmap import MemoryMappedTensor


def share(td: Any, *, in_place: bool, like: bool, reserve: bool, values: bool) -> Any:
    """Return the tensordict, or a new one of the same structure, with its tensors in shared memory."""
    node = tree.name_files(plan(td), tie=not like, check=False)
    made: dict[str, torch.Tensor] = {}
    # what is in files of its own stays there; a part of it is copied, so that writes do not change the save
    saved = getattr(td, "saved_path", None) is not None

    def shared(leaf: Leaf) -> torch.Tensor:
        source = leaf.source
        assert source is not None
        if leaf.layout == "strided":
            check_source(leaf, like=True)
        first = made.get(leaf.alias or leaf.file)
        if first is None:
            first = _zeros(leaf, source, reserve) if like else _to_shared_memory(leaf, source, saved)
            made[leaf.alias or leaf.file] = first
        return first

    if in_place:
        fill(node, shared)
    result = td if in_place else build(node, shared, device=torch.device("cpu"))
    annotate_empty(result, "mapped")
    for leaf in result._leaves(is_leaf_nontensor):
        if is_non_tensor(leaf):
            annotate(leaf, "mapped", True)
    if values:
        share_values(result)
    lock_mapped(result)
    return td if in_place else td._mapped(result)


def _to_shared_memory(leaf: Leaf, source: torch.Tensor, saved: bool) -> torch.Tensor:
    if leaf.layout != "strided":
        return _share_nested(leaf, source, [part.detach().reshape(-1) for part in source.unbind()])
    check_memory(plain(leaf.key), source)
    if saved and isinstance(source, MemoryMappedTensor) and not source.requires_grad:
        return source
    return MemoryMappedTensor.from_tensor(source.detach() if source.requires_grad else source)


def _share_nested(leaf: Leaf, source: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """Return a nested tensor with the shapes of ``source`` over the values of ``parts`` in shared memory."""
    flat = torch.cat(parts) if parts else torch.empty(0, dtype=leaf.dtype, device="cpu")
    values = MemoryMappedTensor.from_tensor(flat).as_subclass(torch.Tensor)
    rows = [list(part.shape) for part in source.unbind()]
    return nested_of(values, rows, jagged=leaf.layout == "jagged", ragged=leaf.ragged, dims=leaf.shape[1])


def _zeros(leaf: Leaf, source: torch.Tensor, reserve: bool) -> torch.Tensor:
    if leaf.layout != "strided":
        return _share_nested(leaf, source, [part.new_zeros(prod(part.shape)) for part in source.unbind()])
    made = MemoryMappedTensor.zeros(shape=source.shape, dtype=source.dtype)
    if reserve and made.handler.descriptor is not None:
        with error_context(plain(leaf.key)):
            reserve_file(made.handler.descriptor.fileno(), made.nbytes)
    return made
