"""Explained differences: each rule recognizes some and names the row of docs/differences.md that explains them."""

from __future__ import annotations

from dataclasses import replace

from fuzzing import programs, structures
from fuzzing.calls import Program
from fuzzing.observed import OBSERVED
from fuzzing.outcomes import Difference
from fuzzing.predicates import (
    Rule,
    both_refuse,
    has,
    is_kind,
    junk_is_refused,
    names_the_argument,
    spaces,
    tensors,
    works,
)

__all__ = ["RULES", "Rule", "explain"]


def _checks_what_is_empty(program: Program, difference: Difference) -> bool:
    """Whether the reference lets a call pass, or gives ``None``, because there is no tensor that it could meet.

    That is so where both libraries agree about the same call with a tensor in each node without entries.
    """
    nothing = difference.kind == "kind" and difference.place == "result" and difference.theirs == "None"
    refused = difference.kind.startswith("result > ") and "Leaf(" not in difference.theirs
    if not (nothing or refused):
        return False
    operands = {name: structures.filled(node) for name, node in program.operands.items()}
    full = replace(program, x=structures.filled(program.x), operands=operands)
    if full == program:
        return False
    theirs, ours = spaces()
    found = programs.compare(full, theirs, ours)
    if refused and programs.run(full, theirs).error is None:
        return False
    return not found or explain(full, found) is not None


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

BINARY = tuple(f"{side} {symbol}" for side in ("operator", "reflected") for symbol in ("+", "-", "*", "/", "**"))

ALL_KEYS = (*STRICT, "lerp", "maximum", "minimum")
NOT_COMPARED = (
    *("logsumexp", "amax", "amin", "clamp_max", "clamp_min", "addcmul", "addcdiv", *BINARY, *COMPARES),
    *("operator ^", "reflected ^", "operator &", "operator |"),
)

RULES = (
    Rule("an argument of a wrong type", lambda p, d: bool(p.junk) and both_refuse(d) and names_the_argument(p, d)),
    Rule(
        "`params.mul_(2)` and other in-place operations",
        lambda p, d: has(p, "params") and works(d, "RuntimeError: a leaf Variable"),
    ),
    Rule('`params["nested"]` of a `TensorDictParams`', lambda p, d: is_kind(d, "TensorDict", "TensorDictParams")),
    Rule(
        "operations that torch has for tensors",
        lambda p, d: works(
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
            both_refuse(d)
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
        lambda p, d: works(d, "RuntimeError: Failed to stack", "RuntimeError: the method") and "lazy" in p.x.label,
    ),
    Rule(
        "`td.sum()` where an entry is a `NonTensorStack`",
        lambda p, d: works(d, "RuntimeError: ") and "regular TensorDict" in d.theirs,
    ),
    Rule(
        "methods of a tensorclass that return other keys",
        lambda p, d: has(p, "class") and works(d, "ValueError: Keys from"),
    ),
    Rule(
        '`tc["field"]`',
        lambda p, d: (
            has(p, "class") and d.theirs.startswith(("ValueError: Invalid indexing", "AttributeError: __delitem__"))
        ),
    ),
    Rule('`tc["field"]`', lambda p, d: has(p, "class") and p.call.name == "contains td"),
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
                is_kind(d, "LazyStackedTensorDict", "TensorDict")
                or is_kind(d, "TensorDict", "LazyStackedTensorDict")
                or d.kind == "keys"
                or d.place.endswith("stack_dim")
            )
        ),
    ),
    Rule("names after comparisons", lambda p, d: p.call.name in COMPARES and d.kind == "names"),
    Rule(
        "names after `expand_as`, `broadcast_to`",
        lambda p, d: (
            d.kind == "names"
            and p.call.name
            in (
                *("expand_as", "broadcast_to", "repeat_interleave", "tile", "masked_select", "pad_sequence", "flatten"),
                *("operator ^", "operator &", "operator |", "bitwise_and", "reflected ^"),
            )
        ),
    ),
    Rule("names of non-tensor values", lambda p, d: d.kind == "names" and "NonTensor" in " ".join(p.lines())),
    Rule(
        "nested tensordicts of more batch dimensions in a tensordict with names",
        lambda p, d: "the length of the dimension names must equate" in d.theirs,
    ),
    Rule(
        "a `TensorDictParams` of tensorclasses",
        lambda p, d: has(p, "params") and "whose entries cannot be parameters" in d.ours,
    ),
    Rule(
        "`TensorDictParams(stack)` of a lazy stack",
        lambda p, d: has(p, "params") and "Using a LazyStackedTensorDict within a TensorDictParams" in d.theirs,
    ),
    Rule(
        '`params["nested"]` of a `TensorDictParams`',
        lambda p, d: d.place.startswith("construct.x") and d.kind in ("kind", "grad") and has(p, "params"),
    ),
    Rule(
        "`params.mul_(2)` and other in-place operations",
        lambda p, d: has(p, "params") and both_refuse(d) and d.theirs.startswith("RuntimeError: a leaf Variable"),
    ),
    Rule(
        "the order of `list(td.keys(True))`",
        lambda p, d: p.call.name in ("keys", "keys nested") and d.place.startswith("result["),
    ),
    Rule(
        "`td.items(sort=True)`",
        lambda p, d: p.call.name in ("keys", "items", "values") and d.ours in ("'iterable'", "iterable"),
    ),
    Rule(
        "keys that are not fields of a tensorclass",
        lambda p, d: has(p, "class") and d.kind == "result > UnknownFieldError",
    ),
    Rule(
        "`Point.from_dict_instance` and other constructors",
        lambda p, d: has(p, "class") and both_refuse(d) and p.call.name.startswith("from_"),
    ),
    Rule("an operation of a tensordict without tensors", _checks_what_is_empty),
    Rule(
        "whether `split_keys`, `separates`",
        lambda p, d: (
            d.kind == "shares"
            and "lazy" in p.x.label
            and p.call.name
            in ("split_keys", "separates", "rename_keys", "flatten", "torch.flatten", "repeat_interleave", "reshape")
        ),
    ),
    Rule(
        "`batch_dims=` of `from_any`",
        lambda p, d: (
            p.call.name in ("from_any", "from_pytree", "from_tuple")
            and d.kind in ("batch", "names")
            and "batch_dims" in str(p.call)
        ),
    ),
    Rule(
        "`batch_size=` together with `batch_dims=`",
        lambda p, d: p.call.name.startswith("from_") and "both determine the batch size" in d.ours,
    ),
    Rule(
        "`td.view([3], size=[1, 3])`",
        lambda p, d: p.call.name in ("view", "reshape", "unsqueeze", "permute") and "once" in d.ours,
    ),
    Rule(
        "`td.mod(tensor)`",
        lambda p, d: p.call.name in ("mod", "operator %", "mod_") and p.call.arguments[0][1].startswith("t("),
    ),
    Rule("`tc.to_namedtuple()`", lambda p, d: p.call.name == "to_namedtuple" and has(p, "class") and d.kind == "value"),
    Rule(
        "`tc.non_tensor_items()`",
        lambda p, d: p.call.name == "non_tensor_items" and has(p, "class") and d.kind == "length",
    ),
    Rule(
        '`tc.pop("label")`',
        lambda p, d: p.call.name in ("pop", "popitem") and d.kind == "kind" and d.theirs.startswith("NonTensor"),
    ),
    Rule('`td.get_at("a", idx=0)`', lambda p, d: d.theirs == "TypeError: index argument missing from get_at"),
    Rule(
        "`td.grad` of tensors without gradients",
        lambda p, d: p.call.name == "property grad" and d.ours in ("None", "NoneType"),
    ),
    Rule(
        "operations that torch has for tensors",
        lambda p, d: works(d, "TypeError: _unbind()", "TypeError: view() received", "TypeError: clamp() received"),
    ),
    Rule(
        "`default=` of an operation whose operand is a tensor",
        lambda p, d: "default=" in str(p.call) and d.theirs.startswith("TypeError: ") and "received" in d.theirs,
    ),
    Rule(
        "the locks of results of `pow",
        lambda p, d: d.kind == "locked" and ("default=" in str(p.call) or not tensors(p.x)),
    ),
    Rule(
        "nested tensordicts without entries",
        lambda p, d: d.kind == "keys" and not d.place.startswith("construct") and "{}" in " ".join(p.lines()),
    ),
    Rule(
        "nested batch sizes after `max`, `min`, `cummax`",
        lambda p, d: (
            p.call.name in ("max", "min", "cummax", "cummin")
            and d.kind in ("batch", "names", "kind", "KeyError > result")
        ),
    ),
    Rule(
        "non-tensor values after comparisons, `^`, `logsumexp`",
        lambda p, d: d.kind in ("kind", "keys") and "NonTensor" in " ".join(p.lines()) and p.call.name in NOT_COMPARED,
    ),
    Rule(
        "a tensor beside an `UnbatchedTensor`",
        lambda p, d: "an operand of shape" in d.ours and "UnbatchedTensor" in " ".join(p.lines()),
    ),
    Rule(
        "`UnbatchedTensor` entries of reductions",
        lambda p, d: (
            "UnbatchedTensor" in " ".join(p.lines())
            and (
                (d.kind in ("shares", "values", "dtype", "shape") and d.place.endswith(".data"))
                or (
                    p.call.name in ("pad", "auto_batch_size_", "amin", "amax", "new_tensor")
                    and d.kind in ("batch", "kind")
                )
            )
        ),
    ),
    Rule(
        "the batch size of a lazy stack that is set",
        lambda p, d: p.call.name == "setattr batch_size" and works(d, "RuntimeError: Received a new"),
    ),
    Rule("`lazy.to(batch_size=...)`", lambda p, d: works(d, "TypeError: Cannot pass batch-size")),
    Rule(
        "`torch.vmap` over the stack dim of a lazy stack",
        lambda p, d: p.call.name == "vmap" and "lazy" in p.x.label and d.kind in ("batch", "shape", "kind", "keys"),
    ),
    Rule(
        "`tensor < lazy` of an operand of more dimensions",
        lambda p, d: (
            p.call.name.startswith("reflected")
            and "lazy" in p.x.label
            and d.theirs.startswith(("RuntimeError: Attempting to broadcast", "LazyStackedTensorDict"))
        ),
    ),
    Rule(
        "identity operations of a `TensorDictParams`",
        lambda p, d: (
            has(p, "params")
            and d.kind == "kind"
            and (d.theirs, d.ours) in (("Parameter", "Tensor"), ("Tensor", "Parameter"))
        ),
    ),
    Rule(
        "operations of a `TensorDictParams` without tensors",
        lambda p, d: (
            has(p, "params") and not tensors(p.x) and d.kind in ("kind", "locked") and "TensorDict" in d.theirs + d.ours
        ),
    ),
    Rule(
        '`("a", "b") in stack.keys()`',
        lambda p, d: p.call.name == "contains" and "lazy" in p.x.label and d.theirs == "True",
    ),
    Rule(
        "an `is_leaf=` that is not callable",
        lambda p, d: (
            "is_leaf=" in str(p.call)
            and works(
                d,
                "TypeError: 'list' object is not callable",
                "TypeError: 'tuple' object is not callable",
                "TypeError: 'object' object is not callable",
            )
        ),
    ),
    Rule(
        "in-place operations of a lazy stack with an operand of more dimensions",
        lambda p, d: (
            "lazy" in p.x.label
            and d.kind == "result > RuntimeError"
            and (p.call.name.endswith("_") or p.call.name.startswith("inplace"))
        ),
    ),
    Rule(
        "`td.apply_(fn)` where the result has another shape",
        lambda p, d: p.call.name in ("apply", "apply_", "named_apply") and d.kind == "result > InPlaceShapeError",
    ),
    Rule(
        "in-place and ternary operations where `other` has more keys",
        lambda p, d: p.call.name in ALL_KEYS and d.kind.endswith("> KeyError") and both_refuse(d),
    ),
    Rule("`td.flatten()` without batch dimensions", lambda p, d: p.call.name == "flatten" and not p.x.batch),
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
        lambda p, d: d.place == "is x" and has(p, "class") and p.call.name != "iter",
    ),
    Rule(
        "`td.rot90(k=0)` and other rotations",
        lambda p, d: d.place == "is x" and p.call.name == "rot90",
    ),
    Rule("an invalid argument that the reference does not check", junk_is_refused),
    Rule(
        "`LazyStackedTensorDict.from_list(..., batch_size=",
        lambda p, d: p.call.name == "from_list" and "batch_size=" in str(p.call) and "lazy" in p.x.label,
    ),
    Rule(
        '`td.set_(("new", "x"), value)`',
        lambda p, d: p.call.name == "set_" and d.ours.startswith('KeyError: "key ('),
    ),
    Rule(
        "a wrong argument that meets an error inside the reference first",
        lambda p, d: (
            both_refuse(d)
            and d.theirs.startswith(
                (
                    "AttributeError: 'Tensor' object has no attribute",
                    "AttributeError: 'Parameter' object has no attribute",
                    "AttributeError: 'NoneType' object has no attribute",
                    "IndexError: tuple index out of range",
                    "IndexError: list index out of range",
                    "TypeError: _set_at_() got",
                    "TypeError: Expected value to be one of types",
                    "RuntimeError: Tensor list must have",
                    "RuntimeError: key should be a Sequence",
                    "ValueError: torch.cat(): expected a non-empty list",
                )
            )
        ),
    ),
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
        lambda p, d: p.call.name == "merge_tensordicts" and "lazy" in p.x.label and works(d, "RuntimeError: batch dim"),
    ),
    Rule(
        "`td.auto_batch_size_(2)` of a lazy stack",
        lambda p, d: p.call.name == "auto_batch_size_" and works(d, "RuntimeError: Received a new"),
    ),
    Rule("`stack.auto_batch_size_()`", lambda p, d: p.call.name == "auto_batch_size_" and "ragged" in p.x.label),
    *OBSERVED,
)


def explain(program: Program, found: list[Difference]) -> str | None:
    """The row that explains the differences of a program, or ``None``."""
    row = None
    for difference in found:
        row = next((rule.row for rule in RULES if rule.matches(program, difference)), None)
        if row is None:
            return None
    return row
