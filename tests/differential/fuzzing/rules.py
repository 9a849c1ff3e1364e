"""Explained differences: each rule recognizes some and names the row of docs/differences.md that explains them."""

from __future__ import annotations

import re
from dataclasses import replace

from fuzzing import programs, structures
from fuzzing.calls import Program
from fuzzing.observed import OBSERVED
from fuzzing.oracles.containers import (
    as_dense,
    as_tensordict,
    as_tensors,
    beside_values,
    indexes_the_text,
    named_as_by_position,
    without_ellipsis,
    writes_each_entry,
)
from fuzzing.oracles.equivalents import as_another_call, as_filled, as_without_empty_nodes
from fuzzing.oracles.faults import names_one_fault
from fuzzing.oracles.invariants import (
    has_the_properties_of_its_node,
    ignores_an_argument,
    names_follow_the_index,
    refuses_what_would_be_invalid,
)
from fuzzing.oracles.reductions import reduces_each_tensor
from fuzzing.outcomes import Difference
from fuzzing.predicates import (
    INTERNAL,
    Rule,
    both_refuse,
    doubled,
    has,
    is_kind,
    junk_is_refused,
    keeps_more,
    names_the_argument,
    spaces,
    tensors,
    works,
)
from fuzzing.recognized import RECOGNIZED

__all__ = ["ORACLES", "RULES", "Rule", "explain"]


def _checks_what_is_empty(program: Program, difference: Difference) -> bool:
    """Whether the reference lets a call pass, or gives ``None``, because there is no tensor that it could meet.

    That is so where both libraries agree about the same call with a tensor in each node without entries.
    """
    nothing = difference.kind == "kind" and difference.place == "result" and difference.theirs == "None"
    refused = difference.kind.startswith("result > ") and not (tensors(program.x) and "Leaf(" in difference.theirs)
    changed = difference.kind in ("device", "batch", "locked", "names") and not tensors(program.x)
    if not (nothing or refused or changed):
        return False
    operands = {name: structures.filled(node) for name, node in program.operands.items()}
    full = replace(program, x=structures.filled(program.x), operands=operands)
    if full == program:
        return False
    theirs, ours = spaces()
    found = programs.compare(full, theirs, ours)
    if refused:
        error, other = programs.run(full, theirs).error, programs.run(full, ours).error
        now = programs.run(program, ours).error
        if error is None or not (isinstance(other, type(now)) or isinstance(now, type(other))):
            return False
    if changed:
        return all((d.place, d.kind) != (difference.place, difference.kind) for d in found)
    return not found or explain(full, found) is not None


STRICT = (
    *(
        "clamp",
        "maximum_",
        "minimum_",
        "lerp",
        "lerp_",
        "addcmul",
        "addcdiv",
        "addcmul_",
        "addcdiv_",
        "copy_",
        "mul_",
        "add_",
    ),
    *("sub_", "div_", "pow_", "clamp_max_", "clamp_min_", "logical_and_", "logical_or_", "logical_xor_", "mod_"),
    *("clamp", "bitwise_and_", "floor_divide_", "inplace +", "inplace -", "inplace *", "inplace /", "inplace **"),
)

ALL_KEYS = (*STRICT, "lerp", "maximum", "minimum")

BY_CHANCE = (
    "TypeError: Expected value to be one of types",
    "RuntimeError: Tensor list must have",
    "TypeError: expected Tensor as element",
    "RuntimeError: key should be a Sequence",
    "ValueError: torch.cat(): expected a non-empty list",
    "TypeError: Expected all inputs to be TensorDictBase",
    "TypeError: cannot convert dictionary update sequence",
)
"""The starts of other errors of the reference about what a wrong argument became."""


def _lacks_no_tensors(program: Program, difference: Difference) -> bool:
    """Whether the entries that some elements of a lazy stack lack have no tensors."""
    keys = [set(element.entries) for element in program.x.elements]
    lacking = set.union(*keys) - set.intersection(*keys) if keys else set()
    return bool(lacking) and not any(
        tensors(element.entries.get(key)) for element in program.x.elements for key in lacking
    )


def _stays_lazy(program: Program, difference: Difference) -> bool:
    """Whether ours is a lazy stack where the reference has a dense one, or one along another dimension.

    Rows that differ are another difference.
    """
    is_lazy = is_kind(difference, "TensorDict", "LazyStackedTensorDict") or difference.place.endswith(".stack_dim")
    return difference.place.startswith("result") and is_lazy


RULES = (
    *RECOGNIZED,
    Rule("the type of the result of shape operations on a lazy stack", _stays_lazy),
    Rule(
        "`td.numpy()` and `td.to_namedtuple()` of values",
        lambda p, d: p.call.name in ("numpy", "to_dict") and "exclusive keys" in d.ours and _lacks_no_tensors(p, d),
    ),
    Rule("an operation of a tensordict without tensors", _checks_what_is_empty),
    Rule(
        "an operation of a tensordict without tensors",
        lambda p, d: (
            not tensors(p.x)
            and (p.call.name.endswith("_") or p.call.name.startswith("inplace"))
            and any(value.startswith("t(") for _, value in p.call.arguments)
            and (
                d.kind in ("batch", "names", "kind", "keys", "length")
                or d.place == "is x"
                or works(d, "RuntimeError: Attempting")
            )
        ),
    ),
    Rule(
        '`("a", "b") in stack.keys()`',
        lambda p, d: p.call.name == "contains" and "lazy" in p.x.label and d.theirs == "True",
    ),
    Rule(
        "an `is_leaf=` that is not callable",
        lambda p, d: (
            "is_leaf" in dict(p.junk)
            and works(d, "TypeError: ")
            and bool(re.search("' object is not callable|unhashable type", d.theirs))
        ),
    ),
    Rule(
        "in-place operations of a lazy stack with an operand of more dimensions",
        lambda p, d: (
            "lazy" in p.x.label
            and d.kind == "result > RuntimeError"
            and (p.call.name.endswith("_") or p.call.name.startswith("inplace"))
            and ("dtype" in d.ours or (programs.run(p, spaces()[0]).values or {})["is x"] is False)
        ),
    ),
    Rule(
        "`td.apply_(fn)` where the result has another shape",
        lambda p, d: p.call.name in ("apply", "apply_", "named_apply") and d.kind == "result > InPlaceShapeError",
    ),
    Rule(
        '`td.set_("a", value)` of fewer dimensions',
        lambda p, d: (
            p.call.name == "apply_"
            and d.kind == "result > RuntimeError"
            and "ragged" in p.x.label
            and bool(re.search(r"batch dimension mismatch.*value.shape=torch.Size\(\[\]\)", d.ours))
        ),
    ),
    Rule(
        "in-place and ternary operations where `other` has more keys",
        lambda p, d: p.call.name in ALL_KEYS and d.kind.endswith("> KeyError") and both_refuse(d),
    ),
    Rule(
        "`td.flatten(-1)` and `td.flatten(inplace=True)`",
        lambda p, d: (
            p.call.name == "flatten"
            and not p.x.batch
            and (works(d, "ValueError", "IndexError", "RuntimeError: flatten() has inv") or "inplace" in str(p.call))
        ),
    ),
    Rule(
        '`td.get_at("a", idx=0)`',
        lambda p, d: p.call.name == "get_at" and "multiple values for argument 'idx'" in d.theirs,
    ),
    Rule(
        "a dim far out of range in `stack`",
        lambda p, d: (
            p.call.name in ("stack", "lazy_stack", "dense_stack_tds", "maybe_dense_stack", "torch.stack")
            and d.kind == "result > DimensionError"
        ),
    ),
    Rule(
        "which tensorclass operations return the instance",
        lambda p, d: d.place == "is x" and has(p, "class") and (d.theirs, d.ours) == ("False", "True"),
    ),
    Rule(
        "`td.rot90(k=0)` and other rotations",
        lambda p, d: (
            p.call.name == "rot90"
            and p.call.arguments[:1] in [((name, value),) for name in (None, "k") for value in ("0", "False")]
            and (
                d.place == "is x"
                or d.kind in ("shares", "kind", "grad")
                or doubled(d)
                or "expected rotation dims" in d.ours
            )
        ),
    ),
    Rule("an invalid argument that the reference does not check", junk_is_refused),
    Rule(
        "`LazyStackedTensorDict.from_list(..., batch_size=",
        lambda p, d: p.call.name == "from_list" and "batch_" in str(p.call) and "lazy" in p.x.label,
    ),
    Rule(
        '`td.set_(("new", "x"), value)`',
        lambda p, d: p.call.name == "set_" and d.kind.endswith("> KeyError") and " not found in " in d.ours,
    ),
    Rule(
        "a wrong argument that meets an error inside the reference first",
        lambda p, d: (
            both_refuse(d)
            and names_the_argument(p, d)
            and (INTERNAL.search(d.theirs) or d.theirs.startswith(BY_CHANCE))
        ),
    ),
    Rule(
        "names after `reshape` and `view`",
        lambda p, d: p.call.name in ("view", "reshape", "unflatten") and d.kind == "names",
    ),
    Rule(
        "the order of keys of `TensorDict(",
        lambda p, d: (
            d.kind == "order"
            and p.call.name
            in ("densify", "pad_sequence", "merge_tensordicts", "unflatten flatten", "unflatten_keys", "rename_keys")
        ),
    ),
    Rule(
        "nested tensordicts without entries",
        lambda p, d: (
            keeps_more(d)
            and d.kind == "keys"
            and p.call.name in ("max", "min", "cummax", "cummin", "split_keys", "clamp_max", "clamp_min", "separates")
        ),
    ),
    Rule("`td[...]` and `td[()]`", lambda p, d: p.call.name == "getitem index" and d.place == "is x"),
    Rule(
        "`td.prod(keepdim=True)`",
        lambda p, d: (
            p.call.name == "prod"
            and d.kind in ("shape", "batch", "names")
            and ("keepdim" in dict(p.junk) or re.search("keepdim|True", str(p.call)))
        ),
    ),
    Rule(
        "`td.prod(dim=(0, 1))`",
        lambda p, d: (
            p.call.name in ("amax", "amin", "prod", "max", "min", "quantile", "nansum", "sum")
            and any(value.startswith(("(", "[")) for _, value in p.call.arguments)
            and (
                (d.kind == "result > DimensionError" and "Incompatible dim" in d.ours)
                or (works(d, "TypeError: quantile()") and "reduce=True" in str(p.call))
                or (both_refuse(d) and "Incompatible dim" in d.ours)
            )
        ),
    ),
    Rule("a mask with more dimensions", lambda p, d: works(d, "RuntimeError: expand_as_right")),
    Rule(
        "`td.copy_at_(source, index)`",
        lambda p, d: p.call.name == "copy_at_" and d.theirs.startswith("RuntimeError: copy_at_("),
    ),
    Rule(
        "in-place and ternary operations where `other` has more keys",
        lambda p, d: p.call.name in STRICT and d.kind == "result > KeyError",
    ),
    Rule(
        "`requires_grad` of the results of entries without gradients",
        lambda p, d: d.kind == "grad" and "grad=True" in " ".join(p.lines()),
    ),
    Rule("the device of `td.new_tensor(1.0)`", lambda p, d: p.call.name == "new_tensor" and d.kind == "device"),
    Rule("`td.to(other)`", lambda p, d: p.call.name == "to" and "other" in str(p.call)),
    Rule(
        '`from_list(..., names=["x", "y"])`',
        lambda p, d: d.kind.startswith("result > ") and "the length of the dimension names must equate" in d.ours,
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
        lambda p, d: p.call.name == "merge_tensordicts" and "lazy" in p.x.label and works(d, "RuntimeError: batch dim"),
    ),
    Rule(
        "`td.auto_batch_size_(2)` of a lazy stack",
        lambda p, d: p.call.name == "auto_batch_size_" and works(d, "RuntimeError: Received a new"),
    ),
    Rule("`stack.auto_batch_size_()`", lambda p, d: p.call.name == "auto_batch_size_" and "ragged" in p.x.label),
    *OBSERVED,
    Rule(
        "operations of a lazy stack whose elements differ",
        lambda p, d: has(p, "ragged") and d.kind in ("rows", "keys") and keeps_more(d),
    ),
)


def _explained(program: Program, found: list[Difference]) -> str | None:
    return explain(program, found)


ORACLES = (
    Rule("operations of a lazy stack that the reference does otherwise", as_dense(_explained)),
    Rule("operations of a tensorclass that the reference refuses", as_tensordict(_explained)),
    Rule("operations beside non-tensor values", beside_values(_explained)),
    Rule("a tensor that is passed by name", named_as_by_position(_explained)),
    Rule('`tc.get_at("label", index)`', indexes_the_text),
    Rule("`td.prod(dim=(0, 1))`", reduces_each_tensor),
    Rule("`td.update_at_(source, (..., 0))`", without_ellipsis(_explained)),
    Rule("`td.apply_(fn, call_on_nested=True)`", writes_each_entry),
    Rule("`UnbatchedTensor` entries of reductions, `apply` with a batch size", as_tensors(_explained)),
    Rule("names after `td[mask, range(1)]`", names_follow_the_index),
    Rule("names, devices and locks of nested", has_the_properties_of_its_node),
    Rule("a call that the reference accepts, and whose result", refuses_what_would_be_invalid),
    Rule("an invalid argument that the reference does not check", ignores_an_argument(_explained)),
    Rule("an operation of a tensordict without tensors", as_filled),
    Rule("`td.expand_as(other)`, `td.apply(fn, other)`", as_without_empty_nodes),
    Rule("two ways to write one operation", as_another_call),
    Rule("a call with two faults", names_one_fault(_explained)),
)
"""Asked last, because they run programs."""


def explain(program: Program, found: list[Difference]) -> str | None:
    """The row that explains the differences of a program, or ``None``."""
    row = None
    for difference in found:
        row = next((rule.row for rule in (*RULES, *ORACLES) if rule.matches(program, difference)), None)
        if row is None:
            return None
    return row
