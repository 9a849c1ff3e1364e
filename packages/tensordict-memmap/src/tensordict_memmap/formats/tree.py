"""The tree format: a folder a node, described by its ``meta.json``, and a raw file a leaf.

A tensordict becomes a tree of four kinds of records: `Leaf`, `Dense` (a dictionary of entries), `Parts` (a lazy stack,
a tensorclass: whatever is made of other nodes) and `Value` (non-tensor data). Saving plans such a tree from a
tensordict and writes what it describes; loading parses one from ``meta.json`` files; either way the tensordict over the
files is built from the records. Nothing here reads or writes a file. The layout is that of the reference, class strings
included.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import orjson
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, UnbatchedTensor, is_non_tensor
from tensordict_core.extension import Primitives, find_type, type_name
from tensordict_memmap.formats.names import LEAF, META, SHAPES, FileNames, encode_key
from tensordict_memmap.schema import nontensor as values

__all__ = [
    "FORMAT_VERSION",
    "LAZY",
    "NON_TENSOR",
    "NON_TENSOR_STACK",
    "OTHER_PICKLE",
    "STACK_PICKLE",
    "WRAPPED",
    "Dense",
    "Entry",
    "Leaf",
    "Node",
    "Parts",
    "Value",
    "candidate_names",
    "describe",
    "find_class",
    "leaves",
    "nodes",
    "plan",
    "show",
    "structure",
]

FORMAT_VERSION = 1
DENSE = "<class 'tensordict._td.TensorDict'>"
LAZY = "<class 'tensordict._lazy.LazyStackedTensorDict'>"
NON_TENSOR = "<class 'tensordict.tensorclass.NonTensorData'>"
NON_TENSOR_STACK = "<class 'tensordict.tensorclass.NonTensorStack'>"
WRAPPED = "_tensordict"
"""The name of the one part of a tensorclass."""

OTHER_PICKLE = "other.pickle"
STACK_PICKLE = "pickle.pkl"
"""Files with values that have no JSON form, of `NonTensorData` and `NonTensorStack`."""

Path = tuple[str, ...]


@dataclass(slots=True)
class Leaf:
    """A tensor and its file.

    Args:
        key: its nested key.
        file: the path of its file under the saved folder, with ``/`` between folders.
        dtype: its dtype.
        shape: its shape; of a nested tensor the number of components and of their dimensions.
        layout: ``"strided"``, or ``"nested"`` and ``"jagged"`` for nested tensors.
        source: the tensor to write; None where it is read.
        alias: the file that this one is another name of (tied weights).
        ragged: the dimension of a jagged tensor that differs between components.
    """

    key: Path
    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str = "strided"
    source: torch.Tensor | None = None
    alias: str | None = None
    ragged: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of the file of a strided tensor; there is no file where they are 0."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def shapes_file(self) -> str:
        """The path of the file with the shapes of the components of a nested tensor."""
        return self.file.removesuffix(LEAF) + SHAPES


@dataclass(slots=True)
class Dense:
    """A node that is a dictionary of entries."""

    key: Path
    folder: str
    batch_size: tuple[int, ...]
    names: tuple[str | None, ...] | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    escaped: dict[str, str] = field(default_factory=dict)
    """The stems of the entries whose files are not named as usual."""
    owner: str | None = None
    """The registered name of the tensorclass that this node is the content of, where its class string lacks it."""
    origin: Any = None
    type_name: str = "TensorDict"


@dataclass(slots=True)
class Parts:
    """A node that is made of other nodes; ``cls`` is None where the class is not known here."""

    key: Path
    folder: str
    cls: type[Any] | None
    class_string: str
    facts: dict[str, Any]
    parts: dict[str, Node] = field(default_factory=dict)
    origin: Any = None

    @property
    def type_name(self) -> str:
        """What the parent's ``meta.json`` calls it."""
        return "" if self.cls is None else self.cls.__name__


@dataclass(slots=True)
class Value:
    """Non-tensor data: one value, or one for each position of a batch (``stack``)."""

    key: Path
    folder: str
    batch_size: tuple[int, ...]
    stack: bool = False
    value: Any = None
    files: dict[str, bytes] = field(default_factory=dict)
    """What its folder holds."""
    pickle: str | None = None
    """The path of the file that holds the value pickled, where it is still to be read."""
    origin: Any = None

    @property
    def type_name(self) -> str:
        """What the parent's ``meta.json`` calls it."""
        return "NonTensorStack" if self.stack else "NonTensorData"


Node = Dense | Parts | Value
Entry = Leaf | Node


def show(key: Path) -> str:
    """A nested key as errors show it.

    >>> show(("a",)), show(("a", "b"))
    ("'a'", "('a', 'b')")
    """
    return repr(key[0]) if len(key) == 1 else repr(key)


def nodes(node: Node) -> Iterator[Node]:
    """The nodes of a tree, each before those below it."""
    stack: list[Node] = [node]
    while stack:
        one = stack.pop()
        yield one
        if isinstance(one, Dense):
            stack.extend(entry for entry in reversed(one.entries.values()) if not isinstance(entry, Leaf))
        elif isinstance(one, Parts):
            stack.extend(reversed(one.parts.values()))


def leaves(node: Node) -> Iterator[Leaf]:
    """The leaves of a tree."""
    for one in nodes(node):
        if isinstance(one, Dense):
            for entry in one.entries.values():
                if isinstance(entry, Leaf):
                    yield entry


# --- from a tensordict


def plan(td: Any, *, tie: bool = True) -> Node:
    """The tree of a tensordict, lazy stack, tensorclass or non-tensor data.

    Args:
        td: what to save.
        tie: whether tensors that are the same memory share a file.

    Raises:
        TypeError: An entry is of a kind that the format has no place for; the error names its key.

    >>> from tensordict_core import TensorDict
    >>> [leaf.file for leaf in leaves(plan(TensorDict({"a": torch.zeros(2), "b": {"c d": torch.ones(1)}})))]
    ['a.memmap', 'b/c%20d.memmap']
    """
    return _Planner(tie).node(td, (), "", ())


def structure(td: Any) -> Node:
    """The tree of a tensordict with its tensors and nodes, as `plan` gives it, but without encoding any value."""
    return _Planner(False, values_too=False).node(td, (), "", ())


class _Planner:
    def __init__(self, tie: bool, *, values_too: bool = True) -> None:
        self.tie = tie
        self.values_too = values_too
        self.seen: dict[Any, str] = {}

    def node(self, td: Any, key: Path, folder: str, around: tuple[int, ...]) -> Node:
        if is_non_tensor(td):
            if not self.values_too:
                return Value(key, folder, tuple(td.batch_size), isinstance(td, NonTensorStack), origin=td)
            return _plan_value(td, key, folder, around)
        if isinstance(td, LazyStackedTensorDict):
            names = td.names
            facts = {"stack_dim": td.stack_dim, "stack_dim_name": names[td.stack_dim] if names else None}
            parts: dict[str, Any] = {str(number): part for number, part in enumerate(td.tensordicts)}
            return self.parts(Parts(key, folder, LazyStackedTensorDict, LAZY, facts, origin=td), parts)
        if not isinstance(td, Primitives) or td._is_opaque:
            raise TypeError(
                "a saved tensordict holds tensors, tensordicts, tensorclasses and non-tensor data, and key "
                f"{show(key)} "
                f"is a {type(td).__name__}; convert or remove it first"
            )
        form = td._disk_form()  # type: ignore[attr-defined]  # every container has it
        if form is not None:
            facts, parts = form
            return self.parts(Parts(key, folder, type(td), str(type(td)), facts, origin=td), parts)
        return self.dense(td, key, folder)

    def parts(self, node: Parts, parts: dict[str, Any]) -> Parts:
        for name, part in parts.items():
            # parts have no keys of their own for users; what is below them is under the key of the whole
            inner = node.key if name == WRAPPED else (*node.key, name)
            node.parts[name] = self.node(part, inner, _join(node.folder, name), ())
        content = node.parts.get(WRAPPED)
        if isinstance(content, Dense) and node.cls is not None:
            registered = type_name(node.cls)
            if registered not in candidate_names(node.class_string):
                content.owner = registered
        return node

    def dense(self, td: Any, key: Path, folder: str) -> Dense:
        meta = td._meta
        size = tuple(meta.batch_size)
        node = Dense(key, folder, size, meta.names, origin=td)
        names, entries = FileNames(), node.entries
        prefix = folder + "/" if folder else ""
        for name, value in td._items():
            inner = (*key, name)
            if isinstance(value, torch.Tensor):
                nested = value.is_nested
                stem = names.nested(name) if nested else names.leaf(name)
                file = f"{prefix}{stem}{LEAF}"
                entries[name] = _plan_nested(value, inner, file) if nested else self.leaf(value, inner, file)
            elif not self.values_too and type(value) is UnbatchedTensor:  # only one file has a place for them
                entries[name] = self.leaf(value.tensor, inner, f"{prefix}{names.leaf(name)}{LEAF}")
                continue
            else:
                stem = names.node(name)
                entries[name] = self.node(value, inner, prefix + stem, size)
            if stem[:1] == "%" and stem != encode_key(name):
                node.escaped[name] = stem
        return node

    def leaf(self, tensor: torch.Tensor, key: Path, file: str) -> Leaf:
        leaf = Leaf(key, file, tensor.dtype, tuple(tensor.shape), source=tensor)
        if self.tie and tensor.layout is torch.strided:
            try:
                address = tensor.data_ptr()
            except RuntimeError:  # a tensor without memory of its own
                address = 0
            if address and leaf.nbytes:
                place = (
                    address,
                    tensor.device,
                    leaf.dtype,
                    leaf.shape,
                    tensor.stride(),
                    tensor.is_conj(),
                    tensor.is_neg(),
                )
                first = self.seen.setdefault(place, file)
                leaf.alias = None if first == file else first
        return leaf


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _plan_nested(tensor: torch.Tensor, key: Path, file: str) -> Leaf:
    jagged = tensor.layout is torch.jagged
    # components that are ragged in another dimension are stored with that one first, which keeps them one run of bytes
    ragged = next(dim for dim in range(1, tensor.dim()) if not isinstance(tensor.shape[dim], int)) if jagged else 1
    source = tensor.transpose(1, ragged) if ragged != 1 else tensor
    shape = (tensor.size(0), tensor.dim() - 1)
    return Leaf(key, file, tensor.dtype, shape, "jagged" if jagged else "nested", source=source, ragged=ragged)


def _plan_value(td: Any, key: Path, folder: str, around: tuple[int, ...]) -> Value:
    size = tuple(td.batch_size)
    stack = isinstance(td, NonTensorStack)
    if not stack and not isinstance(td, NonTensorData):
        raise TypeError(
            f"non-tensor data is saved as NonTensorData or NonTensorStack, and key {show(key)} is a "
            f"{type(td).__name__}; convert it first"
        )
    value = td.tolist() if stack else td.data
    node = Value(key, folder, size, stack, value, origin=td)
    extra: dict[str, Any] = {}
    if stack or size != around:
        extra["shape"] = list(size)
    record: dict[str, Any] = {}
    try:
        exact = values.encode(value)
        try:
            record["data"] = values.plain(value)
            if record["data"] is not exact and record["data"] != exact:
                extra["exact"] = exact
        except values.NoJsonForm:
            record["data"], extra["exact"] = exact, True
    except values.NoJsonForm as reason:
        _pickle_into(node, key, value, reason)
        if stack:
            record["data"] = STACK_PICKLE
    if stack:
        head: dict[str, Any] = {
            "_type": NON_TENSOR_STACK,
            "_format_version": FORMAT_VERSION,
            "_class": "tensordict:NonTensorStack",
            "stack_dim": 0,
            "device": None,
        }
        node.files[META] = values.dumps({**head, **record, **extra})
    else:
        # the reference refuses fields that it does not know here, and takes anything as metadata
        tail = {"_metadata": extra or None, "_is_non_tensor": True}
        node.files[META] = values.dumps({"_type": NON_TENSOR, **record, **tail})
    return node


def _pickle_into(node: Value, key: Path, value: Any, reason: Exception) -> None:
    try:
        if node.stack:
            node.files[STACK_PICKLE] = pickle.dumps(value)
        else:
            node.files[OTHER_PICKLE] = pickle.dumps({"data": value})  # the fields without a JSON form, by name
    except Exception as error:  # pickling runs code of the value's class, which may raise anything
        raise TypeError(
            f"what is saved has a JSON form or can be pickled, and key {show(key)} holds a {type(value).__name__} that "
            f"has and can neither ({error}); remove it or store its parts"
        ) from error
    warnings.warn(
        f"key {show(key)} is pickled, so it loads only with allow_pickle=True: {reason}", UserWarning, stacklevel=2
    )


# --- to files


def describe(node: Node) -> dict[str, bytes]:
    """The small files in the folder of a node, by name: its ``meta.json``, and what non-tensor data is stored as.

    >>> from tensordict_core import TensorDict
    >>> describe(plan(TensorDict({"a": torch.zeros(2)}, [2])))["meta.json"][:80]
    b'{"a":{"device":"cpu","shape":[2],"dtype":"torch.float32","is_nested":false},"sha'
    """
    if isinstance(node, Value):
        return node.files
    if isinstance(node, Parts):
        if node.class_string == LAZY:
            head = {"_type": LAZY, "_format_version": FORMAT_VERSION, "_class": "tensordict:LazyStackedTensorDict"}
            return {META: _json({**head, **node.facts, "_count": len(node.parts)})}
        return {META: _json({"_type": node.class_string, **node.facts})}
    record: dict[str, Any] = {}
    elsewhere: dict[str, Any] = {}
    for name, entry in node.entries.items():
        about = _leaf_record(entry) if isinstance(entry, Leaf) else {"type": entry.type_name}
        stem = node.escaped.get(name)
        if stem is None:
            record[name] = about
        else:
            elsewhere[name] = {**about, "file": stem}
    record["shape"] = list(node.batch_size)
    record["device"] = "cpu"
    record["_type"] = DENSE
    record["_format_version"] = FORMAT_VERSION
    record["_class"] = "tensordict:TensorDict"
    if node.names is not None:
        record["_names"] = list(node.names)
    if elsewhere:
        record["_entries"] = elsewhere
        record["_key_order"] = list(node.entries)
    if node.owner is not None:
        record["_owner"] = node.owner
    return {META: _json(record)}


def _leaf_record(leaf: Leaf) -> dict[str, Any]:
    record: dict[str, Any] = {
        "device": "cpu",
        "shape": leaf.shape,
        "dtype": str(leaf.dtype),
        "is_nested": leaf.layout != "strided",
    }
    if leaf.layout == "jagged":
        record["layout"] = "torch.jagged"
        record["ragged"] = leaf.ragged
    return record


def _json(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record)
    except (TypeError, orjson.JSONEncodeError):  # lone surrogates in keys
        return values.dumps(record)


# --- classes


def candidate_names(class_string: str) -> list[str]:
    """The registered names that a class string (``<class 'module.Class'>``) may stand for, likeliest first.

    >>> candidate_names("<class 'a.b.C'>"), candidate_names("<class '__main__.C'>")
    (['a.b:C', 'a:b.C'], ['C'])
    """
    path = class_string.removeprefix("<class '").removesuffix("'>")
    if path.startswith("__main__."):
        return [path.removeprefix("__main__.")]
    parts = path.split(".")
    return [f"{'.'.join(parts[:cut])}:{'.'.join(parts[cut:])}" for cut in range(len(parts) - 1, 0, -1)]


def find_class(class_string: str, owner: str | None = None) -> type[Any] | None:
    """The registered class that a class string, or a registered name beside it, stands for; None if there is none."""
    for name in [owner] if owner is not None else candidate_names(class_string):
        found = find_type(name)
        if found is not None:
            return found
    return None
