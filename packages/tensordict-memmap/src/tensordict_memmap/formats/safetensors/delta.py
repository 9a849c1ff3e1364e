"""Delta record: which tensors of a save a delta file holds, and which its base does. Nothing here opens a file.

A delta is a safetensors file of the tensors, or of the blocks of tensors, that differ from those of another save, its
base. The structure in its metadata is that of the whole. The record is one more text there::

    {"version": 1, "depth": 2, "base": "../step-1.safetensors", "id": "xxh3_64/4194304:...", "tensors": {
        "kept": {"checksum": "0f2c..."},
        "new": {"checksum": "0f2c...", "tensor": "new"},
        "changed": {"checksum": "0f2c...", "tensor": "changed@blocks", "blocks": [[0, 16384], [65536, 81920]]}}}

``tensors`` lists all tensors of the whole in their order, each with its checksum. Blocks are ranges of elements of the
flat tensor; the file holds them one after the other in one dimension. ``base`` is the path of the base relative to the
folder of the delta, and ``id`` identifies its content. ``depth`` is the number of deltas up to the first save.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

DELTA = "tensordict_delta"
"""The name of the record in the metadata of a file."""

MOST_DELTAS = 64
"""The most deltas on top of each other that a load follows."""

VERSION = 1

_CHECKSUM = re.compile("xxh3_64/[1-9][0-9]{0,8}:[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class DeltaTensor:
    """One tensor of the whole.

    Args:
        checksum: Its checksum in the form of `engine.checksums`; empty without bytes.
        tensor: The name of the tensor of the delta file that holds it, or its blocks; None if the base holds it.
        blocks: The ranges of elements in the file; None if the file holds the whole tensor.
    """

    checksum: str
    tensor: str | None = None
    blocks: Sequence[tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class DeltaRecord:
    """The record of a delta file.

    Args:
        base: The path of the base relative to the folder of the delta, with ``/`` between names.
        base_id: The identity of the content of the base.
        depth: The number of deltas from this one to the first save, this one included.
        tensors: All tensors of the whole, in their order.

    >>> record = DeltaRecord("base", "xxh3_64/4194304:0123456789abcdef", 1, {"a": DeltaTensor("", "a")})
    >>> DeltaRecord.loads(record.dumps(), "the file") == record
    True
    """

    base: str
    base_id: str
    depth: int
    tensors: dict[str, DeltaTensor] = field(default_factory=dict)

    def dumps(self) -> str:
        """Return the record as JSON."""
        tensors: dict[str, Any] = {}
        for name, one in self.tensors.items():
            about: dict[str, Any] = {"checksum": one.checksum}
            if one.tensor is not None:
                about["tensor"] = one.tensor
            if one.blocks is not None:
                about["blocks"] = one.blocks
            tensors[name] = about
        return orjson.dumps(
            {"version": VERSION, "depth": self.depth, "base": self.base, "id": self.base_id, "tensors": tensors}
        ).decode()

    @classmethod
    def loads(cls, text: str, where: str) -> DeltaRecord:
        """Parse and validate a record.

        Args:
            text: The JSON text.
            where: The path of the file, which errors name.

        Raises:
            ValueError: The text is not a record of this version, or a path, a range or a number in it is invalid.
        """
        try:
            record = orjson.loads(text)
            if record["version"] != VERSION:
                raise ValueError(f"its version is {record['version']!r:.40}, and {VERSION} is supported")
            depth = record["depth"]
            if type(depth) is not int or not 1 <= depth <= MOST_DELTAS:
                raise ValueError(f"the depth {depth!r:.40} is not between 1 and {MOST_DELTAS}")
            if not _CHECKSUM.fullmatch(record["id"]):
                raise ValueError(f"{record['id']!r:.100} does not identify a base")
            tensors = {name: _tensor(name, about) for name, about in record["tensors"].items()}
            return cls(_path(record["base"]), record["id"], depth, tensors)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the delta record of {where} is broken: {error}; restore the file") from None


def name_of_blocks(name: str, taken: Collection[str]) -> str:
    """Return the name of the tensor of a delta file that holds blocks of another one.

    >>> name_of_blocks("a", {"a"}), name_of_blocks("a", {"a", "a@blocks"})
    ('a@blocks', 'a@blocks~1')
    """
    made, number = f"{name}@blocks", 0
    while made in taken:
        number += 1
        made = f"{name}@blocks~{number}"
    return made


def _path(base: Any) -> str:
    # a path that starts at the root, or on another drive, would not survive a move of the folder
    if type(base) is not str or not base or base.startswith("/") or "\0" in base or ":" in base or "\\" in base:
        raise ValueError(f"{base!r:.200} is not a relative path")
    return base


def _tensor(name: str, about: Any) -> DeltaTensor:
    checksum, tensor, blocks = about["checksum"], about.get("tensor"), about.get("blocks")
    if checksum != "" and not _CHECKSUM.fullmatch(checksum):
        raise ValueError(f"tensor {name!r:.200} has the checksum {checksum!r:.100}")
    if not (tensor is None or type(tensor) is str) or (tensor is None and blocks is not None):
        raise ValueError(f"tensor {name!r:.200} refers to {tensor!r:.100}")
    if blocks is None:
        return DeltaTensor(checksum, tensor)
    position = -1
    found = []
    for start, stop in blocks:
        if type(start) is not int or type(stop) is not int or not position < start < stop:
            raise ValueError(f"tensor {name!r:.200} has the block {start!r:.40} to {stop!r:.40}")
        position = stop
        found.append((start, stop))
    return DeltaTensor(checksum, tensor, found)
