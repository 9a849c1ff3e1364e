"""Oracles: what the reference itself does with a simpler container decides about a difference.

The same call is run on the dense stack in place of a lazy one, on a tensordict in place of a tensorclass, or without
the entries that are not batched tensors. Where both libraries agree about that, and ours gives the same content for the
container of the program, ours is consistent and the reference is not: rows of the page say which of its calls are so.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fuzzing import programs, structures
from fuzzing.calls import Call, Program
from fuzzing.outcomes import Broken, Difference, Leaf, Tree, differences, rows
from fuzzing.predicates import both_refuse, keeps_more, spaces
from fuzzing.structures import Node

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


def _all_changed(change: Change, program: Program) -> Program:
    return replace(
        program,
        x=_changed(program.x, change),
        operands={name: _changed(node, change) for name, node in program.operands.items()},
    )


def _decides(simple: Program, part: bool, explain: Explain, program: Program) -> bool:
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


def _oracle(
    change: Callable[[Program], Program], part: bool, explain: Explain, program: Program, difference: Difference
) -> bool:
    key = (change, *program.lines())
    if key not in DECIDED:
        DECIDED[key] = False  # while it is asked about
        with contextlib.suppress(IndexError):  # rows of an entry that does not start with the batch size
            DECIDED[key] = _decides(change(program), part, explain, program)
    return DECIDED[key]


def as_dense(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with a lazy stack what both libraries do with the dense stack of its elements."""
    return functools.partial(_oracle, functools.partial(_all_changed, _stacked), False, explain)


def as_tensordict(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with a tensorclass what both libraries do with a tensordict of its entries."""
    return functools.partial(_oracle, functools.partial(_all_changed, _plain), False, explain)


def beside_values(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether both libraries agree without values and unbatched tensors, beside which ours does the same.

    Beside them the reference refuses, drops entries, or its ``pad_sequence`` takes them for sequences.
    """
    asked = functools.partial(_oracle, functools.partial(_all_changed, _bare), True, explain)
    return lambda program, difference: (
        (difference.kind.endswith("Error > result") or program.call.name == "pad_sequence" or keeps_more(difference))
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


def _of_dtype(dtype: str, node: Node) -> Node:
    tensors = {key: entry for key, entry in node.entries.items() if isinstance(entry, structures.Tensor)}
    return replace(node, entries=node.entries | {key: replace(t, dtype=dtype) for key, t in tensors.items()})


DTYPES = ("float32", "int64")

_CHANGES: tuple[Change, ...] = (
    *(_stacked, _plain, _bare, lambda node: replace(node, suffix="")),
    lambda node: replace(node, kind="dense") if node.kind == "params" else node,
    *(functools.partial(_of_dtype, dtype) for dtype in DTYPES),
)
"""What makes a container simpler."""

VALID = ("None", "0", "1", "1.0", "True", "[]", "'a'", "x", "torch.float32", "torch.abs")
"""Arguments one of which is valid for most parameters."""


def _with_sources(call: Call, pattern: str, text: str) -> Call:
    """The call with a pattern replaced in the sources of its arguments."""
    arguments = [(name, re.sub(pattern, text, source)) for name, source in call.arguments]
    return replace(call, arguments=tuple(arguments))


def _with_fewer_faults(program: Program) -> Iterator[Program]:
    """The program without one of its arguments, with a valid one in its place, or with a simpler container."""
    arguments = program.call.arguments
    for i, (name, source) in enumerate(arguments):
        others = [(), *(((name, valid),) for valid in (*VALID, *_keys_of(program.x)) if valid != source)]
        for other in others:
            yield replace(program, call=replace(program.call, arguments=(*arguments[:i], *other, *arguments[i + 1 :])))
    if program.call.template.startswith("setitem(x, "):
        for valid in ("0", "..."):
            yield replace(program, call=replace(program.call, template=f"setitem(x, I[{valid}], @)"))
    for change in _CHANGES:
        for part in ("x", *program.operands):
            node = program.x if part == "x" else program.operands[part]
            simple = _changed(node, change)
            if simple != node:
                changed = {"x": simple} if part == "x" else {"operands": {**program.operands, part: simple}}
                yield replace(program, **changed)
    for dtype in DTYPES:  # operands of one dtype, those of the call too
        simple = _all_changed(functools.partial(_of_dtype, dtype), program)
        yield simple
        yield replace(simple, call=_with_sources(simple.call, r"t\((\[[\d, ]*\])", rf"t(\1, '{dtype}'"))
    for key in _keys_of(program.x):  # the keys of dictionaries
        yield replace(program, call=_with_sources(program.call, r"{'\w':", f"{{{key}:"))
    for first, second in dict.fromkeys(re.findall(r"'(\w)'(?:, '(\w)'\))?", str(program.call))):
        yield replace(program, x=_with_entry(program.x, first, second))
    for name, node in program.operands.items():
        for path in structures.paths(node):
            yield replace(program, operands={**program.operands, name: structures.without(node, path)})
    for path in structures.paths(program.x):
        if repr(path[-1]) not in str(program.call):
            operands = {name: structures.without(node, path) for name, node in program.operands.items()}
            yield replace(program, x=structures.without(program.x, path), operands=operands)


def _with_entry(node: Node, key: str, below: str) -> Node:
    """The container with a tensor under a key, or below a nested tensordict, unless the key has an entry."""
    if node.elements:
        return replace(node, elements=tuple(_with_entry(element, key, below) for element in node.elements))
    tensor = structures.Tensor(node.batch)
    made = Node("dense", node.batch, {below: tensor}) if below else tensor
    return replace(node, entries={key: made} | node.entries)


def _words(text: str) -> str:
    """The words of an error, without the names, numbers and sizes in it."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[\[({].*[\])}]|\d+", "", text)


def _keys_of(node: Node) -> list[str]:
    """The sources of the keys of a container, the nested ones as tuples."""
    return [repr(path[0] if len(path) == 1 else path) for path in structures.paths(node)]


def names_one_fault(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours raises its error with one fault fewer, too, where both agree or a row explains it."""

    def matches(program: Program, difference: Difference) -> bool:
        asked = (names_one_fault,)
        if DECIDED.get(asked) or not both_refuse(difference):  # a third fault is not looked for
            return False
        DECIDED[asked] = True
        try:
            return any(_raises(simple, difference.ours, explain) for simple in _with_fewer_faults(program))
        finally:
            DECIDED[asked] = False

    return matches


def _raises(program: Program, text: str, explain: Explain) -> bool:
    theirs, ours = spaces()
    given = programs.run(program, ours).error
    if given is None or _words(programs.message(given)) != _words(text):
        return False
    expected = programs.run(program, theirs).error
    if expected is not None and programs.is_of_type(given, expected):
        return True
    return explain(program, programs.compare(program, theirs, ours)) is not None


def _by_position(program: Program) -> Program:
    (name, source), *rest = program.call.arguments or ((None, ""),)
    is_tensor = name in ("other", "end") and source.startswith("t(")
    call = replace(program.call, arguments=((None, source), *rest))
    return replace(program, call=call) if is_tensor else program


def named_as_by_position(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with a tensor that is passed by name what both libraries do with it by position.

    The values are those of the function of torch for each row and the number of the tensor at its position.
    """
    asked = functools.partial(_oracle, _by_position, False, explain)

    def matches(program: Program, difference: Difference) -> bool:
        if _by_position(program) == program:
            return False
        has_values = difference.kind in ("values", "shape", "rows", "kind") or difference.kind.endswith("> result")
        return _has_values_of_torch(program) if has_values else asked(program, difference)

    return matches


def changes_x_as_without(name: str) -> Callable[[Program, Difference], bool]:
    """Return whether ours changes ``x`` as both libraries do without an argument that is about the result only."""

    def matches(program: Program, difference: Difference) -> bool:
        arguments = tuple(argument for argument in program.call.arguments if argument[0] != name)
        if arguments == program.call.arguments or "ragged" not in program.x.label:
            return False
        simple = replace(program, call=replace(program.call, arguments=arguments))
        expected, given = programs.run(simple, spaces()[0]), programs.run(program, spaces()[1])
        if expected.error is not None or given.error is not None:
            return False
        return not list(differences((expected.values or {})["x"], (given.values or {})["x"]))

    return matches


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "rsub": torch.rsub,
    "mod": torch.remainder,
    "logical_and": torch.logical_and,
    "lerp": torch.lerp,
}


def _has_values_of_torch(program: Program) -> bool:
    """Whether each row of ours is what torch gives for the row of ``x`` and the number at its position in a tensor."""
    end = programs.run(program, spaces()[1])
    function = FUNCTIONS.get(program.call.name.rstrip("_"))
    result = (end.values or {}).get("result")
    if function is None or end.before is None or not isinstance(result, Tree):
        return False
    (_, source), *rest = program.call.arguments
    options = {name: eval(value, dict(spaces()[1])) for name, value in rest if name != "default"}
    x, tensor = end.before["x"], eval(source, dict(spaces()[1]))
    if torch.broadcast_shapes(x.batch, tensor.shape) != result.batch:
        return False
    numbers = tensor.broadcast_to(result.batch)
    for position in np.ndindex(*result.batch):
        own = position[len(position) - len(x.batch) :]
        given = rows(x, tuple(0 if size == 1 else at for size, at in zip(x.batch, own, strict=True)))
        made = rows(result, position)
        if given.keys() != made.keys():
            return False
        for path, row in given.items():
            if isinstance(row, Leaf):
                data = function(row.data, numbers[position], **options)
                expected = replace(row, data=data, shape=tuple(data.shape), dtype=made[path].dtype)
                if not _same(expected, made[path], False):
                    return False
    return True


def indexes_the_text(program: Program, difference: Difference) -> bool:
    """Whether ours gives the values of the positions that an index selects, where the reference indexes a string."""
    if program.call.name != "get_at" or program.x.kind != "class":
        return False
    call = replace(program.call, template=f"{program.call.template}.tolist()")
    expected = programs.run(replace(program, x=_changed(program.x, _plain), call=call), spaces()[0])
    given = programs.run(program, spaces()[1])
    if expected.error is not None or given.error is not None:
        return False
    return not list(differences((expected.values or {})["result"], (given.values or {})["result"]))


def _with_colons(program: Program) -> Program:
    """The program with as many colons in place of the ellipsis of an index as there are batch dims for it."""
    rows_of_x = torch.zeros(program.x.batch)
    for i, (name, source) in enumerate(program.call.arguments):
        if not re.match(r"I\[(.*, )?\.\.\.", source):
            continue
        for count in range(len(program.x.batch), -1, -1):
            other = re.sub(r", ,|\[, ", lambda found: found[0][0], source.replace("...", ", ".join(":" * count), 1))
            try:
                same = (
                    rows_of_x[eval(other, dict(spaces()[1]))].shape == rows_of_x[eval(source, dict(spaces()[1]))].shape
                )
            except (IndexError, SyntaxError, TypeError):
                continue
            if same:
                arguments = program.call.arguments
                changed = (*arguments[:i], (name, other), *arguments[i + 1 :])
                return replace(program, call=replace(program.call, arguments=changed))
    return program


def without_ellipsis(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with an ellipsis in an index what both libraries do with colons in its place."""
    return functools.partial(_oracle, _with_colons, False, explain)
