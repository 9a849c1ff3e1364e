"""Description of a consolidated file: the offset of each tensor, and the JSON text after the bytes of all.

`consolidated` is the inverse. Nothing here reads or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tensordict_memmap.formats.consolidated import EXTRA, FIELDS, LENGTHS, OFFSETS, VALUES
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import WRAPPED, Leaf, Node, Parts, Path, Value, leaves, show
from tensordict_memmap.schema.plan import LAZY, check_source, plain_address

__all__ = ["Columns", "count_of", "describe", "lay_out", "stored_tensors"]

_ALIGNMENT = 8


@dataclass(slots=True)
class Columns:
    """The tensors that all leaves are stored as, one after another; a jagged leaf is several.

    Args:
        keys: The nested key of the leaf of each.
        sources: The tensors.
        addresses: The addresses of their bytes in memory; 0 where these are not the bytes of a file.
        begins: The first byte of each in the storage.
        sizes: The bytes of each.
        total: The bytes of the storage.
    """

    keys: list[Path] = field(default_factory=list)
    sources: list[torch.Tensor] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    total: int = 0

    def views(self, storage: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a storage of bytes in place of the tensors."""
        views: list[torch.Tensor] = []
        wholes: dict[torch.dtype, torch.Tensor] = {}
        for part, begin in zip(self.sources, self.begins, strict=True):
            dtype = part.dtype
            width = dtype.itemsize
            whole = wholes.get(dtype)
            if whole is None:
                whole = wholes[dtype] = storage[: storage.numel() // width * width].view(dtype)
            first = begin // width
            if part.is_contiguous():  # one call of torch in place of two
                views.append(torch.as_strided(whole, part.shape, part.stride(), first))
            else:
                views.append(whole[first : first + part.numel()].view(part.shape))
        return views


def lay_out(schema: Node) -> Columns:
    """Return the places of the tensors of a planned schema; ``leaf.file`` becomes the number of its first one."""
    made = Columns()
    total = 0
    for leaf in leaves(schema):
        leaf.file = str(len(made.sources))
        for part in stored_tensors(leaf):
            start, nbytes = _round_up(total, max(part.element_size(), _ALIGNMENT)), part.nbytes
            total = start + nbytes
            made.keys.append(leaf.key)
            made.sources.append(part)
            made.addresses.append(leaf.address or plain_address(part))
            made.begins.append(start)
            made.sizes.append(nbytes)
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
        self.columns = columns
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
                if entry.unbatched:
                    raise nontensor.NoPlace(
                        f"key {show(entry.key)} is an UnbatchedTensor, and a consolidated file has no place for one; "
                        "save to a .safetensors file"
                    )
                first = int(entry.file)
                if entry.layout == "strided":
                    record["leaves"][name] = self.tensor(first)
                    continue
                for number, what in enumerate((VALUES, OFFSETS, LENGTHS)[: count_of(entry)], first):
                    record["leaves"][what + name] = self.tensor(number)
                record["leaves"][OFFSETS + name].append(entry.ragged)
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

    def tensor(self, number: int) -> list[Any]:
        part, start = self.columns.sources[number], self.columns.begins[number]
        end = start + self.columns.sizes[number]
        stop = _round_up(end, _ALIGNMENT)
        return [str(part.dtype), list(part.shape), start, stop, stop - end]

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
