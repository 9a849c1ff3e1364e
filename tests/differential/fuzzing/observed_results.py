"""Explained differences of results that a few words of both outcomes recognize, as data."""

from __future__ import annotations

from fuzzing.predicates import seen

__all__ = ["MORE", "NO_KEY", "RESULTS", "SUMS", "VALUES"]

VALUES = "NonTensor"
ARITHMETIC = "expand_as|all|any|apply|named_apply|norm|new_.*|prod|nansum|sum|add|sub|mul|div|reflected .*|operator .*"
SUMS = "all|any|sum|nansum|mean|nanmean|prod|std|var|amax|amin|max|min|quantile"
MORE = r"result.*\bt\(\["
LOGIC = (
    r"apply|masked_select|maximum|minimum|lerp|neg|where|tree_map|addc.*|clamp.*|torch[.](add|sub|mul)|bitwise_.*|logical_.*|norm"
    r"|(operator|reflected) [\^|&]"
)
RESHAPES = r"reshape|view|unflatten|(torch[.])?flatten|repeat|repeat_interleave"
NO_KEY = r"is not a(n| )|empty tuple"
IN_PLACE = r"inplace=(?!False|None|\[\]|\(\))"
WHOLE = r"x\[(I\[)?(\.\.\.|\(\)|:)\]"

RESULTS = (
    seen(
        "`td[...]` and `td[()]`", calls="getitem (index|key)|to_tensordict index", kind="value|kind|locked", text=WHOLE
    ),
    seen("the order of keys after `densify`", calls="fromkeys|dense_stack_tds|separates", kind="order"),
    seen("a negative `dim` of `cummax", calls=SUMS, kind="^shape|^values", text="-.*reduce=True"),
    seen(
        "nested batch sizes after `max`",
        calls=f"{SUMS}|torch[.](mean|sum)",
        kinds="lazy.*class|class.*lazy",
        kind="kind",
        theirs="^TensorDict$",
        ours="^Point$",
    ),
    seen("nested batch sizes after `max`", calls="(named_)?apply", kind="batch|names", place="[.]", text="batch_size="),
    seen("`td.apply(fn, inplace=True)` where", calls="(named_)?apply", kind="kind", theirs="^None$", text=IN_PLACE),
    seen("`td.apply(fn, inplace=True)` where", calls="(named_)?apply", place="is x", theirs="False", text=IN_PLACE),
    seen("`isinstance(stack, TensorDictBase)`", calls="tensor_split", kind="kind|keys", theirs="Lazy|stack_dim"),
    seen("whether `split_keys`, `separates`", calls="masked_select", kind="shares", kinds="lazy"),
    seen("the device of the result of `torch.vmap`", calls="vmap", kind="device", theirs="None"),
    seen("`stack.softmax(dim)`", calls="softmax", kind="> .*Error", ours="do not stack|exclusive", kinds="ragged"),
    seen(
        "nested batch sizes after `td.auto_batch_size_(n",
        calls="auto_.*",
        kind="batch|names",
        place="[.]",
        text=r"keep_compliant_size=(?!False|None|\[\]|\(\))|auto_batch_size_.[0-9], True",
    ),
    seen("`tc.update_at_(other, index)`", calls="update_at_", ours="differs from the source", kinds="^class"),
    seen(
        "`tc.update_at_(other, index)`", calls="update_at_", kind="values", kinds="class", text=r"I\[\[False|\], False"
    ),
    seen(
        "`torch.where(mask, stack, other)`",
        calls="(torch[.])?where",
        ours="^KeyError: .*not found",
        kinds="lazy",
        kind="^result",
    ),
    seen(
        "names after `td[mask, range(3)]`",
        calls=".*index",
        kind="names",
        text=r"torch.tensor\(\[(True|False)|\[(True|False)|tensor\(\[\d.*range\(|range\(.*tensor\(\[\d",
    ),
    seen(
        '`td.create_nested(("stack", "new"))`',
        calls="create_nested",
        kind="kind|keys|rows",
        kinds="lazy|class",
        theirs="^TensorDict$|^\\[(?!'stack)",
    ),
    seen(
        '`td.set_at_("s", tensor, index)`',
        calls="set_at_",
        kind="^result",
        ours="cannot take a (Tensor|Parameter) in place",
        text=VALUES,
    ),
    seen("`TensorDict.from_pytree(1.0)`", calls="from_pytree", place="result$", kind="kind", theirs="^Tensor$"),
    seen(
        "the locks of results of `pow",
        calls="mul|add|sub|div|maximum|minimum|operator .*",
        kind="locked",
        text=r"= (x|t)\S*.*\bt\(\[.*[0-9]\], start=1\)",
    ),
    seen(
        "`td[0] = NonTensorData(",
        calls="setitem (value|key)",
        kind="^result",
        ours="NonTensor.*cannot be written at an index",
    ),
    seen("nested batch sizes after `max`", calls="to", kind="batch|names", place="[.]", text="batch_size="),
    seen("`tensor < lazy`", kind="length|value|kind", place="[.]z", kinds="lazy.*class|class.*lazy", text=MORE),
    seen("`lazy.narrow(...)`", calls="narrow|expand", kind="locked", kinds="lazy"),
    seen("the locks of results of `pow", kind="locked", kinds="lazy", calls="(operator|refl).*|r?sub", text=MORE),
    seen("the locks of results of `pow", kind="locked", text="Unbatched", calls="(operator|reflected) .*"),
    seen(
        "`UnbatchedTensor` entries of reductions",
        calls=SUMS,
        kind="kind|device|keys",
        theirs="^UnbatchedTensor$|^$|^\\[",
        text="Unbatched",
    ),
    seen(
        "`UnbatchedTensor` entries of reductions",
        calls=SUMS,
        kind="> result",
        theirs="^IndexError: Dim",
        text="Unbatched",
    ),
    seen("`stack.depth`", calls="property depth", kind="value", kinds="lazy.*class|ragged"),
    seen(
        "`td.repeat_interleave(0, dim)`",
        calls="repeat_interleave",
        kind="batch|names|locked",
        kinds="lazy|Value",
        text=r"_interleave\((repeats=)?0",
    ),
    seen("`td[0] = 5` where an entry", calls="setitem value", kind="kind", place="[.]data$", theirs="Tensor"),
    seen("names of nested tensordicts after", calls="squeeze", kind="names", place="[.]"),
    seen("`td.roll(1, ())`", calls="roll", kind="values", text=r"\(\)"),
    seen(
        "nested lazy stacks in results",
        calls="split_keys|separates",
        place="[.]",
        kind="kind|keys",
        theirs="Lazy|stack_d",
    ),
    seen(
        "an operation of a tensordict without", calls="auto_batch_size_", kind="batch|names", text=r"TensorDict\(\{\}"
    ),
    seen("an operation of a tensordict without", kind="keys", text=r"\bx = (?!.*\bt\(.*; y).*; y = .*default="),
    seen(
        "`params.set(",
        calls="set|setdefault|setitem .*|update",
        kind="kind|grad",
        kinds="^params",
        text=r"np\.ones|\{'q'",
    ),
    seen("names of nested tensordicts after", calls="flipud", kind="names", place="[.]", kinds="lazy"),
    seen('`td.set_at_("s", tensor, index)`', calls="set_at_", kind="kind", theirs="^Tensor$", text=VALUES),
    seen("`stack[index] = 1.0` of a lazy stack", calls="setitem (value|key)", kind="values", kinds="ragged"),
    seen("`lazy.narrow(...)`", calls="expand_as", kind="locked", kinds="lazy"),
    seen("names after `expand_as`", calls="reflected [&|]", kind="names"),
    seen('`tc.get_at("label", index)`', calls="get_at", kind="value", ours="^'text'", kinds="class"),
    seen('`td.set_("a", value)` of fewer', calls="setitem value", kind="values", text=r"setitem\(x, .*, t\(\["),
    seen("memory after the block", calls="view block", kind="shares", kinds="lazy", theirs="False"),
    seen("whether equal non-tensor values are", place="[.]z$", kind="kind", theirs="'text'|named", ours="'text'|named"),
    seen("`logsumexp` without a dim of", calls="logsumexp", kind="shape|dtype|values"),
    seen("`lazy.narrow(...)`", calls="narrow|expand|broadcast_to", kind="shares|kind|keys", kinds="lazy"),
    seen("`lazy.narrow(...)`", kind="kind|keys", place="^construct", text=r"\.expand\(1\)"),
    seen(
        "`TensorDictParams.from_list`", calls="from_(list|any|tuple|dict_instance)", kind="kind|grad", kinds="^params"
    ),
    seen("`td.empty(recurse=True)`", calls="empty", kind="keys", text=VALUES),
    seen('`td.select("a", ("a", "b"))`', calls="select", kind="keys", text=r"select\('(\w)'.*\('\1'"),
    seen("`td.flatten_keys(is_leaf=default_is_leaf)`", calls="flatten_keys", kind="keys", text="default_is_leaf"),
    seen("which tensorclass operations return the instance", calls="tolist", kind="kind", kinds="class"),
    seen("which tensorclass operations return", calls="(cat|stack)_tensors", kind="kind|value|keys", kinds="class"),
    seen(
        "`UnbatchedTensor` entries of reductions",
        kind="batch|names|device",
        text="Unbatched",
        calls="tree_map|densify|pad_sequence|cummax|cummin",
    ),
    seen("`UnbatchedTensor` entries where the batch size", calls="setattr batch_size", kind="batch", text="Unbatched"),
    seen(
        "`td.numpy()` and `td.to_namedtuple()` of",
        calls="numpy|to_namedtuple",
        kind="keys|length",
        text=r"NonTensorData\(None",
    ),
    seen(
        "non-tensor values after comparisons",
        calls=ARITHMETIC,
        kind="kind|keys|rows",
        text=VALUES,
    ),
    seen("whether equal non-tensor values are", kind="kind", theirs="^NonTensor", ours="^NonTensor"),
    seen(
        "a field with one value for each position",
        calls="vmap",
        kind="kind|batch|names|rows",
        place="[.]",
        text="NonTensorStack",
    ),
    seen('`td.set_at_("s", tensor, index)`', calls="set_at_", ours="too many indices", kind="^result", text=VALUES),
    seen('`td.set_at_("u", value, index)`', calls="set_at_", ours="is an unbatched tensor", kind="^result"),
    seen("`td[index] = array` where", calls="setitem value", kind="IndexError > result", text="Unbatched.*np[.]ones"),
    seen("nested tensordicts of more batch dimensions in `to_dict", calls="to_dict", kind="kind", text="tolist_first="),
    seen("the inner lists of `td.tolist(", calls="tolist", theirs="^'list'$", ours="^'namedtuple'$", text="as_linked"),
    seen(
        "`td.from_dict_instance(dictionary, auto_batch_size=True",
        calls="from_dict(_instance)?",
        kind="names",
        text="names=",
    ),
    seen(
        '`stack["n", "b"] = value` of a nested',
        calls="set.*",
        kind="^result > RuntimeError",
        ours="batch dimension mismatch",
        kinds="lazy",
    ),
    seen('`td.set(("s", "x"), value)`', calls="set|setdefault", kind="^result", ours="is a NonTensor.*no entries"),
    seen("`td.logsumexp((), keepdim=True)`", calls="logsumexp", kind="batch|names", text=r"exp\((dim=)?(\[\]|\(\))"),
    seen(
        "the dtype of `td.clamp_max(tensor)`",
        calls="clamp.*|maximum|minimum",
        kind="dtype",
        text=r"= t\(\[\]|'float64'",
    ),
    seen("`merge_tensordicts` of lazy", calls="merge_.*", kind="^result > StackError", ours="Failed to stack"),
    seen("`UnbatchedTensor` entries of reductions", calls=SUMS, ours="this tensordict has none", text="Unbatched"),
    seen(
        '`td.update_at_({"a": nested}, index)`',
        calls="update_at_",
        ours="not a tensordict",
        kind="^result > KeyThrough",
    ),
    seen(
        "`td.add(other, default=0.0)`",
        kind="> result",
        theirs="^RuntimeError: batch dim",
        text="default=",
        kinds="lazy",
    ),
    seen(
        "`td.apply(fn, names=...)` with", calls="(named_)?apply", kind="> result", theirs="refine_names: cannot coerce"
    ),
    seen("`td.repeat_interleave(2, dim)`", calls="rot90", kind="result > DimensionError"),
    seen("`td.flatten(end_dim=1)`", calls="flatten", kind="^result", ours="exchange them", kinds="lazy"),
    seen(
        "an invalid argument that the reference",
        calls="update_at_",
        kind="^result > RuntimeError",
        ours="differs from the source",
        text="keys_to_update=",
    ),
    seen('`tc.pop("label")`', calls="get", kind="kind", kinds="class", theirs="^NonTensorData"),
    seen("`tc[index] = array`", calls="setitem td", kind="shares", kinds="^class", theirs="False", text=r"I\[None\]"),
    seen("names of non-tensor values", calls="stack_tensors", kind="> result", theirs="refine_names", text=VALUES),
    seen("`td.get_non_tensor(key)` of `None`", calls="get_non_tensor", theirs="namedtuple", ours="None"),
    seen('`stack[index] = {"s": {"r": 1.0}}`', calls="setitem value", place="[.]s[.]r$", kind="kind", kinds="lazy"),
    seen(
        "an operation of a tensordict without",
        kind="AttributeError > result",
        theirs="'NoneType' object has no attribute",
    ),
    seen("`td.view([3], size=[1, 3])`", calls="get_at", ours="give the index once"),
    seen(
        "an invalid in-place write into a nested",
        kind="ValueError > Runtime",
        theirs="cannot update stacked",
        kinds="lazy",
    ),
    seen(
        '`tc.set_("label", 1.0)`', calls="set_", kind="> result", theirs="InplaceWriteError: Failed to upd", text=VALUES
    ),
    seen("`td.new_zeros([])` of a tensordict with names", calls="new_.*", kind="names", ours=r"^\(\)$"),
    seen(
        "values under other keys", calls="update_at_", kind="> result", theirs="attribute '_get_str'", text="keys_to_up"
    ),
    seen("`LazyStackedTensorDict.from_dict", calls="from_dict", ours="the items cannot be empty", kinds="^lazy"),
    seen("`lazy.narrow(...)`", calls="getitem index", kind="shares", theirs="False", kinds="ragged"),
    seen(
        "an operation of a tensordict without",
        calls="update_at_",
        ours="too many indices",
        text=r"y = TensorDict\(\{\}",
    ),
    seen("an integer as a batch size", calls="(named_)?apply", kind="> result", theirs="'int' object is not iterable"),
    seen("`from_any({", calls="from_any", kind="> result", theirs="Received a new batch size", text=r"\[\{'b': 1\}"),
    seen("`td.reshape(2, 3, size=None)`", kind="> result", theirs="Either the kwarg", text="(size|dims)=None"),
    seen(
        "`td[None] = source` and",
        calls="setitem value",
        kind="shape",
        theirs=r"^\((.+), \1[,)]",
        text=r"x, (None|True|I\[None\])",
    ),
    seen("`alpha=True`", calls="sub_?", ours="with a bool tensor is not supported", text="alpha="),
    seen("memory after the block", calls="view block", kind="shares", kinds="lazy"),
    seen("`batch_size=` together with", calls="from_.*", kind="batch|names", text="batch_size=.*auto_batch_size=True"),
    seen(
        "the type of the result of shape operations on",
        calls="(torch[.])?split|tensor_split|chunk|repeat_interleave",
        kind="kind",
        theirs="^Lazy",
        ours="^TensorDict$",
        kinds="lazy",
    ),
    seen(
        "a negative `dim` of `cummax",
        calls=f"{SUMS}|cummax|cummin",
        ours="concatenates the leaves|than -tensordict.batch_dims|equal to -tens",
        text=r"-\d.*reduce=True|reduce=True.*-\d",
    ),
    seen("`pad_sequence` of tensordicts with other", calls="pad_sequence", ours="Failed to stack|are exclusive"),
    seen("a tuple of numbers as an entry", kind="dtype", theirs="float64", ours="float32", text=r"\(\)"),
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
