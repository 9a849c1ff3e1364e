"""Rules: what a rule is, and the tests of programs and differences that rules consist of."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fuzzing import programs, structures
from fuzzing.arguments import Arguments
from fuzzing.calls import Program
from fuzzing.outcomes import Difference, Outcome, differences

__all__ = [
    *(
        "INTERNAL",
        "Rule",
        "both_refuse",
        "changes_nothing",
        "doubled",
        "flag_is_a_condition",
        "has",
        "has_nothing_to_change",
        "is_kind",
        "junk_is_refused",
        "keeps_its_operands",
        "keeps_more",
        "loses_names",
    ),
    *(
        "junk_is_wrong",
        "names_the_argument",
        "overlapping_keys",
        "seen",
        "spaces",
        "tensors",
        "works",
        "writes_to_keys_of_some_elements",
    ),
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


WRITES_AT = ("setitem value", "setitem key", "setitem td", "set_at_", "update_at_", "copy_at_")
"""The calls that write at an index."""


def works(difference: Difference, *starts: str) -> bool:
    """Whether the reference raises an error with one of these starts, and ours gives a result."""
    return difference.kind.endswith("> result") and difference.theirs.startswith(starts)


def changes_nothing(program: Program, difference: Difference) -> bool:
    """Whether ours gives a result, and each operand is what it was before."""
    if not difference.kind.endswith("> result"):
        return False
    end = programs.run(program, spaces()[1])
    return keeps_its_operands(end)


def keeps_its_operands(end: Outcome) -> bool:
    """Whether a program leaves its operands as they are."""
    before, after = end.before or {}, end.values or {}
    # what is described before has no source to share memory with
    return all(d.kind == "shares" for name in before for d in differences(before[name], after[name]))


def has_nothing_to_change(program: Program, difference: Difference) -> bool:
    """Whether ours changes no operand, and the reference none where they are not locked."""
    if not changes_nothing(program, difference):
        return False
    end = programs.run(replace(program, x=replace(program.x, suffix="")), spaces()[0])
    return end.error is None and keeps_its_operands(end)


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


def _names_junk(program: Program, text: str) -> bool:
    """Whether an error names an argument of a wrong type: its parameter, its value or its type."""
    _, ours = spaces()
    text = text.replace('"', "'")
    for name, source in program.junk:
        value = eval(source, dict(ours))
        parts = (name, repr(value)[:20], type(value).__name__, f"{name[:-1]} ")
        if any(part.lower() in text.lower() for part in parts):
            return True
    return False


def junk_is_refused(program: Program, difference: Difference) -> bool:
    """Whether our error names the argument of a wrong type that the reference does not look at."""
    if not difference.kind.startswith("result > ") or INTERNAL.search(difference.ours):
        return False
    return _names_junk(program, difference.ours)


def junk_is_wrong(program: Program, difference: Difference) -> bool:
    """Whether both refuse a call with an argument of a wrong type, which our error names or disappears without."""
    if not program.junk or not both_refuse(difference) or INTERNAL.search(difference.ours):
        return False
    if _names_junk(program, difference.ours):
        return True
    sources = {source for _, source in program.junk}
    rest = tuple((name, value) for name, value in program.call.arguments if name is None or value not in sources)
    if rest == program.call.arguments:
        return difference.kind.split(" > ")[1] in ("TypeError", "IndexError", "NotAKeyError", "NotAnIndexError")
    _, ours = spaces()
    error = programs.run(replace(program, call=replace(program.call, arguments=rest)), ours).error
    return error is None or programs.message(error) != difference.ours


FLAGS = {
    name.rpartition("__")[2].removeprefix("p_") for name, maker in vars(Arguments).items() if maker is Arguments.flag
} | {"as_linked_list", "pin_memory", "non_blocking_pin", "fast"}
"""The parameters that take ``True`` or ``False``."""


def flag_is_a_condition(program: Program, difference: Difference) -> bool:
    """Whether a flag got another value than a bool, and ours does the same as with the truth value of it."""
    theirs, ours = spaces()
    if any(name in FLAGS and source == "t([5, 5])" for name, source in program.junk):
        # has no truth value, which matters to one of them or to both, and not at the same line
        return "Boolean value of Tensor" in difference.theirs + difference.ours or works(
            difference, "TypeError: to() received an invalid combination"
        )
    truths: dict[str, str] = {}
    for name, source in program.junk:
        if name in FLAGS and source not in ("True", "t([5, 5])"):
            truths[source] = str(bool(eval(source, dict(ours))))
    arguments = tuple((name, truths.get(value, value)) for name, value in program.call.arguments)
    if arguments == program.call.arguments:
        return False
    clean = replace(program, call=replace(program.call, arguments=arguments), junk=())
    one, other = programs.run(clean, ours), programs.run(program, ours)
    if type(one.error) is not type(other.error):
        return False
    found = programs.compare(clean, theirs, ours)
    return all(d.place != difference.place or d.kind != difference.kind for d in found)


def doubled(difference: Difference) -> bool:
    """Whether the reference has more batch dimensions, or a lazy stack that has them, where ours has a dense result."""
    if difference.kind == "kind":
        return "LazyStacked" in difference.theirs
    if difference.kind not in ("batch", "names", "shape"):
        return False
    theirs, ours = (len(ast.literal_eval(text)) for text in (difference.theirs, difference.ours))
    return theirs > ours


def keeps_more(difference: Difference) -> bool:
    """Whether ours keeps rows of more entries than the reference, or keeps the elements of a lazy stack apart."""
    if difference.kind in ("rows", "keys") and difference.theirs.startswith("["):
        theirs, ours = (set(map(repr, ast.literal_eval(text))) for text in (difference.theirs, difference.ours))
        return theirs < ours
    return is_kind(difference, "TensorDict", "LazyStackedTensorDict") or difference.place.endswith("stack_dim")


def writes_to_keys_of_some_elements(program: Program, difference: Difference) -> bool:
    """Whether a write at an index gives other values of an entry that only some elements of a lazy stack have."""
    if difference.kind != "values" or program.call.name not in WRITES_AT:
        return False
    path = difference.place.split(".")[1:]
    node: Any = program.x
    while path and isinstance(node, structures.Node):
        name, *path = path
        if node.kind == "lazy" and name.isdigit():
            if any(tuple(path) not in structures.paths(element) for element in node.elements):
                return True
            node = node.elements[int(name)]
        else:
            node = node.entries.get(name)
    return False


def loses_names(difference: Difference) -> bool:
    """Whether the reference has the same names of dimensions as ours, or none."""
    if difference.kind != "names":
        return False
    theirs, ours = ast.literal_eval(difference.theirs), ast.literal_eval(difference.ours)
    return len(theirs) == len(ours) and all(a is None or a == b for a, b in zip(theirs, ours, strict=True))


def overlapping_keys(program: Program, difference: Difference) -> bool:
    """Whether a call gets a key and another that starts with it."""
    keys = []
    for _, source in program.call.arguments:
        try:
            key = ast.literal_eval(source)
        except ValueError:
            continue
        keys.append((key,) if isinstance(key, str) else key)
    return any(a != b and b[: len(a)] == a for a in keys for b in keys if isinstance(a, tuple) and isinstance(b, tuple))


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
