"""Layout: the names and values on the server: those of the reference implementation, and a few additional ones.

A tensordict with the id ``ID`` has a string ``PREFIX:{ID}:d:PATH`` with the bytes of each tensor or the JSON of each
value, a hash ``PREFIX:{ID}:m:PATH`` with its shape and dtype, and the set ``PREFIX:{ID}:__keys__`` of all paths. Ours
has a hash ``PREFIX:{ID}:__nodes__`` too: for each node its keys in order, its batch size and its names.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tensordict_store.arrays.dtypes import check_plain

Path = tuple[str, ...]
_ESCAPES = re.compile("%(?=25|2E)")


@dataclass(frozen=True, slots=True)
class Record:
    """The metadata of one entry on the server.

    Attributes:
        dtype: The dtype of a tensor; ``None`` for a value.
        shape: The shape of a tensor; of a stack of different shapes, ``None``.
        encoding: How a value is stored: ``"json"``, ``"json_array"`` or ``"pickle"``.
        shapes: The shapes of the elements of a stack, if they differ.
        stack: The batch size of values, one for each position.
        row: The number of bytes of a row of the tensor.
        nbytes: The number of bytes of the tensor, or of all elements.
    """

    dtype: torch.dtype | None
    shape: torch.Size | None
    encoding: str = ""
    shapes: tuple[torch.Size, ...] | None = None
    stack: tuple[int, ...] | None = None
    row: int = field(init=False, compare=False, default=0)
    nbytes: int = field(init=False, compare=False, default=0)
    _like: Tensor | None = field(init=False, compare=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.dtype is not None:
            shapes, size = self.shapes if self.shape is None else (self.shape,), self.dtype.itemsize
            object.__setattr__(self, "nbytes", sum([shape.numel() for shape in shapes or ()]) * size)
            object.__setattr__(self, "row", 0 if self.shape is None else self.shape[1:].numel() * size)

    def like(self) -> Tensor:
        """Return a tensor of the shape and dtype without values."""
        if self._like is None:
            made = torch.empty(self.shape or (), dtype=self.dtype, device="meta")
            object.__setattr__(self, "_like", made)
        assert self._like is not None
        return self._like

    def fields(self) -> dict[str, str]:
        """Return the fields of the hash."""
        if self.dtype is None:
            stack = {} if self.stack is None else {"stack": json.dumps(self.stack)}
            return {"is_non_tensor": "1", "encoding": self.encoding, **stack}
        fields = {"dtype": str(self.dtype)}
        if self.shapes is not None:
            first = self.shapes[0] if self.shapes else ()
            fields |= {"homogeneous": "0", "shapes": json.dumps([list(one) for one in self.shapes]), "layout": "stack"}
            return fields | {"shape": json.dumps([len(self.shapes), *first])}
        assert self.shape is not None
        return fields | {"shape": json.dumps(list(self.shape))}


def tensor_record(key: str, value: Any) -> Record:
    """Return the record of a tensor.

    Raises:
        TypeError: The tensor has no plain form.

    >>> tensor_record("a", torch.zeros(2)).fields()
    {'dtype': 'torch.float32', 'shape': '[2]'}
    """
    check_plain(key, value, "bytes")
    return Record(value.dtype, value.shape)


def parse_record(key: str, fields: dict[bytes, bytes]) -> Record:
    """Return the record in a hash; its numbers are checked, because anybody may have written them.

    Raises:
        ValueError: The hash is damaged.

    >>> parse_record("a", {b"dtype": b"torch.float32", b"shape": b"[2]"}).shape
    torch.Size([2])
    """
    if b"is_non_tensor" in fields:
        stack = parse_size(key, fields[b"stack"]) if b"stack" in fields else None
        return Record(None, None, fields.get(b"encoding", b"json").decode(), stack=stack)
    name = fields.get(b"dtype", b"").decode()
    dtype = getattr(torch, name.removeprefix("torch."), None) if name.startswith("torch.") else None
    if not isinstance(dtype, torch.dtype) or b"shape" not in fields:
        raise ValueError(f"the metadata of {key!r} on the server are damaged: {fields!r}; store the entry again")
    if fields.get(b"homogeneous") == b"0":
        shapes = _loaded(key, fields.get(b"shapes", b""))
        if not isinstance(shapes, list):
            raise ValueError(f"the shapes of {key!r} on the server are damaged: {shapes!r}; store the entry again")
        return Record(dtype, None, shapes=tuple(_size(key, one) for one in shapes))
    return Record(dtype, parse_size(key, fields[b"shape"]))


def parse_size(key: str, text: str | bytes) -> torch.Size:
    """Return the size in a JSON list.

    Raises:
        ValueError: It is not a list of sizes.
    """
    return _size(key, _loaded(key, text))


def _loaded(key: str, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(
            f"the metadata of {key!r} on the server are damaged: {text!r}; store the entry again"
        ) from None


def _size(key: str, numbers: Any) -> torch.Size:
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 2**62 for n in numbers):
        raise ValueError(f"the shape of {key!r} on the server is damaged: {numbers!r}; store the entry again")
    return torch.Size(numbers)


def shape_of(record: Record, number: int) -> torch.Size:
    """Return the shape of one element."""
    if record.shapes is not None:
        return record.shapes[number]
    assert record.shape is not None
    return record.shape[1:]


def ends_of(record: Record, count: int) -> list[int]:
    """Return where each element starts in the value, and where the last one ends.

    >>> ends_of(Record(torch.int8, None, shapes=(torch.Size([3]), torch.Size([4]))), 2)
    [0, 3, 7]
    """
    assert record.dtype is not None
    sizes = (shape_of(record, i).numel() * record.dtype.itemsize for i in range(count))
    return [0, *itertools.accumulate(sizes)]


def join(path: Path) -> str:
    """Return the name of a nested key; a dot in a key is escaped, and a percent sign that would look like an escape.

    >>> join(("a", "b.c")), join(("50%", "%2E"))
    ('a.b%2Ec', '50%.%252E')
    """
    return ".".join(_ESCAPES.sub("%25", key).replace(".", "%2E") for key in path)


def split(name: str) -> Path:
    """Return the nested key of a name.

    >>> split("a.b%2Ec"), split("50%.%252E")
    (('a', 'b.c'), ('50%', '%2E'))
    """
    return tuple(part.replace("%2E", ".").replace("%25", "%") for part in name.split("."))


def gone(key: str, remedy: str = "store it again") -> KeyError:
    """Report that the server does not have the value of an entry any more."""
    return KeyError(
        f"the entry {key!r} is gone from the server: it was deleted, or its time to live has ended; {remedy}"
    )
