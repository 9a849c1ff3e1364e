"""A random call on a container: a method of the public API, an operator, or a function of torch."""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass, field
from typing import Any

from fuzzing import structures
from fuzzing.arguments import Arguments
from fuzzing.structures import Node

# Methods that need other processes, other hardware, files (tests of formats compare those), modules, or memory.
LEFT_OUT = frozenset(
    [
        "all_gather",
        "all_reduce",
        "arecv",
        "asend",
        "broadcast",
        "gather_and_stack",
        "irecv",
        "isend",
        "recv",
        "reduce",
        "scatter",
        "send",
        "map",
        "map_iter",
        "consolidate",
        "dumps",
        "from_consolidated",
        "load",
        "load_",
        "load_memmap",
        "load_memmap_",
        "make_memmap",
        "make_memmap_from_storage",
        "make_memmap_from_tensor",
        "memmap",
        "memmap_",
        "memmap_like",
        "memmap_refresh_",
        "save",
        "saved_path",
        "share_memory_",
        "from_module",
        "from_modules",
        "to_module",
        "cuda",
        "pin_memory",
        "pin_memory_",
        "record_stream",
        "data_ptr",
        "dumps",
        "from_dataclass",
        "from_struct_array",
        "from_schema",
        "from_namedtuple",
        "to_struct_array",
        "new_empty",
        "backward",
        "load_state_dict",
        "attrs",
        "bytes",
    ]
)


@dataclass(frozen=True)
class Call:
    """One call: its name, how it is written, and its arguments, each with a keyword or without."""

    name: str
    template: str
    arguments: tuple[tuple[str | None, str], ...] = ()

    def __str__(self) -> str:
        parts = [value if name is None else f"{name}={value}" for name, value in self.arguments]
        return self.template.replace("@", ", ".join(parts))


@dataclass(frozen=True)
class Program:
    """A container ``x``, operands, and a call; ``junk`` are the parameters that got a value of any type."""

    x: Node
    call: Call
    operands: dict[str, Node] = field(default_factory=dict)
    junk: tuple[tuple[str, str], ...] = ()

    def lines(self) -> list[str]:
        """The statements of the program."""
        text = str(self.call)
        used = {name: node for name, node in self.operands.items() if _names(text, name)}
        return [f"x = {self.x}", *(f"{name} = {node}" for name, node in used.items()), f"result = {text}"]


def _names(text: str, name: str) -> bool:
    return name in {token for token in _tokens(text)}


def _tokens(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c in "_'" else " " for c in text).split()


OPERATORS: dict[str, str] = {
    f"operator {symbol}": f"x {symbol} @"
    for symbol in ["+", "-", "*", "/", "**", "//", "%", "&", "|", "^", "<", "<=", ">", ">=", "==", "!="]
}
OPERATORS |= {f"reflected {symbol}": f"@ {symbol} x" for symbol in ["+", "-", "*", "/", "**", "&", "|", "^", "<", "=="]}
INPLACE = {f"inplace {symbol}": f"inplace(x, {symbol + '='!r}, @)" for symbol in ["+", "-", "*", "/", "**"]}
SINGLE = {
    "neg": "-x", "invert": "~x", "abs()": "abs(x)", "len": "len(x)", "bool()": "bool(x)", "iter": "list(x)",
    "repr": "repr(x)", "property data": "x.data", "property grad": "x.grad", "property names": "x.names",
    "property device": "x.device", "property batch_size": "x.batch_size", "property ndim": "x.ndim",
    "property shape": "x.shape", "property depth": "x.depth", "property requires_grad": "x.requires_grad",
    "property dtype": "x.dtype", "property is_locked": "x.is_locked", "property batch_dims": "x.batch_dims",
    "property sorted_keys": "x.sorted_keys",
}  # fmt: skip
WITH_INDEX = {
    "getitem index": "x[@]", "torch.index_select": "torch.index_select(x, 0, torch.tensor([0]))",
    "to_tensordict index": "x[@].to_tensordict()",
}  # fmt: skip
WITH_KEY = {
    "getitem key": "x[@]", "contains": "@ in x.keys()", "contains nested": "@ in x.keys(True)",
    "contains leaves": "@ in x.keys(True, True)", "delitem key": "delete(x, @)", "contains td": "@ in x",
}  # fmt: skip
TORCH = {
    "torch.stack": ("torch.stack([x, @], {dim})", "td"),
    "torch.cat": ("torch.cat([x, @], {dim})", "td"),
    "lazy_stack": ("lazy_stack([x, @], {dim})", "td"),
    "maybe_dense_stack": ("maybe_dense_stack([x, @], {dim})", "td"),
    "torch.where": ("torch.where({mask}, x, @)", "td"),
    "torch.add": ("torch.add(x, @)", "other"),
    "torch.mul": ("torch.mul(x, @)", "other"),
    "torch.sub": ("torch.sub(@, x)", "other"),
    "torch.clone": ("torch.clone(x)", ""),
    "torch.squeeze": ("torch.squeeze(x)", ""),
    "torch.unsqueeze": ("torch.unsqueeze(x, {dim})", ""),
    "torch.split": ("torch.split(x, {size}, {dim})", ""),
    "torch.unbind": ("torch.unbind(x, {dim})", ""),
    "torch.permute": ("torch.permute(x, {perm})", ""),
    "torch.flatten": ("torch.flatten(x, 0, -1)", ""),
    "torch.gather": ("torch.gather(x, {dim}, {index})", ""),
    "torch.sum": ("torch.sum(x, {dim})", ""),
    "torch.mean": ("torch.mean(x, {dim})", ""),
    "torch.abs": ("torch.abs(x)", ""),
    "torch.zeros_like": ("torch.zeros_like(x)", ""),
    "torch.ones_like": ("torch.ones_like(x)", ""),
    "torch.full_like": ("torch.full_like(x, 2.0)", ""),
    "torch.clamp": ("torch.clamp(x, 0, 1)", ""),
    "torch.equal": ("torch.equal(x, @)", "td"),
    "torch.allclose": ("torch.allclose(x, @)", "td"),
    "dense_stack_tds": ("dense_stack_tds([x, @], {dim})", "td"),
    "pad": ("pad(x, {pad})", ""),
    "pad_sequence": ("pad_sequence([x, @])", "td"),
    "merge_tensordicts": ("merge_tensordicts(x, @)", "td"),
    "setattr batch_size": ("assign(x, 'batch_size', {batch})", ""),
    "setattr names": ("assign(x, 'names', {names})", ""),
    "setitem td": ("setitem(x, {idx}, x[{idx}] * 2)", ""),
    "setitem value": ("setitem(x, {idx}, @)", "item"),
    "setitem key": ("setitem(x, {key}, @)", "item"),
    "deepcopy": ("copy.deepcopy(x)", ""),
    "copy": ("copy.copy(x)", ""),
    "pickle": ("pickle.loads(pickle.dumps(x))", ""),
    "vmap": ("torch.vmap(lambda e: e + 1)(x)", ""),
    "tree_map": ("torch.utils._pytree.tree_map(lambda e: e + 1, x)", ""),
    "is_tensor_collection": ("is_tensor_collection(x)", ""),
    "assert_close": ("assert_close(x, @)", "td"),
    "lock select": ("x.lock_().select({key})", ""),
    "unlock index": ("x.lock_()[0].is_locked", ""),
    "unflatten flatten": ("x.flatten_keys('.').unflatten_keys('.')", ""),
    "items leaves": ("list(x.items(True, True))", ""),
    "keys nested": ("list(x.keys(True))", ""),
    "values leaves": ("list(x.values(True, True))", ""),
    "view block": ("block(x, lambda v: v.view(-1))", ""),
    "unsqueeze block": ("block(x, lambda v: v.unsqueeze(0))", ""),
    "flatten_keys block": ("block(x, lambda v: v.flatten_keys())", ""),
    "unlock block": ("block(x, lambda v: v.unlock_())", ""),
}


def methods(ours: Any, theirs: Any) -> dict[str, inspect.Signature]:
    """The public methods of the base class that the reference has too, with the parameters of ours."""
    out: dict[str, inspect.Signature] = {}
    for name in dir(ours):
        if name.startswith("_") or name in LEFT_OUT or not hasattr(theirs, name) or _opens_files(name):
            continue
        if isinstance(inspect.getattr_static(ours, name), property) or not callable(getattr(ours, name)):
            continue
        out[name] = inspect.signature(getattr(ours, name))
    return out


def _opens_files(name: str) -> bool:
    """Whether a method reads or writes a file, a server, or a format of another library."""
    kinds = ("h5", "csv", "json", "parquet", "pandas", "zarr", "mds", "store", "remote", "remote_init")
    return name.startswith(("from_", "to_", "init_")) and name.split("_", 1)[1] in kinds


def call_names(ours: Any, theirs: Any) -> list[str]:
    """The names of all calls, methods several times."""
    special = [*OPERATORS, *INPLACE, *SINGLE, *WITH_INDEX, *WITH_KEY, *TORCH]
    return [*methods(ours, theirs)] * 2 + special + [*WITH_INDEX, *WITH_KEY] * 4


def program(rng: random.Random, ours: Any, theirs: Any, names: list[str]) -> Program:
    """A random program whose call is one of ``names``."""
    x = structures.container(rng)
    arguments = Arguments(rng, x)
    call = _call(rng.choice(names), arguments, ours, theirs)
    return Program(x, call, arguments.operands, tuple(arguments.junk))


def _call(name: str, make: Arguments, ours: Any, theirs: Any) -> Call:
    if name in OPERATORS or name in INPLACE:
        return Call(name, (OPERATORS | INPLACE)[name], ((None, make.p_other()),))
    if name in SINGLE:
        return Call(name, SINGLE[name])
    if name in WITH_INDEX:
        return Call(name, WITH_INDEX[name], ((None, make.p_index()),))
    if name in WITH_KEY:
        return Call(name, WITH_KEY[name], ((None, make.key()),))
    if name in TORCH:
        return _torch(name, make)
    return _method(name, make, ours, theirs)


def _torch(name: str, make: Arguments) -> Call:
    template, kind = TORCH[name]
    batch = make.shape()
    fills = {
        "dim": make.p_dim(), "mask": make.p_mask(), "size": make.p_split_size(), "perm": str(list(range(len(batch)))),
        "index": make.gather__index(), "pad": make.p_pad_size(), "batch": make.p_batch_size(), "idx": make.p_index(),
        "names": make.p_names(), "key": make.key(),
    }  # fmt: skip
    for hole, value in fills.items():
        template = template.replace("{" + hole + "}", value)
    if kind == "td":
        return Call(name, template, ((None, make.operand(make.similar(0.2))),))
    if kind == "other":
        return Call(name, template, ((None, make.p_other()),))
    return Call(name, template, ((None, make.p_item()),) if kind == "item" else ())


def _method(name: str, make: Arguments, ours: Any, theirs: Any) -> Call:
    rng = make.rng
    known = inspect.signature(getattr(theirs, name)).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in known.values())
    arguments: list[tuple[str | None, str]] = []
    owner = "x"
    for parameter in inspect.signature(getattr(ours, name)).parameters.values():
        if parameter.name == "self" or (parameter.name not in known and not open_ended):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            several = make.several(name, parameter.name)
            if several:
                arguments = [(None, value) for _, value in arguments] + [(None, value) for value in several]
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        needed = parameter.default is parameter.empty
        if not needed and rng.random() > (0.3 if parameter.kind is parameter.KEYWORD_ONLY else 0.45):
            continue
        value = make.value(name, parameter.name)
        if value is None:
            if needed and rng.random() < 0.9:
                value = rng.choice(("1", "None", "'a'"))
            else:
                continue
        keyword = known[parameter.name].kind if parameter.name in known else parameter.kind
        by_name = (
            parameter.KEYWORD_ONLY in (parameter.kind, keyword) or rng.random() < 0.2 or any(n for n, _ in arguments)
        )
        if not needed and not by_name and len(arguments) < _position(parameter):
            by_name = True
        arguments.append((parameter.name if by_name or _skipped(arguments, parameter, ours, name) else None, value))
    return Call(name, f"{owner}.{name}(@)", tuple(arguments))


def _position(parameter: inspect.Parameter) -> int:
    return 0


def _skipped(arguments: list[Any], parameter: inspect.Parameter, ours: Any, name: str) -> bool:
    """Whether an earlier positional parameter got no argument, so that this one needs its keyword."""
    before = []
    for other in inspect.signature(getattr(ours, name)).parameters.values():
        if other.name == parameter.name:
            break
        if other.name != "self":
            before.append(other)
    return len(arguments) < len(before)
