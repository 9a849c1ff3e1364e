"""Describe: from the schema of a tensordict to the named tensors and the metadata of a safetensors file.

The structure is one JSON text in the metadata. It is that of the reference, with additional fields, which the reference
ignores. Tensors are named by their nested keys joined with ``.``, as in state dicts. Keys that would have the same
name, names that the format does not allow, complex numbers of a width that it lacks, nested tensors and tied weights
are described in the structure, so any reader finds plain tensors in the file. A node is described as::

    {"batch_size": [4], "names": ["time"], "class": "<class 'm.C'>", "stack_dim": 0, "keys": {
        "a": {"tensor": "a"}, "z": {"tensor": "z", "dtype": "torch.complex128"}, "b": {"td": {...}},
        "s": {"non_tensor": "hello"}, "t": {"non_tensor": [1], "exact": {"$": "tuple", "items": [1]}}}}

``class`` and ``stack_dim`` are those of tensorclasses and lazy stacks. A lazy stack whose elements differ only in
values has its tensors stacked; any other has its elements as ``parts``. A structure that follows from the names alone
is omitted, as in published files; if it also has a batch size, a digest of the names is stored with it
(``dotted_names.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from tensordict_core import TensorDict
from tensordict_memmap.formats.safetensors.dotted_names import DIGEST, digest, follows
from tensordict_memmap.formats.safetensors.header import CODES, METADATA, Form, file_order
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import (
    STACKED,
    WRAPPED,
    Dense,
    Leaf,
    Node,
    Path,
    Stacked,
    Value,
    registered_name,
    show,
)
from tensordict_memmap.schema.plan import LAZY, check_source, memory_of, plain_address

RECORD = "tensordict"
"""The name of the structure in the metadata of a file."""

VERSION = 1

_PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
_INTEGERS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_REAL = frozenset(dtype for dtype in CODES if not dtype.is_complex)
"""The dtypes whose values have the same bytes in memory as in a file."""


class Layout(NamedTuple):
    """Tensors in a row, without gaps.

    Args:
        names: Their names, in the order of their bytes.
        keys: Their nested keys.
        sources: Tensors, or `Stacked` ones.
        forms: The dtype and shape that the file gives each.
        ends: The end of the bytes of each; the first start at 0.
        addresses: The address of each in memory, if its bytes there are those of the file; else 0.
    """

    names: Sequence[str]
    keys: Sequence[Path]
    sources: Sequence[Any]
    forms: Sequence[Form]
    ends: Sequence[int]
    addresses: Sequence[int]


@dataclass(slots=True)
class Pack:
    """The tensors and the structure that a safetensors save consists of.

    Args:
        root: The schema, whose leaves have the names of their tensors.
    """

    root: Node
    leaves: list[Leaf] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The description of each non-tensor value in the structure, by the id of its node."""
    finite: bool = True
    dotted: bool = True
    """Whether the names of the tensors determine the structure, except the batch size, which all nodes share."""
    texts: dict[str, str] = field(default_factory=dict)
    """More texts about the file."""

    def layout(self, part: range | None = None) -> Layout:
        """Put tensors in a row, those of the widest dtypes first, so that each is aligned to its elements.

        Args:
            part: The numbers of those; None is all.
        """
        chosen = slice(None) if part is None else slice(part.start, part.stop)
        leaves, forms, addresses = self.leaves[chosen], self.forms[chosen], self.addresses[chosen]
        order = file_order(forms)
        if order is not None:
            leaves, forms = [leaves[n] for n in order], [forms[n] for n in order]
            addresses = [addresses[n] for n in order]
        names, keys = [leaf.file for leaf in leaves], [leaf.key for leaf in leaves]
        sources = [leaf.source if leaf.stacked is None else leaf.stacked for leaf in leaves]
        return Layout(names, keys, sources, forms, list(accumulate([form.nbytes for form in forms])), addresses)

    def metadata(self, names: Sequence[str] | None) -> dict[str, str]:
        """Return the texts about the file: those that other libraries look for, the structure, and the digest.

        Args:
            names: The tensors in the order of their bytes, where one file holds all.
        """
        texts = {"format": "pt", **self.texts}
        told = names if self.dotted and names == [leaf.file for leaf in self.leaves] else None
        if told is None or (isinstance(self.root, Dense) and self.root.batch_size):
            document = {"version": VERSION, "root": self._node(self.root)}
            texts[RECORD] = nontensor.quick_dumps(document, finite=self.finite).decode()
        if told is not None:
            texts[DIGEST] = digest(texts.get(RECORD, ""), told)
        return texts

    def _node(self, node: Node) -> dict[str, Any]:
        if isinstance(node, Value):
            return {"batch_size": list(node.batch_size), "names": None, "keys": {}, "value": self.values[id(node)]}
        if isinstance(node, Dense):
            names = None if node.names is None else list(node.names)
            keys = {name: self._entry(entry) for name, entry in node.entries.items()}
            return {"batch_size": list(node.batch_size), "names": names, "keys": keys}
        if node.class_string != LAZY:
            record = self._node(node.parts[WRAPPED])
            record["class"] = node.class_string
            owner = registered_name(node)
            if owner is not None:
                record["owner"] = owner
            return {**record, "facts": node.facts} if node.facts else record
        names = list(node.origin.names)
        record = {
            "batch_size": list(node.origin.batch_size),
            "names": names if any(name is not None for name in names) else None,
            "stack_dim": node.facts["stack_dim"],
        }
        if STACKED in node.parts:
            return {**record, "keys": self._node(node.parts[STACKED])["keys"]}
        return {**record, "parts": [self._node(part) for part in node.parts.values()], "keys": {}}

    def _entry(self, entry: Leaf | Node) -> dict[str, Any]:
        if isinstance(entry, Value):
            return self.values[id(entry)]
        if not isinstance(entry, Leaf):
            return {"td": self._node(entry)}
        about: dict[str, Any] = {"tensor": entry.file}
        if entry.dtype not in CODES:
            about["dtype"] = str(entry.dtype)
        if entry.layout != "strided":
            about |= {"shapes": entry.shapes_file, "layout": entry.layout, "ragged": entry.ragged}
        if entry.unbatched:
            about["unbatched"] = True
        return about


def describe(root: Node) -> Pack:
    """Name the tensors of a planned schema, and describe how a safetensors save stores each.

    Args:
        root: The schema, whose leaves get their names.

    Raises:
        TypeError: An entry is of a kind that has no place in the file; the error names its key.

    >>> from tensordict_memmap.schema.plan import plan
    >>> pack = describe(plan(TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(1)}})))
    >>> [leaf.file for leaf in pack.leaves], pack.metadata(["a", "b.c"])
    (['a', 'b.c'], {'format': 'pt', 'tensordict_dotted': '...'})
    """
    namer = _Namer(Pack(root))
    namer.node(root, "")
    return namer.finish()


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a file has it: pairs of numbers for complex ones that it lacks, integers for other dtypes.

    >>> stored(torch.tensor([1 + 2j], dtype=torch.complex128))
    tensor([[1., 2.]], dtype=torch.float64)
    """
    dtype = tensor.dtype
    if dtype in CODES:
        return tensor
    tensor = tensor.detach()
    return torch.view_as_real(tensor.resolve_conj()) if dtype in _PAIRS else tensor.view(_stored_as(dtype))


def _stored_as(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in CODES else _PAIRS.get(dtype) or _INTEGERS[dtype.itemsize]


class _Namer:
    """The walk that lists the tensors of a schema; `finish` then gives each its joined key, or a name like it."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.size = getattr(pack.root, "batch_size", ())
        self.rows: list[Leaf] = []
        self.nested: list[tuple[Leaf, Leaf, Leaf]] = []
        self.pickled: list[tuple[dict[str, Any], Leaf]] = []
        self.forms = Forms()

    def node(self, node: Node, start: str) -> None:
        self.pack.dotted &= isinstance(node, Dense)
        if isinstance(node, Value):
            self.value(node, start.removesuffix("."), None)
        elif isinstance(node, Dense):
            self.dense(node, start)
        elif node.class_string == LAZY:
            parts = list(node.parts.values())
            if parts and all(_is_alike(parts[0], part) for part in parts):
                stack = _stacked(parts, node.facts["stack_dim"], node.key)
                node.parts = {STACKED: stack}
                self.dense(stack, start)
            else:
                for name, part in node.parts.items():
                    self.node(part, f"{start}{name}.")
        elif list(node.parts) != [WRAPPED] or isinstance(node.parts[WRAPPED], Value):
            raise TypeError(
                f"{node.type_name} is made of {sorted(node.parts)}, and one file holds tensordicts, lazy stacks and "
                "wrappers of one of them; save it to a folder"
            )
        else:
            self.node(node.parts[WRAPPED], start)

    def dense(self, node: Dense, start: str) -> None:
        pack, add = self.pack, self.rows.append
        pack.dotted = pack.dotted and follows(node, start, self.size)
        for name, entry in node.entries.items():
            if isinstance(entry, Leaf):
                # plain leaves at the root are planned with their names
                if start or not entry.file:
                    entry.file = start + name
                if entry.layout != "strided":
                    self.components(entry)
                    continue
                if entry.unbatched:
                    pack.dotted = False
                add(entry)
            elif isinstance(entry, Value):
                self.value(entry, start + name, node.batch_size)
            else:
                self.node(entry, f"{start}{name}.")

    def row(self, key: Path, name: str, tensor: torch.Tensor) -> Leaf:
        """Add a tensor that is not an entry itself."""
        leaf = Leaf(key, name, tensor.dtype, tensor.shape, source=tensor, address=plain_address(tensor))
        self.rows.append(leaf)
        return leaf

    def components(self, leaf: Leaf) -> None:
        """Store the components of a nested tensor one after the other, and their shapes."""
        self.pack.dotted = False
        check_source(leaf)
        assert isinstance(leaf.source, torch.Tensor)
        parts = [part.detach() for part in leaf.source.unbind()]
        shapes = torch.tensor([list(part.shape) for part in parts], dtype=torch.int64, device="cpu").reshape(leaf.shape)
        flat = (
            torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0, dtype=leaf.dtype, device="cpu")
        )
        rows = self.row(leaf.key, leaf.file, flat), self.row(leaf.key, leaf.file + ".shape", shapes)
        self.nested.append((leaf, *rows))

    def value(self, node: Value, full: str, around: tuple[int, ...] | None) -> None:
        self.pack.dotted = False
        value, about = node.content(), {}
        extra: dict[str, Any] = {"stack": True} if node.stack else {"metadata": True} if node.metadata else {}
        if node.stack or node.batch_size != around:
            extra["batch_size"] = list(node.batch_size)
        try:
            about["non_tensor"], exact = nontensor.to_forms(value)
            if exact is not None:
                about["exact"] = exact
            self.pack.finite &= nontensor.is_finite(about["non_tensor"] if exact is None or exact is True else exact)
        except nontensor.NoJsonForm as reason:
            where = f"key {show(node.key)}" if node.key else "the value"
            data = bytearray(nontensor.pickled(value, value, where, reason))
            about = {"tensor": "", "pickled": True}
            tensor = torch.frombuffer(data, dtype=torch.uint8)
            self.pickled.append((about, self.row(node.key or ("value",), full or "value", tensor)))
        self.pack.values[id(node)] = about
        about |= extra

    # --- names, forms and addresses

    def finish(self) -> Pack:
        """Name the tensors, all at once where there is nothing odd about any of them."""
        pack = self.pack
        if not self.all_plain():
            self.one_by_one()
        for leaf, flat, shapes in self.nested:
            leaf.file, leaf.shapes_file = flat.file, shapes.file
        for about, row in self.pickled:
            about["tensor"] = row.file
        return pack

    def all_plain(self) -> bool:
        """Return whether all tensors could be added as they are, with their joined keys for names."""
        rows, pack = self.rows, self.pack
        names, addresses = [leaf.file for leaf in rows], [leaf.address for leaf in rows]
        forms = list(map(self.forms.__getitem__, map(_dtype_and_shape, rows)))
        if not are_plain(names, addresses, self.forms):
            return False
        if not pack.dotted and len(set(names)) < len(names):  # keys without dots have different joined keys
            return False
        pack.leaves, pack.addresses, pack.forms = rows, addresses, forms
        return True

    def one_by_one(self) -> None:
        taken, first = {METADATA}, dict[int, Leaf]()
        originals: dict[int, Any] = {}
        for leaf in self.rows:
            source = leaf.source
            if source is not None:
                check_source(leaf)
                try:
                    address = source.data_ptr() if source.numel() else 0
                except RuntimeError:  # a tensor without memory of its own
                    address = 0
                if address:
                    same = first.setdefault(address, leaf)
                    if same is leaf:
                        originals[address] = memory_of(source)
                    elif originals[address] == memory_of(source):
                        leaf.file = leaf.alias = same.file
                        self.pack.dotted = False
                        continue
                source = stored(source)
                leaf.source, shape = source, source.shape
                self.pack.addresses.append(plain_address(source))
            else:
                shape = torch.Size(leaf.shape)
                self.pack.addresses.append(0)
            name = _free(leaf.file, taken)
            self.pack.dotted &= name == leaf.file and leaf.dtype in CODES
            leaf.file = name
            self.pack.leaves.append(leaf)
            self.pack.forms.append(self.forms[leaf.dtype, shape])


_dtype_and_shape = attrgetter("dtype", "shape")


def are_plain(names: Sequence[str], addresses: Sequence[int], forms: Forms) -> bool:
    """Return whether a file can hold tensors as they are in memory, under their names and none of them twice."""
    return (
        0 not in addresses
        and len(set(addresses)) == len(names)
        and METADATA not in names
        and "".join(names).isascii()
        and _REAL.issuperset(dtype for dtype, _ in forms)
    )


class Forms(dict[tuple[torch.dtype, tuple[int, ...]], Form]):
    """The form of each pair of a tensor's own dtype and of its shape in the file, made once."""

    def __missing__(self, pair: tuple[torch.dtype, tuple[int, ...]]) -> Form:
        dtype, shape = pair
        form = self[pair] = Form(_stored_as(dtype), tuple(shape), width=dtype.itemsize)
        return form


def _free(full: str, taken: set[str]) -> str:
    """Return a name in the file for a joined key: itself, unless the file cannot hold it or another has it."""
    name = full if full.isascii() else full.encode("utf-8", "replace").decode()
    if name != full or name in taken:
        number = 1
        while f"{name}~{number}" in taken:
            number += 1
        name = f"{name}~{number}"
    taken.add(name)
    return name


# --- lazy stacks


def _stacked(parts: Sequence[Any], dim: int, key: Path) -> Dense:
    """Return nodes that differ in nothing but values as one node, whose tensors have the stack dimension."""
    size = parts[0].batch_size
    node = Dense(key, "", (*size[:dim], len(parts), *size[dim:]))
    for name, first in parts[0].entries.items():
        column = [part.entries[name] for part in parts]
        if isinstance(first, Leaf):
            shape = stored(first.source).shape  # type: ignore[arg-type]  # planned leaves have one
            source = Stacked([stored(one.source) for one in column], dim)
            stacked_shape = (*shape[:dim], len(parts), *shape[dim:])
            node.entries[name] = Leaf((*key, name), "", first.dtype, stacked_shape, stacked=source)
        else:
            node.entries[name] = _stacked(column, dim, (*key, name))
    return node


def _is_alike(first: Node, other: Node) -> bool:
    """Return whether two elements of a lazy stack differ only in values, so that their tensors can be stacked."""
    if not (isinstance(first, Dense) and isinstance(other, Dense)):
        return False
    if type(first.origin) is not TensorDict or type(other.origin) is not TensorDict:
        return False
    if (first.batch_size, first.names) != (
        other.batch_size,
        other.names,
    ) or first.entries.keys() != other.entries.keys():
        return False
    for name, one in first.entries.items():
        two = other.entries[name]
        if isinstance(one, Leaf):
            if not (isinstance(two, Leaf) and (one.shape, one.dtype) == (two.shape, two.dtype) and _stacks(one, two)):
                return False
        elif not _is_alike(one, two) or one.names is not None:  # type: ignore[arg-type, union-attr]  # no leaves
            return False
    return True


def _stacks(*leaves: Leaf) -> bool:
    return all(
        leaf.layout == "strided"
        and not leaf.unbatched
        and leaf.source is not None
        and leaf.source.layout is torch.strided
        and not (leaf.source.is_meta or leaf.source.is_quantized)
        for leaf in leaves
    )
