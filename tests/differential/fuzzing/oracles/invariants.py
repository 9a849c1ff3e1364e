"""Invariants: what every container satisfies, and differences where ours does and the reference does not."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from fuzzing import programs
from fuzzing.calls import Program
from fuzzing.oracles.containers import PROPERTIES, Explain, on_the_way
from fuzzing.outcomes import Broken, Difference, Leaf, Outcome, Tree, differences
from fuzzing.predicates import INTERNAL, spaces


def has_the_properties_of_its_node(program: Program, difference: Difference) -> bool:
    """Whether an entry of ours has the names, the device or the lock of its node, and that of the reference has not.

    A difference of the node itself is another one.
    """
    if difference.kind not in PROPERTIES:
        return False
    place = difference.place.removeprefix("construct.")
    found = []
    for space in spaces():
        end = programs.run(program, space)
        values = (end.before if difference.place.startswith("construct.") else end.values) or {}
        variable, *_ = re.findall(r"\w+", place)
        *nodes, value = on_the_way(values[variable], place.removeprefix(variable))
        node = (
            nodes[-1] if nodes and isinstance(nodes[-1], Tree) else values["x"] if difference.kind == "names" else None
        )
        if node is None or not isinstance(value, Tree) or (not nodes and not value.kind.startswith("NonTensor")):
            return False
        found.append(_follows(value, node, difference.kind))
    return found == [False, True]


COUNT = 59
"""A number of rows that no dimension of a program has."""


def _names_after(index: Any, names: tuple[str | None, ...]) -> tuple[str | None, ...] | None:
    """The names of the dimensions after an index, read from the shape that torch gives; ``None`` if it has bools.

    Dimensions of different sizes are indexed by whole slices and by tensors of one length in place of the index.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[at : at + 1] = [slice(None)] * (len(names) - taken)
    sizes, whole, by_tensors, dim = tuple(range(COUNT + 1, COUNT + 1 + len(names))), [], [], 0
    for part in parts:
        if isinstance(part, bool):
            return None
        if part is None or isinstance(part, int):
            whole.append(part if part is None else 0)
        elif isinstance(part, slice):
            whole.append(slice(None))
        else:
            by_tensors.append(dim)
            whole.append(torch.zeros(COUNT, dtype=torch.int64))
        dim += part is not None
    own = {size: names[i] for i, size in enumerate(sizes)}
    if len(by_tensors) == 1:
        own[COUNT] = names[by_tensors[0]]
    return tuple(own.get(size) for size in torch.zeros(sizes)[tuple(whole)].shape)


def names_follow_the_index(program: Program, difference: Difference) -> bool:
    """Whether the names of ours are those of the dimensions that an index keeps; tensors that broadcast have none."""
    if difference.kind != "names" or program.call.name not in ("getitem index", "to_tensordict index"):
        return False
    end = programs.run(program, spaces()[1])
    (_, source), *_ = program.call.arguments
    x, ours = (end.before or {})["x"], ast.literal_eval(difference.ours)
    names = _names_after(eval(source, dict(spaces()[1])), x.names)
    return names is not None and ours[: len(names)] == names and not any(ours[len(names) :])


def _follows(value: Tree, node: Tree, kind: str) -> bool:
    """Whether an entry has a property of its node."""
    if kind == "locked":
        return value.locked == node.locked
    if kind == "device":
        return value.device == node.device
    count = len(node.names)
    return value.names[:count] == node.names and not any(value.names[count:])


def faults(value: Any, node: Tree | None = None) -> Iterator[str]:
    """What is wrong with a described value: parts that cannot be read, or that do not start with the batch size."""
    if isinstance(value, Broken):
        yield "cannot be read"
    elif isinstance(value, Leaf):
        if node is not None and not _starts(value.shape, node.batch):
            yield f"a shape of {value.shape} in a batch size of {node.batch}"
    elif isinstance(value, Tree):
        is_stack = value.entries[:1] and value.entries[0][0] == "stack_dim"
        if node is not None and value.kind != "UnbatchedTensor" and not _starts(value.batch, node.batch):
            yield f"a batch size of {value.batch} in one of {node.batch}"
        own = value if value.kind not in ("UnbatchedTensor", "NonTensorData", "NonTensorStack") else None
        if own is not None and is_stack:
            dim = value.entries[0][1]
            own = replace(value, batch=value.batch[:dim] + value.batch[dim + 1 :])
        for key, entry in value.entries:
            if key != "stack_dim":
                yield from faults(entry, own)
    elif isinstance(value, dict):
        for entry in value.values():
            yield from faults(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from faults(entry)


def _starts(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    sizes = shape[: len(batch)]
    return len(sizes) == len(batch) and all(a == b or -1 in (a, b) for a, b in zip(sizes, batch, strict=True))


def _accepts(difference: Difference) -> bool:
    """Whether ours raises an error about the call where the reference gives a result."""
    return difference.kind.startswith("result > ") and not INTERNAL.search(difference.ours)


def refuses_what_would_be_invalid(program: Program, difference: Difference) -> bool:
    """Whether ours refuses a call after which the reference has a container that breaks an invariant."""
    if not _accepts(difference):
        return False
    end = programs.run(program, spaces()[0])
    before = [fault for value in (end.before or {}).values() for fault in faults(value)]
    return not before and any(True for value in (end.values or {}).values() for _ in faults(value))


OTHERS = ("None", "0", "1", "'a'", "'no'", "7", "[]", "()", "object()", "{'q': 1}", "t([5, 5])")
"""Values of several types, most of which are wrong for any parameter."""


def _without(program: Program, i: int, *other: tuple[str | None, str]) -> Program:
    arguments = program.call.arguments
    call = replace(program.call, arguments=(*arguments[:i], *other, *arguments[i + 1 :]))
    return replace(program, call=call)


def _alike(one: Outcome, other: Outcome) -> bool:
    if one.values is None or other.values is None or one.error or other.error:
        return False
    return one.values.keys() == other.values.keys() and not any(
        True for name in one.values for _ in differences(one.values[name], other.values[name])
    )


def ignores_an_argument(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether the reference gives one result for all values of an argument, without which ours gives it too."""

    def matches(program: Program, difference: Difference) -> bool:
        if not _accepts(difference):
            return False
        theirs, ours = spaces()
        result = programs.run(program, theirs)
        for i, (name, _) in enumerate(program.call.arguments):
            if name is None and i + 1 < len(program.call.arguments):
                continue  # the arguments behind it would move
            if any(not _alike(programs.run(_without(program, i, (name, other)), theirs), result) for other in OTHERS):
                continue
            simple = _without(program, i)
            found = programs.compare(simple, theirs, ours)
            if _alike(programs.run(simple, theirs), result) and (not found or explain(simple, found) is not None):
                return programs.run(simple, ours).error is None
        return False

    return matches
