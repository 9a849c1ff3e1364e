"""Header of safetensors files: writer and parser. Nothing here reads or writes a file.

A file is 8 bytes with the length of the header, little-endian; the header, which gives each tensor a dtype, a shape and
the range of its bytes; then those bytes, without holes (https://github.com/huggingface/safetensors, "Format"). A file
may come from an untrusted source: every number in the header is checked before it is used.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
import torch

from tensordict_memmap.schema.dtypes import is_possible

ENDING = ".safetensors"
INDEX_ENDING = ".safetensors.index.json"
SINGLE_NAME = "model" + ENDING
INDEX_NAME = "model" + INDEX_ENDING
"""The files in a folder of shards: the only one, or the index of several."""

SAVE_ID = "tensordict_save_id"
"""The name in the metadata of a file, and in that of an index, of the id that all files of one save share."""

METADATA = "__metadata__"
"""The name in the header that holds texts about the file, so that no tensor can have it."""

LONGEST_HEADER = 100_000_000
"""The most bytes of a header, by the specification."""

ALIGNMENT = 64
"""The alignment of the first byte of the tensors: a cache line, whatever the length of the header."""

_LARGEST = 1 << 62

_text = attrgetter("text")

CODES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
"""The names of the dtypes of the format that its own library for torch reads."""

_DTYPES = {code: (dtype, dtype.itemsize) for dtype, code in CODES.items()}
if hasattr(torch, "float8_e8m0fnu"):
    _DTYPES["F8_E8M0"] = (torch.float8_e8m0fnu, 1)


class Slot(NamedTuple):
    """A tensor in a file: name, dtype, shape, and the range of its bytes, counted from the end of the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class Kind(NamedTuple):
    """A dtype and a shape, and the bytes that they take."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header: tensors one after the other, without holes.

    Args:
        names: The names of the tensors, in the order of their bytes.
        kinds: The dtype, shape and size of each.
        metadata: The texts about the file, by key.
    """

    names: list[str]
    kinds: list[Kind]
    metadata: dict[str, str]

    def slots(self) -> Iterator[Slot]:
        """Yield the tensors and their ranges."""
        begin = 0
        for name, (dtype, shape, nbytes) in zip(self.names, self.kinds, strict=True):
            yield Slot(name, dtype, shape, begin, begin + nbytes)
            begin += nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """The part of the header that all tensors of one dtype and shape share.

    Args:
        dtype: One of `CODES`.
        shape: The shape.
        width: The bytes that each is aligned to; 0 is those of the dtype.

    >>> form = Form(torch.float16, (2, 3))
    >>> form.nbytes, form.text
    (12, '":{"dtype":"F16","shape":[2,3],"data_offsets":[')
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    width: int = 0
    nbytes: int = field(init=False)
    text: str = field(init=False)
    """The text in the header between the name of such a tensor and its offsets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", self.width or self.dtype.itemsize)
        object.__setattr__(self, "nbytes", prod(self.shape) * self.dtype.itemsize)
        about = f'{{"dtype":"{CODES[self.dtype]}","shape":{orjson.dumps(self.shape).decode()},"data_offsets":['
        object.__setattr__(self, "text", f'":{about}')


def file_order(forms: Sequence[Form]) -> list[int] | None:
    """Return the order of tensors that keeps all aligned without holes, the widest first; None if they are in it.

    >>> byte, pair = Form(torch.uint8, (3,)), Form(torch.float64, (1, 2), width=16)
    >>> file_order([byte, Form(torch.float64, (1,)), pair])
    [2, 1, 0]
    """
    found = dict.fromkeys(forms)
    kinds = sorted(dict.fromkeys((form.width, form.dtype) for form in found), key=lambda kind: -kind[0])
    numbers = {kind: number for number, kind in enumerate(kinds)}
    rank = {form: numbers[form.width, form.dtype] for form in found}
    if not any(rank.values()):
        return None
    return sorted(range(len(forms)), key=list(map(rank.__getitem__, forms)).__getitem__)


def dump_header(names: Sequence[str], forms: Sequence[Form], ends: Sequence[int], metadata: Mapping[str, str]) -> bytes:
    r"""Return the start of a file, its length included, padded with spaces so that the following bytes are aligned.

    Args:
        names: The names of the tensors, in the order of their bytes.
        forms: The dtype and shape of each.
        ends: The end of the bytes of each, which have no gaps; the first start at 0.
        metadata: The texts about the file, by key.

    Raises:
        ValueError: The header would be longer than the format allows.

    >>> dump_header(["a"], [Form(torch.uint8, (1,))], [1], {})
    b'8\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   '
    """
    start, end = orjson.dumps({METADATA: metadata} if metadata else {})[:-1], b"}"
    text = b""
    if names:
        start, end = start + (b',"' if metadata else b'"'), b"]}}"
        places = orjson.dumps(ends).decode()[1:-1].split(",")  # half the time of a text from each number
        # name, text, begin, end of one after the other: slices take less time than a text of each
        parts = [","] * (6 * len(places) - 1)
        parts[::6], parts[1::6] = escaped(names), map(_text, forms)
        parts[2::6], parts[4::6] = ["0", *places[:-1]], places
        parts[5::6] = [']},"'] * (len(places) - 1)
        text = "".join(parts).encode()
    size = len(start) + len(text) + len(end)
    padding = -(8 + size) % ALIGNMENT
    size += padding
    if size > LONGEST_HEADER:
        raise ValueError(
            f"the safetensors header has {size} bytes, and the format allows {LONGEST_HEADER}; save parts of the "
            "tensordict to separate files"
        )
    return b"".join((size.to_bytes(8, "little"), start, text, end, b" " * padding))


def escaped(names: Sequence[str]) -> Sequence[str]:
    """Return names as JSON writes them between quotation marks."""
    joined = "".join(names)
    if len(orjson.dumps(joined)) == len(joined.encode()) + 2:  # it would be longer if anything were escaped
        return names
    return [orjson.dumps(name)[1:-1].decode() for name in names]


def header_length(start: bytes, size: int, where: str) -> int:
    """Return the length of the header of a file.

    Args:
        start: The first 8 bytes.
        size: The bytes of the file.
        where: Its path, for errors.

    Raises:
        ValueError: The file is too short for its header.

    >>> header_length(bytes([2]) + bytes(7), 10, "x.safetensors")
    2
    """
    length = int.from_bytes(start[:8], "little")
    if size < 8 or length > min(LONGEST_HEADER, size - 8):
        raise ValueError(
            f"{where} is truncated or not a safetensors file: it has {size} bytes, and its first eight give a header "
            f"of {length} bytes; get it again"
        )
    return length


def load_header(text: bytes, data_size: int, where: str) -> Header:
    """Parse a header, with every field checked.

    Args:
        text: The header without its length.
        data_size: The number of bytes that follow it.
        where: The name of the file, for errors.

    Raises:
        ValueError: The header has invalid or ambiguous JSON, an unknown dtype, a shape that does not match its bytes,
            or bytes that overlap, leave holes or exceed the file.

    >>> load_header(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "x").kinds
    [Kind(dtype=torch.uint8, shape=(1,), nbytes=1)]
    """
    header = _in_usual_form(text) or _in_any_form(text, where)
    size = sum([kind.nbytes for kind in header.kinds])
    if size != data_size:
        raise ValueError(
            f"the header of {where} describes {size} bytes of tensors, and {data_size} bytes follow it; the file was "
            "cut off or changed: get it again"
        )
    return header


# --- as nearly every writer puts it: texts first, tensors in the order of their bytes, no spaces but at the end

_BETWEEN_NAMES = re.compile(
    r'":\{"dtype":"([A-Z0-9_]+","shape":\[[0-9,]*)\],"data_offsets":\[([0-9]+,[0-9]+)\]\}(?:,"|\} *\Z)'
)
"""From the quote that ends a name to the one that starts the next; it gives dtype and shape, and offsets."""


def _in_usual_form(text: bytes) -> Header | None:
    """Parse a header in the usual form; return None for any other, valid or not.

    Thousands of entries are taken apart at once. A parser would make a dictionary and two lists of each, and to make
    them, look into them and drop them takes longer than all the rest of a load.
    """
    if not text.endswith((b"}", b" ")):  # but in a quote, which starts a name that is missing
        return None
    try:
        parts = _BETWEEN_NAMES.split(text.decode())
        names, described = parts[::3], parts[1::3]
        start, _, names[0] = names[0].rpartition('"')
        if names.pop() or not _stand_for_themselves("".join(names)) or len({METADATA, *names}) <= len(names):
            return None
        metadata = _only_texts(start)
        known = {one: _kind(one) for one in set(described)}
        offsets = orjson.loads(f"[{','.join(parts[2::3])}]")
    except (KeyError, ValueError):
        return None
    kinds = [known[one] for one in described]
    ends = list(itertools.accumulate([kind[2] for kind in kinds]))
    if offsets[1::2] != ends or offsets[::2] != [0, *ends[:-1]]:
        return None
    return Header(names, kinds, metadata)


def _stand_for_themselves(names: str) -> bool:
    """Return whether no character of names would be escaped in JSON, or end one."""
    return '"' not in names and "\\" not in names and names.isprintable()


def _only_texts(start: str) -> dict[str, str]:
    """Return the texts before the first name, if nothing else is there."""
    if start == "{":
        return {}
    opening = f"{start.removesuffix(',')}}}".encode()
    record = orjson.loads(opening)
    metadata: Any = record.get(METADATA)
    # a name that occurs twice does not come out again as it went in
    if not start.endswith("},") or len(record) != 1 or not _are_texts(metadata) or orjson.dumps(record) != opening:
        raise ValueError
    return dict(metadata)


def _kind(described: str) -> Kind:
    code, _, numbers = described.partition('","shape":[')
    dtype, width = _DTYPES[code]
    shape = tuple(orjson.loads(f"[{numbers}]"))
    if not is_possible(shape, dtype):
        raise ValueError
    return Kind(dtype, shape, width * prod(shape))


# --- in any other form


def _in_any_form(text: bytes, where: str) -> Header:
    header = _parse(text, where)
    metadata = header.pop(METADATA, None) or {}
    if not _are_texts(metadata):
        raise ValueError(
            f"the metadata of {where} does not map names to strings, as in a safetensors file; get it again"
        )
    slots = sorted(_checked(header, where), key=_range)
    position = 0
    for slot in slots:
        if slot.begin != position:
            what = "overlap others" if slot.begin < position else "leave a hole before them"
            raise _bad(slot.name, where, f"the bytes {slot.begin} to {slot.end}, which {what}")
        position = slot.end
    kinds = [Kind(slot.dtype, slot.shape, slot.end - slot.begin) for slot in slots]
    return Header([slot.name for slot in slots], kinds, metadata)


def _are_texts(metadata: Any) -> bool:
    return isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())


def _checked(header: dict[str, Any], where: str) -> Iterator[Slot]:
    for name, about in header.items():
        try:
            shape = about["shape"]
            begin, end = about["data_offsets"]
            dtype, width = _DTYPES[about["dtype"]]
            if not isinstance(shape, list) or any(type(n) is not int or not 0 <= n <= _LARGEST for n in shape):
                raise _bad(name, where, f"the shape {shape!r:.100}")
        except (KeyError, TypeError):
            raise _not_known(name, about, where) from None
        except ValueError as error:
            raise (
                error if str(error).startswith("tensor ") else _bad(name, where, "its offsets are not a pair")
            ) from None
        size = width * prod(shape)
        if not is_possible(shape, dtype):
            raise _bad(name, where, f"the shape {shape!r:.100}")
        if type(begin) is not int or type(end) is not int or end - begin != size or begin < 0:
            raise _bad(
                name, where, f"the bytes {begin!r:.40} to {end!r:.40} for {size} bytes of {dtype} {shape!r:.100}"
            )
        yield Slot(name, dtype, tuple(shape), begin, end)


def _range(slot: Slot) -> tuple[int, int]:
    return slot.begin, slot.end


def _parse(text: bytes, where: str) -> dict[str, Any]:
    if text[:1] != b"{":
        raise ValueError(
            f"the header of {where} starts with {text[:10]!r} and not with a JSON object; pass a safetensors file"
        )
    try:
        header = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the safetensors header of {where} is not valid JSON: {error}; get the file again") from None
    # A parser keeps the last of two entries with one name, which does not come out again as it went in. To write is
    # quick; to read again, one pair after the other, is not.
    try:
        if orjson.dumps(header) != text.rstrip(b" "):
            json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, where))
    except (TypeError, RecursionError):  # orjson reads more levels than it writes
        raise ValueError(
            f"the header of {where} is nested deeper than names, shapes and offsets are; get the file again"
        ) from None
    return dict(header)


def _once(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError(f"a name occurs twice in the safetensors header of {where}; get the file again")
    return record


def _bad(name: str, where: str, what: str) -> ValueError:
    return ValueError(
        f"tensor {name!r:.200} of {where} has an invalid description: {what}; the file is damaged: get it again"
    )


def _not_known(name: str, about: Any, where: str) -> ValueError:
    code = about.get("dtype") if isinstance(about, dict) else None
    if isinstance(code, str) and code not in _DTYPES and re.fullmatch("[A-Z0-9_]{1,20}", code):
        return ValueError(
            f"tensors of a safetensors file have one of the dtypes {', '.join(_DTYPES)}, and {name!r:.200} of "
            f"{where} has {code}; convert it with the library that wrote it"
        )
    return _bad(name, where, f"the description {about!r:.100}")
