"""Plain tensordicts: nested dictionaries of contiguous tensors, which a safetensors save describes without a schema.

Thousands of small tensors take longer to look at and to name than to write. Here no object is made for each of them:
they are columns, filled by calls that loop in C. Any other tensordict goes through its schema (``describe.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any

import torch

from tensordict_core import TensorDict
from tensordict_memmap.formats.safetensors.describe import RECORD, VERSION, Forms, Layout, are_plain
from tensordict_memmap.formats.safetensors.dotted_names import DIGEST, are_parts, digest
from tensordict_memmap.formats.safetensors.header import Form, file_order
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import Path

_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter})
_CACHED = 512
"""Tensors that several calls look at: few enough to stay in the cache of the processor."""

_dtype_and_shape, _is_cpu = attrgetter("dtype", "shape"), attrgetter("is_cpu")


@dataclass(slots=True)
class PlainPack:
    """The tensors of a safetensors file whose names determine its structure, except the batch size of all nodes."""

    size: tuple[int, ...]
    names: list[str] = field(default_factory=list)
    keys: list[Path] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)

    def layout(self, part: range | None = None) -> Layout:
        """Put all tensors in a row, as `Pack.layout` does."""
        columns: list[list[Any]] = [self.names, self.keys, self.sources, self.forms, self.addresses]
        order = file_order(self.forms)
        if order is not None:
            columns = [[column[n] for n in order] for column in columns]
        names, keys, sources, forms, addresses = columns
        return Layout(names, keys, sources, forms, list(accumulate([form.nbytes for form in forms])), addresses)

    def metadata(self, names: Sequence[str] | None) -> dict[str, str]:
        """Return the texts about the file, as `Pack.metadata` does."""
        texts, in_order = {"format": "pt"}, names == self.names
        if self.size or not in_order:
            texts[RECORD] = nontensor.quick_dumps({"version": VERSION, "root": self._record()}, finite=True).decode()
        if in_order:
            texts[DIGEST] = digest(texts.get(RECORD, ""), self.names)
        return texts

    def _record(self) -> dict[str, Any]:
        nodes: dict[Path, dict[str, Any]] = {}
        for key, name in zip(self.keys, self.names, strict=True):
            above = key[:-1]
            (nodes.get(above) or self._add(nodes, above))["keys"][key[-1]] = {"tensor": name}
        return nodes[()]

    def _add(self, nodes: dict[Path, dict[str, Any]], key: Path) -> dict[str, Any]:
        """Add the record of a node and of those above, and return it."""
        node = nodes[key] = {"batch_size": list(self.size), "names": None, "keys": {}}
        if key:
            (nodes.get(key[:-1]) or self._add(nodes, key[:-1]))["keys"][key[-1]] = {"td": node}
        return node

    def collect(self, td: Any, key: Path, start: str) -> bool:
        """Add the tensors of a node and of those below; return False if it holds anything else."""
        if type(td) is not TensorDict or td._meta.batch_size != self.size or td._meta.names is not None:
            return False
        entries = dict(td._items())
        if not are_parts(entries, start):
            return False
        if _CLASSES.issuperset(map(type, entries.values())):
            self.names += [start + name for name in entries] if start else entries
            self.keys += [(*key, name) for name in entries]
            self.sources += entries.values()
            return True
        for name, value in entries.items():
            if type(value) in _CLASSES:
                self.names.append(start + name)
                self.keys.append((*key, name))
                self.sources.append(value)
            elif not self.collect(value, (*key, name), f"{start}{name}."):
                return False
        return True

    def look(self) -> bool:
        """Find the form and address of each tensor; return False if a file holds other bytes than the memory there."""
        forms = Forms()
        for first in range(0, len(self.sources), _CACHED):
            some = self.sources[first : first + _CACHED]
            try:
                self.addresses += map(torch.Tensor.data_ptr, some)
                self.forms += map(forms.__getitem__, map(_dtype_and_shape, some))
                is_plain = all(map(_is_cpu, some)) and all(map(torch.Tensor.is_contiguous, some))
                if not is_plain or any(map(torch.Tensor.is_neg, some)):
                    return False
            except RuntimeError:  # a tensor that is not strided, or has no memory of its own
                return False
        return are_plain(self.names, self.addresses, forms)


def describe_plain(td: Any) -> PlainPack | None:
    """Describe a tensordict of nothing but plain tensors, whose nodes share a batch size; return None for others.

    Args:
        td: The tensordict.

    >>> pack = describe_plain(TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(1)}}))
    >>> pack.names, describe_plain(TensorDict({"a": torch.ones(2, 3).T}))
    (['a', 'b.c'], None)
    """
    if type(td) is not TensorDict:
        return None
    pack = PlainPack(td._meta.batch_size)
    return pack if pack.collect(td, (), "") and pack.look() else None
