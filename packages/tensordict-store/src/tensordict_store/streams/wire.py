"""Wire format: a tensordict as a JSON header and the bytes of its leaves; nothing is pickled.

A message is the length of the header (8 bytes, little-endian), the header, and the leaves one behind the other, each at
a multiple of 8 bytes. A header of length 0 means that of the previous message, so messages of one structure
carry values alone. The content of a header is checked before memory is allocated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, is_non_tensor

MAX_HEADER = 1 << 26
"""The most bytes of a header."""
ALIGNMENT = 8
"""Leaves start at multiples of this number of bytes."""
_NAMES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2"
)
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split()}
Path = tuple[str, ...]


@dataclass(frozen=True)
class Structure:
    """The content of a header.

    Attributes:
        nodes: The path, batch size and names of each tensordict, the root first.
        leaves: The path, dtype and shape of each tensor.
        values: The path, batch size and value of non-tensor data, and whether it has a value for each position.
    """

    nodes: list[tuple[Path, tuple[int, ...], list[str | None] | None]]
    leaves: list[tuple[Path, torch.dtype, tuple[int, ...]]]
    values: list[tuple[Path, tuple[int, ...], Any, bool]]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the first byte of each leaf and the byte behind its last."""
        end = 0
        for _, dtype, shape in self.leaves:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + math.prod(shape) * dtype.itemsize
            yield start, end

    def nbytes(self) -> int:
        """Return the number of bytes of all leaves."""
        return max((end for _, end in self.ranges()), default=0)

    def build(self, buffer: Tensor) -> TensorDict:
        """Return the tensordict whose leaves are views of a buffer of bytes."""
        made: dict[Path, TensorDict] = {}
        for path, size, names in self.nodes:
            made[path] = TensorDict(batch_size=size, names=names)
        for (path, dtype, shape), (start, end) in zip(self.leaves, self.ranges(), strict=True):
            made[path[:-1]].set(path[-1], buffer[start:end].view(dtype).view(shape))
        for path, size, value, each in self.values:
            data = NonTensorStack.from_list(value, batch_size=size) if each else NonTensorData(value, batch_size=size)
            made[path[:-1]].set(path[-1], data)
        for path in sorted(made, key=len, reverse=True):
            if path:
                made[path[:-1]].set(path[-1], made[path])
        return made[()]


def describe(td: Any) -> tuple[bytes, list[Tensor]]:
    """Return the header of a tensordict, and its leaves on the CPU, contiguous and detached.

    Raises:
        TypeError: A leaf is not a strided tensor, or JSON cannot hold a value; the error names its key.

    >>> header, leaves = describe(TensorDict({"a": torch.zeros(2), "s": "text"}, [2]))
    >>> parse(header).build(torch.zeros(8, dtype=torch.uint8))["s"], len(leaves)
    ('text', 1)
    """
    found: dict[str, list[Any]] = {"nodes": [], "leaves": [], "values": []}
    tensors: list[Tensor] = []
    _describe(td, (), found, tensors)
    header = json.dumps(found, separators=(",", ":")).encode()
    if len(header) > MAX_HEADER:
        raise TypeError(f"the header has {len(header)} bytes, and at most {MAX_HEADER} are sent; send fewer values")
    return header, tensors


def _describe(node: Any, path: Path, found: dict[str, list[Any]], tensors: list[Tensor]) -> None:
    """Add what is in a node to the content of a header, and its tensors to a list."""
    if isinstance(node, LazyStackedTensorDict):
        node = node.densify(layout=torch.jagged)
    names = list(node.names) if any(name is not None for name in node.names) else None
    found["nodes"].append([path, list(node.batch_size), names])
    for key, value in node.items():
        here = (*path, key)
        if isinstance(value, Tensor):
            if value.is_nested or value.layout is not torch.strided or str(value.dtype)[6:] not in _DTYPES:
                raise TypeError(
                    f"key {here} is a tensor of {value.dtype} in the layout {value.layout}, which has no form in a "
                    "stream; make it dense or cast it"
                )
            found["leaves"].append([here, str(value.dtype)[6:], list(value.shape)])
            tensors.append(value.detach().cpu().resolve_conj().resolve_neg().contiguous())
        elif is_non_tensor(value):
            each = isinstance(value, NonTensorStack)
            plain = _plain(value.tolist() if each else value.data, here)
            found["values"].append([here, list(value.batch_size), plain, each])
        else:
            _describe(value, here, found, tensors)


def _plain(value: Any, path: Path) -> Any:
    """Return a value that JSON gives back as it was."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, list):
        return [_plain(item, path) for item in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _plain(item, path) for key, item in value.items()}
    raise TypeError(
        f"key {path} holds a {type(value).__name__}, and a stream carries strings, numbers, None, lists and "
        "dictionaries of them; convert it"
    )


def parse(header: bytes) -> Structure:
    """Return the content of a header.

    Raises:
        ValueError: It is no header that `describe` makes.

    >>> parse(b"[]")
    Traceback (most recent call last):
    ...
    ValueError: the header of a message is not one of this format; connect two ends of the same version
    """
    try:
        read = json.loads(header)
        nodes = [(_path(path), _size(size), names) for path, size, names in read["nodes"]]
        leaves = [(_path(path), _DTYPES[dtype], _size(shape)) for path, dtype, shape in read["leaves"]]
        values = [(_path(path), _size(size), value, bool(each)) for path, size, value, each in read["values"]]
        known = {path for path, _, _ in nodes}
        if nodes[0][0] or len(known) != len(nodes):
            raise ValueError("no root, or a node twice")
        for path in [*known - {()}, *(leaf[0] for leaf in leaves), *(value[0] for value in values)]:
            if path[:-1] not in known:
                raise ValueError("an entry of no node")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ValueError(
            "the header of a message is not one of this format; connect two ends of the same version"
        ) from error
    return Structure(nodes, leaves, values)


def _path(path: Any) -> Path:
    if not (isinstance(path, list) and all(type(name) is str for name in path)):
        raise ValueError("no path")
    return tuple(path)


def _size(size: Any) -> tuple[int, ...]:
    if not (isinstance(size, list) and all(type(n) is int and n >= 0 for n in size)):
        raise ValueError("no size")
    return tuple(size)
