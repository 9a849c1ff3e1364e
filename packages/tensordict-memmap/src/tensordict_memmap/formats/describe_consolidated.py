"""Description of a consolidated file: the offset of each tensor, and the JSON text after the bytes of all.

`consolidated` is the inverse. Nothing here reads or writes a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tensordict_memmap.formats.consolidated import EXTRA, FIELDS, LENGTHS, OFFSETS, VALUES
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import WRAPPED, Leaf, Node, Parts, Path, Value, leaves, show
from tensordict_memmap.schema.plan import LAZY, check_source

__all__ = ["ByDtype", "Slot", "describe", "lay_out", "stored_tensors"]

_ALIGNMENT = 8


@dataclass(slots=True)
class Slot:
    """The place of one leaf.

    Args:
        leaf: The leaf.
        sources: The tensors that it is stored as.
        ranges: The first byte of each, and the byte behind its last.
    """

    leaf: Leaf
    sources: list[torch.Tensor]
    ranges: list[tuple[int, int]]

    def views(self, storage: ByDtype) -> list[torch.Tensor]:
        """Return the tensors of a leaf as views of a storage."""
        views = []
        for part, (start, end) in zip(self.sources, self.ranges, strict=True):
            whole, begin = storage[part.dtype], start // part.element_size()
            if part.is_contiguous():  # one call of torch in place of two
                views.append(torch.as_strided(whole, part.shape, part.stride(), begin))
            else:
                views.append(whole[begin : end // part.element_size()].view(part.shape))
        return views


class ByDtype(dict[torch.dtype, torch.Tensor]):
    """A storage of bytes as a tensor of each dtype, made once for all views of that dtype."""

    def __init__(self, storage: torch.Tensor) -> None:
        super().__init__()
        self.storage = storage

    def __missing__(self, dtype: torch.dtype) -> torch.Tensor:
        size = dtype.itemsize
        whole = self[dtype] = self.storage[: self.storage.numel() // size * size].view(dtype)
        return whole


def lay_out(schema: Node) -> tuple[dict[str, Slot], int]:
    """Give the leaves of a planned schema numbers; return their slots by ``leaf.file``, and the bytes of all."""
    slots: dict[str, Slot] = {}
    total = 0
    for number, leaf in enumerate(leaves(schema)):
        leaf.file = str(number)
        sources = stored_tensors(leaf)
        ranges = []
        for part in sources:
            start = _round_up(total, max(part.element_size(), _ALIGNMENT))
            total = start + part.nbytes
            ranges.append((start, total))
        slots[leaf.file] = Slot(leaf, sources, ranges)
    return slots, _round_up(total, _ALIGNMENT)


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


def describe(schema: Node, slots: dict[str, Slot]) -> bytes:
    """Return the text behind the bytes of all tensors.

    Args:
        schema: The planned schema.
        slots: The slots of its leaves.

    Raises:
        TypeError: The format has no place for an entry; the error names its key.
        ValueError: A nested tensordict has a name that the format uses itself.
    """
    return _Describer(slots).text(schema)


class _Describer:
    """Describes nodes, and collects the exact forms of values that JSON would change."""

    def __init__(self, slots: dict[str, Slot]) -> None:
        self.slots = slots
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
                slot = self.slots[entry.file]
                if entry.layout == "strided":
                    record["leaves"][name] = self.leaf(slot, 0)
                    continue
                for number, what in enumerate((VALUES, OFFSETS, LENGTHS)[: len(slot.sources)]):
                    record["leaves"][what + name] = self.leaf(slot, number)
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

    def leaf(self, slot: Slot, number: int) -> list[Any]:
        part, (start, end) = slot.sources[number], slot.ranges[number]
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
