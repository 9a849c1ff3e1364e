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
    nodes = (program.x, *program.operands.values())
    return any(kind in node.label.split("+") for node in nodes)


def _works(difference: Difference, *starts: str) -> bool:
    """Whether the reference raises an error with one of these starts, and ours gives a result."""
    return difference.kind.endswith("> result") and difference.theirs.startswith(starts)


def _both_refuse(difference: Difference) -> bool:
    return difference.place == "call" and not difference.kind.startswith("result") and "> result" not in difference.kind


def _kind(difference: Difference, theirs: str, ours: str) -> bool:
    return difference.kind == "kind" and (difference.theirs, difference.ours) == (theirs, ours)


CLASS = frozenset(("class",))
PARTS = ("reshape", "flatten", "repeat", "repeat_interleave", "where", "unflatten", "torch.where", "torch.flatten",
         "tile", "tensor_split", "expand_as", "broadcast_to", "softmax", "empty", "masked_select", "expand", "narrow",
         "vmap", "torch.gather", "gather", "view", "roll", "tree_map", "view block")  # fmt: skip
COMPARES = tuple(
    f"{side} {symbol}" for side in ("operator", "reflected") for symbol in ("<", "<=", ">", ">=", "==", "!=")
)
STRICT = (
    *("maximum_", "minimum_", "lerp", "lerp_", "addcmul", "addcdiv", "addcmul_", "addcdiv_", "copy_", "mul_", "add_"),
    *("sub_", "div_", "pow_", "clamp_max_", "clamp_min_", "logical_and_", "logical_or_", "logical_xor_", "mod_"),
    *("bitwise_and_", "floor_divide_", "inplace +", "inplace -", "inplace *", "inplace /", "inplace **"),
)

RULES = (
    Rule("an argument of a wrong type", lambda p, d: p.junk and _both_refuse(d)),
    Rule(
        "`params.mul_(2)` and other in-place operations",
        lambda p, d: _has(p, "params") and _works(d, "RuntimeError: a leaf Variable"),
    ),
    Rule('`params["nested"]` of a `TensorDictParams`', lambda p, d: _kind(d, "TensorDict", "TensorDictParams")),
    Rule(
        "operations that torch has for tensors",
        lambda p, d: _works(
            d,
            "TypeError: Multiple dispatch",
            "TypeError: unsupported operand",
            "TypeError: _foreach",
            "TypeError: _ShapeOps",
            "NotImplementedError",
            "TypeError: logical_",
            "TypeError: torch.",
            "TypeError: bitwise",
            "TypeError: min()",
            "TypeError: max()",
            "TypeError: repeat()",
            "TypeError: add",
            "RuntimeError: Subtraction",
            "RuntimeError: linalg",
            "RuntimeError: scalar tensor expected",
            "RuntimeError: output with shape",
            "RuntimeError: reduction",
            "ValueError: Mixed tensordict",
        ),
    ),
    Rule(
        "operations that torch has for tensors",
        lambda p, d: (
            _both_refuse(d)
            and d.theirs.startswith(
                (
                    "TypeError: Multiple dispatch",
                    "TypeError: unsupported operand",
                    "TypeError: _foreach",
                    "TypeError: _ShapeOps",
                    "TypeError: addc",
                    "RuntimeError: reduction",
                    "TypeError: clamp",
                )
            )
        ),
    ),
    Rule(
        "operations of a lazy stack whose elements differ",
        lambda p, d: _works(d, "RuntimeError: Failed to stack", "RuntimeError: the method") and "lazy" in p.x.label,
    ),
    Rule(
        "`td.sum()` where an entry is a `NonTensorStack`",
        lambda p, d: _works(d, "RuntimeError: ") and "regular TensorDict" in d.theirs,
    ),
    Rule(
        "methods of a tensorclass that return other keys",
        lambda p, d: _has(p, "class") and _works(d, "ValueError: Keys from"),
    ),
    Rule(
        '`tc["field"]`',
        lambda p, d: (
            _has(p, "class") and d.theirs.startswith(("ValueError: Invalid indexing", "AttributeError: __delitem__"))
        ),
    ),
    Rule('`tc["field"]`', lambda p, d: _has(p, "class") and p.call.name == "contains td"),
    Rule("`td.atleast_3d()`", lambda p, d: p.call.name == "atleast_3d"),
    Rule("`repr(td)`", lambda p, d: p.call.name == "repr"),
    Rule("`LazyStackedTensorDict.from_dict", lambda p, d: d.theirs == "KeyError: '0'"),
    Rule("`td.state_dict()`", lambda p, d: p.call.name == "state_dict"),
    Rule('`td.split_keys(["a"], ["a"]', lambda p, d: p.call.name == "split_keys" and "is in several sets" in d.ours),
    Rule(
        "the type of the nodes of `from_pytree`",
        lambda p, d: "_pytree_type" in d.place or (p.call.name == "from_pytree" and d.kind == "keys"),
    ),
    Rule(
        "the type of the result of shape operations on a lazy stack",
        lambda p, d: (
            p.call.name in PARTS
            and ("lazy" in p.x.label)
            and (
                _kind(d, "LazyStackedTensorDict", "TensorDict")
                or _kind(d, "TensorDict", "LazyStackedTensorDict")
                or d.kind == "keys"
                or d.place.endswith("stack_dim")
            )
        ),
    ),
    Rule("names after comparisons", lambda p, d: p.call.name in COMPARES and d.kind == "names"),
    Rule(
        "names after `reshape` and `view`",
        lambda p, d: p.call.name in ("view", "reshape", "unflatten") and d.kind == "names",
    ),
    Rule(
        "the order of keys after `densify`",
        lambda p, d: (
            d.kind == "order"
            and p.call.name
            in ("densify", "pad_sequence", "merge_tensordicts", "unflatten flatten", "unflatten_keys", "rename_keys")
        ),
    ),
    Rule(
        "nested tensordicts without entries",
        lambda p, d: (
            d.kind == "keys"
            and p.call.name in ("max", "min", "cummax", "cummin", "split_keys", "clamp_max", "clamp_min", "separates")
        ),
    ),
    Rule("`td[...]` and `td[()]`", lambda p, d: p.call.name == "getitem index" and d.place == "is x"),
    Rule("`td.prod(keepdim=True)`", lambda p, d: p.call.name == "prod" and d.kind in ("shape", "batch")),
    Rule(
        "`td.prod(dim=(0, 1))`",
        lambda p, d: p.call.name in ("amax", "amin", "prod") and d.kind in ("batch", "shape", "values", "names"),
    ),
    Rule("a mask with more dimensions", lambda p, d: _works(d, "RuntimeError: expand_as_right")),
    Rule(
        "`td.copy_at_(source, index)`",
        lambda p, d: p.call.name == "copy_at_" and d.theirs.startswith("RuntimeError: copy_at_("),
    ),
    Rule(
        "in-place and ternary operations of a tensordict with more keys",
        lambda p, d: p.call.name in STRICT and d.kind == "result > KeyError",
    ),
    Rule(
        "an operation of entries of which some require gradients",
        lambda p, d: d.kind == "grad" and "grad=True" in " ".join(p.lines()),
    ),
    Rule("`td.new_tensor(1.0)`", lambda p, d: p.call.name == "new_tensor" and d.kind == "device"),
    Rule("`td.to(other)`", lambda p, d: p.call.name == "to" and "other" in str(p.call)),
    Rule(
        '`from_list(..., names=["x", "y"])`',
        lambda p, d: (
            p.call.name in ("from_list", "from_dict_instance", "from_dict", "empty", "apply") and "dim names" in d.ours
        ),
    ),
    Rule(
        "`td.min(keepdim=True, reduce=True)`",
        lambda p, d: d.kind == "result > TypeError" and "leave keepdim out" in d.ours,
    ),
    Rule('`td.entry_class("typo")`', lambda p, d: p.call.name == "entry_class"),
    Rule('`"node" in td.keys(True, True)`', lambda p, d: p.call.name == "contains leaves" and d.kind == "value"),
    Rule(
        "`td.apply_(fn, inplace=False)`",
        lambda p, d: p.call.name == "apply_" and d.theirs.startswith("TypeError: tensordict.base"),
    ),
    Rule(
        "`merge_tensordicts` of lazy stacks",
        lambda p, d: (
            p.call.name == "merge_tensordicts" and "lazy" in p.x.label and _works(d, "RuntimeError: batch dim")
        ),
    ),
    Rule(
        "`td.auto_batch_size_(2)` of a lazy stack",
        lambda p, d: p.call.name == "auto_batch_size_" and _works(d, "RuntimeError: Received a new"),
    ),
    Rule("`stack.auto_batch_size_()`", lambda p, d: p.call.name == "auto_batch_size_" and "ragged" in p.x.label),
)


def explain(program: Program, found: list[Difference]) -> str | None:
    """The row that explains the differences of a program, or ``None``."""
    row = None
    for difference in found:
        row = next((rule.row for rule in RULES if rule.matches(program, difference)), None)
        if row is None:
            return None
    return row
