"""Description of a consolidated file: the offset of each tensor, and the JSON text after the bytes of all.

`consolidated` is the inverse. Nothing here reads or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

import torch

from tensordict_memmap.formats.consolidated import EXTRA, FIELDS, LENGTHS, OFFSETS, VALUES
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import WRAPPED, Leaf, Node, Parts, Path, Value, leaves, show
from tensordict_memmap.schema.plan import LAZY, check_source, plain_address

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Form:
    """What all tensors of one dtype and shape share: their place in a storage and in the description.

    Args:
        dtype: The dtype.
        shape: The shape.

    >>> form = Form(torch.float32, (2, 3))
    >>> form.strides, form.nbytes, form.alignment
    ((3, 1), 24, 8)
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    width: int = field(init=False)
    strides: tuple[int, ...] = field(init=False)
    nbytes: int = field(init=False)
    alignment: int = field(init=False)
    name: str = field(init=False)
    sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        width = self.dtype.itemsize
        products = accumulate((max(n, 1) for n in self.shape[:0:-1]), mul, initial=1)
        known = {
            "width": width,
            "strides": tuple(products)[::-1][: len(self.shape)],
            "nbytes": prod(self.shape) * width,
            "alignment": max(width, _ALIGNMENT),
            "name": str(self.dtype),
            "sizes": list(self.shape),
        }
        for name, value in known.items():
            object.__setattr__(self, name, value)


class _Forms(dict[tuple[torch.dtype, tuple[int, ...]], Form]):
    """The form of each pair of a dtype and a shape, made once."""

    def __missing__(self, pair: tuple[torch.dtype, tuple[int, ...]]) -> Form:
        form = self[pair] = Form(*pair)
        return form


@dataclass(slots=True)
class Columns:
    """The tensors that all leaves are stored as, in the order of `leaves`; a jagged leaf is several.

    Args:
        keys: The nested key of the leaf of each.
        sources: The tensors.
        addresses: The addresses of their bytes in memory; 0 where these are not the bytes of a file.
        forms: The dtype and shape of each, and what follows from them.
        begins: The first byte of each in the storage.
        total: The bytes of the storage.
    """

    keys: list[Path] = field(default_factory=list)
    sources: list[torch.Tensor] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    total: int = 0

    def views(self, storage: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a storage of bytes in place of the tensors."""
        views: list[torch.Tensor] = []
        wholes: dict[torch.dtype, torch.Tensor] = {}
        for form, begin in zip(self.forms, self.begins, strict=True):
            whole = wholes.get(form.dtype)
            if whole is None:
                whole = storage[: storage.numel() // form.width * form.width].view(form.dtype)
                wholes[form.dtype] = whole
            views.append(torch.as_strided(whole, form.shape, form.strides, begin // form.width))
        return views


def lay_out(schema: Node) -> Columns:
    """Return the places of the tensors of a planned schema.

    Raises:
        TypeError: A file cannot hold a tensor; the error names its key.
    """
    made, known, total = Columns(), _Forms(), 0
    for leaf in leaves(schema):
        # a tensor with an address is as plain as the first one of its dtype and shape, which was checked
        form = known.get((leaf.dtype, leaf.shape)) if leaf.address else None
        for part in stored_tensors(leaf) if form is None or leaf.source is None else (leaf.source,):
            own = form or known[part.dtype, part.shape]
            begin = _round_up(total, own.alignment)
            total = begin + own.nbytes
            made.keys.append(leaf.key)
            made.sources.append(part)
            made.addresses.append(leaf.address or plain_address(part))
            made.forms.append(own)
            made.begins.append(begin)
    made.total = _round_up(total, _ALIGNMENT)
    return made


def _round_up(position: int, multiple: int) -> int:
    return -(-position // multiple) * multiple


def stored_tensors(leaf: Leaf) -> list[torch.Tensor]:
    """Return the tensors that a leaf is stored as: values, offsets and lengths of a jagged tensor, or itself."""
    source = leaf.source
    assert source is not None
    if leaf.layout == "strided":
        check_source(leaf)
        return [source]
    if leaf.layout != "jagged":
        raise nontensor.NoPlace(
            f"key {show(leaf.key)} is a nested tensor of the strided layout, and a consolidated tensordict holds "
            "strided and jagged tensors; make it with layout=torch.jagged"
        )
    jagged: Any = source.transpose(1, leaf.ragged) if leaf.ragged != 1 else source
    parts = [jagged.values(), jagged.offsets(), jagged.lengths()]
    return [part for part in parts if part is not None]


def count_of(leaf: Leaf) -> int:
    """Return the number of tensors that a leaf is stored as: the length of its `stored_tensors`."""
    if leaf.layout == "strided":
        return 1
    jagged: Any = leaf.source
    return 2 if jagged.lengths() is None else 3


def describe(schema: Node, columns: Columns) -> bytes:
    """Return the text behind the bytes of all tensors.

    Args:
        schema: The planned schema.
        columns: The places of its tensors.

    Raises:
        TypeError: The format has no place for an entry; the error names its key.
        ValueError: A nested tensordict has a name that the format uses itself.
    """
    return _Describer(columns).text(schema)


class _Describer:
    """Describes nodes, and collects the exact forms of values that JSON would change."""

    def __init__(self, columns: Columns) -> None:
        self.places = zip(columns.forms, columns.begins, strict=True)
        self.exact_forms: list[Any] = []
        self.finite = True

    def text(self, schema: Node) -> bytes:
        record = self.node(schema)
        before = nontensor.dumps({EXTRA: self.exact_forms}) if self.exact_forms else b""
        before += b" " * (-len(before) % _ALIGNMENT)
        text = nontensor.quick_dumps(record, finite=self.finite)
        return before + text + len(text).to_bytes(8, "little")

    def node(self, node: Node) -> dict[str, Any]:
        if isinstance(node, Value):
            where = f"key {show(node.key)}" if node.key else "the argument"
            raise TypeError(
                f"{where} is non-tensor data, and a consolidated file holds a tensordict, lazy stack or tensorclass; "
                "save it to a folder"
            )
        if isinstance(node, Parts):
            if node.class_string == LAZY:
                record = self.record("LazyStackedTensorDict", {**node.facts, "is_locked": False})
                self.add(record, node.parts)
                return record
            if list(node.parts) != [WRAPPED] or node.facts:
                raise TypeError(
                    f"{node.class_string} is not supported: a consolidated file holds tensordicts, lazy stacks and "
                    "tensorclasses; save it to a folder"
                )
            return {**self.node(node.parts[WRAPPED]), "cls": node.class_string}
        names = list(node.names) if node.names is not None else [None] * len(node.batch_size)
        device = None if getattr(node.origin, "device", None) is None else "cpu"  # where the tensors of a file are
        about = {"device": device, "names": names, "batch_size": list(node.batch_size), "is_locked": False}
        record = self.record("TensorDict", about)
        self.add(record, node.entries)
        return record

    @staticmethod
    def record(cls: str, metadata: dict[str, Any]) -> dict[str, Any]:
        return {"cls": cls, "non_tensors": {}, "leaves": {}, "cls_metadata": metadata}

    def add(self, record: dict[str, Any], entries: dict[str, Any]) -> None:
        for name, entry in entries.items():
            if isinstance(entry, Leaf):
                self.leaf(record["leaves"], name, entry)
        for name, entry in entries.items():  # the places of the leaves of a node are before those of the nodes in it
            if isinstance(entry, Leaf):
                continue
            if isinstance(entry, Value) and not entry.stack:
                record["non_tensors"][name] = [
                    self.value(entry, entry.content(), entry.key),
                    list(entry.batch_size),
                    None,
                ]
                continue
            if name in FIELDS:
                raise ValueError(
                    f"key {show(entry.key)} is a tensordict, and a consolidated file keeps the names "
                    f"{', '.join(FIELDS)} for itself; rename it, or save to a .safetensors file"
                )
            is_stack = isinstance(entry, Value)
            record[name] = self.stack(entry, entry.content(), entry.key) if is_stack else self.node(entry)

    def leaf(self, table: dict[str, Any], name: str, leaf: Leaf) -> None:
        if leaf.layout == "strided" and not leaf.unbatched:
            table[name] = self.tensor()
            return
        if leaf.unbatched:
            raise nontensor.NoPlace(
                f"key {show(leaf.key)} is an UnbatchedTensor, and a consolidated file has no place for one; save to a "
                ".safetensors file"
            )
        for what in (VALUES, OFFSETS, LENGTHS)[: count_of(leaf)]:
            table[what + name] = self.tensor()
        table[OFFSETS + name].append(leaf.ragged)

    def tensor(self) -> list[Any]:
        form, begin = next(self.places)
        end = begin + form.nbytes
        stop = _round_up(end, _ALIGNMENT)
        return [form.name, form.sizes, begin, stop, stop - end]

    def stack(self, node: Value, data: list[Any], key: Path, depth: int = 1) -> dict[str, Any]:
        record = self.record("NonTensorStack", {"stack_dim": 0, "stack_dim_name": None, "is_locked": False})
        for number, value in enumerate(data):
            inner = (*key, str(number))
            if depth < len(node.batch_size):
                record[str(number)] = self.stack(node, value, inner, depth + 1)
            else:
                record["non_tensors"][str(number)] = [self.value(node, value, inner), [], None]
        return record

    def value(self, node: Value, value: Any, key: Path) -> Any:
        try:
            plain, exact = nontensor.to_forms(value)
        except nontensor.NoJsonForm as reason:
            raise nontensor.NoJsonForm(
                f"Failed to convert the metadata to json: the value of key {show(node.key)} has no JSON form "
                f"({reason}), and values in a consolidated file need one; save to a folder"
            ) from None
        form = plain if exact is None or exact is True else exact
        self.finite &= nontensor.is_finite(form)
        if exact is not None:
            self.exact_forms.append([list(key), form])
        return plain
