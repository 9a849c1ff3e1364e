"""Local parts: the schema of a tensordict whose leaves are sharded over ranks, and the parts that this rank holds.

The schema of a `DTensor` leaf has the global shape, and as its source a placeholder of that shape without memory, so
that each format describes it like any other leaf. Its parts are stored separately. A plain leaf is complete on each
rank (replicated), unless ``placements=Shard(dim)`` declares that the ranks hold consecutive parts of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate, Shard

from tensordict_memmap.distributed.placements import Part, local_of, parts_of
from tensordict_memmap.distributed.plan import Box, ShardPlan, stand_in, whole
from tensordict_memmap.formats.safetensors.describe import stored
from tensordict_memmap.formats.safetensors.header import Form
from tensordict_memmap.saving.host_copy import copy_to_host
from tensordict_memmap.schema.node import Dense, Leaf, Parts, Value, leaves, nodes, show
from tensordict_memmap.schema.plan import LAZY, check_source, memory_of, plain_address, plan_to_save


class LocalParts:
    """A planned tensordict and the parts of its leaves on this rank.

    Args:
        data: The tensordict.
        placements: How the ranks hold plain leaves: None or ``Replicate()`` for whole ones, ``Shard(dim)`` for parts.

    Raises:
        TypeError: A leaf cannot be saved by several ranks; the error names its key.
        ValueError: A plain leaf has no such dimension.
    """

    def __init__(self, data: Any, placements: Any = None) -> None:
        self.schema = plan_to_save(data)
        self.dim = _shard_dim(placements)
        self.parts: dict[int, list[Part]] = {}
        """The parts of leaves, and of the elements of lazy stacks, by the id of the leaf or of its stand-in."""
        self._kept: list[Any] = []  # what the ids above belong to
        self._stand_ins: dict[Any, torch.Tensor] = {}
        self._split: list[Leaf] = []
        for leaf in leaves(self.schema):
            source = leaf.source
            if isinstance(source, DTensor):
                self._take(leaf, source)
            elif self.dim is not None:
                self._check_split(leaf)
                self._split.append(leaf)
        if self.dim is not None:
            self._check_nodes()

    def _take(self, leaf: Leaf, source: DTensor) -> None:
        local = local_of(source)
        check_source(Leaf(leaf.key, "", leaf.dtype, tuple(local.shape), source=local))
        memory: Any = memory_of(local)
        if memory is None:  # an empty part, which is tied where the parts of the other ranks are
            storage = local.untyped_storage()
            self._kept.append(storage)
            memory = id(storage), local.dtype, local.storage_offset()
        tie = (memory, tuple(source.shape), source.placements, source.device_mesh)
        first = self._stand_ins.get(tie)
        if first is None:
            first = self._stand_ins[tie] = stand_in(leaf.dtype, source.shape)
        self._keep(leaf, first, parts_of(source, leaf.key))

    def _keep(self, leaf: Leaf, source: torch.Tensor, parts: list[Part]) -> None:
        leaf.source, leaf.address = source, 0
        leaf.shape = tuple(source.shape)
        self._kept += [leaf, source]
        self.parts[id(leaf)] = self.parts[id(source)] = parts

    def copy_to_host(self) -> Callable[[], None]:
        """Copy all parts and plain leaves to host memory, so that later changes of the tensordict have no effect.

        Returns:
            A function to call when the copies are not needed any more.
        """
        plain = [leaf for leaf in leaves(self.schema) if id(leaf) not in self.parts]
        for leaf in plain:
            if leaf.layout != "strided" and leaf.source is not None:
                leaf.source = leaf.source.detach().clone()
        plain = [leaf for leaf in plain if leaf.layout == "strided" and leaf.source is not None]
        for leaf in plain:
            check_source(leaf)
        views = {id(view): view for parts in self.parts.values() for _, view in parts}
        ties: dict[Any, torch.Tensor] = {}
        for leaf in plain:
            assert leaf.source is not None
            memory = memory_of(leaf.source)
            leaf.source = ties.setdefault(memory, leaf.source) if memory is not None else leaf.source
            views[id(leaf.source)] = leaf.source.detach().as_subclass(torch.Tensor)
        copies, release = copy_to_host(list(views.values()))
        made = dict(zip(views, copies, strict=True))
        self.parts = {number: [(box, made[id(view)]) for box, view in parts] for number, parts in self.parts.items()}
        for leaf in plain:
            leaf.source = made[id(leaf.source)]
            leaf.address = plain_address(leaf.source)
        return release

    # --- plain leaves in parts

    def _check_split(self, leaf: Leaf) -> None:
        assert self.dim is not None
        if leaf.layout != "strided" or leaf.unbatched or leaf.source is None:
            raise TypeError(
                f"placements=Shard({self.dim}) cuts strided tensors, and key {show(leaf.key)} is nested or unbatched; "
                "save it separately"
            )
        check_source(leaf)
        if len(leaf.shape) <= self.dim:
            raise ValueError(
                f"placements=Shard({self.dim}) cuts each plain leaf along that dimension, and key {show(leaf.key)} has "
                f"the shape {list(leaf.shape)}; expand it, or make it a DTensor that is replicated"
            )

    def _check_nodes(self) -> None:
        for node in nodes(self.schema):
            if isinstance(node, Value) and node.stack:
                raise TypeError(
                    f"key {show(node.key)} has a value for each position, and placements= cuts tensors only; save it "
                    "on one rank"
                )
            if isinstance(node, Parts) and node.class_string == LAZY:
                raise TypeError(f"key {show(node.key)} is a lazy stack, and placements= cuts tensors only; densify it")

    def lengths(self) -> tuple[list[str], list[int]]:
        """Return the keys of this rank's parts of plain leaves and batch sizes, and their lengths in the dimension."""
        if self.dim is None:
            return [], []
        batched = self._batched()
        sizes = [tuple(leaf.shape) for leaf in self._split] + [node.batch_size for node in batched]
        keys = [".".join(one.key) for one in (*self._split, *batched)]
        return keys, [size[self.dim] for size in sizes]

    def _batched(self) -> list[Dense | Value]:
        assert self.dim is not None
        found = [node for node in nodes(self.schema) if isinstance(node, Dense | Value)]
        return [node for node in found if len(node.batch_size) > self.dim]

    def join_parts(self, lengths: Sequence[Sequence[int]], index: int) -> None:
        """Give plain leaves and batch sizes their whole lengths.

        Args:
            lengths: The `lengths` of all ranks.
            index: The place of this rank among them.
        """
        dim = self.dim
        if dim is None:
            return
        batched = self._batched()
        starts = [sum(column[:index]) for column in zip(*lengths, strict=True)]
        totals = [sum(column) for column in zip(*lengths, strict=True)]
        for leaf, start, total in zip(self._split, starts, totals, strict=False):
            source = leaf.source
            assert source is not None
            shape = (*leaf.shape[:dim], total, *leaf.shape[dim + 1 :])
            offset = (0,) * dim + (start,) + (0,) * (len(shape) - dim - 1)
            self._keep(leaf, stand_in(leaf.dtype, shape), [(Box(offset, tuple(source.shape)), source.detach())])
        for node, total in zip(batched, totals[len(self._split) :], strict=True):
            node.batch_size = (*node.batch_size[:dim], total, *node.batch_size[dim + 1 :])

    # --- plans

    def nbytes(self) -> int:
        """Return the bytes of all that this rank holds."""
        found = 0
        for leaf in leaves(self.schema):
            parts = self.parts.get(id(leaf))
            views = [leaf.source] if parts is None else [view for _, view in parts]
            found += sum(view.nbytes for view in views if view is not None and leaf.layout == "strided")
        return found

    def of_leaf(self, leaf: Leaf, *, packed: bool) -> list[Part]:
        """Return the parts of a leaf as a file holds them.

        Args:
            leaf: The leaf, which its format has described.
            packed: Whether the file is a safetensors file, which lacks some dtypes.
        """
        if leaf.stacked is not None:
            return [
                (Box(_put(box.offset, leaf.stacked.dim, number), _put(box.size, leaf.stacked.dim, 1)), view[index])
                for number, source in enumerate(leaf.stacked.parts)
                for box, view in self._held(source, source, packed=True)
                for index in [(slice(None),) * leaf.stacked.dim + (None,)]
            ]
        assert leaf.source is not None
        return self._held(leaf, leaf.source, packed=packed)

    def _held(self, owner: Leaf | torch.Tensor, source: torch.Tensor, *, packed: bool) -> list[Part]:
        """Return the parts that a leaf or a stand-in has; without any, all of its source."""
        parts = self.parts.get(id(owner))
        if parts is None:
            return [(whole(source.shape), source.detach())]
        return [stored_part(part) for part in parts] if packed else parts

    def plan(self, rows: Sequence[Leaf], forms: Sequence[Form] | None) -> tuple[ShardPlan, list[list[Part]]]:
        """Return the plan of tensors that all ranks write, and their parts.

        Args:
            rows: The tensors.
            forms: Their dtypes and shapes in safetensors files; None for a tree, which has them as they are.
        """
        found = [self.of_leaf(leaf, packed=forms is not None) for leaf in rows]
        plan = ShardPlan()
        kinds: Sequence[Leaf | Form] = rows if forms is None else forms
        for leaf, form, parts in zip(rows, kinds, found, strict=True):
            plan.add(leaf.file, form.dtype, form.shape, [box for box, _ in parts])
        return plan, found


def _put(sizes: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*sizes[:dim], value, *sizes[dim:])


def stored_part(part: Part) -> Part:
    """Return a part as a safetensors file has it, which lacks some dtypes."""
    box, view = part
    made = stored(view)
    extra = tuple(made.shape[len(box.size) :])  # pairs of numbers for a complex one
    return box.with_dims(extra), made


def _shard_dim(placements: Any) -> int | None:
    if isinstance(placements, list | tuple) and len(placements) == 1:
        placements = placements[0]
    if placements is None or isinstance(placements, Replicate):
        return None
    if isinstance(placements, Shard) and placements.dim >= 0:
        return placements.dim
    raise ValueError(
        f"placements={placements!r}, and the ranks hold plain leaves whole, Replicate(), or in parts, Shard(dim); pass "
        "one of them, or make the leaves DTensors"
    )
