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
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fuzzing import programs, structures
from fuzzing.calls import Call, Program
from fuzzing.outcomes import Broken, Difference, Leaf, Tree, differences, rows
from fuzzing.predicates import keeps_more, spaces
from fuzzing.structures import Node

Change = Callable[[Node], Node]
Explain = Callable[[Program, list[Difference]], str | None]

_FORGOTTEN = ("shares", "kind", "grad")
"""What two containers of one content may differ in, of a leaf."""


def changed(node: Node, change: Change) -> Node:
    entries = {key: changed(entry, change) if isinstance(entry, Node) else entry for key, entry in node.entries.items()}
    elements = tuple(changed(element, change) for element in node.elements)
    return change(replace(node, entries=entries, elements=elements))


def stacked(node: Node) -> Node:
    return replace(node, kind="stacked") if node.kind == "lazy" and "ragged" not in node.label else node


def plain(node: Node) -> Node:
    return replace(node, kind="dense") if node.kind == "class" else node


def bare(node: Node) -> Node:
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


def all_changed(change: Change, program: Program) -> Program:
    return replace(
        program,
        x=changed(program.x, change),
        operands={name: changed(node, change) for name, node in program.operands.items()},
    )


def _decides(simple: Program, content: str, explain: Explain, program: Program) -> bool:
    if simple == program:
        return False
    theirs, ours = spaces()
    found = programs.compare(simple, theirs, ours)
    if found and explain(simple, found) is None:
        return False
    # what a row explains of the simpler program is so of this one, too
    expected, given = programs.run(simple, ours if found else theirs), programs.run(program, ours)
    if expected.error is not None or given.error is not None:
        both = expected.error is not None and given.error is not None and content in ("same", "result")
        return both and programs.is_of_type(given.error, expected.error)
    names = ["result", *(given.before if content != "result" else ())]
    if content == "less":
        return all(_same(given.values[name], expected.values[name], True) for name in names)
    return all(_same(expected.values[name], given.values[name], content == "more") for name in names)


DECIDED: dict[tuple[Any, ...], bool] = {}
"""The answers of oracles, by the two programs."""

PROPERTIES = ("names", "device", "locked")
"""The properties of a container that its entries do not tell."""

DEPTH = 2
"""How many oracles may be asked about the answer of another one."""

_ASKED: list[tuple[Any, ...]] = []


def oracle(
    change: Callable[[Program], Program], content: str, explain: Explain, program: Program, difference: Difference
) -> bool:
    """Whether ours does with a program what both libraries do with the changed one.

    ``content`` says which: the ``same``, ``more`` or ``less`` entries than of the changed program, or the ``result``.
    """
    simple = change(program)
    return _has_content(simple, content, explain, program) and _has_property(simple, program, difference)


def _has_content(simple: Program, content: str, explain: Explain, program: Program) -> bool:
    key = (content, *simple.lines(), *program.lines())
    if key not in DECIDED:
        if key in _ASKED or len(_ASKED) == DEPTH:
            return False
        _ASKED.append(key)
        answer = False
        try:
            with contextlib.suppress(IndexError):  # rows of an entry that does not start with the batch size
                answer = _decides(simple, content, explain, program)
        finally:
            _ASKED.pop()
        if _ASKED and not answer:
            return False  # because other answers are not known yet
        DECIDED[key] = answer
    return DECIDED[key]


def on_the_way(value: Any, place: str) -> list[Any]:
    """The described value at a place, after those that hold it."""
    if not place:
        return [value]
    if isinstance(value, list):
        number, _, rest = place[1:].partition("]")
        return [value, *on_the_way(value[int(number) + 1], rest)]
    entries = dict(value.entries) if isinstance(value, Tree) else value
    key = next(key for key in entries if re.match(rf"[.]{re.escape(str(key))}(?=[.\[]|$)", place))
    return [value, *on_the_way(entries[key], place.removeprefix(f".{key}"))]


def _has_property(simple: Program, program: Program, difference: Difference) -> bool:
    """Whether ours gives the names, the device or the lock that differ also with the simpler program."""
    if difference.place == "is x":
        one, other = (programs.run(each, spaces()[1]).values or {} for each in (simple, program))
        return one.get("is x") == other.get("is x")
    if difference.kind not in PROPERTIES or difference.place.startswith("construct."):
        return True
    variable, *_ = re.findall(r"\w+", difference.place)
    found = []
    for one in (simple, program):
        value = (programs.run(one, spaces()[1]).values or {}).get(variable)
        try:
            found.append(getattr(on_the_way(value, difference.place.removeprefix(variable))[-1], difference.kind, None))
        except (StopIteration, TypeError, ValueError):  # a simpler container may have no such place
            return False
    return found[0] == found[1]


def as_dense(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with a lazy stack what both libraries do with the dense stack of its elements."""
    return functools.partial(oracle, functools.partial(all_changed, stacked), "same", explain)


def as_tensordict(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with a tensorclass what both libraries do with a tensordict of its entries."""
    return functools.partial(oracle, functools.partial(all_changed, plain), "same", explain)


def beside_values(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether both libraries agree without values and unbatched tensors, beside which ours does the same.

    Beside them the reference refuses, drops entries, or its ``pad_sequence`` takes them for sequences.
    """
    asked = functools.partial(oracle, functools.partial(all_changed, bare), "more", explain)
    return lambda program, difference: (
        (
            difference.kind.endswith("Error > result")
            or program.call.name == "pad_sequence"
            or difference.kind in PROPERTIES
            or keeps_more(difference)
        )
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


def _names_a_tensor(program: Program) -> bool:
    names = ("other", "end", "weight", "min", "max")
    return any(name in names and source.startswith("t(") for name, source in program.call.arguments)


def _by_position(program: Program) -> Program:
    (name, source), *rest = program.call.arguments or ((None, ""),)
    if name not in ("other", "end") or not source.startswith("t("):
        return program
    return replace(program, call=replace(program.call, arguments=((None, source), *rest)))


def named_as_by_position(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with a tensor that is passed by name what both libraries do with it by position.

    The values are those of the function of torch for each row and the number of the tensor at its position.
    """
    asked = functools.partial(oracle, _by_position, "same", explain)

    def matches(program: Program, difference: Difference) -> bool:
        if not _names_a_tensor(program):
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


def _clamp(row: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    """Clamp a row; torch takes two numbers or two tensors as the limits."""
    return torch.clamp(row, *(None if one is None else torch.as_tensor(one) for one in (min, max)))


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "rsub": torch.rsub,
    "mod": torch.remainder,
    "logical_and": torch.logical_and,
    "lerp": torch.lerp,
    "clamp": _clamp,
}


def _has_values_of_torch(program: Program) -> bool:
    """Whether each row of ours is what torch gives for the row of ``x`` and the numbers at its position in tensors."""
    end = programs.run(program, spaces()[1])
    function = FUNCTIONS.get(program.call.name.rstrip("_"))
    result = (end.values or {}).get("result")
    of_numbers = program.operands.keys().isdisjoint(source for _, source in program.call.arguments)
    if function is None or not of_numbers or end.before is None or not isinstance(result, Tree):
        return False
    if any(name in ("out", "pad") for name, _ in program.call.arguments):
        return False
    arguments = [(name, eval(source, dict(spaces()[1]))) for name, source in program.call.arguments]
    sizes = [value.shape for _, value in arguments if isinstance(value, torch.Tensor)]
    x = end.before["x"]
    if torch.broadcast_shapes(x.batch, *sizes) != result.batch:
        return False
    for position in np.ndindex(*result.batch):
        own = position[len(position) - len(x.batch) :]
        given = rows(x, tuple(0 if size == 1 else at for size, at in zip(x.batch, own, strict=True)))
        made = rows(result, position)
        if given.keys() != made.keys():
            return False
        numbers = [(name, _at(value, position, result.batch)) for name, value in arguments if name != "default"]
        others = [value for name, value in numbers if name is None]
        options = {name: value for name, value in numbers if name is not None}
        for path, row in given.items():
            if isinstance(row, Leaf):
                data = function(row.data[None], *others, **options)[0]
                data = data.to(row.data.dtype) if program.call.name.endswith("_") else data
                expected = replace(row, data=data, shape=tuple(data.shape), dtype=str(data.dtype))
                if not _same(expected, made[path], False):
                    return False
    return True


def _at(value: Any, position: tuple[int, ...], size: tuple[int, ...]) -> Any:
    """The number at a position of a tensor that is broadcast to a size, as a row of one; another argument itself.

    A tensor without dimensions stays so: it decides less about the dtype of a result.
    """
    return value.broadcast_to(size)[position][None] if isinstance(value, torch.Tensor) and value.ndim else value


def indexes_the_text(program: Program, difference: Difference) -> bool:
    """Whether ours gives the values of the positions that an index selects, where the reference indexes a string."""
    if program.call.name != "get_at" or program.x.kind != "class":
        return False
    arguments = tuple((name, source.replace("I[()]", "I[...]")) for name, source in program.call.arguments)
    template = f"getattr(value := {program.call.template}, 'tolist', lambda: value)()"
    call = replace(program.call, template=template, arguments=arguments)
    expected = programs.run(replace(program, x=changed(program.x, plain), call=call), spaces()[0])
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
                arguments = (*arguments[:i], (name, other), *arguments[i + 1 :])
                return replace(program, call=replace(program.call, arguments=arguments))
    return program


def without_ellipsis(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours does with an ellipsis in an index what both libraries do with colons in its place."""
    return functools.partial(oracle, _with_colons, "same", explain)


def writes_each_entry(program: Program, difference: Difference) -> bool:
    """Whether ours changes ``x`` by ``apply_`` with ``call_on_nested=True`` as by ``set_`` of the result of each entry.

    ``set_`` of tensordicts of other batch sizes is a call of its own, which both libraries do alike.
    """
    given = program.call.arguments
    options = {name: source for name, source in given if name is not None}
    others = [source for name, source in given if name is None]
    if program.call.name != "apply_" or options.get("call_on_nested") != "True" or not others:
        return False
    fn, *rest = others
    tds = ", ".join(f"getattr({name}, 'tensordicts', [{name}])" for name in ("x", *rest))
    default = options.get("default", "None")
    values = f"*[td.get(key, {default}) for td in tds]"
    write = f"[tds[0].set_(key, ({fn})({values})) for tds in zip({tds}) for key in list(tds[0].keys())]"
    single = programs.run(replace(program, call=Call("set_", write)), spaces()[1])
    several = programs.run(program, spaces()[1])
    if single.error is not None or several.error is not None:
        return False
    return not list(differences((single.values or {})["x"], (several.values or {})["x"]))


def as_tensors(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours refuses unbatched tensors where both libraries refuse tensors with the batch size alike."""

    def batched(node: Node) -> Node:
        entries = {
            key: structures.Tensor((*node.batch, *entry.shape)) if isinstance(entry, structures.Unbatched) else entry
            for key, entry in node.entries.items()
        }
        return replace(node, entries=entries)

    asked = functools.partial(oracle, functools.partial(all_changed, batched), "same", explain)
    return lambda program, difference: difference.kind.startswith("result > ") and asked(program, difference)
