"""Explained differences that fewer than one of ten thousand calls shows, as data."""

from __future__ import annotations

from fuzzing.predicates import seen
from fuzzing.words import MORE

__all__ = ["RARE"]

ERROR = "^[A-Za-z_]*Error > result$"

RARE = (
    # ours refuses
    seen(
        "a list of strings with one for each element",
        calls="set|setitem key|setdefault|update",
        kind="^result > SizeError",
        ours="level 1 holds '",
        kinds="lazy",
    ),
    seen(
        "`TensorDict.fromkeys([", calls="fromkeys", kind="^result > KeyError", ours="already present", text=r"\('a',\)"
    ),
    seen(
        "`torch.stack` of lazy stacks where",
        calls="(torch[.])?stack",
        kind="^result > StackError",
        ours="are exclusive",
        kinds="lazy.*nested",
    ),
    seen("a dim far out of range in `stack`", calls="stack_tensors", kind="^result > DimensionError", text="dim=-"),
    seen(
        "methods of a tensorclass that return other keys",
        calls="from_list",
        kind="^result > StackError",
        theirs=r"Point.*entries=\(\)",
        ours="are exclusive",
    ),
    seen(
        "an index of more dimensions than the batch",
        calls="copy_at_",
        kind="^result > IndexCountError",
        ours="td.batch_dims==0",
    ),
    seen('`td.set_at_("nested", source', calls="set_at_", kind="^result > KeyError", ours=r"not found", text="'q'"),
    seen(
        '`td.set_("a", value)` of fewer dim',
        calls="setitem value",
        kind="^result > RuntimeError",
        ours="expanded size",
        kinds="^lazy",
    ),
    seen(
        "`UnbatchedTensor` entries of reductions",
        calls="new_tensor",
        kind="^result > UnmatchedKeyError",
        text="UnbatchedTensor",
    ),
    seen(
        "a source of another batch size",
        calls="setitem key",
        kind="^result > RuntimeError",
        ours="differs from the source",
        text=r"setitem\(x, \(\),",
    ),
    seen(
        "`tc.update_at_(other, index)`",
        calls="update_at_",
        kind="^result > InPlaceShapeError",
        kinds="^class",
        text=r"I\[(\(\)|\.\.\.)\]",
    ),
    seen(
        "an invalid argument that the reference",
        calls="update_at_",
        kind="^result > .*Index.*Error",
        text="keys_to_update=",
    ),
    seen(
        '`stack[index] = "text"`',
        calls="setitem value",
        kind="^result > SourceError",
        ours="of type str cannot",
        kinds="^lazy",
    ),
    seen(
        "`stack.densify()` where elements lack",
        calls="densify",
        kind="^result > SizeError",
        ours="ragged components first, but the stack dim is [1-9]",
        kinds="^lazy.*nested.*ragged",
    ),
    seen("`stack.expand_as(other)`", calls="expand_as", kind="^result > UnmatchedKeyError", text="UnbatchedTensor"),
    # the reference refuses
    seen("a bool as an integer", kind="TypeError > result", theirs="got .dim=bool"),
    seen(
        "an integer or a bool as a batch size", calls="apply_", kind="TypeError > result", theirs="'int' object is not"
    ),
    seen(
        "an integer or a bool as a batch size",
        calls="empty",
        kind="TypeError > result",
        theirs="'bool' has no len",
        text="batch_size=(True|False)",
    ),
    seen(
        "a number or an array in `td.update_at_(",
        calls="update_at_",
        kind="TypeError > result",
        theirs="Expected value to be one of types",
        text=r"\{'\w': (np\.|-?[\d.]+|True|False)",
    ),
    seen(
        "values under other keys than those of",
        calls="update(_|_at_)?",
        kind=ERROR,
        theirs="Received a new batch size|through|so it has no entry",
        text="keys_to_update=",
    ),
    seen("`stack.new_tensor(data, pin_memory", calls="new_tensor", kind="TypeError > result", theirs="'pin_memory'"),
    seen(
        "`tc[index] = array` of a NumPy",
        calls="set|setitem value",
        kind="RuntimeError > result",
        theirs="Cannot modify locked",
        kinds="^class.*locked",
        text=r"np\.",
    ),
    seen(
        "a source of size 1 into an empty part",
        calls="setitem value",
        kind="RuntimeError > result",
        theirs=r"batch size is torch.Size\(\[(.*, )?0[\],]",
    ),
    seen(
        "operations that torch has for tensors",
        calls="max|min",
        kind="(Runtime|Type)Error > result",
        theirs="name = None|must be int, not NoneType",
        text="keepdim=|None, True",
    ),
    seen(
        "`lazy.apply(fn, inplace=True", calls="(named_)?apply", kind=ERROR, theirs="pop from empty list", kinds="lazy"
    ),
    seen(
        '`td.split_keys(["typo"], default=None)`',
        calls="split_keys",
        kind="KeyError > result",
        theirs="not found in",
        text="default=",
    ),
    seen("`td.reshape(2, 3, size=None)`", calls="tile", kind=ERROR, theirs="'NoneType' has no len", text="dims=None"),
    seen('`stack.set("nested", source', calls="set", kind=ERROR, theirs="in the dest tensordict", kinds="^lazy"),
    seen(
        "`stack[mask]` of a lazy stack", calls="to_tensordict index", kind=ERROR, theirs="cannot be empty", kinds="lazy"
    ),
    seen(
        "`td.add(True, alpha=2)` of bools",
        calls="add_",
        kind=ERROR,
        theirs="result type Long can't be cast to the desired output type Bool",
        text="True.*alpha=|alpha=.*True|True, -?\\d",
    ),
    seen(
        "a tensor that is passed by name",
        calls="(add|sub)_?",
        kind=ERROR,
        theirs="must match the size",
        text=r"other=t\(\[.*alpha=",
    ),
    seen(
        "`td[index] = tensor` where a nested lazy stack",
        calls="setitem (value|key)",
        kind="AttributeError > result",
        theirs="'Tensor' object has no attribute 'is_empty'",
        kinds="class.*lazy.*nested",
    ),
    seen(
        "a locked tensordict: `td.update()` without",
        calls="clear",
        kind="RuntimeError > result",
        theirs="Cannot modify locked",
        text=r"x = \w+\(\{\}, batch_size=\[[\d, ]*\]\)\.lock_",
    ),
    seen(
        "`tc.update_at_(other, index)`",
        calls="update_at_",
        kind="RuntimeError > result",
        theirs="Cannot modify locked",
        kinds="class.*locked",
        text="y = .*Point",
    ),
    # both refuse
    seen(
        "`td.min(keepdim=True, reduce=True)`",
        kind="RuntimeError > TypeError",
        theirs="name = None",
        ours="leave keepdim",
    ),
    # results
    seen("`stack[index] = 1.0`", calls="update_at_", kind="values", kinds="^lazy.*ragged", text="y = "),
    seen("names of non-tensor values", calls="set_non_tensor", kind="names", kinds="lazy.*names"),
    seen(
        "non-tensor values after comparisons",
        calls="new_.*",
        kind="device|kind|length|value|batch|names",
        place="result[.]",
        text="NonTensorStack",
    ),
    seen("nested batch sizes after `max`", calls="new_.*", kind="kind", theirs="^Point$", text="empty_lazy="),
    seen("`UnbatchedTensor` entries of red", calls="rename_keys", kind="batch|names", text="UnbatchedTensor"),
    seen(
        "a source of another batch size",
        calls="setitem (key|value)",
        kind="shape",
        place="[.]q$",
        text=r"setitem\(x, (\(\)|\.\.\.|I.*), TensorDict",
    ),
    seen("`tensor < lazy`", calls="addc.*", kind="kind", place="result[.]", kinds="lazy.*nested", text=MORE),
    seen(
        "nested batch sizes after `max`",
        calls="to",
        kind="keys",
        place="result[.]",
        text="NonTensorStack.*batch_size=[^,]*\\)$",
    ),
    seen(
        "`stack.set_non_tensor(",
        calls="set.*",
        kind="keys",
        place="[.]",
        kinds="lazy.*nested.*ragged",
        text=r"\(\('\w', '",
    ),
    seen(
        "`torch.vmap` over the stack dim",
        calls="vmap",
        place="[.]z",
        kind="kind",
        theirs="^namedtuple$",
        kinds="^lazy.*class",
    ),
    seen(
        "`TensorDict.from_pytree(data, batch_size=[]",
        calls="from_pytree",
        kind="batch|names",
        ours=r"^\(\)$",
        text=r"batch_size=\[\].*auto_batch_size=",
    ),
    seen(
        "nested batch sizes after `td.auto_batch_size_(n",
        calls="auto_batch_size_",
        kind="batch|names",
        ours=r"^\(\)$",
        text="NonTensorData",
    ),
    seen(
        "the locks of results of `pow",
        calls="(torch[.])?unbind",
        kind="locked",
        theirs="True",
        kinds="^lazy.*Values.*locked",
    ),
    seen(
        "the locks of results of `pow",
        calls="get_at",
        kind="locked",
        theirs="True",
        kinds="^lazy.*locked",
        text=r"I\[None",
    ),
    seen(
        "the locks of results of `pow",
        calls="vmap",
        kind="locked",
        theirs="False",
        kinds="locked",
        text=r"batch_size=\[\]\)(\[:\])?\.lock_",
    ),
    seen(
        '`td.select("a", ("a", "b"))`',
        calls="select",
        kind="locked",
        theirs="False",
        kinds="locked.*nested",
        text=r"'(\w)', \('\1', |\('(\w)', '\w'\), '\2'[,)]",
    ),
    seen(
        "`lazy.narrow(...)`",
        calls="(torch[.])?(lazy_)?stack|lazy_stack",
        kind="shares",
        theirs="True",
        kinds="lazy.*view",
        text=r"\)\.expand\(",
    ),
    seen(
        "`td.new_zeros([])` of a tensordict with names",
        calls="new_.*",
        kind="names",
        kinds="lazy.*names",
        text="empty_lazy=",
    ),
    seen(
        '`stack["n", "b"] = value` of a nested',
        calls="set.*",
        kind="batch|names",
        place="[.]",
        kinds="lazy",
        text=r"'no'\)|item='no'",
    ),
    seen(
        "nested lazy stacks, and lazy stacks of tensorclasses",
        calls="separates|split_keys",
        kind="kind",
        theirs="^Point$",
        ours="^TensorDict$",
        kinds="class.*lazy",
    ),
    seen("names after `torch.vmap` of a tensordict whose", calls="vmap", kind="names", ours=r"^\((None, ?)+(None)?\)$"),
    seen('`td.set_non_tensor(("tc"', calls="set_non_tensor", kind="kind", theirs="^TensorDict$", kinds="class"),
    seen(
        "names after `td[mask, range(1)]`",
        calls="to_tensordict index|getitem index",
        kind="names",
        text=r"I\[.*range\(1\)",
    ),
    seen(
        "nested batch sizes after `max`",
        calls="to",
        kind="kind",
        place="result[.]",
        ours="^Lazy",
        text="batch_size=",
    ),
    seen(
        "`td.separates(key, strict=False)`", calls="separates", kind="kind|keys", kinds="^lazy.*ragged", text="default="
    ),
    seen(
        "the order of keys after `densify`",
        calls="set|setitem key|setdefault|rename_key_|create_nested|update",
        kind="order",
        kinds="^params",
    ),
    seen("`td.add(True, alpha=2)` of bools", calls="add", kind="dtype|values", text="True.*alpha=|alpha=.*True"),
    seen(
        "`td.flatten(-1)` and `td.flatten(inplace=True)`",
        calls="flatten",
        kind="shape|batch",
        kinds="^class",
        text=r"batch_size=\[\]\)$|batch_size=\[\]\) ;",
    ),
    seen(
        "`tc[index] = array` of a NumPy",
        calls="set",
        kind="shares",
        theirs="False",
        kinds="^class.*nested",
        text="inplace=True|, True\\)",
    ),
    seen(
        '`tc.pop("label")`', calls="popitem", kind="kind", theirs="^Point$", ours="^TensorDict$", kinds="^class.*nested"
    ),
    seen("`tc[index] = array` of a NumPy", calls="setitem td", kind="dtype|values", kinds="^class", text=r"I\[None\]"),
    seen("`tc.update_at_(other, index)`", calls="update_at_", kind="values", kinds="^class", text=r"y = Point"),
    seen("a tensor that is passed by name", calls="sub", kind="values", kinds="^lazy", text=r"other=t\(\[.*alpha="),
    seen("`td.roll(1, ())`", calls="roll", kind="values", text=r"dims=\[\]|, \[\]\)"),
    seen(
        "the dtype of `td.clamp_max(tensor)`",
        calls="addcmul|addcdiv",
        kind="dtype",
        text=r"addc\w+\(.*t\(\[\d",
    ),
)
