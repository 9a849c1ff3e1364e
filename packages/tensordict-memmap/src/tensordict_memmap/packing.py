"""From a tensordict to what one file holds: named tensors in a row, and a record of the structure around them.

The record is that of the reference, with fields of ours where it has no place for something; it ignores those. Tensors
go by their nested keys joined with ``.``, the names that state dicts use. Two keys that would share a name, a name that
the format cannot hold, complex numbers of a width that it lacks, nested tensors and tied weights are told apart in the
record, so any reader finds plain tensors in the file. A node in the record::

    {"batch_size": [4], "names": ["time"], "class": "<class 'm.C'>", "stack_dim": 0, "keys": {
        "a": {"tensor": "a"}, "z": {"tensor": "z", "dtype": "torch.complex128"}, "b": {"td": {...}},
        "s": {"non_tensor": "hello"}, "t": {"non_tensor": [1], "exact": {"$": "tuple", "items": [1]}}}}

``class`` and ``stack_dim`` are those of tensorclasses and lazy stacks. A lazy stack of equals has its tensors stacked;
any other has its elements as ``parts``.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

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
from tensordict_memmap import values
from tensordict_memmap.collecting import uncollected
from tensordict_memmap.formats.safetensors import CODES, METADATA, order
from tensordict_memmap.formats.tree import WRAPPED, Path, candidate_names, show
from tensordict_memmap.sources import Piece, Run
from tensordict_memmap.tensor import MemoryMappedTensor
from tensordict_memmap.ways import SMALL

__all__ = ["RECORD", "Growing", "Pack", "Stacked", "pack"]

RECORD = "tensordict"
"""The name of the record in the metadata of a file."""

VERSION = 1

_PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
_INTEGERS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


@dataclass(slots=True)
class Stacked:
    """Tensors of one shape to write stacked along a dimension."""

    parts: Sequence[torch.Tensor]
    dim: int

    def pieces(self, key: object, offset: int) -> Iterator[Piece]:
        """Where each part of them goes."""
        first = self.parts[0]
        size = prod(first.shape[self.dim :]) * first.element_size()
        rows = [part.detach().flatten(0, self.dim - 1) if self.dim else part.detach()[None] for part in self.parts]
        for number in range(len(rows[0])):
            for row in rows:
                yield Piece(key, row[number], offset)
                offset += size


Source = torch.Tensor | Stacked


@dataclass(slots=True)
class Pack:
    """What one file holds.

    Args:
        record: the structure; None for tensors alone.
        tensors: by name: the dtype and shape that the file gives it, its bytes, the address of its memory where that
            is known, what it is made from, and its nested key.
        finite: whether no value in the record is infinite or NaN.
    """

    record: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...], int, int, Source, Path]] = field(default_factory=dict)
    finite: bool = True

    def sizes(self) -> dict[str, int]:
        """The bytes of each tensor."""
        return {name: one[2] for name, one in self.tensors.items()}

    def metadata(self) -> dict[str, str]:
        """The texts about the file: the record, and what other libraries look for."""
        document = {"version": VERSION, "root": self.record}
        text = values.quick_dumps(document, finite=self.finite).decode()
        return {"format": "pt", RECORD: text}

    def layout(
        self, names: Sequence[str] | None = None
    ) -> tuple[dict[str, Any], list[Piece | Run], list[tuple[int, int]]]:
        """Puts tensors in a row.

        Args:
            names: which; None is all.

        Returns:
            The entries of the header; the pieces to write, from offset 0 on; offset and size of each tensor that is in
            no run.
        """
        groups: dict[torch.dtype, list[str]] = {}
        for name in self.tensors if names is None else names:
            dtype = self.tensors[name][0]
            group = groups.get(dtype)
            if group is None:
                group = groups[dtype] = []
            group.append(name)
        header: dict[str, Any] = {}
        pieces: list[Piece | Run] = []
        apart: list[tuple[int, int]] = []
        run = Growing()
        offset = 0
        for dtype in order(groups):
            code = CODES[dtype]
            for name in groups[dtype]:
                _, shape, nbytes, address, source, key = self.tensors[name]
                header[name] = {"dtype": code, "shape": shape, "data_offsets": (offset, offset + nbytes)}
                if not nbytes:
                    continue
                if address and nbytes < SMALL:
                    run.add(key, address, nbytes, source, offset)
                else:
                    run.finish(pieces)
                    apart.append((offset, nbytes))
                    named = key[0] if len(key) == 1 else key
                    if isinstance(source, Stacked):
                        pieces.extend(source.pieces(named, offset))
                    else:
                        pieces.append(Piece(named, source, offset))
                offset += nbytes
        run.finish(pieces)
        return header, pieces, apart


class Growing:
    """A run of small pieces while it grows; ``finish`` ends it, as a gap in the file must."""

    def __init__(self) -> None:
        self.keys: list[Path] = []
        self.addresses: list[int] = []
        self.sizes: list[int] = []
        self.keep: list[Source] = []
        self.offset = 0

    def add(self, key: Path, address: int, nbytes: int, source: Source, offset: int) -> None:
        """Adds a piece, which lies in memory at ``address`` and goes to ``offset`` of the file."""
        if not self.keys:
            self.offset = offset
        self.keys.append(key)
        self.addresses.append(address)
        self.sizes.append(nbytes)
        self.keep.append(source)

    def finish(self, pieces: list[Piece | Run]) -> None:
        """Puts the run among the pieces, and begins another."""
        if self.keys:
            pieces.append(Run(self.keys, self.addresses, self.sizes, self.offset, self.keep))
            self.__init__()  # type: ignore[misc]  # of this very class


def pack(td: Any, *, copy_existing: bool = True) -> Pack:
    """What a file with a tensordict, lazy stack, tensorclass or non-tensor data holds.

    Args:
        td: what to save.
        copy_existing: whether entries that are mapped onto other files are copied rather than refused.

    Raises:
        TypeError: An entry is of a kind that has no place in the file; the error names its key.
        RuntimeError: An entry is mapped onto another file and ``copy_existing`` is False.

    >>> packed = pack(TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(1)}}))
    >>> list(packed.tensors), packed.record["keys"]["a"]
    (['a', 'b.c'], {'tensor': 'a'})
    """
    packer = _Packer(copy_existing)
    with uncollected():
        packer.out.record = packer.root(td)
    return packer.out


class _Packer:
    def __init__(self, copy_existing: bool) -> None:
        self.out = Pack()
        self.copy_existing = copy_existing
        self.seen: dict[int, str] = {}

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
        entries: dict[str, Any] = {}
        tensors, seen, plain = self.out.tensors, self.seen, torch.Tensor
        for name, value in td._items():
            full = start + name
            inner = (*key, name)
            # The rest of this loop says for the plain case, which may come thousands of times, what `tensor` says.
            if (
                type(value) is plain
                and (nbytes := _QUICK.get(dtype := value.dtype, 0))
                and value.is_cpu
                and value.is_contiguous()
                and not value.is_neg()
                and full not in tensors
                and full != METADATA
                and full.isascii()
                and value.layout is torch.strided
                and not value.is_nested
            ):
                address = value.data_ptr()
                if not address or seen.setdefault(address, full) == full:
                    shape = tuple(value.shape)
                    for length in shape:
                        nbytes *= length
                    tensors[full] = (dtype, shape, nbytes, address, value, inner)
                    entries[name] = {"tensor": full}
                    continue
            if isinstance(value, torch.Tensor):
                entries[name] = self.tensor(value, inner, full)
            elif type(value) is UnbatchedTensor:
                entries[name] = {**self.tensor(value.tensor, inner, full), "unbatched": True}
            elif is_non_tensor(value):
                entries[name] = self.value(value, inner, full, td.batch_size)
            else:
                entries[name] = {"td": self.node(value, inner, full + ".")}
        names = td._meta.names
        return {"batch_size": list(td.batch_size), "names": None if names is None else list(names), "keys": entries}

    # --- tensors

    def tensor(self, tensor: torch.Tensor, key: Path, full: str) -> dict[str, Any]:
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
        dtype = tensor.dtype
        address = _address(tensor)
        if address:
            first = self.seen.setdefault(address, full)
            if first != full and _is_same(tensor, self.out.tensors[first][4]):
                return self.about(first, dtype)
        name = self.free(full)
        if address and self.seen[address] == full:
            self.seen[address] = name
        stored, source = _stored(tensor)
        plain = tensor.is_cpu and source.is_contiguous() and not (source.is_conj() or source.is_neg())
        flat = _address(source) if plain else 0
        self.out.tensors[name] = (stored, tuple(source.shape), source.nbytes, flat, source, key)
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
        if name == full != METADATA and name not in self.out.tensors:
            return name
        number = 1
        while f"{name}~{number}" in self.out.tensors:
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
        entries: dict[str, Any] = {}
        for name, first in parts[0]._items():
            inner, full = (*key, name), start + name
            column = [part._get(name) for part in parts]
            if isinstance(first, torch.Tensor):
                stored, sample = _stored(first)
                shape = tuple(sample.shape)
                chosen = self.free(full)
                source = Stacked([_stored(one)[1] for one in column], dim)
                shape = (*shape[:dim], len(parts), *shape[dim:])
                self.out.tensors[chosen] = (stored, shape, sample.nbytes * len(parts), 0, source, inner)
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
            **self.tensor(torch.frombuffer(bytearray(data), dtype=torch.uint8), key, full or "value"),
            "pickled": True,
        }


_QUICK = {dtype: dtype.itemsize for dtype in CODES if not dtype.is_complex}
"""Bytes of the dtypes that need no second look at a tensor."""


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
        tensor = _stored(tensor)[1]
    return (
        tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.device == other.device
        and tensor.is_conj() == other.is_conj()
        and tensor.is_neg() == other.is_neg()
    )


def _stored(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Tensor]:
    """The dtype that the file gives a tensor, and the tensor seen so: what the format lacks are pairs or integers."""
    dtype = tensor.dtype
    if dtype in CODES:
        return dtype, tensor
    tensor = tensor.detach()
    if dtype in _PAIRS:
        return _PAIRS[dtype], torch.view_as_real(tensor.resolve_conj())
    return _INTEGERS[dtype.itemsize], tensor.view(_INTEGERS[dtype.itemsize])


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
                and one.shape == two.shape
                and one.dtype == two.dtype
                and one.layout is two.layout is torch.strided
                and not (one.is_nested or two.is_nested)
                and "meta" not in (one.device.type, two.device.type)
            ):
                return False
        elif not _is_alike(one, two) or one._meta.names is not None:
            return False
    return True
