"""Parser of safetensors saves: from the metadata of a file to a schema, and from its tensors to the leaves of that.

A file may come from an untrusted source: a structure that does not match the tensors raises an error that names the
key, no class is imported because a file names it, and nothing is unpickled here. Published checkpoints, which have no
structure in their metadata, become nested tensordicts by the dots in their names (`dotted_names.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from tensordict_core import LazyStackedTensorDict, UnbatchedTensor
from tensordict_memmap.formats.safetensors.describe import VERSION
from tensordict_memmap.formats.safetensors.dotted_names import by_names
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.build import check_on_meta
from tensordict_memmap.schema.dtypes import dtype_from_name
from tensordict_memmap.schema.nested import nested_of
from tensordict_memmap.schema.node import (
    STACKED,
    WRAPPED,
    Dense,
    Entry,
    Leaf,
    Node,
    Parts,
    Path,
    Value,
    are_names,
    find_class,
    leaves,
    nodes,
    outer_size,
    subject,
)
from tensordict_memmap.schema.plan import LAZY, plan

_LONG = re.compile("[0-9]{19}")
"""Digits that may be those of an integer of more than 64 bits, which the quick parser would turn into a float."""

_UNKNOWN: Any = None
"""The dtype of a leaf whose structure leaves it to the tensor, until `bind` finds the tensor."""


def parse(text: str, where: str) -> Node:
    """Parse the structure of a file to a schema, whose leaves name their tensors.

    Args:
        text: The structure, from the metadata of the file.
        where: The path of the file, which errors name.

    Raises:
        ValueError: The structure is damaged; the error names the key.

    >>> parse('{"version":1,"root":{"batch_size":[],"keys":{"a":{"tensor":"x"}}}}', "f").entries["a"].file
    'x'
    """
    try:
        return _Parser(where).root(_load(text, where)["root"])
    except RecursionError:
        raise ValueError(
            f"the structure of {where} is nested deeper than tensordicts can be; the file is damaged"
        ) from None


def _load(text: str, where: str) -> Any:
    try:
        may_be_long = '"non_tensor":' in text and _LONG.search(text)
        document = nontensor.loads(text) if may_be_long else nontensor.quick_loads(text)
    except ValueError as error:
        raise ValueError(f"the structure in {where} is not valid JSON: {error}; the file is damaged") from None
    if not isinstance(document, dict) or not isinstance(document.get("root"), dict):
        raise ValueError(f"the structure in {where} is not a JSON object with a root; the file is damaged")
    if document.get("version") != VERSION:
        raise ValueError(
            f"the structure in {where} has version {document.get('version')!r:.50}, and version {VERSION} is "
            "supported; upgrade tensordict-memmap"
        )
    return document


def schema_of(names: Iterable[str]) -> Node:
    """Return the schema of a save that names alone determine (`dotted_names.by_names`).

    >>> [(leaf.key, leaf.file) for leaf in leaves(schema_of(["a.b", "c", "c.d"]))]
    [(('c',), 'c'), (('c.d',), 'c.d'), (('a', 'b'), 'a.b')]
    """
    schema = plan(by_names(dict.fromkeys(names, torch.empty(0, device="cpu"))))
    for leaf in leaves(schema):
        leaf.file, leaf.dtype = ".".join(leaf.key), _UNKNOWN
    return schema


def tensors_of(schema: Node, *, at_once: bool = False) -> set[str]:
    """Return the names of the tensors of a schema, or of those only whose values `bind` looks at.

    The latter are those of nested tensors with their shapes, and pickled values.

    >>> leaf = Leaf(("n",), "n", torch.float32, (), layout="jagged", shapes_file="n.shape")
    >>> sorted(tensors_of(Dense((), "", (), entries={"n": leaf})))
    ['n', 'n.shape']
    """
    found = {node.pickle for node in nodes(schema) if isinstance(node, Value) and node.pickle is not None}
    for leaf in leaves(schema):
        if leaf.shapes_file or not at_once:
            found |= {leaf.file, leaf.shapes_file}
    return found - {""}


@dataclass(slots=True)
class _Parser:
    where: str

    def root(self, record: dict[str, Any]) -> Node:
        if "value" in record:
            size = self.size(record.get("batch_size"), ())
            return self.value(self.checked(record["value"], dict, ()), (), size)
        return self.node(record, ())

    def node(self, record: dict[str, Any], key: Path) -> Dense | Parts:
        size = self.size(record.get("batch_size"), key)
        names = record.get("names")
        if names is not None and not are_names(names, size):
            raise self.damaged(key, f"the dimension names {names!r:.100}")
        parts, dim = record.get("parts"), record.get("stack_dim")
        if dim is not None and (type(dim) is not int or not 0 <= dim < len(size)):
            raise self.damaged(key, f"the stack dimension {dim!r:.100} for the batch size {list(size)}")
        made: Dense | Parts
        if parts is not None:
            if dim is None:
                raise self.damaged(key, "it has parts and no stack dimension")
            elements = enumerate(self.checked(parts, list, key))
            found: dict[str, Node] = {
                str(n): self.node(self.checked(part, dict, key), (*key, str(n))) for n, part in elements
            }
            made = self.stack(found, dim, names, key)
        else:
            made = Dense(key, "", size, None if names is None else tuple(names))
            made.entries = self.entries(record, key, size)
            if dim is not None:
                if not size[dim]:
                    raise self.damaged(key, "a lazy stack without elements")
                made = self.stack({STACKED: made}, dim, names, key)
        class_string = record.get("class")
        return made if class_string is None else self.wrapper(made, record, class_string, key)

    def stack(self, parts: dict[str, Node], dim: int, names: list[str | None] | None, key: Path) -> Parts:
        facts = {"stack_dim": dim, "stack_dim_name": None if names is None else names[dim]}
        return Parts(key, "", LazyStackedTensorDict, LAZY, facts, parts)

    def wrapper(self, content: Node, record: dict[str, Any], class_string: Any, key: Path) -> Parts:
        owner = record.get("owner")
        if not isinstance(class_string, str) or not isinstance(owner, str | None):
            raise self.damaged(key, f"the class {class_string!r:.100}")
        facts = self.checked(record.get("facts", {}), dict, key)
        return Parts(key, "", find_class(class_string, owner), class_string, facts, {WRAPPED: content})

    def entries(self, record: dict[str, Any], key: Path, size: tuple[int, ...]) -> dict[str, Entry]:
        made: dict[str, Entry] = {}
        for name, about in self.checked(record.get("keys"), dict, key).items():
            inner = (*key, name)
            # the first branch is the usual one
            if type(about) is dict and len(about) == 1 and type(stored := about.get("tensor")) is str:
                made[name] = Leaf(inner, stored, _UNKNOWN, ())
            elif "td" in self.checked(about, dict, inner):
                made[name] = self.node(self.checked(about["td"], dict, inner), inner)
            elif "non_tensor" in about or "pickled" in about:
                made[name] = self.value(about, inner, size)
            else:
                made[name] = self.leaf(about, inner)
        return made

    def leaf(self, about: dict[str, Any], key: Path) -> Leaf:
        name, shapes = about.get("tensor"), about.get("shapes", "")
        ragged, layout = about.get("ragged", 1), about.get("layout", "strided")
        if not isinstance(name, str) or not isinstance(shapes, str) or type(ragged) is not int:
            raise self.damaged(key, f"the description {about!r:.100}")
        kind = "strided" if not shapes else "jagged" if layout == "jagged" else "nested"
        leaf = Leaf(key, name, _UNKNOWN, (), layout=kind)
        if "dtype" in about:
            try:
                leaf.dtype = dtype_from_name(about["dtype"])
            except (ValueError, TypeError) as error:
                raise self.damaged(key, f"the dtype {about['dtype']!r:.50} ({error})") from None
        leaf.shapes_file, leaf.ragged, leaf.unbatched = shapes, ragged, bool(about.get("unbatched"))
        return leaf

    def value(self, about: dict[str, Any], key: Path, size: tuple[int, ...]) -> Value:
        own = self.size(about["batch_size"], key) if "batch_size" in about else size
        made = Value(key, "", own, bool(about.get("stack")), metadata=bool(about.get("metadata")))
        if about.get("pickled"):
            made.pickle = about.get("tensor")
            if not isinstance(made.pickle, str):
                raise self.damaged(key, f"the description {about!r:.100}")
            return made
        try:
            made.value = nontensor.from_forms(about["non_tensor"], about.get("exact"))
        except (ValueError, EOFError, KeyError) as error:
            raise ValueError(f"the value of {subject(key)} in {self.where} cannot be read: {error}") from error
        if made.stack:
            if not isinstance(made.value, list):
                raise self.damaged(key, "its values are not a list")
            made.batch_size = nontensor.stack_size(made.value, own)
        return made

    # --- checks

    def checked(self, found: Any, kind: type[Any], key: Path) -> Any:
        if not isinstance(found, kind):
            raise self.damaged(key, f"{found!r:.100} is not a {kind.__name__}")
        return found

    def size(self, found: Any, key: Path) -> tuple[int, ...]:
        if found == []:
            return ()
        if not isinstance(found, list) or any(type(n) is not int or not -1 <= n < 1 << 63 for n in found):
            raise self.damaged(key, f"the batch size {found!r:.100}")
        return tuple(found)

    def damaged(self, key: Path, what: str) -> ValueError:
        return _damaged(self.where, key, what)


def _damaged(where: str, key: Path, what: str) -> ValueError:
    return ValueError(
        f"{subject(key)} in {where} has an invalid description: {what}; the file is damaged: save it again"
    )


# --- tensors


def bind(schema: Node, tensors: Mapping[str, torch.Tensor], where: str, device: torch.device | None = None) -> None:
    """Give each leaf of a parsed schema its tensor as its ``source``, and check that schema and tensors fit.

    Args:
        schema: The schema.
        tensors: The tensors of the file by name.
        where: The path of the file, which errors name.
        device: The device of every node; on the meta device nested tensors get no values.

    Raises:
        ValueError: A leaf names a tensor that is missing or of another form, or a tensor has no leaf.

    >>> schema = parse('{"version":1,"root":{"batch_size":[2],"keys":{"a":{"tensor":"x"}}}}', "f")
    >>> bind(schema, {"x": torch.ones(2, 3)}, "f")
    >>> schema.entries["a"].source.shape
    torch.Size([2, 3])
    """
    binder = _Binder(tensors, where, device, set())
    for node in nodes(schema):
        if isinstance(node, Dense):
            binder.dense(node)
        elif isinstance(node, Value) and node.pickle is not None:
            binder.tensor(node.key, node.pickle)
    if len(binder.used) != len(tensors):
        unused = tensors.keys() - binder.used
        raise ValueError(
            f"the structure of {where} does not contain its tensors {sorted(unused)[:5]}; the file is damaged, or "
            "another tool added them"
        )


@dataclass(slots=True)
class _Binder:
    tensors: Mapping[str, torch.Tensor]
    where: str
    device: torch.device | None
    used: set[str]

    def dense(self, node: Dense) -> None:
        size, dims = node.batch_size, len(node.batch_size)
        for entry in node.entries.values():
            if not isinstance(entry, Leaf):
                if dims and not _is_within(outer_size(entry, dims), size):
                    raise self.damaged(
                        entry.key, f"its batch size does not start with {list(size)}, that of the tensordict around it"
                    )
                continue
            tensor = self.tensor(entry.key, entry.file)
            if entry.shapes_file:
                source = self.nested(tensor, entry)
                if size and source.size(0) != size[0]:
                    raise self.damaged(
                        entry.key, f"it has {source.size(0)} components, and the batch size is {list(size)}"
                    )
            else:
                source = tensor if entry.dtype is _UNKNOWN else self.viewed(tensor, entry)
                if dims and not entry.unbatched and tuple(source.shape[:dims]) != size:
                    raise self.damaged(
                        entry.key,
                        f"the shape {list(source.shape)}, which does not start with the batch size {list(size)}",
                    )
            entry.dtype, entry.shape = source.dtype, () if source.is_nested else source.shape
            made: Any = UnbatchedTensor(source, torch.Size(size)) if entry.unbatched else source
            entry.source = made

    def tensor(self, key: Path, name: str) -> torch.Tensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.damaged(key, f"the file does not hold its tensor {name!r:.100}")
        self.used.add(name)
        return tensor

    def viewed(self, tensor: torch.Tensor, leaf: Leaf) -> torch.Tensor:
        dtype = leaf.dtype
        try:
            if (
                dtype is torch.complex128 and tensor.data_ptr() % dtype.itemsize
            ):  # torch's kernels would end the process
                raise ValueError("its address is not a multiple of 16")
            if dtype.is_complex and tensor.dtype.is_floating_point:  # pairs of real values
                return torch.view_as_complex(tensor)
            return tensor.view(dtype)
        except (ValueError, RuntimeError) as error:
            raise self.damaged(
                leaf.key, f"the dtype {dtype} for {tensor.dtype} {list(tensor.shape)} ({error})"
            ) from None

    def nested(self, flat: torch.Tensor, leaf: Leaf) -> torch.Tensor:
        shapes = self.tensor(leaf.key, leaf.shapes_file)
        if shapes.ndim != 2 or shapes.dtype != torch.int64:
            raise self.damaged(leaf.key, "the shapes of its components are not a 2D tensor of int64")
        if not shapes.size(1) and shapes.size(0) != flat.numel():  # any number of rows takes no bytes
            raise self.damaged(leaf.key, f"{shapes.size(0)} components without sizes for {flat.numel()} elements")
        rows = shapes.tolist()
        if any(n < 0 for row in rows for n in row) or sum(prod(row) for row in rows) != flat.numel():
            raise self.damaged(leaf.key, f"the shapes of its components do not match its {flat.numel()} elements")
        jagged = leaf.layout == "jagged"
        if self.device is not None and self.device.type == "meta":
            check_on_meta("jagged" if jagged else "strided", leaf.key)
            flat = flat.to("meta")
        try:
            return nested_of(flat.view(-1), rows, jagged=jagged, ragged=leaf.ragged)
        except (RuntimeError, IndexError, AssertionError, TypeError, OverflowError) as error:
            raise self.damaged(
                leaf.key, f"the shapes of its components do not form a nested tensor ({error})"
            ) from None

    def damaged(self, key: Path, what: str) -> ValueError:
        return _damaged(self.where, key, what)


def _is_within(found: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """Return whether the outer sizes of a node are a batch size, in which -1 marks sizes that differ."""
    return (
        len(found) == len(size) and all(one in (-1, n) for n, one in zip(found, size, strict=True))
    ) or found == size
