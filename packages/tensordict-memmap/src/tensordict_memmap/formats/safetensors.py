"""The safetensors format: a length, a JSON header and the bytes of all tensors. Nothing here reads or writes a file.

A file is 8 bytes with the length of the header, little-endian; the header, which gives each tensor a dtype, a shape and
the range of its bytes; then those bytes, without holes (https://github.com/huggingface/safetensors, "Format"). The
header of a file may be anybody's: every number in it is checked before it is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch

from tensordict_memmap.dtypes import is_possible

__all__ = [
    "CODES",
    "ENDING",
    "INDEX_ENDING",
    "LONGEST_HEADER",
    "METADATA",
    "Form",
    "Slot",
    "dump_header",
    "load_header",
    "order",
]

ENDING = ".safetensors"
INDEX_ENDING = ".safetensors.index.json"
METADATA = "__metadata__"
"""The name in the header that stands for text about the file, so that no tensor can have it."""

LONGEST_HEADER = 100_000_000
"""The most bytes of a header, by the specification."""

ALIGNMENT = 64
"""Where the bytes of the tensors start: at a multiple of a cache line, whatever the header's length."""

_LARGEST = 1 << 62
_COLON, _BACKSLASH, _U = b":\\u"

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
"""What the format calls the dtypes that it has and that its own library for torch reads."""

_DTYPES = {code: (dtype, dtype.itemsize) for dtype, code in CODES.items()}
if hasattr(torch, "float8_e8m0fnu"):
    _DTYPES["F8_E8M0"] = (torch.float8_e8m0fnu, 1)


class Slot(NamedTuple):
    """A tensor in a file: what it is, and the range of its bytes, counted from the end of the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def order(dtypes: Iterable[torch.dtype]) -> list[torch.dtype]:
    """The dtypes in the order that keeps every tensor aligned to its element size without holes: widest first.

    >>> order([torch.uint8, torch.float64, torch.float32])
    [torch.float64, torch.float32, torch.uint8]
    """
    return sorted(dtypes, key=lambda dtype: -dtype.itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What all tensors of one dtype and shape have in common.

    Args:
        dtype: one of `CODES`.
        shape: the shape.

    >>> form = Form(torch.float16, (2, 3))
    >>> form.nbytes, form.text
    (12, '":{"dtype":"F16","shape":[2,3],"data_offsets":[')
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int = field(init=False)
    text: str = field(init=False)
    """What is in the header between the name of such a tensor and where it begins."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", prod(self.shape) * self.dtype.itemsize)
        about = f'{{"dtype":"{CODES[self.dtype]}","shape":{orjson.dumps(self.shape).decode()},"data_offsets":['
        object.__setattr__(self, "text", f'":{about}')


def dump_header(names: Sequence[str], forms: Sequence[Form], ends: Sequence[int], metadata: Mapping[str, str]) -> bytes:
    r"""The start of a file, its length included, padded with spaces so that what follows is aligned.

    Args:
        names: of the tensors, in the order of their bytes.
        forms: what each of them is.
        ends: where the bytes of each end, counted from those of the first, which have no gaps.
        metadata: texts about the file.

    Raises:
        ValueError: The header would be longer than the format allows.

    >>> dump_header(["a"], [Form(torch.uint8, (1,))], [1], {})
    b'8\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   '
    """
    places = orjson.dumps(ends).decode()[1:-1].split(",")  # half the time of a text from each number
    entries = [
        f"{name}{form.text}{begin},{end}"
        for name, form, begin, end in zip(_escaped(names), forms, ["0", *places], places, strict=False)
    ]
    start, end = orjson.dumps({METADATA: metadata} if metadata else {})[:-1], b"}"
    if entries:
        start, end = start + (b',"' if metadata else b'"'), b"]}}"
    text = ']},"'.join(entries).encode()
    size = len(start) + len(text) + len(end)
    padding = -(8 + size) % ALIGNMENT
    size += padding
    if size > LONGEST_HEADER:
        raise ValueError(
            f"a safetensors header has at most {LONGEST_HEADER} bytes, and this one has {size}; save parts of the "
            "tensordict to files of their own"
        )
    return b"".join((size.to_bytes(8, "little"), start, text, end, b" " * padding))


def _escaped(names: Sequence[str]) -> Sequence[str]:
    """Names as JSON writes them between quotation marks."""
    joined = "".join(names)
    if len(orjson.dumps(joined)) == len(joined.encode()) + 2:  # it would be longer if anything were escaped
        return names
    return [orjson.dumps(name)[1:-1].decode() for name in names]


def load_header(text: bytes, data_size: int, where: str) -> tuple[list[Slot], dict[str, str]]:
    """Reads a header and trusts nothing in it.

    Args:
        text: the header without its length.
        data_size: how many bytes follow it.
        where: what errors call the file.

    Returns:
        The tensors in the order of their bytes, and the texts about the file.

    Raises:
        ValueError: It is no valid header: broken or ambiguous JSON, a dtype not known here, a shape that does not fit
            its bytes, bytes that overlap, leave holes or lie outside the file.

    >>> load_header(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "x")[0][0].dtype
    torch.uint8
    """
    header = _parse(text, where)
    metadata = header.pop(METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"the metadata of a safetensors file maps names to texts, and that of {where} does not")
    slots = _in_order(header, where)
    if slots is None:
        slots = sorted(_checked(header, where), key=_range)
        position = 0
        for slot in slots:
            if slot.begin != position:
                what = "overlap others" if slot.begin < position else "leave a hole before them"
                raise _bad(slot.name, where, f"the bytes {slot.begin} to {slot.end}, which {what}")
            position = slot.end
    position = slots[-1].end if slots else 0
    if position != data_size:
        raise ValueError(
            f"the header of {where} speaks of {position} bytes of tensors, and {data_size} follow it; the file was cut "
            "off or changed: get it again"
        )
    return slots, metadata


def _in_order(header: dict[str, Any], where: str) -> list[Slot] | None:
    """The tensors of a header that lists them in the order of their bytes, as most do; None of any other."""
    slots = []
    position = 0
    make, known = tuple.__new__, _DTYPES
    try:
        for name, about in header.items():
            shape = about["shape"]
            begin, end = about["data_offsets"]
            dtype, size = known[about["dtype"]]
            for n in shape:
                if type(n) is not int or n < 0 or n > _LARGEST:
                    return None
                size *= n
            following = position + size
            if begin != position or end != following or (not size and not is_possible(shape, dtype)):
                return None
            slots.append(make(Slot, (name, dtype, tuple(shape), position, following)))
            position = following
    except (KeyError, TypeError, ValueError):
        return None
    return slots


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
            raise error if str(error).startswith("tensor ") else _bad(name, where, "offsets that are no pair") from None
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
            f"a safetensors header is a JSON object, and that of {where} starts with {text[:10]!r}; it is no such file"
        )
    try:
        header = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(
            f"a safetensors header is valid JSON, and that of {where} is not: {error}; get the file again"
        ) from None
    # A parser keeps the last of two entries with one name. Counting is quick; looking again is not.
    if not _says_each_name_once(text, header):
        json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, where))
    return dict(header)


def _says_each_name_once(text: bytes, header: dict[str, Any]) -> bool:
    """Whether a header surely has no object with one name twice: as many colons as its names and texts account for.

    A name that was dropped left its colon behind. With escaped characters, or what no header has, that is not sure.
    """
    numbers = np.frombuffer(text, np.uint8)
    if ((numbers[:-1] == _BACKSLASH) & (numbers[1:] == _U)).any():  # may stand for a colon
        return False
    metadata = header.get(METADATA)
    texts = metadata if type(metadata) is dict else {}
    try:
        written = "".join([*header, *texts, *texts.values()]).encode()
        colons = sum(map(len, header.values())) + len(header)  # an entry that is no object has no length, or no fit
    except (TypeError, UnicodeEncodeError):
        return False
    colons += int(np.count_nonzero(np.frombuffer(written, np.uint8) == _COLON))
    return int(np.count_nonzero(numbers == _COLON)) == colons


def _once(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError(
            f"names occur once in a safetensors header, and one of {where} occurs twice; get the file again"
        )
    return record


def _bad(name: str, where: str, what: str) -> ValueError:
    return ValueError(f"tensor {name!r:.200} of {where} has {what}, which cannot be; the file is damaged: get it again")


def _not_known(name: str, about: Any, where: str) -> ValueError:
    code = about.get("dtype") if isinstance(about, dict) else None
    if isinstance(code, str) and code not in _DTYPES and re.fullmatch("[A-Z0-9_]{1,20}", code):
        return ValueError(
            f"tensors of a safetensors file have one of the dtypes {', '.join(_DTYPES)}, and {name!r:.200} of "
            f"{where} has {code}; convert it with the library that wrote it"
        )
    return _bad(name, where, f"the description {about!r:.100}")
