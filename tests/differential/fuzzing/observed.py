"""Explained differences that a few words of both outcomes recognize, as data."""

from __future__ import annotations

from fuzzing.predicates import seen

__all__ = ["OBSERVED"]

VALUES = "NonTensor"
ARITHMETIC = "norm|new_.*|prod|nansum|sum|add|sub|mul|div|reflected .*|operator .*"
LOGIC = r"addc.*|clamp_.*|torch[.](add|sub|mul)|(operator|reflected) [\^|&]|bitwise_.*|logical_.*|norm"
RESHAPES = r"reshape|view|unflatten|(torch[.])?flatten|repeat|repeat_interleave"
NO_KEY = r"is not a(n| )|empty tuple"
WHOLE = r"x\[(I\[)?(\.\.\.|\(\))"

OBSERVED = (
    # errors of both
    seen("equal dim names", ours="names are non-unique"),
    seen("keys that are not fields of a tensorclass", kind="[a-z]Error > UnknownFieldError", kinds="class"),
    seen("keys that are not fields of a tensorclass", kind="ValueError > KeyError", theirs="Keys from", kinds="class"),
    seen(
        "an invalid in-place write into a nested",
        kind="(_InplaceWriteError|_KeyThroughLeafError) > (Runtime|Key|InPlaceShape)Error",
    ),
    seen("`lazy.view(2, 2)`", kind="NotImplementedError > [A-Z]", theirs=r"\(inplace=True\) (is not|requires)"),
    seen("`pad_sequence` of entries without dimensions", theirs="Cannot pad scalars", ours="IndexError: pad_dim"),
    seen(
        "a wrong argument that meets an error inside the reference",
        kind="ValueError > (Key|Runtime)Error",
        theirs=r"zip\(\) argument",
    ),
    seen(
        "a wrong argument that meets an error inside the reference",
        calls="pack",
        theirs="has no attribute 'dim'|Boolean value of Tensor",
        ours="TypeError",
    ),
    seen("operations that torch has for tensors", kind="TypeError > DimensionError", theirs=r"_unbind\(\)"),
    seen("operations that torch has for tensors", kind="TypeError > Runtime", theirs="torch.sub takes", ours="bool"),
    seen("operations that torch has for tensors", kind="ValueError > KeyError", theirs="Mixed tensordict"),
    seen("an invalid key or index", kind="Error > (NotAKey|NotAnIndex|Key)Error", ours=NO_KEY),
    seen("`td.max(dim)` with several dims", calls="max|min", ours="with indices takes one dim"),
    # ours refuses
    seen('`td.split_keys(["a"], ["a"]', calls="separates", ours="is in several sets"),
    seen("`default=` of `split_keys`", calls="separates|split_keys", ours="which does not start with the batch size"),
    seen("`alpha=True`", ours="Boolean alpha only supported", text="alpha=True"),
    seen("`td.update_(other)` with keys that `td` lacks", calls="update_(at_)?", ours="KeyError: .key .*not found"),
    seen("`pad_sequence` of tensordicts with other keys", calls="pad_sequence", ours="keys in tensordicts mismatch"),
    seen("`td.flatten(end_dim=1)`", calls="flatten|unflatten", kind="result > DimensionError"),
    seen("a dim far out of range in `stack`", calls="(torch[.])?cat", kind="result > DimensionError"),
    seen("`td.repeat_interleave(2, dim)`", calls="repeat_interleave", kind="result > DimensionError"),
    seen("`stack.new_zeros([-1], empty_lazy=True)`", ours="has a negative number", kinds="lazy"),
    seen('`from_list(..., names=["x", "y"])`', calls="named_apply|apply|empty", ours="dim names .* for . batch"),
    seen("`td[0] = NonTensorData(", calls="setitem value", ours="NonTensorData.*cannot be written at an index"),
    seen("`td[0] = NonTensorData(", calls="set|set_", theirs="Tree", ours="cannot take a NonTensor.* in place"),
    seen("`stack.get_item_shape(", calls="get_item_shape", ours="StackError", kinds="lazy"),
    seen("`keys_to_update=[]`", calls="update_at_|update_", text=r"keys_to_update=\[\]"),
    seen('`td.set_("a", value)` of fewer dimensions', kind="result > InPlaceShapeError", calls="set_?|fill_|set_at_"),
    # the reference refuses
    seen("options that methods of a tensorclass lack", theirs="_to_dict.. got an unexpected keyword", kinds="class"),
    seen("`default=` of an operation whose operand", theirs="unexpected keyword argument 'default'", text="default="),
    seen("a locked `TensorDictParams`", kind="> result", theirs="Cannot modify locked", kinds="^params"),
    seen("`td.from_dict_instance(", kind="> result", theirs="no attribute 'from_dict_instance'"),
    seen("`td.from_dict_instance(", calls="from_dict_instance", kind="> result", theirs="batch dimension mismatch"),
    seen("`td.repeat_interleave(2, inplace=True)`", kind="> result", theirs="requires an explicit dim"),
    seen("`lazy.apply(fn, inplace=True", kind="> result", theirs="Cannot pass other arguments to Lazy"),
    seen('`tc.set_("label", 1.0)`', calls="set_", kind="> result", theirs="batch dimension mismatch", kinds="class"),
    seen("a mask with more dimensions", kind="> result", theirs="tensor shape is incompatible with dest"),
    seen('`default="intersection"` without common keys', kind="> result", theirs="must have at least one tensor"),
    seen("operations of a lazy stack whose elements differ", kind="> result", theirs="Failed to stack", kinds="lazy"),
    seen("`td.items(sort=True)`", calls="items|keys|values", kind="> result", theirs="positional arguments"),
    # results
    seen("`td[...]` and `td[()]`", calls="getitem (index|key)", kind="value|kind|locked", text=WHOLE),
    seen("`lazy.narrow(...)`", calls="narrow|expand", kind="shares|kind|keys", kinds="lazy"),
    seen("`lazy.narrow(...)`", kind="kind|keys", place="^construct", text=r"\.expand\(1\)"),
    seen(
        "`TensorDictParams.from_list`", calls="from_(list|any|tuple|dict_instance)", kind="kind|grad", kinds="^params"
    ),
    seen("`td.empty(recurse=True)`", calls="empty", kind="keys", text=VALUES),
    seen('`td.select("a", ("a", "b"))`', calls="select", kind="keys", text=r"select\('(\w)'.*\('\1'"),
    seen("`td.flatten_keys(is_leaf=default_is_leaf)`", calls="flatten_keys", kind="keys", text="default_is_leaf"),
    seen("which tensorclass operations return the instance", calls="tolist", kind="kind", kinds="class"),
    seen("which tensorclass operations return", calls="(cat|stack)_tensors", kind="kind|value|keys", kinds="class"),
    seen("`UnbatchedTensor` entries where the batch size", calls="setattr batch_size", kind="batch", text="Unbatched"),
    seen("`td.numpy()` of values that are `None`", calls="numpy", kind="keys", text=r"NonTensorData\(None"),
    seen(
        "non-tensor values after comparisons",
        calls=ARITHMETIC,
        kind="kind|keys",
        text=VALUES,
    ),
    seen("whether equal non-tensor values are", kind="kind", theirs="^NonTensor", ours="^NonTensor"),
    seen("whether equal non-tensor values are", kind="keys", theirs=r"^\['(data|list)'\]", ours=r"^\['(data|list)'\]"),
    seen(
        "the locks of results of `pow",
        kind="locked",
        calls=LOGIC,
    ),
    seen("names after `expand_as`", kind="names", calls="torch[.]flatten|to"),
    seen("`tensor < lazy`", kind="batch|names|kind", calls="operator .*|reflected .*", kinds="lazy"),
    seen("`stack.is_empty()`", calls="is_empty", kind="value", kinds="lazy", text=VALUES),
    seen("`td.expand_as(other)`", calls="expand_as", kind="batch|names", place="result[.]"),
    seen('`td.pop("label")`'.replace("td", "tc"), calls="setdefault", kind="kind", kinds="class"),
    seen("identity operations of a `TensorDictParams`", calls="cpu|to", kind="locked", kinds="^params"),
    seen("a negative `dim` of `cummax", calls="cummax|cummin", kind="values|shape", text="reduce=True"),
    seen("the lock of non-tensor values", kind="locked", place=r"result[.]", text=VALUES),
    seen(
        "the type of the result of shape operations",
        kind="batch|names|kind|keys|value",
        place="result[.]",
        kinds="lazy",
        calls=RESHAPES,
    ),
    seen("the type of the result of shape operations", place="is x", calls="view|reshape|to", kinds="lazy"),
)
