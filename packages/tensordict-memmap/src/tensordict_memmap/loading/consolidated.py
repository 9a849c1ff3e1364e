"""Loads of consolidated files: one mapping of all leaves, described at the end of the file."""

from __future__ import annotations

import os
import stat
from functools import partial
from typing import Any

import torch

from tensordict_core.extension import annotate, gc_paused
from tensordict_memmap.engine import syscalls
from tensordict_memmap.formats.consolidated import FIELDS, Exact, end_of_leaves, parse, parse_extra
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.build import build_part
from tensordict_memmap.schema.node import Leaf
from tensordict_memmap.tensor.mapping import Mapping, open_file
from tensordict_memmap.tensor.storage import keep_mapped


def from_consolidated(filename: str | os.PathLike[str], *, mode: str = "r") -> Any:
    """Open a consolidated file, which `consolidate` wrote, without a copy.

    Args:
        filename: The file.
        mode: ``"r"`` keeps writes to tensors in this process, ``"r+"`` writes them to the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or not a consolidated file.

    >>> _ = TensorDict({"a": torch.arange(3)}).consolidate("three.bin")
    >>> from_consolidated("three.bin")["a"]
    tensor([0, 1, 2])
    """
    return load_consolidated(filename, LoadRequest(mode=mode))


def load_consolidated(filename: str | os.PathLike[str], request: LoadRequest) -> Any:
    """Open the requested part of a consolidated file, on the CPU and with all rows."""
    where = os.path.abspath(filename)
    with gc_paused():
        record, exact, mapping = _open(where, request.mode or "r")
        part = request.part_of(parse(record, exact, mapping.buffer, mapping.nbytes, where))
        device = torch.device("cpu") if _has_device(record) else None
        try:
            made = build_part(part, partial(_opened, mapping), device=device, cls=request.wrapper)
        except ValueError as error:
            error.add_note(f"while opening {where}")
            raise
    if not request.only:
        annotate(made, "consolidated", bytes_of(mapping))
    return made


def _opened(mapping: Mapping, leaf: Leaf) -> torch.Tensor:
    assert leaf.source is not None  # parsed from a mapped file
    return keep_mapped(leaf.source, mapping)


def _has_device(record: dict[str, Any]) -> bool:
    """Return whether the saved tensordict had a device; a lazy stack has the one that its elements share."""
    if "device" in record["cls_metadata"]:
        return record["cls_metadata"]["device"] is not None
    return bool(inner := [one for name, one in record.items() if name not in FIELDS]) and all(map(_has_device, inner))


def bytes_of(mapping: Mapping) -> torch.Tensor:
    """Return all bytes of a mapping as a tensor."""
    if not mapping.nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return keep_mapped(torch.frombuffer(mapping.buffer, dtype=torch.uint8), mapping)


def _open(where: str, mode: str) -> tuple[dict[str, Any], Exact, Mapping]:
    file, mode = open_file(where, mode)
    with file:
        fd = file.fileno()
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size < 8:
            raise _no_such_file(
                where, f"it has {info.st_size} bytes" if info.st_size < 8 else "it is not a regular file"
            )
        length = int.from_bytes(syscalls.read_at(fd, 8, info.st_size - 8), "little")
        size = info.st_size - 8 - length
        if size < 0:
            raise _no_such_file(where, f"its description would have {length} bytes of {info.st_size}")
        try:
            record = nontensor.loads(syscalls.read_at(fd, length, size))
        except ValueError as error:
            raise _no_such_file(where, f"its description is not JSON ({error})") from None
        end = end_of_leaves(record)
        exact: Exact = {}
        if type(end) is int and 0 <= end < size:
            try:
                exact = parse_extra(syscalls.read_at(fd, size - end, end))
            except (ValueError, KeyError, TypeError) as error:
                raise _no_such_file(where, f"the exact forms of its values are damaged ({error})") from None
        mapping = Mapping(fd, where, size, mode=mode, info=info)
    return record, exact, mapping


def _no_such_file(where: str, what: str) -> ValueError:
    return ValueError(
        f"{where} is not a consolidated file: {what}, and such a file ends with a description and its length; save it "
        "again"
    )
