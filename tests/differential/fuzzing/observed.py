"""Explained differences that a few words of both outcomes recognize, as data."""

from __future__ import annotations

from fuzzing.predicates import seen

__all__ = ["OBSERVED"]

VALUES = "NonTensor"
ARITHMETIC = "expand_as|all|any|apply|named_apply|norm|new_.*|prod|nansum|sum|add|sub|mul|div|reflected .*|operator .*"
SUMS = "all|any|sum|nansum|mean|nanmean|prod|std|var|amax|amin|max|min|quantile"
MORE = r"result.*\bt\(\["
LOGIC = (
    r"apply|masked_select|maximum|minimum|lerp|neg|where|tree_map|addc.*|clamp_.*|torch[.](add|sub|mul)|bitwise_.*|logical_.*|norm"
    r"|(operator|reflected) [\^|&]"
)
RESHAPES = r"reshape|view|unflatten|(torch[.])?flatten|repeat|repeat_interleave"
NO_KEY = r"is not a(n| )|empty tuple"
IN_PLACE = r"inplace=(?!False|None|\[\]|\(\))"
WHOLE = r"x\[(I\[)?(\.\.\.|\(\)|:)\]"

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
    seen("operations that torch has for tensors", kind="ValueError > (Unmatched)?Key", theirs="Mixed tensordict"),
    seen(
        "operations that torch has for tensors",
        kind="NotImplementedError > RuntimeError",
        theirs="not implemented for",
        ours="can't be cast|Subtraction|is being used in an in-place operation",
    ),
    seen("operations that torch has for tensors", kind="TypeError > Runtime", theirs="^TypeError: torch.sub takes"),
    seen("an invalid key or index", kind="Error > (NotAKey|NotAnIndex|Key)Error", ours=NO_KEY),
    seen("`td.max(dim)` with several dims", calls="max|min", ours="with indices takes one dim"),
    # ours refuses
    seen('`td.split_keys(["a"], ["a"]', calls="separates", ours="is in several sets"),
    seen("`default=` of `split_keys`", calls="separates|split_keys", ours="batch dimension mismatch"),
    seen("`alpha=True`", ours="Boolean alpha only supported", text="alpha=True"),
    seen("`alpha=True`", ours="argument alpha must not be a floating point", kind="^result", text="alpha="),
    seen("`td.update_(other)` with keys that `td` lacks", calls="update_(at_)?", ours="KeyError: .key .*not found"),
    seen("`pad_sequence` of tensordicts with other keys", calls="pad_sequence", ours="keys in tensordicts mismatch"),
    seen("`td.flatten(end_dim=1)`", calls="flatten|unflatten", kind="result > DimensionError"),
    seen("an invalid argument that the reference does not check", kind="^result", ours="default='x' is unknown"),
    seen("an invalid argument that the reference", kind="kind", ours="Broken.*TypeError", text="is_leaf="),
    seen("an invalid argument that the reference", kind="^result", ours="Index.*Error: ", text=r"update_at_\(\{\}"),
    seen("a dim far out of range in `stack`", calls="(torch[.])?cat|cat_tensors", kind="result > DimensionError"),
    seen("`td.repeat_interleave(2, dim)`", calls="repeat_interleave", kind="result > DimensionError"),
    seen("`stack.new_zeros([-1], empty_lazy=True)`", ours="has a negative number", kinds="lazy"),
    seen('`from_list(..., names=["x", "y"])`', calls="named_apply|apply|empty", ours="dim names .* for . batch"),
    seen("`td[0] = NonTensorData(", calls="setitem value", ours="NonTensorData.*cannot be written at an index"),
    seen("`td[0] = NonTensorData(", calls="setitem value|set_at_", ours="cannot be written at an index", kind="^[AVR]"),
    seen(
        "`td[0] = NonTensorData(", calls="set|set_|update_at_", theirs="Tree", ours="cannot take a NonTensor.* in place"
    ),
    seen("`stack.get_item_shape(", calls="get_item_shape", ours="StackError", kinds="lazy"),
    seen("`keys_to_update=[]`", calls="update_at_|update_", text=r"keys_to_update=\[\]"),
    seen("`keys_to_update=[]`", calls="update_(at_)?", kind="values|sha", text="keys_to_update=", kinds="class"),
    seen("`keys_to_update=[]`", calls="update", kind="values", text=r"keys_to_update=\[.*\("),
    seen("`keys_to_update=[]`", calls="update_(at_)?", kind="^result > NotAKey", text="keys_to_update="),
    seen(
        "`stack.densify()` where elements lack", calls="densify", ours="is missing in some elements of the lazy stack"
    ),
    seen('`td.set_("a", value)` of fewer dimensions', kind="result > InPlaceShapeError", calls="set_?|fill_|set_at_"),
    seen(
        '`td.set_("a", value)` of fewer', calls="set.*", kind="RuntimeError > result", theirs="expanded|shape mismatch"
    ),
    seen("`stack.new_zeros([-1], empty_lazy=True)`", ours="empty_lazy=True keeps the stack dimension", kinds="lazy"),
    seen("`UnbatchedTensor` entries of reductions", calls="pack", ours="is a UnbatchedTensor, and pack"),
    seen("`td[...]` and `td[()]`", calls="detach_", ours="Can't detach views in-place", text=r"\)\[:\]"),
    seen("`td[...]` and `td[()]`", calls="deepcopy", ours="graph leaves", text=r"grad=True.*\)\[:\]"),
    seen(
        '`rename_key_("b", ("b", "m"), safe=True)`',
        calls="rename_key_",
        ours="already present",
        text="safe=True|True\\)",
    ),
    seen("an invalid key or index", kind="RuntimeError > IndexError", ours="index tensors of the shapes"),
    seen("`td[0] = NonTensorData(", calls="setitem key", ours="cannot be written at an index", kind="^V"),
    seen("`td[index] = [1, 2, 3]`", kind="^result", ours="of type list cannot be written"),
    seen("`alpha=True`", kind="^result", ours="takes a bool as alpha", text="alpha=True"),
    seen("in-place and ternary operations where `other`", kind="^result > KeyError", ours="mismatch", text="Unbatched"),
    seen("in-place and ternary operations where `other`", kind="^result > KeyError", ours="mismatch", kinds="ragged"),
    seen("`tensor < lazy`", kind="^result > StackError", ours="Failed to stack", kinds="ragged", text=MORE),
    seen(
        "`tensor < lazy`", kind="^result > Runtime", ours="expanded size", kinds="lazy", calls="(oper|refl).* [<>=!]=?"
    ),
    seen('`td.create_nested(("stack", "new"))`', calls="create_nested", kind="^result > KeyThroughLeafError"),
    seen("`torch.split(stack, [1])`", calls="(torch[.])?split", kind="^result", ours="sum exactly", kinds="lazy"),
    seen("`TensorDict.from_list([{", calls="from_list", kind="^result", ours="is incompatible with the batch-size"),
    # the reference refuses
    seen(
        "operations that torch has for", kind="IndexError > result", theirs="tuple index out", text=r"[(=, ](\(\)|\[\])"
    ),
    seen(
        "values under other keys",
        calls="update.*",
        kind="> result",
        theirs="batch dimension mismatch",
        text=r", .*=?\[",
    ),
    seen("`lazy.apply(fn, inplace=True", kind="> result", theirs="device and out.device must be equal"),
    seen("an `is_leaf=` that is not callable", calls="flatten_keys", kind="> result", theirs="no attribute 'join'"),
    seen("a bool as an integer", kind="TypeError > result", theirs="not bool|bool, int|int, bool", text="True|False"),
    seen(
        "options that methods of a tensorclass lack", theirs="_set_at_.. got an unexp", kind="> result", kinds="class"
    ),
    seen("`td.set_at_(key, value, True)`", calls="set_at_", kind="> result", theirs="destination dtypes match"),
    seen(
        "`params * 2` where an entry is an integer", kind="> result", theirs="RuntimeError: Autograd not support dtype"
    ),
    seen("`params.mul_(2)` and other", kind="> result", theirs="^_InplaceWriteError|a view of a leaf", kinds="^params"),
    seen("`td.add(other, default=0.0)`", kind="> result", theirs="^TypeError: (expected Tensor|desc)", text="default="),
    seen("`td.add(other, default=0.0)`", kind="> result", theirs="^KeyError: .key .* not found", text="default=[01]"),
    seen(
        "`td.mod(tensor)`",
        calls="r?sub|add",
        kind="> result",
        theirs="must match the size",
        kinds="nested",
        text="alpha=",
    ),
    seen('`td.split_keys(["typo"], default=None)`', calls="split_keys", kind="KeyError > result", text="default="),
    seen("`lazy.view(2, 2)`", kind="> result", theirs="Cannot call `view` on a lazy", kinds="lazy"),
    seen("`batch_size=` together with", calls="from_.*", kind="> result", theirs="Conflicting batch sizes"),
    seen("`td[0] = 5` where an entry", kind="> result", theirs="Cannot update a NonTensorDataBase object", text=VALUES),
    seen(
        "operations that torch has for",
        calls=f"{SUMS}|logsumexp",
        kind="TypeError > result",
        theirs="^TypeError: '>?<?=?' ",
    ),
    seen("operations that torch has for tensors", calls="addc.*", ours="must be Tensor, not"),
    seen(
        "`pad_sequence` of entries", calls="pad_sequence", kind="> result", theirs="pad_seq.* failed", text="Unbatched"
    ),
    seen('`tc.get_at("label", index)`', calls="get_at", kind="> result", theirs="string ind", kinds="class"),
    seen("`td.repeat_interleave(2, inplace=True)`", kind="> result", theirs="not supported on a scalar"),
    seen('`tc.set_("label", 1.0)`', calls="set_", kind="> result", theirs="batch dimension mismatch", text=VALUES),
    seen('`tc.set_("label", 1.0)`', calls="copy_|update_", kind="> result", theirs="source to be a NonTensor"),
    seen("options that methods of a tensorclass lack", theirs="_to_dict.. got an unexpected keyword", kinds="class"),
    seen("`default=` of an operation whose operand", theirs="unexpected keyword argument 'default'", text="default="),
    seen("a locked `TensorDictParams`", kind="> result", theirs="Cannot modify locked", kinds="^params"),
    seen("`td.from_dict_instance(", kind="> result", theirs="no attribute 'from_dict_instance'|NonTensorData.__init__"),
    seen("`td.from_dict_instance(", calls="from_dict_instance", kind="> result", theirs="batch dimension mismatch"),
    seen("`td.repeat_interleave(2, inplace=True)`", kind="> result", theirs="requires an explicit dim"),
    seen("`lazy.apply(fn, inplace=True", kind="> result", theirs="Cannot pass other arguments to Lazy"),
    seen('`tc.set_("label", 1.0)`', calls="set_", kind="> result", theirs="batch dimension mismatch", kinds="class"),
    seen("a mask with more dimensions", kind="> result", theirs="tensor shape is incompatible with dest"),
    seen('`default="intersection"` without common keys', kind="> result", theirs="must have at least one tensor"),
    seen("operations of a lazy stack whose elements differ", kind="> result", theirs="Failed to stack", kinds="lazy"),
    seen("`td.items(sort=True)`", calls="items|keys|values", kind="> result", theirs="positional arguments"),
    seen("non-tensor values after", calls="expand_as", kind="KeyError > result", text=VALUES),
    seen("operations that torch has for", kind="TypeError > result", theirs="argument 'dim' must be int, not list"),
    seen("a wrong argument that meets an error inside", kind="TypeError > [A-Z]", theirs="iteration over a 0-d"),
    seen("`td.split_keys([", calls="split_keys", kind="^result > KeyError", ours="not found in", kinds="ragged"),
    seen("`TensorDict.from_list([{", calls="from_any", kind="^result", ours="is incompatible with the batch-size"),
    seen(
        "`tc[index] = array`",
        calls="setitem value",
        kind="> result",
        theirs="Got .class 'numpy.ndarray'",
        kinds="class",
    ),
    # results
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
        kind="kind|keys",
        kinds="lazy",
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
    seen("`tensor < lazy`", kind="length|value", place="[.]z", kinds="lazy.*class|class.*lazy", text=MORE),
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
        "`params.set(", calls="set|setdefault|setitem key|update", kind="kind|grad", kinds="^params", text=r"np\.ones"
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
    seen("`td.numpy()` of values that are `None`", calls="numpy", kind="keys", text=r"NonTensorData\(None"),
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
        "names of nested tensordicts after",
        kind="names",
        place="[.]",
        kinds="lazy.*names|names.*lazy",
        theirs=r"^\((None, )*None,?\)$",
    ),
    seen(
        "the type of the result of shape operations on",
        calls="(torch[.])?split|tensor_split|chunk|repeat_interleave",
        kind="kind",
        theirs="^Lazy",
        ours="^TensorDict$",
        kinds="lazy",
    ),
    seen("a negative `dim` of `cummax", calls=f"{SUMS}|cummax|cummin", ours="concatenates the leaves", text=r"-\d"),
    seen("`pad_sequence` of tensordicts with other", calls="pad_sequence", ours="Failed to stack", kinds="ragged"),
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
