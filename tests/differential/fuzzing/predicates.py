"""Rules: what a rule is, and the tests of programs and differences that rules consist of."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuzzing import programs, structures
from fuzzing.calls import Program
from fuzzing.outcomes import Difference

__all__ = [
    *("INTERNAL", "Rule", "both_refuse", "has", "is_kind", "junk_is_refused", "names_the_argument", "seen", "spaces"),
    *("tensors", "works"),
]


@dataclass(frozen=True)
class Rule:
    """A difference that a row explains: the start of the row's first cell, and what the difference looks like."""

    row: str
    matches: Callable[[Program, Difference], bool]


def has(program: Program, kind: str) -> bool:
    """Whether a container of the program is, or holds, one of a kind."""
    nodes = (program.x, *program.operands.values())
    return any(kind in node.label.split("+") for node in nodes)


def works(difference: Difference, *starts: str) -> bool:
    """Whether the reference raises an error with one of these starts, and ours gives a result."""
    return difference.kind.endswith("> result") and difference.theirs.startswith(starts)


def both_refuse(difference: Difference) -> bool:
    """Whether both raise an error."""
    return difference.place == "call" and not difference.kind.startswith("result") and "> result" not in difference.kind


def is_kind(difference: Difference, theirs: str, ours: str) -> bool:
    """Whether the two results are of these types."""
    return difference.kind == "kind" and (difference.theirs, difference.ours) == (theirs, ours)


def tensors(node: Any) -> int:
    """The number of tensors in a container."""
    if isinstance(node, structures.Node):
        return sum(map(tensors, (*node.entries.values(), *node.elements)))
    return int(isinstance(node, structures.Tensor))


@functools.cache
def spaces() -> tuple[dict[str, Any], dict[str, Any]]:
    """The names of both libraries."""
    theirs, ours = programs.libraries()
    return programs.namespace(theirs), programs.namespace(ours)


INTERNAL = re.compile(
    r"has no attribute|'\w+' object is not|unsupported operand|is not iterable|Boolean value of Tensor|has no len"
    r"|unexpected keyword|argument of type|not supported between|AssertionError|UnboundLocal|ZeroDivision"
    r"|out of range$|zip\(\)"
)
"""What the errors of Python about a line inside a library say."""


def names_the_argument(program: Program, difference: Difference) -> bool:
    """Whether our error is one about the argument, not one of a line that met it by chance."""
    return not INTERNAL.search(difference.ours)


def junk_is_refused(program: Program, difference: Difference) -> bool:
    """Whether our error names the argument of a wrong type that the reference does not look at."""
    if not difference.kind.startswith("result > ") or INTERNAL.search(difference.ours):
        return False
    _, ours = spaces()
    text = difference.ours.replace('"', "'")
    for name, source in program.junk:
        value = eval(source, dict(ours))
        kinds = (name, repr(value)[:20], type(value).__name__)
        if any(part in text for part in kinds):
            return True
    return False


def seen(
    row: str,
    *,
    calls: str = "",
    kind: str = "",
    theirs: str = "",
    ours: str = "",
    place: str = "",
    kinds: str = "",
    text: str = "",
) -> Rule:
    """A rule of regular expressions: each that is given is found in its part of the program or the difference.

    ``calls`` matches the whole name of the call, ``kinds`` its container's label, ``text`` the source of the program.
    """
    tests = [re.compile(pattern) for pattern in (kind, theirs, ours, place)]

    def matches(program: Program, difference: Difference) -> bool:
        if calls and not re.fullmatch(calls, program.call.name):
            return False
        parts = (difference.kind, difference.theirs, difference.ours, difference.place)
        if not all(test.search(part) for test, part in zip(tests, parts, strict=True)):
            return False
        if kinds and not any(re.search(kinds, node.label) for node in (program.x, *program.operands.values())):
            return False
        return not text or bool(re.search(text, " ; ".join(program.lines())))

    return Rule(row, matches)
