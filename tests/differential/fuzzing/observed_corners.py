"""Explained differences at corners: values that are locked, keys that overlap, sizes of one, defaults."""

from __future__ import annotations

import ast
import re

from fuzzing.calls import Program
from fuzzing.outcomes import Difference
from fuzzing.predicates import Rule, overlapping_keys, seen
from fuzzing.words import SUMS

RAGGED = "operations of a lazy stack whose elements"


def _is_cut_by_vmap(program: Program, difference: Difference) -> bool:
    """Whether a nested batch size, or its names, are those of ours without the last dimensions."""
    if program.call.name != "vmap" or difference.kind not in ("batch", "names") or "." not in difference.place:
        return False
    theirs, ours = ast.literal_eval(difference.theirs), ast.literal_eval(difference.ours)
    return len(theirs) < len(ours) and ours[: len(theirs)] == theirs


def _is_broadcast_once(program: Program, difference: Difference) -> bool:
    """Whether a new entry of a source without batch size has the batch dims of ours before its own dimensions."""
    source = re.search(r"TensorDict\(\{'q': t\((\[.*?\]).*batch_size=\[\]\)", str(program.call))
    if not program.call.name.startswith("setitem") or difference.kind != "shape" or source is None:
        return False
    return ast.literal_eval(difference.ours) == (*program.x.batch, *ast.literal_eval(source[1]))


CORNERS = (
    seen(
        "the locks of results of `pow",
        calls="vmap",
        kind="^locked$",
        theirs="False",
        kinds="^params.*locked",
        text=r"batch_size=\[\]\)\)\.lock_",
    ),
    seen(
        "the locks of results of `pow",
        calls="iter",
        kind="^locked$",
        theirs="True",
        place=r"result\[\d+\]\.",
        kinds="Values?.*locked",
    ),
    Rule("nested batch sizes after `max`", _is_cut_by_vmap),
    seen(
        "`td.prod(dim=(0, 1))`",
        calls=SUMS,
        kind="^(result|IndexError|TypeError) > RuntimeError",
        ours="appears multiple times in the list of dims",
    ),
    seen(
        "nested batch sizes after `max`",
        calls="to",
        kind="^rows$",
        place=r"^result\.",
        text="NonTensor.*to\\(.*batch_size=",
    ),
    seen(
        "`stack[index] = 1.0`",
        calls="setitem value",
        kind="^result > InPlaceWriteError",
        ours="a leaf Variable that requires grad",
        kinds="lazy.*ragged",
    ),
    seen(
        "a wrong argument that meets an error inside",
        calls="setitem value",
        kind="^IndexError > RuntimeError",
        theirs="^IndexError: Dimension out of range",
        ours="batch dimension mismatch",
    ),
    seen(
        "`stack[index] = 1.0`",
        calls="set_at_",
        kind="^result > StackError",
        kinds="^lazy.*ragged",
        ours="Failed to stack tensors .* under the key",
        text=r"I\[(.*, )?\.\.\., ",
    ),
    seen(
        "`lazy.to(batch_size=...)`",
        calls="to",
        kind="^TypeError > RuntimeError",
        theirs="Cannot pass batch-size to a Lazy",
        ours="incompatible with the batch-size",
        kinds="lazy.*ragged",
    ),
    seen(
        "`names=` of another iterable",
        kind="^KeyError > result",
        theirs="^KeyError: 0$",
        text=r"names=\{'q': 1\}",
    ),
    seen("`td.type(None)`", calls="type", kind="^result > TypeError$", ours="got None"),
    Rule("a source of another batch size", _is_broadcast_once),
    seen(
        "a call with two faults",
        calls="update_at_",
        kind="^ValueError > RuntimeError$",
        theirs="must correspond to the class attributes",
        ours="incompatible with the batch-size|batch dimension mismatch",
        kinds="^class",
    ),
    seen(
        "a call with two faults",
        calls="cat_tensors",
        kind="^(RuntimeError > TypeError|KeyError > RuntimeError)$",
        theirs="dim must index a batch dimension|must have the same keys",
        ours="takes tensordicts only|has batch size .* and that at position",
    ),
    seen(
        "`td.separates(key, strict=False)`",
        calls="separates",
        kind="^(kind|keys)$",
        theirs=r"^NonTensorData$|^\['data'\]$",
        ours=r"^TensorDict$|^\['\w'\]$",
        text=r"separates\(\('\w', .*default=",
    ),
    seen(
        "`stack.set_non_tensor((",
        calls="set_non_tensor",
        kind="^result > KeyThroughLeafError",
        kinds="^lazy.*ragged",
    ),
    seen(
        "`td.separates(key, strict=False)`",
        calls="separates",
        kind="^KeyError > result",
        theirs="The entry \\w is already present",
        text="strict=False",
    ),
    seen(
        "`td.separates(key, strict=False)`",
        calls="separates|split_keys",
        kind="^result > KeyThroughLeafError",
        text=r"'(\w)', \('\1', '\w'\).*default=",
    ),
    seen(
        '`tc.set_("label", 1.0)`',
        calls="set_at_",
        kind="^(Runtime|Value)Error > result",
        theirs="for key '\\w'|Cannot write keys .* into a NonTensorData",
        text=r"NonTensor.*set_at_\(.*\{'\w': ",
    ),
    seen(
        "`stack.set_non_tensor((",
        calls="set_non_tensor|set|setitem key",
        kind="^result > RuntimeError",
        ours="the batch sizes of the elements of a lazy stack differ",
        kinds="^lazy.*nested.*ragged",
    ),
    seen(
        '`stack["n", "b"] = value` of a nested',
        calls="set|setitem key",
        kind="^result > RuntimeError",
        ours="the Tensor q has shape .* incompatible with the batch-size",
        kinds="^lazy.*nested",
    ),
    seen(
        "`td[0] = 5` where an entry is non-tensor data",
        calls="setitem value",
        kind="^locked$",
        theirs="False",
        ours="True",
        place=r"^x\.",
        kinds="Values?.*locked",
    ),
    seen(
        "whether `split_keys`, `separates`",
        calls="unflatten",
        kind="^shares$",
        kinds="^lazy",
        text=r"unflatten\(.*(\[\]|\(\))",
    ),
    seen(
        RAGGED,
        calls="addc(mul|div)_?",
        kind="^KeyError > result",
        theirs=r"keys in tensordicts mismatch.*'\d', ",
        kinds="^lazy.*ragged",
    ),
    seen(
        RAGGED,
        calls="del_|delitem key",
        kind="^KeyError > result",
        theirs="No sub-tensordict with key",
        kinds="lazy.*ragged",
    ),
    seen(
        RAGGED,
        calls="broadcast_to|expand",
        kind="^result > RuntimeError",
        ours="expand: the number of sizes provided",
        kinds="^lazy.*ragged",
    ),
    seen(
        '`td.set_("a", value)` of fewer dimensions',
        calls="update_at_",
        kind="^result > RuntimeError",
        ours="batch dimension mismatch",
        text=r"update_at_\((input_dict_or_td=)?\{",
    ),
    seen(
        "`td.apply_(fn)` where `fn` returns a number",
        calls="apply_|named_apply|apply",
        kind="^RuntimeError > result",
        theirs="batch dimension mismatch.*value.shape=torch.Size\\(\\[\\]\\)",
        text=r"default=1\.0",
    ),
    Rule(
        '`td.select("a", ("a", "b"))`',
        lambda p, d: p.call.name == "select" and d.kind == "locked" and d.theirs == "False" and overlapping_keys(p, d),
    ),
    seen(
        "nested batch sizes after `td.auto_batch_size_(n",
        calls="auto_batch_size_",
        kind="^(batch|names)$",
        place="[.]",
        text=r"auto_batch_size_\(\d, (?!False|None|\[\]|\(\))",
    ),
    seen(
        "a source of another batch size",
        calls="update_at_",
        kind="^RuntimeError > result",
        theirs="indexed destination TensorDict batch size",
        kinds="nested",
        text=r"update_at_\((input_dict_or_td=)?y, .*(None|True)",
    ),
    seen(
        '`stack.set("a", value, inplace=True)`',
        calls="set|setdefault",
        kind="^(values|dtype|shares)$|^result > InPlaceShapeError",
        kinds="lazy.*ragged",
        text=r"inplace=True|, (True|object\(\))\)$",
    ),
    seen(
        '`td.stack_tensors("a", out_key=("s", "b"))`',
        calls="(stack|cat)_tensors",
        kind="^result > KeyThroughLeafError",
        ours="is a NonTensorData",
    ),
    seen(
        "a wrong argument that meets an error inside the reference first",
        calls="update",
        kind="^TypeError > InPlaceShapeError",
        theirs=r"^TypeError: clone\(\): argument",
    ),
    seen(
        "a wrong argument that meets an error inside the reference first",
        kind="^IndexError > RuntimeError",
        theirs="Dimension out of range",
        ours="which does not start with the batch size",
    ),
    seen(
        "`td.separates(key, strict=False)`",
        calls="separates",
        kind="^(kind|keys)$",
        kinds="lazy.*ragged",
        text="strict=False",
    ),
    seen(
        '`tc.get_at("label", index)`', calls="get_at", kind="^value$", theirs="namedtuple", ours="list", kinds="class"
    ),
    seen(
        "`stack.densify()` where elements lack",
        calls="densify",
        kind="^(kind|batch|names)$",
        theirs=r"^(NonTensorData|\(\))$",
        kinds="ragged",
    ),
    seen(
        "`td.numpy()` and `td.to_namedtuple()`",
        calls="to_namedtuple",
        kind="^result > RuntimeError",
        ours="cannot complete when there are exclusive keys",
        kinds="Value",
    ),
    seen(
        "`td.unflatten(1, [])`",
        calls="unflatten",
        kind="^RuntimeError > result",
        theirs="sizes must be non-empty",
    ),
    seen(
        "a dictionary as a field of a nested tensorclass",
        calls="set|setdefault|setitem key",
        kind="^kind$",
        theirs="^TensorDict$",
        kinds="class.*nested",
        text=r"; result.*\('\w', '[xyz]'\), .*\{'q'",
    ),
    seen(
        RAGGED,
        calls="addc(mul|div)_",
        kind="^RuntimeError > result",
        theirs="written-to tensor refers to a single memory",
        kinds="^lazy.*ragged",
    ),
    seen(
        "`names=` of another iterable",
        kind="^TypeError > result",
        theirs="unhashable type: 'slice'",
        text=r"names=\{'q': 1\}",
    ),
    seen(
        "`Point.from_dict_instance` and other constructors",
        calls="from_list",
        kind="^result > ForeignKeyError",
        kinds="class",
    ),
    seen(
        '`tc[0] = TensorDict({"typo": 1})`',
        calls="setitem (value|td|key)",
        kind="^result > ForeignKeyError",
        kinds="class",
        text=r"TensorDict\(\{'q'",
    ),
    seen(
        "`td.flatten(-1)` and `td.flatten(inplace=True)`",
        calls="flatten",
        kind="^shape$",
        text=r"batch_size=\[\]\).*; result = x\.flatten\((start_dim=)?-1",
    ),
)
