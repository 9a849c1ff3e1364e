"""Coordination: the side of the coordinator in a save by DCP, from the plans of all ranks to one rename.

The staged file or folder belongs to a transaction that stays open between the calls of DCP. The header of a safetensors
file reserves space for non-tensor values, which the coordinator receives only with the results of the ranks. If they
take more space, the content of the first file is moved.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from torch.distributed.checkpoint.planner import SavePlan

from tensordict_memmap.dcp.items import LISTS, LISTS_FILE, Described, digest_of, paths_of, shard_plan
from tensordict_memmap.dcp.values import load_value
from tensordict_memmap.distributed.assign import Assignment, assign
from tensordict_memmap.distributed.formats import Format, format_of, whole_writes
from tensordict_memmap.distributed.layout import Layout, path_in
from tensordict_memmap.distributed.plan import ShardPlan, pack
from tensordict_memmap.distributed.save import make_files, saving_layout
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.saving.options import SaveOptions
from tensordict_memmap.saving.tree import TreeFile
from tensordict_memmap.saving.writer import Run
from tensordict_memmap.storage.transaction import Stage

_ROOM, _ROOM_AT_LEAST = 64, 4096
"""Bytes in a header for each non-tensor value, and more for all of them together."""

_BLOCK = 16 << 20


class Coordinator:
    """One save, as the coordinator sees it.

    Args:
        path: The absolute path of the target.
        options: The options.
        plans: The plans of all ranks.

    Attributes:
        messages: The message to each rank, once `start` was called.

    Raises:
        ValueError: The plans do not fit together, or leave some of a tensor out; the error names the key and the rank.
    """

    def __init__(self, path: str, options: SaveOptions, plans: Sequence[SavePlan]) -> None:
        self.path = path
        self.options = options
        self.messages: list[bytes] = []
        self._save_id = secrets.token_hex(16)
        self._hosts = [plan.storage_data for plan in plans]
        self._plans: list[ShardPlan] = []
        values: dict[str, None] = {}
        for plan in plans:
            made, names = shard_plan(plan.items, self._plans[0].names if self._plans else None)
            self._plans.append(made)
            values |= dict.fromkeys(names)
        assignment = assign(self._plans)
        self._held = Described(assignment, values, paths_of(plans, [*assignment.names, *values]))
        for number, value in enumerate(self._held.values.values()):
            value.value = " " * (_ROOM if number else _ROOM + _ROOM_AT_LEAST)
        self._form, self._layout = self._describe()
        self._transaction: AbstractContextManager[Any] | None = None
        self._stage: Stage | None = None
        self._staged = ""

    def _describe(self) -> tuple[Format, Layout]:
        """Name the tensors and lay out the files, with the values as they are known."""
        form = format_of(self._held, self.path, self.options)  # type: ignore[arg-type]  # it has the attributes that formats use
        lists = orjson.dumps(self._held.lists).decode()
        described = getattr(form, "pack", None)
        if described is not None and self._held.lists:
            described.texts[LISTS] = lists
        layout = form.layout(self._ordered(form), self._save_id)
        if described is None and self._held.lists:
            text = lists.encode()
            layout.whole.append(TreeFile(LISTS_FILE, [FileRange(LISTS_FILE, text)], len(text)))
        return form, layout

    def _ordered(self, form: Format) -> Assignment:
        return self._held.ordered(lambda position: form.stored[position].file)

    def start(self, run: Run) -> None:
        """Make the staged files, and the messages for the ranks."""
        transaction = saving_layout(self.path, self._layout, self.options, is_folder=self._form.is_folder)
        self._transaction, self._stage = transaction, transaction.__enter__()
        self._staged = self._stage.path
        try:
            maps = self._make_files(run)
            self.messages = list(self._messages(maps))
        except BaseException:
            self.abort()
            raise

    def _make_files(self, run: Run) -> bool:
        """Make the files that several ranks write; return whether mappings of them are fast."""
        keys = {number: (path,) for number, path in enumerate(self._layout.files)}
        fast = make_files(self._layout, self._staged, keys, run)
        return len(set(self._hosts)) == 1 and isinstance(self._hosts[0], str) and fast

    def _messages(self, maps: bool) -> Iterator[bytes]:
        """Yield the message to each rank: where its tensors are, in the order of its items, and what it writes."""
        layout, places = self._layout, np.array(self._held.places(), dtype=np.int64)
        shares = self._ordered(self._form).shares
        file_of, offsets = np.array(layout.file_of, dtype=np.int64), np.array(layout.offsets, dtype=np.int64)
        numbers = {name: number for number, name in enumerate(self._held.names)}
        known: dict[int, tuple[np.ndarray, np.ndarray, bytes, str]] = {}
        for plan, share, host in zip(self._plans, shares, self._hosts, strict=True):
            if id(plan.names) not in known:  # ranks share the list of names mostly
                own = places[[numbers[name] for name in plan.names]]
                kept = np.flatnonzero(own >= 0)
                own = own[kept]
                part = replace(layout, file_of=file_of[own].tolist(), offsets=offsets[own].tolist())
                known[id(plan.names)] = own, kept, part.dumps(), digest_of(plan.names)
            own, kept, text, digest = known[id(plan.names)]
            head = {
                "staged": self._staged,
                "maps": maps,
                "digest": digest,
                "packed": getattr(self._form, "pack", None) is not None,
                "here": self._hosts.count(host),
            }
            message = orjson.dumps(head)
            yield pack(message, text, share.of(own).dumps(), kept.astype(np.int32).tobytes())

    def finish(self, values: Mapping[str, bytes], run: Run) -> None:
        """Complete the files with the non-tensor values, and make them the current save.

        Args:
            values: The JSON of each value by its name.
            run: The threads and the durability.

        Raises:
            ValueError: A value is missing.
        """
        try:
            self._complete(values, run)
        except BaseException:
            self.abort()
            raise
        transaction, self._transaction = self._transaction, None
        assert transaction is not None
        transaction.__exit__(None, None, None)

    def _complete(self, values: Mapping[str, bytes], run: Run) -> None:
        nodes = self._held.values
        missing = sorted(nodes.keys() - values.keys())
        if missing:
            raise ValueError(f"the value of key {missing[0]!r} came from no rank; save again with the default planner")
        reserved = self._layout
        form, layout = self._form, reserved
        if nodes:
            for name, node in nodes.items():
                node.value = load_value(values[name])
            form, layout = self._describe()
        for path, text in layout.texts.items():
            number = layout.files.index(path)
            _write_header(path_in(self._staged, path), text, len(reserved.texts[path]), run.durable)
            layout.sizes[number] = max(layout.sizes[number], reserved.sizes[number])
        run.write_files(whole_writes(self._staged, layout))
        assert self._stage is not None
        self._stage.manifest = form.manifest(self._staged, layout, self._save_id, durable=run.durable)

    def abort(self) -> None:
        """Remove the staged files, if the save was not finished."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            error = sys.exc_info()[1] or RuntimeError("the save was given up")
            transaction.__exit__(type(error), error, error.__traceback__)


def _write_header(path: str, text: bytes, reserved: int, durable: bool) -> None:
    """Write the header of a staged file into the reserved space; move the following bytes if it takes more."""
    with open(path, "r+b") as file:
        if len(text) > reserved:
            _move_up(file, reserved, len(text) - reserved)
        else:  # a header may end with spaces
            text = (reserved - 8).to_bytes(8, "little") + text[8:] + b" " * (reserved - len(text))
        file.seek(0)
        file.write(text)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _move_up(file: Any, start: int, distance: int) -> None:
    """Move the bytes of a file from a position on."""
    end = file.seek(0, os.SEEK_END)
    while end > start:
        first = max(start, end - _BLOCK)
        file.seek(first)
        block = file.read(end - first)
        file.seek(first + distance)
        file.write(block)
        end = first
