"""Appending: adds rows behind those of a persistent tensordict; all are checked before the first is written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict_store.arrays.group import Array
from tensordict_store.arrays.values import encode
from tensordict_store.nodes import inside


def append_rows(td: Any, rows: Any) -> None:
    """Add rows to a persistent tensordict; see its method ``append``."""
    old, new = td._meta.batch_size, rows._meta.batch_size
    if td._locked:
        raise RuntimeError("append() adds rows to a locked tensordict; call unlock_() first")
    if not old or new[1:] != old[1:]:
        raise RuntimeError(
            f"append() adds rows of batch size {list(old[1:])} along the first dimension, got rows of batch size "
            f"{list(new)}; give both a batch size that differs in the first dimension only"
        )
    steps: list[Step] = []
    nodes: list[Any] = []
    _plan(td, rows, (), old[0] + new[0], steps, nodes)
    done: list[Step] = []
    try:
        for step in sorted(steps, key=lambda step: step.turn):
            done.append(step)
            step.do()
    except BaseException:
        for step in done:
            with suppress(Exception):  # the first error is the informative one; readers use the batch size
                step.undo()
        raise
    for node in nodes:
        node._set_meta(node._meta.resized(torch.Size((old[0] + new[0], *node._meta.batch_size[1:])), node._meta.names))
    td._group.flush()


class Step(NamedTuple):
    """A change of one entry, and the function that undoes it; arrays grow before rows are written, values come last."""

    turn: int
    do: Callable[[], None]
    undo: Callable[[], None]


def _shrink(entry: Any, rows: int) -> None:
    """Take rows away; if the disk is too full for that, they stay behind the batch size, where readers do not look."""
    try:
        entry.resize(rows)
    finally:
        entry.shape = torch.Size((rows, *entry.shape[1:]))


def _plan(td: Any, rows: Any, prefix: tuple[str, ...], total: int, steps: list[Step], nodes: list[Any]) -> None:
    """Check all entries of new rows, and append the functions that write them."""
    mine, theirs = set(td._keys()), set(rows._keys())
    if mine != theirs:
        wrong = (*prefix, min(mine ^ theirs))
        raise KeyError(f"append() needs rows with the same entries; {'.'.join(wrong)!r} is in one of the two only")
    nodes.append(td)
    start = td._meta.batch_size[0]
    for key in list(td._keys()):
        entry, new = td._group.find(key), rows._get(key)
        if not isinstance(entry, Array):
            child = td._child(key, entry)
            if (inner := inside(child)) is not None:
                child, new = inner, inside(new)
            _plan(child, new, (*prefix, key), total, steps, nodes)
        elif entry.dtype is None:
            value = td._value(key, entry)
            both = type(value)._cat([value, new], 0) if type(value) is type(new) else None
            both = (
                value.maybe_to_stack()._cat([value.maybe_to_stack(), new.maybe_to_stack()], 0) if both is None else both
            )
            put, pickles = partial(td._group.put_value, key), td._options.allow_pickle
            steps.append(Step(2, partial(put, encode(key, both, pickles)), partial(put, encode(key, value, pickles))))
        elif not isinstance(new, Tensor) or new.dtype != entry.dtype or new.shape[1:] != entry.shape[1:]:
            found = f"{new.dtype} {list(new.shape)}" if isinstance(new, Tensor) else type(new).__name__
            wanted = [rows._meta.batch_size[0], *entry.shape[1:]]
            raise RuntimeError(
                f"append() needs rows of {'.'.join((*prefix, key))!r} with dtype {entry.dtype} and shape "
                f"{wanted}, got {found}; "
                "convert them first"
            )
        else:
            box = [(start, total), *((0, n) for n in entry.shape[1:])]
            steps.append(Step(0, partial(entry.resize, total), partial(_shrink, entry, start)))
            steps.append(Step(1, partial(entry.write, box, new), lambda: None))
