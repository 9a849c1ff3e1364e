"""Explained differences of writes, shapes, unbatched tensors and ragged lazy stacks, as data."""

from __future__ import annotations

import ast
import re

from fuzzing.calls import Program
from fuzzing.oracles.containers import changes_x_as_without, rows_move
from fuzzing.outcomes import Difference
from fuzzing.predicates import Rule, has, seen

RAGGED = "operations of a lazy stack whose elements"
UNBATCHED = "`UnbatchedTensor` entries of reductions"


def _has_the_keys_of_its_element(program: Program, difference: Difference) -> bool:
    """Whether an element of merged lazy stacks has the keys that this element has in any of them, and no other."""
    place = re.fullmatch(r"result\.(\d+)", difference.place)
    if program.call.name != "merge_tensordicts" or difference.kind != "keys" or place is None:
        return False
    stacks = [node for node in (program.x, *program.operands.values()) if len(node.elements) > int(place[1])]
    keys = {key for stack in stacks for key in stack.elements[int(place[1])].entries}
    return keys == set(ast.literal_eval(difference.ours))


MOVES = ("roll", "flip", "gather", "repeat", "reshape", "repeat_interleave")


def _moves_rows_in_place(program: Program, difference: Difference) -> bool:
    """Whether rows of a ragged stack move in place, and each is where it belongs."""
    return (
        program.call.name in MOVES
        and has(program, "ragged")
        and difference.kind in ("shape", "values", "shares", "keys", "rows")
        and any(value == "True" or name == "inplace" for name, value in program.call.arguments)
        and rows_move(program, difference)
    )


_APPLIED = changes_x_as_without("batch_size")

WRITES = (
    # writes
    seen(
        "an operation of a tensordict without tensors",
        calls="update_at_|copy_at_",
        kind="^result > IndexError",
        ours="^IndexError: (index tensors of the shapes|index -?\\d+ is out of bounds)",
        text=r"y = TensorDict\(\{\}",
    ),
    seen(
        "`td.update_at_(source, index)` and `td.set_at_",
        calls="set_at_",
        kind="^RuntimeError > result",
        theirs="Cannot modify locked",
        text=r"NonTensorStack.*set_at_\(\('\w', '\w'\), .*I\[.*,",
    ),
    seen(
        '`td.set_at_("s", tensor, index)`',
        calls="update_at_",
        kind="^result > InPlaceShapeError",
        ours="a NonTensor(Data|Stack), which cannot take a Tensor in place",
    ),
    seen(
        "a source of another batch size",
        calls="setitem (value|td)",
        kind="^RuntimeError > result",
        theirs="indexed destination TensorDict batch size",
        text=r"TensorDict\(\{'q'.*batch_size=\[\]\)\)$",
    ),
    seen(
        "`stack.update(source, update_batch_size=True)`",
        calls="update",
        kind="^IndexError > result",
        theirs="Incompatible dim",
        kinds="^lazy.*class",
        text="update_batch_size=True",
    ),
    seen(
        '`tc.set_("label", 1.0)`',
        calls="set",
        kind="^RuntimeError > result",
        theirs="Cannot update an existing entry of type .*NonTensorData",
        kinds="^class",
        text=r"inplace=True|, True\)$",
    ),
    seen(
        "`td[0] = 5` where an entry is non-tensor data",
        calls="setitem (key|value)",
        kind="^kind$",
        theirs="^Tensor$",
        ours="^('.*'|[\\d.]+|None)$",
        place=r"[.]list(\[\d+\])+$",
        text=r"setitem\(x, (\(\)|\.\.\.|I\[.*\]), np\.",
    ),
    seen(
        "an index of more dimensions than the batch",
        calls="set_at_",
        kind="^result > IndexCountError",
        ours="td.batch_dims==0",
        kinds="nested",
    ),
    seen(
        '`tc.set("x", None, inplace=True)`',
        calls="set",
        kind="^RuntimeError > result",
        theirs="with a value of type <class 'NoneType'>",
        kinds="^class",
    ),
    seen(
        '`td.rename_key_("b", ("n", "b"))`',
        calls="rename_key_",
        kind="^result > RuntimeError",
        ours="batch dimension mismatch",
    ),
    seen(
        "`td.expand_as(other)`, `td.apply(fn, other)`",
        calls="new_tensor",
        kind="^KeyError > result",
        theirs="not found in TensorDict with keys",
        kinds="nested",
        text=r"TensorDict\(\{\}",
    ),
    seen(
        "`td.prod(keepdim=True)`",
        calls="prod",
        kind="^RuntimeError > result",
        theirs="unsqueezing is allowed for dims",
        kinds="nested",
        text="keepdim|True",
    ),
    seen(
        "the device of nested non-tensor values", calls="to", kind="^device$", theirs="None", text="NonTensor.*inplace="
    ),
    seen(
        '`tc.set_("label", 1.0)`',
        calls="copy_",
        kind="^KeyError > result",
        theirs=r"The key \('\w', '\w'\) was not found in the dest",
        text=r"'(\w)': NonTensorData.*copy_\(.*'\1': \{",
    ),
    seen(
        '`stack["n", "b"] = value` of a nested',
        calls="setdefault",
        kind="^(batch|names|kind|length)$",
        kinds="^lazy.*nested",
        text="default='text'|, 'text'",
    ),
    seen("an invalid key or index", calls="split_keys", kind="^RecursionError > KeyError", text=r"[\[ ]\(\)[,\]]"),
    seen(
        "names of non-tensor values",
        calls="stack_tensors",
        kind="^ValueError > result",
        theirs="The dimension name \\w is already taken",
        text="NonTensor",
    ),
    seen(
        '`LazyStackedTensorDict.from_dict({"a": tensor})`',
        calls="from_list",
        kind="^result > RuntimeError",
        ours="from_list needs at least one element",
        kinds="^lazy",
    ),
    seen(
        "operations that torch has for tensors",
        calls="squeeze",
        kind="^TypeError > result",
        theirs="'(list|tuple)' and 'int'",
        text=r"\[\]\)|\(\)\)",
    ),
    seen(
        '`tc.get_at("label", index)`',
        calls="get_at",
        kind="^kind$",
        theirs="^NonTensor",
        kinds="^class",
        text=r"get_at\((key=)?\('z', '",
    ),
    # unbatched tensors
    seen(
        "`td.add(other, default=0.0)`",
        calls="maximum|minimum",
        kind="^keys$",
        ours="'k'",
        text="UnbatchedTensor.*default=",
    ),
    seen(
        UNBATCHED,
        calls="cumm(ax|in)",
        kind="^RuntimeError > result",
        theirs="must have same number of dimensions",
        text="UnbatchedTensor.*reduce=",
    ),
    seen(
        UNBATCHED,
        calls="stack_tensors|cat_tensors",
        kind="^result > RuntimeError",
        ours="the UnbatchedTensor \\w+ has shape .* incompatible with the batch-size",
    ),
    seen(
        UNBATCHED,
        calls="(named_)?apply",
        kind="^result > UnmatchedKeyError",
        text=r"UnbatchedTensor.*apply\(.*batch_size=",
    ),
    seen(
        "a tensor, an `UnbatchedTensor`, a non-tensor value",
        kind="^(KeyError|AttributeError|TypeError) > StackError",
        ours="^StackError: position \\d has an? ",
    ),
    seen(
        "a tensor, an `UnbatchedTensor`, a non-tensor value",
        kind="^result > (StackError|RuntimeError)",
        ours="position \\d has an? |is a tensor in (one|some)",
        text="UnbatchedTensor|NonTensor",
    ),
    seen("`UnbatchedTensor`s of different values", ours="is an unbatched tensor, which has one value for all rows"),
    # ragged lazy stacks and values in them
    seen(
        RAGGED,
        calls="del_|delitem key",
        kind="^KeyError > result",
        theirs="not found in any of the stacked",
        kinds="^lazy.*ragged",
    ),
    seen(
        "`stack.densify()` where elements lack",
        calls="densify",
        kind="^keys$",
        theirs=r"^\['data'\]$",
        kinds="^lazy.*nested.*ragged",
    ),
    seen(RAGGED, calls="is_(floating_point|complex)", kind="^value$", kinds="^lazy.*ragged"),
    seen(
        RAGGED,
        calls="addc(mul|div)",
        kind="^KeyError > result",
        theirs=r"keys in tensordicts mismatch.*\('\w', '\d', '\w'\)",
        kinds="lazy.*ragged",
    ),
    Rule("`merge_tensordicts` of lazy", _has_the_keys_of_its_element),
    Rule(RAGGED, _moves_rows_in_place),
    Rule(RAGGED, lambda p, d: "apply" in p.call.name and d.kind == "values" and _APPLIED(p, d)),
    seen(
        "operations of a lazy stack that the reference does otherwise",
        calls="lerp_?",
        kind="^result > RuntimeError",
        ours="expected dtype \\w+ for `weight`",
        kinds="^lazy.*ragged",
    ),
    seen(
        "`td.separates(key, strict=False)`",
        calls="separates",
        kind="^rows$",
        theirs=r"^\[''\]$",
        kinds="lazy.*ragged",
        text="default=",
    ),
    seen(
        "the locks of results of `pow",
        calls="merge_tensordicts",
        kind="^locked$",
        theirs="True",
        kinds="locked",
    ),
    seen(RAGGED, calls="property requires_grad", kind="^value$", theirs="False", ours="True", kinds="^lazy.*ragged"),
    seen(
        RAGGED,
        calls="roll",
        kind="^result > StackError",
        ours="Failed to stack|are exclusive",
        kinds="^lazy.*ragged",
        text=r"roll\((shifts=)?[^,]*(, inplace=\w+)?\)$",
    ),
    seen(
        "`stack.pack()`",
        calls="pack",
        kind="^result > StackError",
        ours="have different keys",
        kinds="^lazy.*Values?.*ragged",
    ),
    seen(
        "`lazy.view(2, 2)`",
        calls="squeeze",
        kind="^RuntimeError > result",
        theirs="Cannot call `view` on a lazy stacked",
        text="NonTensorStack",
    ),
    seen(
        "nested batch sizes after `max`",
        calls="to",
        kind="^keys$",
        theirs=r"^\[\]$",
        ours=r"^\['list'\]$",
        text="NonTensorStack.*to\\(.*batch_size=",
    ),
    seen(
        "`td.new_zeros([])` of a tensordict with names",
        calls="new_tensor",
        kind="^names$",
        ours=r"^\((None, ?)*(None)?\)$",
        text=r"names=\[.*new_tensor\(y",
    ),
)
