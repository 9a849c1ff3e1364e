"""Calls with several faults: each error is true of the call, and the libraries raise them in different orders.

The faults are repaired one at a time until one is left, about which both libraries agree.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzzing import programs, structures
from fuzzing.calls import Call, Program
from fuzzing.oracles.containers import DECIDED, Change, Explain, all_changed, bare, changed, plain, stacked
from fuzzing.outcomes import Difference
from fuzzing.predicates import both_refuse, spaces
from fuzzing.structures import Node


def _of_dtype(dtype: str, node: Node) -> Node:
    tensors = {key: entry for key, entry in node.entries.items() if isinstance(entry, structures.Tensor)}
    return replace(node, entries=node.entries | {key: replace(t, dtype=dtype) for key, t in tensors.items()})


def _with_batch(node: Node) -> Node:
    """The container with a batch dimension, if it has none."""
    if node.batch or node.elements:
        return node
    entries = {
        key: replace(entry, shape=(1, *entry.shape)) if isinstance(entry, structures.Tensor) else entry
        for key, entry in node.entries.items()
    }
    return replace(node, batch=(1,), entries=entries)


DTYPES = ("float32", "int64")

_CHANGES: tuple[Change, ...] = (
    *(stacked, plain, bare, lambda node: replace(node, suffix="")),
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
    mask = f"b({list(program.x.batch)})"
    for pattern, valid in ((r"b\(\[.*?\]\)", mask), (r", -?\d+\)$", ", 0)")):
        template = re.sub(pattern, valid, program.call.template)
        yield replace(program, call=replace(_with_sources(program.call, pattern, valid), template=template))
    operands = {name: structures.filled(node) for name, node in program.operands.items()}
    yield replace(program, x=structures.filled(program.x), operands=operands)
    for change in _CHANGES:
        for part in ("x", *program.operands):
            node = program.x if part == "x" else program.operands[part]
            simple = changed(node, change)
            if simple != node:
                other = {"x": simple} if part == "x" else {"operands": {**program.operands, part: simple}}
                yield replace(program, **other)
    for name in program.operands:
        yield replace(program, operands={**program.operands, name: structures.like(program.x)})
    yield all_changed(_with_batch, program)
    for dtype in DTYPES:  # operands of one dtype, those of the call too
        simple = all_changed(functools.partial(_of_dtype, dtype), program)
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


STEPS = 3
"""How many faults are repaired at most."""


def names_one_fault(explain: Explain) -> Callable[[Program, Difference], bool]:
    """Return whether ours raises its error with fewer faults, too, where both agree or a row explains it.

    A program with fewer faults is one of which the reference says something else, and ours the same.
    """

    def matches(program: Program, difference: Difference) -> bool:
        asked = (names_one_fault,)
        if DECIDED.get(asked) or not both_refuse(difference):  # an explanation is not explained in this way
            return False
        DECIDED[asked] = True
        try:
            return _remains(program, difference, explain)
        finally:
            DECIDED[asked] = False

    return matches


def _remains(program: Program, difference: Difference, explain: Explain) -> bool:
    """Whether our error remains while those of the reference are repaired, until both agree."""
    theirs, ours = spaces()
    several, said = [program], {_words(difference.theirs)}
    for _ in range(STEPS):
        fewer: list[Program] = []
        for simple in (one for each in several for one in _with_fewer_faults(each)):
            given = programs.run(simple, ours).error
            if given is None or _words(programs.message(given)) != _words(difference.ours):
                continue
            expected = programs.run(simple, theirs).error
            if expected is not None and programs.is_of_type(given, expected):
                return True
            if explain(simple, programs.compare(simple, theirs, ours)) is not None:
                return True
            if expected is not None and _words(programs.message(expected)) not in said:
                said.add(_words(programs.message(expected)))
                fewer.append(simple)
        several = fewer
    return False
