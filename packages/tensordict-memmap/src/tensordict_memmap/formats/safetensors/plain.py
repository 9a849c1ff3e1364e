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
from tensordict_memmap.formats.safetensors.describe import Forms, Layout, are_plain
from tensordict_memmap.formats.safetensors.dotted_names import DIGEST, are_parts, digest
from tensordict_memmap.formats.safetensors.header import Form, ranks
from tensordict_memmap.schema.node import Path

__all__ = ["PlainPack", "describe_plain"]

_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter})
_CACHED = 512
"""Tensors that several calls look at: few enough to stay in the cache of the processor."""

_dtype_and_shape, _is_cpu = attrgetter("dtype", "shape"), attrgetter("is_cpu")


@dataclass(slots=True)
class PlainPack:
    """The tensors of a safetensors file whose names determine its structure."""

    names: list[str] = field(default_factory=list)
    keys: list[Path] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)

    def layout(self, part: range | None = None) -> Layout:
        """Put all tensors in a row."""
        ends = list(accumulate([form.nbytes for form in self.forms]))
        return Layout(self.names, self.keys, self.sources, self.forms, ends, self.addresses)

    def metadata(self, names: Sequence[str] | None) -> dict[str, str]:
        """Return the texts about the file."""
        return {"format": "pt", DIGEST: digest("", self.names)}

    def collect(self, td: Any, key: Path, start: str) -> bool:
        """Add the tensors of a node and of those below; return False if it holds anything else."""
        if type(td) is not TensorDict or td._meta.batch_size or td._meta.names is not None:
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
        # tensors of several widths are in another order than their names
        return are_plain(self.names, self.addresses, forms) and not any(ranks(forms.values()).values())


def describe_plain(td: Any) -> PlainPack | None:
    """Describe a tensordict of nothing but plain tensors, without batch size and names; return None for others.

    Args:
        td: The tensordict.

    >>> pack = describe_plain(TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(1)}}))
    >>> pack.names, describe_plain(TensorDict({"a": torch.ones(2, 3).T}))
    (['a', 'b.c'], None)
    """
    pack = PlainPack()
    return pack if pack.collect(td, (), "") and pack.look() else None
