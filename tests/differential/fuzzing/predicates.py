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
from fuzzing.outcomes import Difference, differences

__all__ = [
    *(
        "INTERNAL",
        "Rule",
        "both_refuse",
        "changes_nothing",
        "doubled",
        "flag_is_a_condition",
        "has",
        "is_kind",
        "junk_is_refused",
        "keeps_more",
        "loses_names",
    ),
    *("junk_is_wrong", "names_the_argument", "other_fault", "overlapping_keys", "seen", "spaces", "tensors", "works"),
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


def changes_nothing(program: Program, difference: Difference) -> bool:
    """Whether ours gives a result, and each operand is what it was before."""
    if not difference.kind.endswith("> result"):
        return False
    end = programs.run(program, spaces()[1])
    before, after = end.before or {}, end.values or {}
    # what is described before has no source to share memory with
    return all(d.kind == "shares" for name in before for d in differences(before[name], after[name]))


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


FLAGS = frozenset(name.rpartition("__")[2].removeprefix("p_") for name, maker in vars(Arguments).items()
                  if maker is Arguments.flag) | {"as_linked_list", "pin_memory", "fast"}  # fmt: skip
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


FAULTS = {
    "locked": r"Cannot modify locked|Cannot unlock a tensordict",
    "missing key": r"Some keys were not found|KeyError: .keys in "
    r"|not found in|could not be found in|keys in tensordicts mismatch|(have the same|different) keys"
    r"|is missing in some",
    "dtype": r"not implemented for|Negation, the `-`|Subtraction, the `-`|expected dtype|could not infer output dtype"
    r"|does not support|to the desired output type|expected input to have floating"
    r"|must be same dtype as the input tensor|either float or double dtype|Expected a floating point"
    r"|only support floating point|cannot take a value of dtype"
    r"|cast or move the tensordict first|convertible without narrowing|Autograd not support dtype",
    "no stack": r"Failed to stack|cannot stack densely"
    r"|exclusive keys|Cannot pack the lazy stack|is not 0. Densify|is 1 but not 0|cast to a regular TensorDict",
    "values": r"does not match, got mse",
    "no tensor": r"this tensordict has none|has no tensor leaves",
    "fields": r"are not fields|must be fields|not a field|must correspond to the class attributes|has no such field",
    "two sizes": r"Cannot pass both batch_size|Conflicting batch sizes",
    "keepdim": r"is incompatible with keepdim",
    "q": r"q values must be in the range",
    "dim": r"Incompatible dim|dim must be in the range|dimension -?\d+ is incompatible"
    r"|appears multiple times|[dD]im\w* out of range|not a batch dim|^IndexError: tuple index out of range"
    r"|incompatible with a tensordict with|dim must index a batch dim",
    "shape": r"batch dimension mismatch|cannot be broadcast|expanded (size|shape)|Attempting to broadcast"
    r"|from the source|the operands have \d+ and \d+ elements|Sizes of tensors must match|their shapes differ"
    r"|incompatible with the batch-size|expand_as_right requires"
    r"|number of sizes provided|incompatible with dest shape"
    r"|must have same number of dimensions|cannot take a value of shape"
    r"|^RuntimeError: indexed destination TensorDict batch|whose positions have a value each",
    "argument": r"must be Tensor, not|leave keepdim out|Cannot pass other arguments|has no len"
    r"|must be (Number|torch.layout)|argument '\w+' (\(position \d\) )?must be|received an invalid combination"
    r"|incompatible function arguments",
    "comparison": r"not supported between instances",
    "function": r"is not callable|cannot be summed",
    "gradient": r"a leaf Variable that requires grad",
    "unbatched": r"is an unbatched tensor, which",
    "assignment": r"can't assign a \w+ to a torch",
    "fast": r"is no longer supported. Pass fast=True",
    "device": r"device and out.device must be equal",
    "alpha": r"Boolean alpha only supported|alpha must not be a floating|takes a bool as alpha",
    "names": r"names are non-unique|pop from empty list|the length of the dimension names must equate",
    "out": r"object has no attribute '(is_locked|_get_str)'|out must be a|a tensordict as out",
    "hash": r"unhashable type",
    "given twice": r"give the index once",
    "source": r"takes a list of dictionaries|object has no attribute '(items|keys)'",
    "no operand": r"needs at least one key",
    "option": r"Cannot pass batch-size",
    "size": r"has a negative number",
    "elements": r"needs at least one element",
    "length": r"does not match the length of the list",
    "present": r"already present and is not renamed",
    "mapped": r"same size in the mapped dimension",
    "lazy size": r"in a lazy TD",
    "leaf": r"is an? \w+, not a tensordict",
    "no key": r"Only NestedKeys are supported|is not a key|empty tuple|not enough values to unpack",
    "no index": r"needs an index of the entry",
    "operand": r"Mixed tensordict and non-tensordict|but got (dict|str)|takes tensordicts only",
    "default": r"default='x' is unknown|element \d in argument \d, but got (int|float)|apply to a 'str' object",
    "index": r"is out of bounds|too many indices|Invalid index|used as indices must be|shape of the mask",
    "value": r"of type \w+ cannot be written|cannot take a \w+ in place"
    r"|Cannot update a NonTensorDataBase"
    r"|__setitem__ (only supports|is only allowed)|cannot be written at an index|'maybe_to_stack'|'unbind'",
}
"""What makes a call fail, by the words of both libraries' errors."""


def other_fault(program: Program, difference: Difference) -> bool:
    """Whether both refuse a call, and each names another of the faults that it has."""
    if not both_refuse(difference):
        return False
    texts = []
    for text in (difference.theirs, difference.ours):  # errors of functions of the program
        text = text.replace("object is not callable", "is not callable").replace(
            "can only concatenate", "cannot be summed"
        )
        texts.append(re.sub("'str' object has no attribute '(sum|unsqueeze|clone)'", "cannot be summed", text))
    if INTERNAL.search(texts[1]):
        return False
    named = [{fault for fault, words in FAULTS.items() if re.search(words, text)} for text in texts]
    return bool(named[0] and named[1] and not named[0] & named[1])


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
