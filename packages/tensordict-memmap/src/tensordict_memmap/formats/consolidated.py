"""Parser of consolidated files, in the reference's form: the bytes of all leaves, a JSON description, and its length.

The bytes of each leaf start at a multiple of 8; the last 8 bytes of the file are the length of the description. Values
that JSON would change have their exact form between the bytes and the description, which only this package reads. A
file may come from an untrusted source, so everything in the description is checked before it is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorStack
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.dtypes import NUMPY, NUMPY_DIMS, dtype_from_name
from tensordict_memmap.schema.node import (
    WRAPPED,
    Dense,
    Leaf,
    Node,
    Parts,
    Path,
    Value,
    are_names,
    find_class,
    outer_size,
    subject,
)

VALUES, OFFSETS, LENGTHS = "<NJT_VALUES>", "<NJT_OFFSETS>", "<NJT_LENGTHS>"
"""The prefixes of the names of the parts of a jagged tensor."""

FIELDS = ("cls", "non_tensors", "leaves", "cls_metadata")
"""The fields of a description that are about the node itself: no node inside can have such a name."""

EXTRA = "tensordict_memmap"
"""The key of the list of exact forms, each with its path."""

EXTRA_START = b'{"tensordict_memmap":'
"""The beginning of the list of exact forms."""

_DEEPEST = 200

_MOST_DIMS = 64
"""The most dimensions of a tensor in torch."""

_MOST_POSITIONS = 1 << 24
"""The most positions of a stack of values, whose elements may have a batch size each."""

Exact = dict[Path, Any]


def parse(record: Any, exact: Exact, buffer: Any, nbytes: int, where: str) -> Node:
    """Parse the description of a file to a schema, whose leaves have views of the file as their ``source``.

    Args:
        record: The description.
        exact: The exact forms of values, by key.
        buffer: The bytes of all leaves.
        nbytes: The number of those.
        where: The path, which errors name.

    Raises:
        ValueError: The description is damaged.
    """
    parser = _Parser(buffer, nbytes, where, exact)
    try:
        return parser.node(record, ())
    except RecursionError:
        raise parser.damaged((), "its nodes are nested too deeply") from None


def parse_extra(text: bytes) -> Exact:
    """Return the exact forms of values in the bytes between the leaves and the description, by key.

    Raises:
        ValueError, KeyError, TypeError: They are damaged.
    """
    if not text.startswith(EXTRA_START):
        return {}
    return {tuple(path): form for path, form in nontensor.loads(text)[EXTRA] if isinstance(path, list)}


def jagged(flat: torch.Tensor, offsets: torch.Tensor, lengths: torch.Tensor | None, ragged: int) -> torch.Tensor:
    """Return a jagged tensor from its parts."""
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(flat, offsets, lengths, jagged_dim=ragged)
    return made


def _positions(node: Node) -> int:
    """Return the number of values of a stack in memory."""
    return sum(map(_positions, node.parts.values())) if isinstance(node, Parts) else prod(node.batch_size)


def _records(record: Any) -> Iterator[dict[str, Any]]:
    stack = [record]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            yield one
            stack.extend(inner for name, inner in one.items() if name not in FIELDS)


def end_of_leaves(record: Any) -> Any:
    """Return the offset in the file where the bytes of the leaves end."""
    stops = [0]
    for one in _records(record):
        table = one.get("leaves")
        for about in table.values() if isinstance(table, dict) else ():
            if isinstance(about, list) and len(about) > 3 and type(about[3]) is int:
                stops.append(about[3])
    return max(stops)


@dataclass
class _Parser:
    buffer: Any
    nbytes: int
    where: str
    exact: Exact
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)

    def node(self, record: Any, key: Path) -> Node:
        if not isinstance(record, dict) or not all(isinstance(record.get(name), dict) for name in FIELDS[1:]):
            raise self.damaged(key, f"the description {record!r:.100}")
        if len(key) > _DEEPEST:
            raise self.damaged(key[:3], "its nodes are nested too deeply")
        cls, about = record.get("cls"), record["cls_metadata"]
        values = {name: self.value(one, (*key, name)) for name, one in record["non_tensors"].items()}
        inner = {name: self.node(one, (*key, name)) for name, one in record.items() if name not in FIELDS}
        if cls in ("LazyStackedTensorDict", "NonTensorStack"):
            return self.stack(cls, about, {**inner, **values}, key)
        size = self.size(about.get("batch_size"), key)
        node = Dense(key, "", size, self.names(about.get("names"), size, key))
        node.entries = {**self.leaves(record["leaves"], key), **values, **inner}
        for entry in node.entries.values() if size else ():
            own = outer_size(entry, len(size))
            if own != size:
                raise self.damaged(entry.key, f"the shape {list(own)} does not start with the batch size {list(size)}")
        if cls == "TensorDict":
            return node
        if not isinstance(cls, str) or (found := find_class(cls)) is None:
            raise ValueError(
                f"classes are found by their registered names, and {cls!r:.100} in {self.where} is not registered "
                "here; import the module that defines it first"
            )
        return Parts(key, "", found, cls, {}, {WRAPPED: node})

    def size(self, found: Any, key: Path) -> tuple[int, ...]:
        if not isinstance(found, list) or any(type(n) is not int or not 0 <= n < 1 << 63 for n in found):
            raise self.damaged(key, f"the batch size {found!r:.100}")
        return tuple(found)

    def names(self, found: Any, size: tuple[int, ...], key: Path) -> tuple[str | None, ...] | None:
        if found is None:
            return None
        if not are_names(found, size):
            raise self.damaged(key, f"the dimension names {found!r:.100}")
        return None if all(name is None for name in found) else tuple(found)

    def stack(self, cls: str, about: dict[str, Any], found: dict[str, Node], key: Path) -> Parts:
        dim, name = about.get("stack_dim"), about.get("stack_dim_name")
        numbers = [str(number) for number in range(len(found))]
        known = type(dim) is int and abs(dim) <= _MOST_DIMS and isinstance(name, str | None)
        if not found or found.keys() != set(numbers) or not known:
            raise self.damaged(key, f"a stack of {sorted(found)[:5]} along {dim!r:.20}")
        parts = {number: found[number] for number in numbers}
        if cls == "NonTensorStack":
            positions = sum(map(_positions, parts.values()))
            if positions > _MOST_POSITIONS:  # each takes memory, and none a byte of the file
                raise self.damaged(key, f"a stack of {positions} values")
            return Parts(key, "", NonTensorStack, cls, {"stack_dim": dim}, parts)
        return Parts(key, "", LazyStackedTensorDict, cls, {"stack_dim": dim, "stack_dim_name": name}, parts)

    def leaves(self, table: dict[str, Any], key: Path) -> dict[str, Leaf]:
        made: dict[str, Leaf] = {}
        for name, about in table.items():
            if not name.startswith((VALUES, OFFSETS, LENGTHS)):
                inner = (*key, name)
                tensor = self.tensor(about, inner)
                made[name] = Leaf(inner, "", tensor.dtype, tensor.shape, tensor)
            elif name.startswith(VALUES):
                real = name.removeprefix(VALUES)
                made[real] = self.jagged(table, real, (*key, real))
        return made

    def jagged(self, table: dict[str, Any], name: str, key: Path) -> Leaf:
        try:
            about, lengths = table[OFFSETS + name], table.get(LENGTHS + name)
            flat, offsets = self.tensor(table[VALUES + name], key), self.tensor(about, key)
            ragged = about[5] if len(about) > 5 else 1
            made = self.checked_jagged(flat, offsets, None if lengths is None else self.tensor(lengths, key), ragged)
        except (KeyError, TypeError, RuntimeError, IndexError) as error:
            raise self.damaged(key, f"its parts do not form a jagged tensor ({error})") from None
        return Leaf(key, "", flat.dtype, (len(offsets) - 1, flat.ndim), made, layout="jagged", ragged=ragged)

    @staticmethod
    def checked_jagged(
        flat: torch.Tensor, offsets: torch.Tensor, lengths: torch.Tensor | None, ragged: Any
    ) -> torch.Tensor:
        along = flat.shape[ragged - 1] if type(ragged) is int and 1 <= ragged <= flat.ndim else -1
        for part in (offsets,) if lengths is None else (offsets, lengths):
            if part.ndim != 1 or part.dtype not in (torch.int64, torch.int32):
                raise RuntimeError("its offsets or lengths are not 1D tensors of integers")
        starts = offsets.tolist()
        rising = all(a <= b for a, b in itertools.pairwise(starts))
        if (
            not starts
            or starts[0] != 0
            or not rising
            or not (starts[-1] <= along if lengths is not None else starts[-1] == along)
        ):
            raise RuntimeError("its offsets do not fit its values")
        sizes = [] if lengths is None else lengths.tolist()
        fits = all(0 <= n <= b - a for n, (a, b) in zip(sizes, itertools.pairwise(starts), strict=False))
        if lengths is not None and (len(sizes) != len(starts) - 1 or not fits):
            raise RuntimeError("its lengths do not fit its offsets")
        return jagged(flat, offsets, lengths, ragged)

    def tensor(self, about: Any, key: Path) -> torch.Tensor:
        try:
            name, shape, start, stop, pad = about[:5]
            dtype = self.dtypes.get(name) or self.dtypes.setdefault(name, dtype_from_name(name))
            size = dtype.itemsize
            for n in shape:
                if type(n) is not int or not 0 <= n < 1 << 62:
                    raise ValueError(f"the shape {shape!r:.100}")
                size *= n
            if not type(start) is type(stop) is type(pad) is int or pad < 0 or stop - pad - start != size:
                raise ValueError(f"bytes {start!r:.30} to {stop!r:.30} for a tensor of {size} bytes")
            if not 0 <= start <= stop <= self.nbytes:
                raise ValueError(f"bytes {start} to {stop} of a file with {self.nbytes} bytes of tensors")
            if not size:
                return torch.empty(shape, dtype=dtype, device="cpu")
            if dtype is torch.complex128 and start % dtype.itemsize:  # torch's kernels would end the process
                raise ValueError(f"complex numbers of 16 bytes start at byte {start}, which is not a multiple of 16")
            element = NUMPY.get(dtype)
            if element is not None and len(shape) <= NUMPY_DIMS:
                return torch.from_numpy(np.ndarray(shape, element, self.buffer, start))
            flat = torch.frombuffer(self.buffer, dtype=dtype, count=size // dtype.itemsize, offset=start)
            return flat if len(shape) == 1 else flat.resize_(*shape or ((),))
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise self.damaged(key, f"{error}") from None

    def value(self, about: Any, key: Path) -> Value:
        try:
            value, size, _ = about
            form = self.exact.get(key)
            value = value if form is None else nontensor.decode(form)
        except (ValueError, TypeError) as error:
            raise self.damaged(key, f"its value cannot be read ({error})") from None
        return Value(key, "", self.size(size, key), value=value)

    def damaged(self, key: Path, what: str) -> ValueError:
        where = subject(key, "the saved tensordict")
        return ValueError(
            f"{where} in {self.where} has an invalid description: {what}; the file is damaged: save it again"
        )
