"""Quick reader: the entries of a save by its JSON headers alone, without importing torch.

It reads the regular forms of the formats and answers None for everything else: escaped keys, nested tensors, growing
datasets, deltas, shards, URLs, files that another process is replacing, and every kind of damage. The command then uses
the complete readers of `tensordict_memmap`, which take longer to import and which alone report what is wrong.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A tensor, or a non-tensor value, whose dtype, shape and size are None."""

    key: tuple[str, ...]
    dtype: str | None = None
    shape: list[int] | None = None
    nbytes: int | None = None


class Save(NamedTuple):
    """The format and the entries of a save."""

    format: str
    entries: list[Entry]


class _Irregular(Exception):
    """The save needs the complete readers."""


_ITEMSIZE = {
    **dict.fromkeys(["bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"], 1),
    **dict.fromkeys(["uint16", "int16", "float16", "bfloat16"], 2),
    **dict.fromkeys(["uint32", "int32", "float32"], 4),
    **dict.fromkeys(["uint64", "int64", "float64", "complex64"], 8),
    "complex128": 16,
}
_CODES = {
    **{"BOOL": "bool", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64"},
    **{f"{sign}{bits}": f"{name}{bits}" for sign, name in (("U", "uint"), ("I", "int")) for bits in (8, 16, 32, 64)},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}
"""The dtypes of safetensors files by their codes."""

_PLAIN = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.\-]{1,200}")
"""Keys whose files are named by them."""

_META, _MANIFEST, _JOURNAL = "meta.json", "tensordict.manifest.json", "tensordict.journal.json"
_LONGEST = 100_000_000


def check_present(path: str) -> None:
    """Refuse a local path at which there is nothing; a URL may be anything.

    Raises:
        FileNotFoundError: There is nothing at the path.
    """
    if "://" not in path and "::" not in path and not os.path.exists(path):
        raise FileNotFoundError(f"no saved tensordict at {path or repr(path)}; give the path that it was saved to")


def read(path: str, *, verify: bool = False) -> Save | None:
    """Read the entries of a save, and check the sizes of its files; None if it needs the complete readers.

    Args:
        path: The path of a folder or a file.
        verify: Whether the caller wants to know that the save is whole. The index of an archive is checked by the
            complete readers only.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return Save("tree", _folder(path))
        _check(stat.S_ISREG(mode))  # opening a pipe waits for its writer
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(9)
            if head[:2] == b"PK" and not verify:
                return Save("archive", _archive(path))
            if head[8:] == b"{":
                return Save("safetensors", _safetensors(file, size))
            return Save("consolidated", _consolidated(file, size))
    except Exception:  # whatever it is, the complete readers describe it
        return None


def _check(condition: bool) -> None:
    if not condition:
        raise _Irregular


def _entry(key: tuple[str, ...], dtype: str, shape: Any, nbytes: int, batch: list[int]) -> Entry:
    """Return a tensor whose bytes are as many as its dtype and shape imply."""
    _check(isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape))
    _check(shape[: len(batch)] == batch and prod(shape) * _ITEMSIZE[dtype] == nbytes)
    return Entry(key, dtype, shape, nbytes)


# --- folders and archives


def _folder(path: str) -> list[Entry]:
    def content(name: str) -> bytes:
        with open(os.path.join(path, name), "rb") as file:
            return file.read()

    document = content(_MANIFEST)
    manifest = json.loads(document)
    _check(manifest["tensordict_manifest"] == 1 and manifest["complete"] is True)
    _check(manifest.keys().isdisjoint(("growing", "names")))
    sizes = dict(_files(path, ""))
    for name, about in manifest["files"].items():
        _check(sizes[name] == (about[0] if isinstance(about, list) else about))
    entries = list(_node(sizes, content, "", (), []))
    _check(content(_MANIFEST) == document)  # else another process replaced the save meanwhile
    return entries


def _files(root: str, place: str) -> Iterator[tuple[str, int]]:
    with os.scandir(os.path.join(root, place)) as found:
        for one in found:
            name = f"{place}/{one.name}" if place else one.name
            _check(not one.is_symlink() and one.name != _JOURNAL and (one.name != _MANIFEST or not place))
            if one.is_dir():
                yield from _files(root, name)
            else:
                yield name, one.stat().st_size


def _archive(path: str) -> list[Entry]:
    import zipfile

    with zipfile.ZipFile(path) as archive:
        sizes = {member.filename: member.file_size for member in archive.infolist()}
        return list(_node(sizes, archive.read, "", (), []))


def _node(
    sizes: dict[str, int], content: Callable[[str], bytes], place: str, key: tuple[str, ...], batch: list[int]
) -> Iterator[Entry]:
    """Yield the entries of the node that ``meta.json`` of a folder describes."""
    prefix = f"{place}/" if place else ""
    _check(sizes[prefix + _META] < _LONGEST)
    record = json.loads(content(prefix + _META))
    cls = record["_type"]
    kind = cls.removesuffix("'>").rpartition(".")[2] if cls.startswith("<class 'tensordict.") else ""
    if kind in ("NonTensorData", "NonTensorStack"):
        _check(bool(key) and ("data" in record or prefix + "other.pickle" in sizes))
        yield Entry(key)
    elif kind == "LazyStackedTensorDict":
        for number in map(str, range(record["_count"])):
            yield from _node(sizes, content, prefix + number, (*key, number), [])
    elif "shape" in record:
        size = record["shape"]
        _check(size[: len(batch)] == batch and record.keys().isdisjoint(("_entries", "_key_order")))
        for name, about in record.items():
            if not isinstance(about, dict):
                continue
            _check(_PLAIN.fullmatch(name) is not None and not about.get("is_nested"))
            if "dtype" in about:
                nbytes = sizes.get(f"{prefix}{name}.memmap", 0)  # a tensor without elements may have no file
                yield _entry((*key, name), about["dtype"].removeprefix("torch."), about["shape"], nbytes, size)
            else:
                yield from _node(sizes, content, prefix + name, (*key, name), size)
    else:  # a tensorclass around its content
        _check(all(name.startswith("_") for name in record))
        yield from _node(sizes, content, prefix + "_tensordict", key, batch)


# --- safetensors files

_Tensors = dict[str, tuple[str, list[int], int]]


def _safetensors(file: Any, size: int) -> list[Entry]:
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    _check(length <= min(size - 8, _LONGEST))
    header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    _check("tensordict_delta" not in metadata)
    tensors: _Tensors = {}
    end = 0
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = about["data_offsets"]
        _check(begin == end)
        dtype, shape, _ = tensors[name] = _CODES[about["dtype"]], about["shape"], stop - begin
        _entry((), dtype, shape, stop - begin, [])
        end = stop
    _check(end == size - 8 - length)
    named = _by_names(tensors)
    if "tensordict" not in metadata:
        return named
    structure = json.loads(metadata["tensordict"])
    _check(structure["version"] == 1)
    used: list[str] = []
    entries = list(_described(structure["root"], (), tensors, used))
    _check(sorted(used) == sorted(tensors))
    if "tensordict_dotted" in metadata:  # the schema has no more than the names, which have its order
        _check(sorted(named) == sorted(entries))
        return named
    return entries


def _by_names(tensors: _Tensors) -> list[Entry]:
    """Return the entries of a file without a structure, whose names are split on dots."""
    root: dict[str, Any] = {}
    for name, (dtype, shape, nbytes) in tensors.items():
        *parts, last = key = tuple(name.split("."))
        _check(all(key) and len(key) < 64)
        node = root
        for part in parts:
            node = node.setdefault(part, {})
            _check(isinstance(node, dict))
        _check(last not in node)
        node[last] = Entry(key, dtype, shape, nbytes)
    return list(_flat(root))


def _flat(node: dict[str, Any]) -> Iterator[Entry]:
    for one in node.values():
        if isinstance(one, Entry):
            yield one
        else:
            yield from _flat(one)


def _described(record: Any, key: tuple[str, ...], tensors: _Tensors, used: list[str]) -> Iterator[Entry]:
    """Yield the entries of a node of the structure."""
    _check(record.keys() <= {"batch_size", "names", "keys", "class", "owner", "facts", "stack_dim", "parts"})
    if "parts" in record:
        for number, part in enumerate(record["parts"]):
            yield from _described(part, (*key, str(number)), tensors, used)
        return
    _check("stack_dim" not in record)  # elements that are stored as one node
    for name, about in record["keys"].items():
        inner = (*key, name)
        if "td" in about:
            yield from _described(about["td"], inner, tensors, used)
        elif about.keys() == {"tensor"}:
            dtype, shape, nbytes = tensors[about["tensor"]]
            used.append(about["tensor"])
            yield _entry(inner, dtype, shape, nbytes, record["batch_size"])
        else:
            _check(about.keys() == {"non_tensor"})
            yield Entry(inner)


# --- consolidated files


def _consolidated(file: Any, size: int) -> list[Entry]:
    file.seek(size - 8)
    length = int.from_bytes(file.read(8), "little")
    _check(1 < length <= min(size - 8, _LONGEST))
    file.seek(size - 8 - length)
    return list(_part(json.loads(file.read(length)), (), size - 8 - length, []))


def _part(record: Any, key: tuple[str, ...], end: int, batch: list[int]) -> Iterator[Entry]:
    fields = ("cls", "non_tensors", "leaves", "cls_metadata")
    about = record["cls_metadata"]
    inner = {name: one for name, one in record.items() if name not in fields}
    if record["cls"] == "LazyStackedTensorDict":
        _check(inner.keys() == set(map(str, range(len(inner)))) and not record["non_tensors"] and bool(inner))
        size = []
        inner = {number: inner[number] for number in map(str, range(len(inner)))}
    else:
        _check(record["cls"] == "TensorDict")
        size = about["batch_size"]
    _check(size[: len(batch)] == batch or not size)
    for name, (dtype, shape, start, stop, pad) in record["leaves"].items():
        _check(not name.startswith("<NJT_") and pad >= 0 and 0 <= start <= stop <= end)
        yield _entry((*key, name), dtype.removeprefix("torch."), shape, stop - pad - start, size)
    for name in record["non_tensors"]:
        yield Entry((*key, name))
    for name, one in inner.items():
        yield from _part(one, (*key, name), end, size)
