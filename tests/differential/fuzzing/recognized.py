"""Explained differences that tests of their own recognize: of containers and of families of operations."""

from __future__ import annotations

import re

import torch

from fuzzing.predicates import (
    Rule,
    both_refuse,
    changes_nothing,
    doubled,
    flag_is_a_condition,
    has,
    has_nothing_to_change,
    is_kind,
    junk_is_wrong,
    keeps_more,
    loses_names,
    overlapping_keys,
    tensors,
    works,
)
from fuzzing.structures import Node

VMAP = re.compile(r"in_dims=|vmap maps dimension|in the mapped dimension|at least one Tensor to vmap")
PARTS = ("reshape", "flatten", "repeat", "repeat_interleave", "where", "unflatten", "torch.where", "torch.flatten",
         "tile", "tensor_split", "expand_as", "broadcast_to", "softmax", "empty", "masked_select", "expand", "narrow",
         "vmap", "torch.gather", "torch.split", "gather", "view", "roll", "tree_map", "view block",
         "rot90", "squeeze")  # fmt: skip
REARRANGED = (
    "masked_select",
    "narrow",
    "flip",
    "flipud",
    "fliplr",
    "roll",
    "rot90",
    "expand_as",
    "gather",
    "torch.gather",
    "broadcast_to",
    "expand",
    "tile",
    "unflatten",
    "reshape",
    "view",
    "flatten",
    "torch.flatten",
    "repeat",
)
COMPARES = tuple(
    f"{side} {symbol}" for side in ("operator", "reflected") for symbol in ("<", "<=", ">", ">=", "==", "!=")
)
BINARY = tuple(f"{side} {symbol}" for side in ("operator", "reflected") for symbol in ("+", "-", "*", "/", "**"))

NOT_COMPARED = (
    *("logsumexp", "amax", "amin", "clamp_max", "clamp_min", "addcmul", "addcdiv", *BINARY, *COMPARES),
    *("operator ^", "reflected ^", "operator &", "operator |"),
)

RECOGNIZED = (
    Rule("an argument of a wrong type", junk_is_wrong),
    Rule("a flag that is not a bool", flag_is_a_condition),
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
                    "TypeError: bitwise",
                    "TypeError: logical",
                    "TypeError: fill_() received",
                )
            )
        ),
    ),
    Rule(
        "operations of a lazy stack whose elements differ",
        lambda p, d: works(d, "RuntimeError: Failed to stack", "RuntimeError: the method") and "lazy" in p.x.label,
    ),
    Rule(
        "operations of a lazy stack whose elements differ",
        lambda p, d: p.call.name in REARRANGED and "ragged" in p.x.label and keeps_more(d),
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
    Rule(
        "`td.atleast_3d()`", lambda p, d: p.call.name == "atleast_3d" and d.place != "call" and len(p.x.batch) in (1, 2)
    ),
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
    Rule(
        "names of nested tensordicts after `td.squeeze()`",
        lambda p, d: "." in d.place and "lazy" in p.x.label and "names" in p.x.label and loses_names(d),
    ),
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
    Rule(
        "an operation of a tensordict without tensors",
        lambda p, d: (
            d.kind == "result > RuntimeError"
            and "differs from the source" in d.ours
            and any(not tensors(node) for node in (p.x, *p.operands.values()))
        ),
    ),
    Rule(
        '`td.select("a", ("a", "b"))`',
        lambda p, d: p.call.name == "select" and d.kind == "keys" and overlapping_keys(p, d),
    ),
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
        lambda p, d: (
            p.call.name in ("view", "reshape", "unsqueeze", "permute")
            and ("once" in d.ours or "give one of them" in d.ours)
        ),
    ),
    Rule(
        "`tc.to_namedtuple()`",
        lambda p, d: (
            p.call.name == "to_namedtuple"
            and has(p, "class")
            and (d.kind, d.theirs, d.ours) == ("value", "'tuple'", "'namedtuple'")
        ),
    ),
    Rule(
        "`tc.non_tensor_items()`",
        lambda p, d: (
            p.call.name == "non_tensor_items"
            and has(p, "class")
            and d.kind == "length"
            and "z=" not in p.lines()[0]
            and int(d.theirs) == int(d.ours) + 1
        ),
    ),
    Rule(
        '`tc.pop("label")`',
        lambda p, d: (
            p.call.name in ("pop", "popitem")
            and has(p, "class")
            and d.kind == "kind"
            and (d.theirs.startswith("NonTensor") or (d.theirs, d.ours) == ("Point", "namedtuple"))
            and not d.ours.startswith("NonTensor")
        ),
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
        lambda p, d: (
            ("default=" in str(p.call) or p.call.name in ("clamp_max", "clamp_min"))
            and d.theirs.startswith("TypeError: ")
            and "received" in d.theirs
        ),
    ),
    Rule(
        "the locks of results of `pow",
        lambda p, d: d.kind == "locked" and ("default=" in str(p.call) or not tensors(p.x)),
    ),
    Rule(
        "nested tensordicts without entries",
        lambda p, d: d.kind == "keys" and keeps_more(d) and "{}" in " ".join(p.lines()),
    ),
    Rule(
        "nested batch sizes after `max`, `min`, `cummax`",
        lambda p, d: (
            (
                p.call.name in ("max", "min", "cummax", "cummin")
                and d.kind in ("batch", "names", "kind", "KeyError > result")
            )
            or (p.call.name in ("amax", "amin", "prod") and d.kind in ("batch", "names") and "." in d.place)
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
        "`td.auto_batch_size_(2)` of a lazy stack",
        lambda p, d: p.call.name == "setattr batch_size" and works(d, "RuntimeError: Received a new"),
    ),
    Rule(
        "a locked tensordict: `td.update()` without",
        lambda p, d: works(d, "RuntimeError: Cannot modify locked") and has_nothing_to_change(p, d),
    ),
    Rule(
        "`td.add(other, default=0.0)` and `logical_and`",
        lambda p, d: (
            "default=" in str(p.call) and works(d, "RuntimeError: Cannot modify locked") and changes_nothing(p, d)
        ),
    ),
    Rule(
        "an invalid argument that the reference",
        lambda p, d: d.kind == "kind" and "Broken(error='TypeError')" in d.ours and "is_leaf" in dict(p.junk),
    ),
    Rule(
        "`torch.vmap` of one value for each position",
        lambda p, d: (
            p.call.name == "vmap"
            and not tensors(p.x)
            and d.kind == "result > ValueError"
            and "at least one Tensor to vmap" in d.ours
            and "NonTensorStack" in str(p.x)
        ),
    ),
    Rule(
        "`td.is_shared()` where all tensors are on a CUDA device",
        lambda p, d: (
            p.call.name == "is_shared"
            and (d.kind, d.theirs, d.ours) == ("value", "False", "True")
            and torch.get_default_device().type == "cuda"
        ),
    ),
    Rule(
        "leaves that require gradients and are not changed",
        lambda p, d: p.call.name.endswith(" block") and works(d, "RuntimeError: a leaf Var") and changes_nothing(p, d),
    ),
    Rule(
        "`torch.vmap` of a tensordict without batch dimensions",
        lambda p, d: (
            p.call.name == "vmap"
            and not p.x.batch
            and any(isinstance(entry, Node) for entry in p.x.entries.values())
            and (works(d, "ValueError: vmap", "RuntimeError: batch dim") or d.kind == "RuntimeError > ValueError")
        ),
    ),
    Rule("`lazy.to(batch_size=...)`", lambda p, d: works(d, "TypeError: Cannot pass batch-size")),
    Rule(
        "`torch.vmap` over the stack dim of a lazy stack",
        lambda p, d: (
            p.call.name == "vmap"
            and p.x.kind == "lazy"
            and p.x.dim == 0
            and (
                doubled(d)
                or (d.kind.startswith("result > ") and VMAP.search(d.ours))
                or (d.place.endswith(".z") and has(p, "class"))  # the values of two stacks of rows
            )
        ),
    ),
    Rule(
        "the type of a lazy stack inside `torch.vmap`",
        lambda p, d: (
            p.call.name == "vmap"
            and "lazy" in p.x.label
            and (
                is_kind(d, "LazyStackedTensorDict", "TensorDict")
                or (d.kind == "keys" and d.theirs.startswith("['stack_dim'"))
                or (d.place.startswith("result.") and doubled(d))
                or (d.kind.startswith("result > ") and VMAP.search(d.ours))
            )
        ),
    ),
    Rule(
        "`tensor < lazy` of an operand of more dimensions",
        lambda p, d: (
            "lazy" in p.x.label
            and any(value.startswith("t(") for _, value in p.call.arguments)
            and (d.theirs.startswith("RuntimeError: Attempting to broadcast") or (d.place != "call" and doubled(d)))
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
)
