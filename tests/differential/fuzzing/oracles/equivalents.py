"""Equivalent calls: two ways to write one operation, of which the reference does one, and ours does both alike."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fuzzing import programs, structures
from fuzzing.calls import Call, Program
from fuzzing.oracles.containers import all_changed, changed, oracle
from fuzzing.outcomes import Difference
from fuzzing.structures import Node

WRITES = (
    "set_",
    "set_at_",
    "update_",
    "update_at_",
    "copy_",
    "copy_at_",
    "apply_",
    "fill_",
    "set",
    "update",
    "setitem",
)
"""The starts of the names of calls that write in place, or may."""


def bound(program: Program) -> dict[str, str]:
    """The sources of the arguments by the names of their parameters."""
    method = getattr(programs.libraries()[1].TensorDict, program.call.name, None)
    if method is None or any(source.startswith("*") for _, source in program.call.arguments):
        return {}
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    by_position = [source for name, source in program.call.arguments if name is None]
    bound = dict(zip(names, by_position, strict=False))
    return bound | {name: source for name, source in program.call.arguments if name is not None}


def _index_and_value(program: Program) -> tuple[str, str] | None:
    """The sources of the index and the value of ``x[index] = value``."""
    call = program.call
    if call.name == "setitem td":
        index, _, value = call.template.removeprefix("setitem(x, ").removesuffix(")").partition(", x[")
        return index, f"x[{value}"
    if call.name != "setitem value":
        return None
    arguments = ", ".join(source for _, source in call.arguments)
    return call.template.removeprefix("setitem(x, ").removesuffix(", @)"), arguments


def _called(program: Program, name: str, *arguments: str) -> Program:
    """The program with a call of another method."""
    return replace(program, call=Call(name, f"x.{name}(@)", tuple((None, argument) for argument in arguments)))


def _other_method(program: Program) -> list[Program]:
    """The program with other calls that mean the same."""
    name, given = program.call.name, bound(program)
    inplace = given.get("inplace") == "True"
    source = given.get("input_dict_or_td", given.get("tensordict", ""))
    names = ("input_dict_or_td", "tensordict", "inplace", "clone", "non_blocking", "is_leaf", "idx", "index")
    plain = given.keys() <= set(names)
    if name == "update" and inplace and plain:
        return [_called(program, "update_", source)]
    if name == "set" and inplace:
        return [_called(program, "set_", given["key"], given["item"])]
    if name == "set_" and "item" in given:
        return [_called(program, "update_", f"{{{given['key']}: {given['item']}}}")]
    if name == "copy_" and plain:
        return [_called(program, "update_", source)]
    index = given.get("idx", given.get("index", ""))
    if name == "set_at_" and index and "value" in given:
        return [_called(program, "update_at_", f"{{{given['key']}: {given['value']}}}", index)]
    if name in ("update_at_", "copy_at_") and index and plain:
        write = Call("setitem value", f"setitem(x, {index}, @)", ((None, source),))
        return [replace(program, call=write), *([_called(program, "update_at_", source, index)] * (name == "copy_at_"))]
    if write := _index_and_value(program):
        return [_called(program, "update_at_", write[1], write[0])]
    return []


def _of_selected_keys(program: Program) -> list[Program]:
    """The program of the entries under ``keys_to_update`` only."""
    given = bound(program)
    keys, source = given.pop("keys_to_update", ""), given.get("input_dict_or_td", "")
    keys = f"[{keys}]" if keys.startswith("'") else keys
    if not keys.startswith("["):
        return []
    if source in program.operands:
        paths = list(structures.paths(program.operands[source]))
        present = [path for path in map(_path, ast.literal_eval(keys)) if path in paths]
        present = [path for path in present if not any(path[:n] in present for n in range(1, len(path)))]
        selected = [
            f"{{k: {source}.get(k) for k in {keys} if k in {source}.keys(True)}}",
            f"{source}.select(*{present}, strict=False)",
        ]
    elif source.startswith("{"):
        selected = [f"{{k: v for k, v in {source}.items() if k in {keys}}}"]
    else:
        return []
    out = []
    for chosen in selected:
        arguments = tuple((name, chosen if name == "input_dict_or_td" else value) for name, value in given.items())
        out.append(replace(program, call=replace(program.call, arguments=arguments)))
    return out


def _path(key: object) -> tuple[object, ...]:
    """A key as a path of one level each."""
    return tuple(part for each in key for part in _path(each)) if isinstance(key, tuple) else (key,)


def _without_a_lock(program: Program) -> list[Program]:
    """The write in place of a container that is not locked."""
    if not program.call.name.startswith(WRITES) or "lock_" not in program.x.suffix:
        return []
    return [replace(program, x=replace(program.x, suffix=""))]


@dataclass(frozen=True)
class _Filled(structures.Tensor):
    """A tensor of one number."""

    value: str = "0"

    def __str__(self) -> str:
        return f"torch.full({list(self.shape)}, {self.value}, dtype=torch.{self.dtype})"


def _completed(node: Node, other: Node, value: str) -> Node:
    """The container with tensors of one number in place of those that another one has in addition."""
    entries = dict(node.entries)
    for key, entry in other.entries.items():
        if isinstance(entry, structures.Tensor) and key not in entries:
            entries[key] = _Filled(entry.shape, entry.dtype, value=value)
        elif isinstance(entry, Node):
            mine = entries.get(key, replace(entry, entries={}))
            entries[key] = _completed(mine, entry, value) if isinstance(mine, Node) else mine
    elements = tuple(_completed(*pair, value) for pair in zip(node.elements, other.elements, strict=False))
    return replace(node, entries=entries, elements=elements)


def _without_default(program: Program) -> list[Program]:
    """The operation of operands that have the default under the keys that they lack."""
    given = bound(program)
    value = given.pop("default", "")
    names = [source for source in given.values() if source in program.operands]
    if len(names) != 1 or not re.fullmatch(r"-?[\d.]+|True|False", value):
        return []
    name, y = names[0], program.operands[names[0]]
    return [
        replace(
            program,
            x=_completed(program.x, y, value),
            operands={**program.operands, name: _completed(y, program.x, value)},
            call=replace(program.call, arguments=tuple(given.items())),
        )
    ]


INDICES = (
    (r"np[.]array\((\[[^]]*\])\)", r"torch.tensor(\1)"),
    (r"range\((\d+)\)", lambda found: f"torch.tensor({list(range(int(found[1])))})"),
    (r"torch[.]tensor\((\[[^]]*\])\)", r"\1"),
    (r"(?<=[\[ ])(\[[^]]*\])", r"torch.tensor(\1)"),
    (r"I\[\(\)\]", "I[...]"),
    (r"I\[\.\.\.\]", "I[()]"),
    (r"I\[None\]", "I[None, ...]"),
    (r"np[.]ones\((\[[^]]*\])\)", r"torch.ones(\1, dtype=torch.float64)"),
    (r"NonTensorData\('v'\)", "'v'"),
    (r"{'q': 1}", "['q']"),
    (r"^True$", "1"),
    (r"^False$", "0"),
)
"""Sources of indices and values, and others that mean the same."""


def _other_sources(program: Program) -> list[Program]:
    """The program with an index or a value that is written in another way."""
    out = []
    for pattern, text in INDICES:
        sub = functools.partial(re.sub, pattern, text)
        arguments = tuple((name, sub(source)) for name, source in program.call.arguments)
        out.append(
            replace(program, call=replace(program.call, template=sub(program.call.template), arguments=arguments))
        )
    return out


def _positive_dims(program: Program) -> list[Program]:
    """The program with dims that are counted from the front."""
    count, dims = len(program.x.batch), {source for name, source in bound(program).items() if name in ("dim", "dims")}

    def positive(source: str) -> str:
        return re.sub(r"-\d+", lambda found: str(int(found[0]) + count), source) if source in dims else source

    arguments = tuple((name, positive(source)) for name, source in program.call.arguments)
    return [replace(program, call=replace(program.call, arguments=arguments))]


def _no_dims(program: Program) -> list[Program]:
    """The reduction of all dims without an argument, in place of an empty tuple."""
    if bound(program).get("dim") != "()":
        return []
    arguments = tuple((name, source) for name, source in program.call.arguments if source != "()")
    return [replace(program, call=replace(program.call, arguments=arguments))]


def _unlocked(node: Node) -> Node:
    return replace(node, suffix="")


def _in_its_form(program: Program) -> list[Program]:
    """The program with containers that are no views, and parameters that are tensors."""
    return [all_changed(_unlocked, program), replace(program, x=changed(program.x, _no_parameters))]


def _no_parameters(node: Node) -> Node:
    return replace(node, kind="dense") if node.kind == "params" else node


VALUES = ("item", "value", "input_dict_or_td", "tensordict")
"""The parameters that take what is written."""


def _as_values(program: Program) -> list[Program]:
    """The write of a plain value as non-tensor data, over an entry that is."""
    if not program.call.name.startswith(WRITES) or not set(program.x.label.split("+")) & {"Value", "Values"}:
        return []
    out, values = [], {given for name, given in bound(program).items() if name in VALUES}
    for i, (name, source) in enumerate(program.call.arguments):
        if source not in values and not program.call.name.startswith("setitem"):
            continue
        inner = re.fullmatch(r"({'\w': )(.*)}", source)
        value = inner[2] if inner else source
        for size in (list(program.x.batch), []):
            text = f"NonTensorData({value}, batch_size={size})"
            argument = (name, f"{inner[1]}{text}}}" if inner else text)
            arguments = (*program.call.arguments[:i], argument, *program.call.arguments[i + 1 :])
            out.append(replace(program, call=replace(program.call, arguments=arguments)))
    return out


SPELLINGS = (
    *(_other_method, _without_default, _of_selected_keys, _without_a_lock, _other_sources, _positive_dims),
    *(_no_dims, _in_its_form, _as_values),
)


def _respelled(program: Program, times: int) -> Iterator[tuple[Program, str]]:
    """The programs that write the operation in other ways, and what is the same in them."""
    for spell in SPELLINGS:
        for other in spell(program):
            if other == program:
                continue
            content = "result" if spell is _without_default else "same"  # the operands are others
            yield other, content
            if times > 1:
                yield from ((last, content if same == "same" else same) for last, same in _respelled(other, times - 1))


def as_another_call(program: Program, difference: Difference) -> bool:
    """Whether ours does what both libraries do where the same operation is written in another way."""
    others = {tuple(other.lines()): (other, content) for other, content in _respelled(program, 2)}
    return any(
        oracle(lambda _, other=other: other, content, _never, program, difference) for other, content in others.values()
    )


def _never(program: Program, found: list[Difference]) -> None:
    """Explain nothing: both libraries agree."""


def _filled(program: Program) -> Program:
    operands = {name: structures.filled(node) for name, node in program.operands.items()}
    return replace(program, x=structures.filled(program.x), operands=operands)


def as_filled(program: Program, difference: Difference) -> bool:
    """Whether ours does without tensors what both libraries do with a tensor in each node without entries."""
    return oracle(_filled, "less", _never, program, difference)


def _without_empty_nodes(node: Node) -> Node:
    def is_empty(entry: object) -> bool:
        return isinstance(entry, Node) and not entry.elements and all(map(is_empty, entry.entries.values()))

    return replace(node, entries={key: entry for key, entry in node.entries.items() if not is_empty(entry)})


def as_without_empty_nodes(program: Program, difference: Difference) -> bool:
    """Whether ours does beside nested tensordicts without entries what both libraries do without these."""
    change = functools.partial(all_changed, _without_empty_nodes)
    return difference.kind == "KeyError > result" and oracle(change, "same", _never, program, difference)
