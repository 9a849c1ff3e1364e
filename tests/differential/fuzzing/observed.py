"""Explained errors, and differences of results, that a few words of both outcomes recognize, as data."""

from __future__ import annotations

from fuzzing.observed_results import MORE, NO_KEY, RESULTS, SUMS, VALUES
from fuzzing.predicates import seen

__all__ = ["OBSERVED"]

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
        kind="ValueError > (Unmatched)?(Key|Runtime)Error",
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
        ours="can't be cast|Subtraction|expected dtype|is being used in an in-place operation",
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
    seen(
        "an invalid argument that the reference",
        kind="^result",
        ours="Index.*Error: ",
        text=r"update_at_\((input_dict_or_td=)?\{\}",
    ),
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
    seen("`keys_to_update=[]`", calls="update(_|_at_)?", kind="^result > NotAKey", text="keys_to_update="),
    seen(
        "`stack.densify()` where elements lack", calls="densify", ours="is missing in some elements of the lazy stack"
    ),
    seen('`td.set_("a", value)` of fewer dimensions', kind="result > InPlaceShapeError", calls="set_?|fill_|set_at_"),
    seen(
        '`td.set_("a", value)` of fewer', calls="set.*", kind="RuntimeError > result", theirs="expanded|shape mismatch"
    ),
    seen("`stack.new_zeros([-1], empty_lazy=True)`", ours="empty_lazy=True keeps the stack dimension", kinds="lazy"),
    seen('`td.get_at(("a", "b"), 0)` through', calls="get_at", kind="ThroughLeafError > result"),
    seen(
        '`td.get_at(("a", "b"), 0)` through',
        calls="get_non_tensor",
        kind="AttributeError > result",
        theirs="'(Tensor|Parameter)' object has no attribute '_get_non_tensor'",
    ),
    seen(
        "`td.update_at_(source, index)` of a locked",
        calls="update_at_",
        kind="> result",
        theirs="Cannot mod",
        text=VALUES,
    ),
    seen("`UnbatchedTensor` entries of reductions", calls="pack", ours="is a UnbatchedTensor, and pack"),
    seen("`td[...]` and `td[()]`", calls="detach_", ours="Can't detach views in-place", text=r"\)\[:\]"),
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
        "a tensor that is passed by name",
        calls="r?sub|add",
        kind="> result",
        theirs="must match the size",
        kinds="nested",
        text="alpha=",
    ),
    seen(
        '`td.split_keys(["typo"], default=None)`',
        calls="split_keys",
        kind="^(KeyError|_KeyThroughLeafError) > result",
        text="default=None",
    ),
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
    seen('`tc.get_at("label", index)`', calls="get_at", kind="> result", theirs="(string|list) ind", kinds="class"),
    seen("`td.repeat_interleave(2, inplace=True)`", kind="> result", theirs="not supported on a scalar"),
    seen(
        '`tc.set_("label", 1.0)`',
        calls="set_",
        kind="> result",
        theirs="batch dimension mismatch",
        text="NonTensor|Unbatched",
    ),
    seen('`tc.set_("label", 1.0)`', calls="copy_|update_", kind="> result", theirs="source to be a NonTensor"),
    seen("options that methods of a tensorclass lack", theirs="_to_dict.. got an unexpected keyword", kinds="class"),
    seen("`default=` of an operation whose operand", theirs="unexpected keyword argument 'default'", text="default="),
    seen(
        "a locked tensordict: `td.update()` without", kind="> result", theirs="Cannot (modify|unlock)", kinds="^params"
    ),
    seen(
        "a locked tensordict: `td.update()` without",
        calls="update",
        kind="> result",
        theirs="Cannot modify",
        text=r"x[.]update\((\w+=|\))",
    ),
    seen("`td.update(source, ignore_lock=True)`", kind="> result", theirs="Cannot modify", text="ignore_lock="),
    seen('`td.split_keys([("a", "b"), "a"])`', kind="KeyError > result", text=r"split_keys\(.*\('(\w)', .*'\1'[,\]]"),
    seen("`td.auto_batch_size_(2)` of a lazy stack", calls="auto_batch_size_", kind="batch|names", kinds="lazy"),
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
        theirs="Got .class 'numpy.ndarray'|'numpy.ndarray' object has no attribute",
        kinds="class",
    ),
    seen(
        '`tc.set("x", None, inplace=True)`',
        calls="set|setitem key",
        kind="keys",
        place=r"^(result|x)[.]",
        kinds="class",
        text=r"None\)$",
    ),
    seen(
        "`stack.densify()` of entries of different shapes",
        calls="densify",
        kind="NotImplementedError > SizeError",
        theirs="but not 0. Densify",
        ours="ragged components first",
    ),
    seen(
        "`td.to(..., non_blocking_pin=True)`",
        calls="to",
        kind="RuntimeError > result",
        theirs="Cannot access accelerator",
        text="non_blocking_pin=",
    ),
    seen(
        "`tc.update_at_(other, index)`",
        calls="update_at_",
        kind="^result > IndexError",
        ours="cannot be broadcast together",
        kinds="class",
    ),
    seen(
        '`td.set_at_("s", value, index)`', calls="set_at_", place="is x|result$", theirs="^(False|None)$", text=VALUES
    ),
    seen(
        "`torch.stack` of lazy stacks where",
        calls="(torch[.])?stack",
        kind="result > StackError",
        ours=r"are exclusive: tensordict \d has keys (\[\]|\[.*but tensordict \d has keys \[\])",
        kinds="lazy",
    ),
    seen(
        "`td.sub(other=tensor, alpha=1)`",
        calls="r?sub|add",
        kind="batch|names",
        place="^result$",
        text=r"other=t\(.*alpha=|alpha=.*other=t\(",
    ),
    seen(
        '`default="intersection"` without common keys',
        kind="kind",
        place="result$",
        theirs="^None$",
        text="'intersection'",
    ),
    seen(
        "`td.add(other, default=0.0)`",
        calls="(logical|bitwise)_.*",
        kind="AttributeError > result",
        theirs="'(int|float|Tensor)' object has no attribute '(logical|bitwise)_|'NoneType'",
        text="default=",
    ),
    seen(
        "an index of more dimensions than the batch",
        calls="update_at_|setitem value",
        kind="^result > IndexCountError",
    ),
    seen(
        "a string in place of a nested tensordict",
        calls="copy_|update_",
        kind="^result > KeyThroughLeafError",
        ours="is a str, not a tensordict",
    ),
    seen("`tensor ** td`", calls="reflected [*][*]", kind="NotImplementedError > RuntimeError", theirs="rpow isn't"),
    seen("`alpha=True`", calls="rsub", kind="^result", ours="Negation, the `-` operator, on a bool", text="alpha="),
    seen("`stack.expand_as(other)` where", calls="expand_as", kind="^result > UnmatchedKeyError", kinds="ragged"),
    seen("`td.update_(source)` and", calls="copy_|update_", kind="result > InPlaceShapeError"),
    seen("`td.update_(source)` and", calls="copy_|update_", kind="^result > Run", ours="batch dimension mismatch"),
    seen(
        "`td.expand_as(other)` where only `td` has",
        calls="expand_as",
        kind="KeyError > result",
        theirs="not found in",
        text=r"\{\}",
    ),
    seen(
        "a new key that is not a field",
        calls="rename_keys",
        kind="AttributeError > result",
        theirs="are not fields of",
        kinds="class",
        text="strict=",
    ),
    seen(
        "a `dim` that is not a batch dimension, of",
        calls=f"{SUMS}|cummax|cummin",
        kind="^result > DimensionError",
        text="reduce=(?!False|None)",
    ),
    seen(
        "a non-tensor value that only one operand has",
        calls="(operator|reflected) [|&^]|(named_)?apply",
        kind="KeyError > result",
        theirs="mismatch|not found in",
        text=VALUES,
    ),
    seen(
        "a source with more dimensions, of size 1",
        calls="setitem value|update_at_",
        kind="RuntimeError > result",
        theirs="differs from the source batch size|^RuntimeError: the number of sizes provided",
    ),
    # results
    *RESULTS,
)
