"""From a tensordict to what one file holds: named tensors in a row, and a record of the structure around them.

The record is that of the reference, with fields of ours where it has no place for something; it ignores those. Tensors
go by their nested keys joined with ``.``, the names that state dicts use. Two keys that would share a name, a name that
the format cannot hold, complex numbers of a width that it lacks, nested tensors and tied weights are told apart in the
record, so any reader finds plain tensors in the file. A node in the record::

    {"batch_size": [4], "names": ["time"], "class": "<class 'm.C'>", "stack_dim": 0, "keys": {
        "a": {"tensor": "a"}, "z": {"tensor": "z", "dtype": "torch.complex128"}, "b": {"td": {...}},
        "s": {"non_tensor": "hello"}, "t": {"non_tensor": [1], "exact": {"$": "tuple", "items": [1]}}}}

``class`` and ``stack_dim`` are those of tensorclasses and lazy stacks. A lazy stack of equals has its tensors stacked;
any other has its elements as ``parts``. A record that would say no more than the names do is left out, as in published
files, and has a digest beside it where it says the batch size besides (``dotted.py``).
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, cast

import torch

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    is_non_tensor,
)
from tensordict_core.extension import Primitives, type_name
from tensordict_memmap.engine.gc_paused import gc_paused
from tensordict_memmap.formats.safetensors.columns import Entries
from tensordict_memmap.formats.safetensors.dotted_names import DIGEST, digest, is_dotted
from tensordict_memmap.formats.safetensors.header import CODES, Form
from tensordict_memmap.formats.safetensors.layout import Keys, Stacked, Tensors
from tensordict_memmap.formats.safetensors.stored_form import Forms, stored
from tensordict_memmap.schema import nontensor as values
from tensordict_memmap.schema.node import WRAPPED, Path, candidate_names, show
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

__all__ = ["RECORD", "Pack", "pack"]

RECORD = "tensordict"
"""The name of the record in the metadata of a file."""

VERSION = 1

_KINDS = frozenset({torch.Tensor, torch.nn.Parameter})
"""The classes of tensors that may need no second look."""


@dataclass(slots=True)
class Pack:
    """What one file holds.

    Args:
        record: the structure.
        tensors: the tensors.
        finite: whether no value in the record is infinite or NaN.
    """

    record: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=Tensors)
    finite: bool = True

    def metadata(self, names: Sequence[str] | None) -> dict[str, str]:
        """The texts about the file: what other libraries look for, the record, and the digest.

        Args:
            names: the tensors in the order of their bytes, where one file holds all.
        """
        texts = {"format": "pt"}
        told = names if names is not None and is_dotted(self.record, names) else None
        if told is None or self.record["batch_size"]:
            document = {"version": VERSION, "root": self.record}
            texts[RECORD] = values.quick_dumps(document, finite=self.finite, text_of=Entries.text).decode()
        if told is not None:
            texts[DIGEST] = digest(texts.get(RECORD, ""), told)
        return texts


class _Waiting:
    """Tensors whose place in the file is still to be given, in columns: the more at once, the less each costs."""

    __slots__ = ("entries", "keys", "names", "tensors")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.keys = Keys()
        self.entries: list[Entries] = []


def pack(td: Any, *, copy_existing: bool = True) -> Pack:
    """What a file with a tensordict, lazy stack, tensorclass or non-tensor data holds.

    Args:
        td: what to save.
        copy_existing: whether entries that are mapped onto other files are copied rather than refused.

    Raises:
        TypeError: An entry is of a kind that has no place in the file; the error names its key.
        RuntimeError: An entry is mapped onto another file and ``copy_existing`` is False.

    >>> packed = pack(TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(1)}}))
    >>> list(packed.tensors.names), packed.record["keys"]["a"]
    (['a', 'b.c'], {'tensor': 'a'})
    """
    packer = _Packer(copy_existing)
    with gc_paused():
        packer.out.record = packer.root(td)
        packer.settle()
    return packer.out


class _Packer:
    def __init__(self, copy_existing: bool) -> None:
        self.out = Pack()
        self.copy_existing = copy_existing
        self.forms = Forms()
        self.waiting = _Waiting()
        self.seen: dict[int, str] = {}
        self.unseen: list[tuple[Sequence[int], Sequence[str]]] = []

    def root(self, td: Any) -> dict[str, Any]:
        if is_non_tensor(td):
            return {"batch_size": list(td.batch_size), "names": None, "keys": {}, "value": self.value(td, (), "", None)}
        return self.node(td, (), "")

    def node(self, td: Any, key: Path, start: str) -> dict[str, Any]:
        if isinstance(td, LazyStackedTensorDict):
            return self.lazy(td, key, start)
        if not isinstance(td, Primitives) or td._is_opaque:
            raise TypeError(
                "a saved tensordict holds tensors, tensordicts, tensorclasses and non-tensor data, and "
                f"{'key ' + show(key) if key else 'what is saved'} is a {type(td).__name__}; convert or remove it first"
            )
        form = td._disk_form()  # type: ignore[attr-defined]  # every container has it
        if form is None:
            return self.dense(td, key, start)
        facts, parts = form
        if list(parts) != [WRAPPED] or is_non_tensor(parts[WRAPPED]):
            raise TypeError(
                f"one file holds tensordicts, lazy stacks and what wraps one of them, and {type(td).__name__} is "
                f"made of {sorted(parts)}; save it to a folder"
            )
        record = self.node(parts[WRAPPED], key, start)
        record["class"] = str(type(td))
        registered = type_name(type(td))
        if registered not in candidate_names(record["class"]):
            record["owner"] = registered
        if facts:
            record["facts"] = facts
        return record

    def dense(self, td: Any, key: Path, start: str) -> dict[str, Any]:
        items = dict(td._items())
        entries: Entries | dict[str, Any]
        if _KINDS.issuperset(map(type, items.values())):
            entries = self.wait(items, key, start)
        else:
            entries = {}
            for waits, group in groupby(items.items(), _is_of_a_kind):
                if waits:
                    entries |= self.wait(dict(group), key, start).each()
                    continue
                for name, value in group:
                    entries[name] = self.entry(value, (*key, name), start + name, td.batch_size)
        names = td._meta.names
        return {"batch_size": list(td.batch_size), "names": None if names is None else list(names), "keys": entries}

    def entry(self, value: Any, key: Path, full: str, around: torch.Size) -> dict[str, Any]:
        if isinstance(value, torch.Tensor):
            return self.tensor(value, key, full)
        if type(value) is UnbatchedTensor:
            return {**self.tensor(value.tensor, key, full), "unbatched": True}
        if is_non_tensor(value):
            return self.value(value, key, full, around)
        return {"td": self.node(value, key, full + ".")}

    # --- tensors that need no second look, which may come in thousands

    def wait(self, tensors: Mapping[str, torch.Tensor], key: Path, start: str) -> Entries:
        """The entries of tensors of a node, as if each got its joined key for a name; `settle` sees to that."""
        names, waiting = list(tensors), self.waiting
        entries = Entries(names, start)
        waiting.names += [start + name for name in names] if start else names
        waiting.tensors += tensors.values()
        waiting.keys.extend(key, names)
        waiting.entries.append(entries)
        return entries

    def settle(self) -> None:
        """Gives those that wait their place: all at once where nothing is odd about any, else one after the other."""
        waiting, out = self.waiting, self.out.tensors
        if not waiting.names:
            return
        self.waiting = _Waiting()
        names, tensors, keys = waiting.names, waiting.tensors, waiting.keys
        addresses, forms = self.forms.look(tensors)
        new = set(addresses) - {0}
        if (
            None not in forms
            and len(new) == len(names) - addresses.count(0)
            and (not out.names or self.firsts().keys().isdisjoint(new))
            and "".join(names).isascii()
            and out.extend(names, cast("list[Form]", forms), addresses, tensors, keys)
        ):
            self.unseen.append((addresses, names))
            return
        seen = self.firsts()
        abouts = chain.from_iterable(entries.each().values() for entries in waiting.entries)
        for name, tensor, key, about, address, form in zip(names, tensors, keys, abouts, addresses, forms, strict=True):
            if (
                form is not None
                and name.isascii()
                and out.is_free(name)
                and (not address or seen.setdefault(address, name) == name)
            ):
                out.add(name, form, address, tensor, key)
            else:
                found = self.tensor(tensor, key, name)
                about.clear()
                about.update(found)

    def firsts(self) -> dict[int, str]:
        """The name of the first tensor at each address, to which more may be added."""
        for addresses, names in self.unseen:
            self.seen.update(zip(addresses, names, strict=True))
        self.unseen.clear()
        self.seen.pop(0, None)
        return self.seen

    # --- tensors

    def tensor(self, tensor: torch.Tensor, key: Path, full: str) -> dict[str, Any]:
        self.settle()
        if tensor.is_nested:
            return self.nested(tensor, key, full)
        if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
            raise TypeError(
                f"what is saved has values in strided memory, and key {show(key)} is a {tensor.layout} tensor of "
                f"{tensor.dtype} on {tensor.device}; make it dense first"
            )
        if isinstance(tensor, MemoryMappedTensor) and not self.copy_existing and tensor.handler.filename is not None:
            raise RuntimeError(
                f"an entry stays in its file, and that of key {show(key)} is {tensor.handler.filename}; pass "
                "copy_existing=True to copy it"
            )
        dtype, out = tensor.dtype, self.out.tensors
        address = _address(tensor)
        if address:
            first = self.firsts().setdefault(address, full)
            if first != full and _is_same(tensor, out.sources[out.names[first]]):
                return self.about(first, dtype)
        name = self.free(full)
        if address and self.seen[address] == full:
            self.seen[address] = name
        source = stored(tensor)
        plain = tensor.is_cpu and source.is_contiguous() and not (source.is_conj() or source.is_neg())
        flat = _address(source) if plain else 0
        out.add(name, self.forms[dtype, source.shape], flat, source, key)
        return self.about(name, dtype)

    @staticmethod
    def about(name: str, dtype: torch.dtype) -> dict[str, Any]:
        return {"tensor": name} if dtype in CODES else {"tensor": name, "dtype": str(dtype)}

    def nested(self, tensor: torch.Tensor, key: Path, full: str) -> dict[str, Any]:
        """Components one after the other, with their shapes, and the ragged dimension first, as in a tree."""
        jagged = tensor.layout is torch.jagged
        ragged = next(dim for dim in range(1, tensor.dim()) if not isinstance(tensor.shape[dim], int)) if jagged else 1
        source = tensor.transpose(1, ragged) if ragged != 1 else tensor
        parts = [part.detach() for part in source.unbind()]
        shapes = torch.tensor([list(part.shape) for part in parts], dtype=torch.int64).reshape(
            len(parts), tensor.dim() - 1
        )
        flat = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0, dtype=tensor.dtype)
        about = {**self.tensor(flat, key, full), "shapes": self.tensor(shapes, key, full + ".shape")["tensor"]}
        return about | {"layout": "jagged" if jagged else "nested", "ragged": ragged}

    def free(self, full: str) -> str:
        """A name in the file for a joined key: itself, unless the file cannot hold it or another has it."""
        name = full if full.isascii() else full.encode("utf-8", "replace").decode()
        if name == full and self.out.tensors.is_free(name):
            return name
        number = 1
        while f"{name}~{number}" in self.out.tensors.names:
            number += 1
        return f"{name}~{number}"

    # --- lazy stacks

    def lazy(self, td: LazyStackedTensorDict, key: Path, start: str) -> dict[str, Any]:
        names = td.names if any(name is not None for name in td.names) else None
        record: dict[str, Any] = {
            "batch_size": list(td.batch_size),
            "names": None if names is None else list(names),
            "stack_dim": td.stack_dim,
        }
        parts = td.tensordicts
        if parts and all(_is_alike(parts[0], part) for part in parts):
            return {**record, "keys": self.stacked(parts, td.stack_dim, key, start)}
        record["parts"] = [
            self.node(part, (*key, str(number)), f"{start}{number}.") for number, part in enumerate(parts)
        ]
        return {**record, "keys": {}}

    def stacked(self, parts: Sequence[Any], dim: int, key: Path, start: str) -> dict[str, Any]:
        self.settle()
        entries: dict[str, Any] = {}
        for name, first in parts[0]._items():
            inner, full = (*key, name), start + name
            column = [part._get(name) for part in parts]
            if isinstance(first, torch.Tensor):
                shape = tuple(stored(first).shape)
                chosen = self.free(full)
                source = Stacked([stored(one) for one in column], dim)
                shape = (*shape[:dim], len(parts), *shape[dim:])
                self.out.tensors.add(chosen, self.forms[first.dtype, shape], 0, source, inner)
                entries[name] = self.about(chosen, first.dtype)
            else:
                size = first.batch_size
                below = self.stacked(column, dim, inner, full + ".")
                entries[name] = {
                    "td": {"batch_size": [*size[:dim], len(parts), *size[dim:]], "names": None, "keys": below}
                }
        return entries

    # --- values

    def value(self, td: Any, key: Path, full: str, around: Any) -> dict[str, Any]:
        stack = isinstance(td, NonTensorStack)
        if not stack and not isinstance(td, NonTensorData):
            raise TypeError(
                f"non-tensor data is saved as NonTensorData or NonTensorStack, and key {show(key)} is a "
                f"{type(td).__name__}; convert it first"
            )
        value = td.tolist() if stack else td.data
        about: dict[str, Any] = {}
        if stack:
            about["stack"] = True
        if stack or td.batch_size != around:
            about["batch_size"] = list(td.batch_size)
        try:
            exact = values.encode(value)
            self.out.finite &= values.is_finite(exact)
        except values.NoJsonForm as reason:
            return self.pickled(value, key, full, reason) | about
        try:
            plain = values.plain(value)
        except values.NoJsonForm:
            return {"non_tensor": exact, "exact": True, **about}
        return (
            {"non_tensor": plain, **about}
            if plain is exact or plain == exact
            else {"non_tensor": plain, "exact": exact, **about}
        )

    def pickled(self, value: Any, key: Path, full: str, reason: Exception) -> dict[str, Any]:
        where = f"key {show(key)}" if key else "what is saved"
        try:
            data = pickle.dumps(value)
        except Exception as error:  # pickling runs code of the value's class, which may raise anything
            raise TypeError(
                f"what is saved has a JSON form or can be pickled, and {where} holds a {type(value).__name__} that "
                f"has and can neither ({error}); remove it or store its parts"
            ) from error
        warnings.warn(
            f"{where} is pickled, so it loads only with allow_pickle=True: {reason}", UserWarning, stacklevel=2
        )
        return {
            **self.tensor(torch.frombuffer(bytearray(data), dtype=torch.uint8), key or ("value",), full or "value"),
            "pickled": True,
        }


def _is_of_a_kind(item: tuple[str, Any]) -> bool:
    return type(item[1]) in _KINDS


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr() if tensor.numel() else 0
    except RuntimeError:  # a tensor without memory of its own
        return 0


def _is_same(tensor: torch.Tensor, other: Any) -> bool:
    """Whether two tensors that start at one address are the same one."""
    if not isinstance(other, torch.Tensor):
        return False
    if tensor.is_complex() and not other.is_complex():
        tensor = stored(tensor)
    return (
        tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.device == other.device
        and tensor.is_conj() == other.is_conj()
        and tensor.is_neg() == other.is_neg()
    )


def _is_alike(first: Any, other: Any) -> bool:
    """Whether two elements of a lazy stack differ in nothing but values, so that their tensors can be stacked."""
    if type(first) is not TensorDict or type(other) is not TensorDict:
        return False
    if (
        first._meta.batch_size != other._meta.batch_size
        or first.keys() != other.keys()
        or first._meta.names != other._meta.names
    ):
        return False
    for name, one in first._items():
        two = other._get(name)
        if isinstance(one, torch.Tensor):
            if not (
                isinstance(two, torch.Tensor)
                and not (one.is_nested or two.is_nested)  # some of which have no shape
                and one.shape == two.shape
                and one.dtype == two.dtype
                and one.layout is two.layout is torch.strided
                and "meta" not in (one.device.type, two.device.type)
            ):
                return False
        elif not _is_alike(one, two) or one._meta.names is not None:
            return False
    return True
