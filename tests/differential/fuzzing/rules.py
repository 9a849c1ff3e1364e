"""Explained differences: each rule recognizes some and names the row of docs/differences.md that explains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzzing.calls import Program
from fuzzing.outcomes import Difference

__all__ = ["RULES", "Rule", "explain"]


@dataclass(frozen=True)
class Rule:
    """A difference that a row explains: the start of the row's first cell, and what the difference looks like."""

    row: str
    matches: Callable[[Program, Difference], bool]


def _has(program: Program, kind: str) -> bool:
    return kind in program.x.label.split("+")


def _invalid(program: Program, difference: Difference) -> bool:
    if not program.junk or difference.place != "call":
        return False
    theirs, ours = difference.kind.split(" > ")
    return theirs != "result" and ours != "result"


# What the reference refuses although torch has it for tensors.
MORE = frozenset(
    [
        "torch.index_select",
        "torch.allclose",
        "torch.equal",
        "operator",
        "//",
        "operator",
        "%",
        "unbind",
        "tile",
        "logical_and",
        "logical_or",
        "logical_xor",
        "addcdiv",
        "addcmul",
        "torch.sub",
        "pow",
        "clamp_max",
        "clamp_min",
        "flip",
        "lerp",
        "lerp_",
        "addcdiv_",
        "addcmul_",
        "clamp",
        "sub",
        "add",
        "mul",
        "div",
        "maximum",
        "minimum",
        "min",
        "max",
    ]
)


def _call(*names: str) -> Callable[[Program, Difference], bool]:
    return lambda program, _: program.call.name in names


def _refused(difference: Difference) -> bool:
    return difference.kind in ("TypeError > result", "NotImplementedError > result")


def _text(program: Program) -> str:
    return str(program.call)


RULES = (
    Rule("an argument of a wrong type", _invalid),
    Rule(
        "`params.mul_(2)` and other in-place operations",
        lambda p, d: _has(p, "params") and d.kind == "RuntimeError > result" and "in-place operation" in d.theirs,
    ),
    Rule(
        '`params["nested"]` of a `TensorDictParams`',
        lambda p, d: _has(p, "params") and (d.kind, d.theirs, d.ours) == ("kind", "TensorDict", "TensorDictParams"),
    ),
    Rule("KNOWN params order", lambda p, d: _has(p, "params") and d.kind in ("order", "keys")),
    Rule("operations that torch has for tensors", lambda p, d: p.call.name in MORE and _refused(d)),
    Rule("`td.atleast_3d()`", _call("atleast_3d")),
    Rule("`tensor ** td`", lambda p, d: p.call.name == "reflected **" and _refused(d)),
    Rule("`repr(td)`", _call("repr")),
    Rule(
        '`tc["field"]`',
        lambda p, d: (
            "class" in p.x.label
            and d.theirs.startswith(("ValueError: Invalid indexing", "AttributeError: __delitem__"))
        ),
    ),
    Rule('`tc["field"]`', lambda p, d: "class" in p.x.label and p.call.name == "contains td"),
    Rule("`LazyStackedTensorDict.from_dict", lambda p, d: "lazy" in p.x.label and d.theirs == "KeyError: '0'"),
    Rule("`td.state_dict()`", _call("state_dict")),
    Rule('`td.split_keys(["a"], ["a"]', lambda p, d: p.call.name == "split_keys" and "is in several sets" in d.ours),
    Rule("`params.double()`", lambda p, d: _has(p, "params") and d.ours == "TensorDictParams" and d.kind == "kind"),
    Rule("the type of nodes in `from_pytree`", lambda p, d: "_pytree_type" in d.place),
    Rule(
        "lazy shapes",
        lambda p, d: (
            "lazy" in p.x.label
            and d.theirs == "LazyStackedTensorDict"
            and d.ours == "TensorDict"
            and p.call.name
            in (
                "reshape",
                "flatten",
                "repeat",
                "repeat_interleave",
                "where",
                "unflatten",
                "torch.where",
                "torch.flatten",
                "tile",
            )
        ),
    ),
)


def explain(program: Program, found: list[Difference]) -> str | None:
    """The row that explains the differences of a program, or ``None``."""
    row = None
    for difference in found:
        row = next((rule.row for rule in RULES if rule.matches(program, difference)), None)
        if row is None:
            return None
    return row
