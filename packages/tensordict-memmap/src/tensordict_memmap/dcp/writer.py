"""Storage writer of ``torch.distributed.checkpoint``: saves of state dicts to the files that ``save`` writes."""

from __future__ import annotations

import contextlib
import os
import uuid
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from tensordict_memmap.dcp.coordinate import Coordinator
from tensordict_memmap.dcp.items import digest_of
from tensordict_memmap.dcp.values import dump_value
from tensordict_memmap.distributed.assign import Share
from tensordict_memmap.distributed.layout import Layout
from tensordict_memmap.distributed.local_parts import stored_part
from tensordict_memmap.distributed.placements import Part, awaited
from tensordict_memmap.distributed.plan import Box, unpack
from tensordict_memmap.distributed.team import host_name
from tensordict_memmap.distributed.write import writes_of
from tensordict_memmap.engine import executor
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.writer import Run
from tensordict_memmap.schema.node import Leaf
from tensordict_memmap.schema.plan import check_source
from tensordict_memmap.schema.sharded import rank_and_size
from tensordict_memmap.storage.removal import remove_tree


class TensorDictWriter(StorageWriter):
    """Storage writer of ``torch.distributed.checkpoint`` for the files of ``TensorDict.save``.

    All ranks write their parts of the final files in one pass, and the coordinator renames the files when all have
    succeeded; until then, an existing checkpoint at the path is unchanged. Nothing is pickled. ``TensorDict.load``
    reads the result under the keys of the state dict, and any safetensors tool can read it too.

    Args:
        path: The target, on a file system that all ranks share: a safetensors file if it ends with ``.safetensors``,
            else a folder with a file for each tensor.
        format: ``"safetensors"`` or ``"tree"``; by default according to the path.
        shard_size: The maximum size in bytes of the tensors in a file; the path is then a folder of shards and their
            index.
        durable: Whether everything is synced to disk before the save returns.
        existsok: Whether an existing checkpoint may be replaced.
        num_threads: The number of writer threads of each rank; by default that of the machine divided by the ranks on
            it.
        allow_pickle: Whether entries that are not tensors and have no JSON form are stored as the bytes of
            ``torch.save``. They load only with ``allow_pickle=True`` in the reader, and `TensorDict.load` returns the
            bytes.

    Raises:
        ValueError: The path is a URL, or options contradict each other.

    >>> import warnings
    >>> import torch.distributed.checkpoint as dcp
    >>> warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # DCP says so without ranks
    >>> state = {"model": {"weight": torch.ones(2, 3)}, "step": 5}
    >>> _ = dcp.save(state, storage_writer=TensorDictWriter("run.safetensors"), no_dist=True)
    >>> loaded = TensorDict.load("run.safetensors")
    >>> loaded["model", "weight"].shape, loaded["step"]
    (torch.Size([2, 3]), 5)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        shard_size: int | None = None,
        durable: bool = False,
        existsok: bool = True,
        num_threads: int | None = None,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__()
        self._options = SaveOptions(
            format=format, shard_size=shard_size, durable=durable, existsok=existsok, num_threads=num_threads
        )
        self._allow_pickle = allow_pickle
        self._coordinator: Coordinator | None = None
        self._save_id = self._path = ""
        self.reset(path)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start a new save, to another path if one is given.

        Raises:
            ValueError: The path is a URL.

        >>> writer = TensorDictWriter("run")
        >>> writer.reset("other")
        >>> os.path.basename(writer.checkpoint_id)
        'other'
        """
        self._give_up()
        self._save_id = str(uuid.uuid4())
        if checkpoint_id is not None:
            if is_remote(os.fspath(checkpoint_id)):
                raise ValueError(
                    f"{checkpoint_id} is a URL, and TensorDictWriter writes files that all ranks share; save there "
                    "with TensorDict.save, or convert() a saved file"
                )
            self._path = os.path.abspath(local_path(os.fspath(checkpoint_id)))
            self._options.format_for(self._path)

    @property
    def checkpoint_id(self) -> str:
        """The path of the save.

        >>> os.path.basename(TensorDictWriter("runs/1").checkpoint_id)
        '1'
        """
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether saves to a path are possible: it is not a URL.

        >>> TensorDictWriter.validate_checkpoint_id("run"), TensorDictWriter.validate_checkpoint_id("s3://bucket/run")
        (True, False)
        """
        return not is_remote(os.fspath(checkpoint_id))

    def storage_meta(self) -> StorageMeta:
        """Return the path and the id of the save, for planners.

        >>> len(TensorDictWriter("run").storage_meta().save_id)
        36
        """
        return StorageMeta(checkpoint_id=self._path, save_id=self._save_id)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the configuration only: a save in another process (``AsyncCheckpointerType.PROCESS``) starts there."""
        return {**self.__dict__, "_coordinator": None}

    # --- the steps of a save, in the order in which DCP calls them

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Start a save.

        Raises:
            ValueError: ``use_collectives=False`` keeps several ranks from one checkpoint.

        >>> TensorDictWriter("run").set_up_storage_writer(True)
        """
        self._give_up()
        if not kwargs.get("use_collectives", True) and rank_and_size()[1] > 1:
            raise ValueError(
                "use_collectives=False saves a checkpoint for each rank, and TensorDictWriter writes one of all ranks; "
                "leave it out"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Add the data about the rank that the coordinator requires to a plan.

        Raises:
            ValueError: The planner caches plans, and leaves this one out.

        >>> TensorDictWriter("run").prepare_local_plan(SavePlan([])).storage_data is None
        False
        """
        if not plan.usable:
            raise ValueError(
                "enable_plan_caching=True hands no plan to the coordinator, which lays out the files of a save by the "
                "plans; leave it out of the planner"
            )
        return replace(plan, storage_data=host_name())

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Lay out the files, make the staged ones, and send each rank the positions of its items.

        Raises:
            ValueError: The plans do not fit together, or leave some of a tensor out; the error names the key and rank.

        >>> writer = TensorDictWriter("run")
        >>> [plan] = writer.prepare_global_plan([writer.prepare_local_plan(SavePlan([]))])
        >>> type(plan.storage_data)
        <class 'bytes'>
        """
        made = Coordinator(self._path, self._options, plans)
        made.start(Run(self._options.num_threads, self._options.durable))
        self._coordinator = made
        messages, made.messages = made.messages, []
        return [replace(plan, storage_data=message) for plan, message in zip(plans, messages, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the items of this rank into the staged files.

        Returns:
            A future that is done. Its results are the non-tensor values; tensors have no result.

        Raises:
            TypeError: An entry has no JSON form, or a tensor has no place in a file; the error names the key.
            OSError: Writing fails.

        >>> from torch.distributed.checkpoint import DefaultSavePlanner
        >>> writer, planner = TensorDictWriter("run"), DefaultSavePlanner()
        >>> planner.set_up_planner({"a": torch.ones(2)}, is_coordinator=True)
        >>> plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
        >>> [plan] = writer.prepare_global_plan(plans)
        >>> results = writer.write_data(plan, planner).wait()
        >>> results
        []
        """
        if not isinstance(plan.storage_data, bytes):
            raise ValueError(
                "the planner removed storage_data from the plan, where TensorDictWriter stores the positions of the "
                "items; keep it in finish_plan()"
            )
        head, layout, share, kept = unpack(plan.storage_data)
        about = orjson.loads(head)
        try:
            results = self._write(plan.items, planner, about, Layout.loads(layout), Share.loads(share), kept)
        except BaseException:
            # DCP does not tell the coordinator's storage of it: nothing is left there for the ranks that go on
            _remove(about["staged"])
            raise
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _write(
        self,
        items: list[WriteItem],
        planner: SavePlanner,
        about: dict[str, Any],
        layout: Layout,
        share: Share,
        kept: bytes,
    ) -> list[WriteResult]:
        results: list[WriteResult] = []
        parts: dict[str, list[Part]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for item in items:
            if item.tensor_data is None:
                value = dump_value(item, planner, allow_pickle=self._allow_pickle)
                results.append(WriteResult(item.index, len(value), value))
            else:
                part = _part(item, planner)
                parts.setdefault(item.index.fqn, []).append(stored_part(part) if about["packed"] else part)
                shapes[item.index.fqn] = tuple(item.tensor_data.size)
        names = list(parts)
        if digest_of(names) != about["digest"]:
            raise ValueError(
                "the planner changed the items after the plan was sent to the coordinator; keep the items in "
                "finish_plan()"
            )
        if not os.path.lexists(about["staged"]):
            raise FileNotFoundError(
                f"{about['staged']} does not exist here: another rank failed and removed it, or this machine does not "
                "share the file system; save to a path that all ranks see"
            )
        own = [names[number] for number in np.frombuffer(kept, dtype=np.int32).tolist()]
        found = [parts[name] for name in own]
        if about["packed"]:
            share = _stored_share(share, found, [shapes[name] for name in own])
        sizes = [_whole_shape(shapes[name], held) for name, held in zip(own, found, strict=True)]
        writes = writes_of(about["staged"], layout, share, [(name,) for name in own], sizes, found, maps=about["maps"])
        threads = self._options.num_threads or max(executor.default_threads() // max(about["here"], 1), 1)
        Run(threads, self._options.durable).write_files(writes)
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Complete the files with the non-tensor values, and make them the current checkpoint by one rename.

        >>> from torch.distributed.checkpoint import DefaultSavePlanner
        >>> writer, planner = TensorDictWriter("run"), DefaultSavePlanner()
        >>> planner.set_up_planner({"a": torch.ones(2)}, is_coordinator=True)
        >>> plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
        >>> [plan] = writer.prepare_global_plan(plans)
        >>> results = writer.write_data(plan, planner).wait()
        >>> writer.finish(metadata, [results])
        >>> TensorDict.load("run")["a"].tolist()
        [1.0, 1.0]
        """
        made, self._coordinator = self._coordinator, None
        if made is None:
            raise RuntimeError("finish() was called without prepare_global_plan(), which starts the save; save again")
        values = {one.index.fqn: one.storage_data for found in results for one in found}
        made.finish(values, Run(self._options.num_threads, self._options.durable))
        metadata.storage_meta = self.storage_meta()

    def _give_up(self) -> None:
        """Remove the staged files of an earlier save that failed on some rank."""
        made, self._coordinator = self._coordinator, None
        if made is not None:
            made.abort()


def _part(item: WriteItem, planner: SavePlanner) -> Part:
    """Return the part of its tensor that an item holds.

    Raises:
        TypeError: The planner gives no tensor of the dtype that it planned, or one that a file cannot hold.
        ValueError: It has another shape.
    """
    data, name = item.tensor_data, item.index.fqn
    assert data is not None
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != data.properties.dtype:
        found = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise TypeError(
            f"key {name!r} was planned as {data.properties.dtype}, and the planner gives {found} for it; plan the "
            "dtype that is written"
        )
    tensor = awaited(tensor)
    check_source(Leaf((name,), "", tensor.dtype, tuple(tensor.shape), source=tensor))
    box = Box(tuple(data.chunk.offsets), tuple(data.chunk.sizes))
    if tuple(tensor.shape) != box.size:
        raise ValueError(
            f"key {name!r} was planned with a part of the shape {list(box.size)}, and the planner gives one of "
            f"{list(tensor.shape)}; plan the shape that is written"
        )
    return box, tensor


def _whole_shape(shape: tuple[int, ...], parts: list[Part]) -> tuple[int, ...]:
    """Return the shape of a whole tensor in the file, where the parts have it: numbers may be pairs there."""
    return (*shape, *parts[0][0].size[len(shape) :])


def _stored_share(share: Share, parts: list[list[Part]], shapes: list[tuple[int, ...]]) -> Share:
    """Return a share with the boxes of the tensors as the file has them."""
    pairs = [n for n, (held, shape) in enumerate(zip(parts, shapes, strict=True)) if len(held[0][0].size) > len(shape)]
    if not pairs:
        return share
    made = Share(len(parts))
    for number in range(len(parts)):
        extra = parts[number][0][0].size[len(shapes[number]) :]
        made.set(number, tuple(box.with_dims(extra) for box in share.boxes(number)))
    return made


def _remove(staged: str) -> None:
    with contextlib.suppress(OSError):
        if os.path.isdir(staged):
            remove_tree(staged, ignore_errors=True)
        else:
            os.unlink(staged)
