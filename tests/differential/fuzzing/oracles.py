"""Oracles: what the reference itself does with a simpler container decides about a difference.

The same call is run on the dense stack in place of a lazy one, on a tensordict in place of a tensorclass, or without
the entries that are not batched tensors. Where both libraries agree about that, and ours gives the same content for the
container of the program, ours is consistent and the reference is not: rows of the page say which of its calls are so.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fuzzing import programs, structures
from fuzzing.calls import Program
from fuzzing.outcomes import Broken, Difference, Leaf, Tree, differences, rows
from fuzzing.predicates import spaces
from fuzzing.structures import Node

__all__ = ["DECIDED", "as_dense", "as_tensordict", "beside_values", "rows_move"]

Change = Callable[[Node], Node]
Explain = Callable[[Program, list[Difference]], str | None]

_FORGOTTEN = ("shares", "kind", "grad")
"""What two containers of one content may differ in, of a leaf."""


def _changed(node: Node, change: Change) -> Node:
    entries = {
        key: _changed(entry, change) if isinstance(entry, Node) else entry for key, entry in node.entries.items()
    }
    elements = tuple(_changed(element, change) for element in node.elements)
    return change(replace(node, entries=entries, elements=elements))


def _stacked(node: Node) -> Node:
    return replace(node, kind="stacked") if node.kind == "lazy" and "ragged" not in node.label else node


def _plain(node: Node) -> Node:
    return replace(node, kind="dense") if node.kind == "class" else node


def _bare(node: Node) -> Node:
    kept = {key: entry for key, entry in node.entries.items() if isinstance(entry, Node | structures.Tensor)}
    return replace(node, entries=kept)


def _same(one: Any, other: Any, part: bool) -> bool:
    """Whether two descriptions have the same content; only that of the first, if ``part``."""
    if isinstance(one, Tree) and isinstance(other, Tree):
        if one.kind == "UnbatchedTensor" or other.kind == "UnbatchedTensor":
            return one.kind == other.kind and _same(dict(one.entries)["data"], dict(other.entries)["data"], part)
        if one.batch != other.batch:
            return False
        for position in np.ndindex(*one.batch):
            mine, yours = rows(one, position), rows(other, position)
            if not (mine.keys() <= yours.keys() if part else mine.keys() == yours.keys()):
                return False
            if not all(_same(value, yours[path], part) for path, value in mine.items()):
                return False
        return True
    if isinstance(one, Leaf) and isinstance(other, Leaf):
        return all(found.kind in _FORGOTTEN for found in differences(one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key], part) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b, part) for a, b in zip(one, other, strict=True))
    if isinstance(one, Broken) or isinstance(other, Broken):
        return False
    return type(one) is type(other) and not list(differences(one, other))


def _decides(change: Change, part: bool, explain: Explain, program: Program) -> bool:
    simple = replace(
        program,
        x=_changed(program.x, change),
        operands={name: _changed(node, change) for name, node in program.operands.items()},
    )
    if simple == program:
        return False
    theirs, ours = spaces()
    found = programs.compare(simple, theirs, ours)
    if found and explain(simple, found) is None:
        return False
    # what a row explains of the simpler program is so of this one, too
    expected, given = programs.run(simple, ours if found else theirs), programs.run(program, ours)
    if expected.error is not None or given.error is not None:
        both = expected.error is not None and given.error is not None and not part
        return both and programs.is_of_type(given.error, expected.error)
    names = ["result", *given.before]
    return all(_same(expected.values[name], given.values[name], part) for name in names)


DECIDED: dict[tuple[Any, ...], bool] = {}
"""The answers of oracles, by the change of the containers and the program."""


def _oracle(change: Change, part: bool, explain: Explain, program: Program, difference: Difference) -> bool:
    key = (change, *program.lines())
    if key not in DECIDED:
        DECIDED[key] = False  # while it is asked about
        with contextlib.suppress(IndexError):  # rows of an entry that does not start with the batch size
            DECIDED[key] = _decides(change, part, explain, program)
    return DECIDED[key]


def as_dense(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with a lazy stack what both libraries do with the dense stack of its elements."""
    return functools.partial(_oracle, _stacked, False, explain)


def as_tensordict(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with a tensorclass what both libraries do with a tensordict of its entries."""
    return functools.partial(_oracle, _plain, False, explain)


def beside_values(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether both libraries agree without values and unbatched tensors, beside which ours does the same.

    Beside them the reference refuses, or its ``pad_sequence`` takes them for sequences.
    """
    asked = functools.partial(_oracle, _bare, True, explain)
    return lambda program, difference: (
        (difference.kind.endswith("Error > result") or program.call.name == "pad_sequence")
        and asked(program, difference)
    )


def rows_move(program: Program, difference: Difference) -> bool:
    """Whether ours moves whole rows, each to where the same call moves its number among the numbers of the rows."""
    end = programs.run(program, spaces()[1])
    if end.values is None or end.before is None:
        return False
    before, after = end.before["x"], end.values["result"]
    given = [(name, value) for name, value in program.call.arguments if name != "inplace"]
    if len(given) == len(program.call.arguments) and given and given[-1] == (None, "True"):
        given.pop()
    call = replace(program.call, arguments=tuple(given))
    numbers = torch.arange(math.prod(before.batch)).reshape(before.batch)
    try:
        moved = eval(str(call), {**spaces()[1], "x": numbers})
    except (IndexError, RuntimeError, TypeError, ValueError):
        return False
    if not isinstance(after, Tree) or after.batch != tuple(moved.shape):
        return False
    places = list(np.ndindex(*before.batch))
    try:
        return all(
            _same(rows(after, position), rows(before, places[int(moved[position])]), False)
            for position in np.ndindex(*after.batch)
        )
    except IndexError:  # an entry that does not start with the batch size
        return False
