"""Description of a consolidated file: the offset of each tensor, and the JSON text after the bytes of all.

`consolidated` is the inverse. Nothing here reads or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import Any

import torch

from tensordict_memmap.formats.consolidated import EXTRA, FIELDS, LENGTHS, OFFSETS, VALUES
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import WRAPPED, Leaf, Node, Parts, Path, Value, leaves, show
from tensordict_memmap.schema.plan import LAZY, check_source, plain_address

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What all tensors of one dtype and shape share: the room that they take in a storage, and their description.

    Args:
        dtype: The dtype.
        shape: The shape.

    >>> form = Form(torch.float32, (1, 3))
    >>> form.numel, form.nbytes, form.room
    (3, 12, 16)
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    numel: int = field(init=False)
    nbytes: int = field(init=False)
    room: int = field(init=False)
    name: str = field(init=False)
    sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        numel = prod(self.shape)
        nbytes = numel * self.dtype.itemsize
        known = {
            "numel": numel,
            "nbytes": nbytes,
            "room": _round_up(nbytes, _ALIGNMENT),
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
    """The strided tensors that all leaves are stored as, in the order of `leaves`; a jagged leaf is several.

    Args:
        leaves: The tensors, each with the nested key of its leaf.
        forms: The dtype and shape of each, and what follows from them.
        begins: The first byte of each in the storage.
        total: The bytes of the storage.
    """

    leaves: list[Leaf]
    forms: list[Form]
    begins: list[int]
    total: int

    def over(self, storage: torch.Tensor) -> list[torch.Tensor]:
        """Return tensors over a storage of bytes in place of the tensors.

        They share no version counter, and autograd does not regard them as views: it records writes to one of them
        without regard to the others.
        """
        made = [storage] * len(self.forms)
        for dtype, groups in self._groups().items():
            whole = storage[: len(storage) // dtype.itemsize * dtype.itemsize].view(dtype)
            sizes, at, end = list[int](), list[int](), 0  # of the groups, and of the parts between them
            for group in groups:
                begin = self.begins[group.start] // dtype.itemsize
                if begin != end:
                    sizes.append(begin - end)
                at.append(len(sizes))
                sizes.append(len(group) * self.forms[group.start].numel)
                end = begin + sizes[-1]
            parts = torch.unsafe_split_with_sizes(whole, [*sizes, len(whole) - end])
            for group, place in zip(groups, at, strict=True):
                shape, part = self.forms[group.start].shape, parts[place]
                if len(group) == 1:
                    made[group.start] = part.resize_(*shape or ((),))  # half the time of a tuple of sizes
                else:
                    rows = part.view(-1, *shape[1:])
                    made[group.start : group.stop] = torch.unsafe_split_with_sizes(rows, shape[:1] * len(group))
        return made

    def _groups(self) -> dict[torch.dtype, list[range]]:
        """Return the numbers of the tensors of each dtype; those of one shape without gaps between them in one range.

        Two calls then make all tensors of a range.
        """
        groups: dict[torch.dtype, list[range]] = {}
        stop = 0
        for form, same in groupby(self.forms):
            start, stop = stop, stop + len(list(same))
            step = stop - start if form.shape and form.numel and form.room == form.nbytes else 1
            groups.setdefault(form.dtype, []).extend(range(n, n + step) for n in range(start, stop, step))
        return groups


def lay_out(schema: Node) -> Columns:
    """Return the places of the tensors of a planned schema.

    Raises:
        TypeError: A file cannot hold a tensor; the error names its key.
    """
    stored = [part for leaf in leaves(schema) for part in ((leaf,) if leaf.address else stored_parts(leaf))]
    known = _Forms()
    forms = [known[leaf.dtype, leaf.shape] for leaf in stored]
    for leaf in dict(zip(forms, stored, strict=True)).values():
        check_source(leaf)  # a tensor with an address is as plain as the others of its form
    begins, total = list[int](), 0
    for form in forms:
        begin = total if form.dtype.itemsize <= _ALIGNMENT else _round_up(total, form.dtype.itemsize)
        begins.append(begin)
        total = begin + form.room
    return Columns(stored, forms, begins, total)


def _round_up(position: int, multiple: int) -> int:
    return -(-position // multiple) * multiple


def stored_parts(leaf: Leaf) -> list[Leaf]:
    """Return the strided tensors that a leaf is stored as: values, offsets and lengths of a jagged one, or itself."""
    source = leaf.source
    assert source is not None
    if leaf.layout == "strided":
        check_source(leaf)
        return [leaf]
    if leaf.layout != "jagged":
        raise nontensor.NoPlace(
            f"key {show(leaf.key)} is a nested tensor of the strided layout, and a consolidated tensordict holds "
            "strided and jagged tensors; make it with layout=torch.jagged"
        )
    jagged: Any = source.transpose(1, leaf.ragged) if leaf.ragged != 1 else source
    parts = [part for part in (jagged.values(), jagged.offsets(), jagged.lengths()) if part is not None]
    return [Leaf(leaf.key, "", part.dtype, part.shape, part, plain_address(part)) for part in parts]


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
        self.places = iter(
            [
                [form.name, form.sizes, begin, begin + form.room, form.room - form.nbytes]
                for form, begin in zip(columns.forms, columns.begins, strict=True)
            ]
        )
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
        table, places, inner = record["leaves"], self.places, {}
        for name, entry in entries.items():
            if not isinstance(entry, Leaf):
                inner[name] = entry
            elif entry.layout == "strided" and not entry.unbatched:
                table[name] = next(places)
            else:
                self.leaf(table, name, entry)
        for name, entry in inner.items():  # the places of the leaves of a node are before those of the nodes in it
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
        if leaf.unbatched:
            raise nontensor.NoPlace(
                f"key {show(leaf.key)} is an UnbatchedTensor, and a consolidated file has no place for one; save to a "
                ".safetensors file"
            )
        for what in (VALUES, OFFSETS, LENGTHS)[: count_of(leaf)]:
            table[what + name] = next(self.places)
        table[OFFSETS + name].append(leaf.ragged)

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
