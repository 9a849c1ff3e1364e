"""Parser of consolidated files, in the reference's form: the bytes of all leaves, a JSON description, and its length.

The bytes of each leaf start at a multiple of 8; the last 8 bytes of the file are the length of the description. Values
that JSON would change have their exact form between the bytes and the description, where only ours looks. A file may be
anybody's, so everything in the description is checked before it is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap.schema import nontensor as values
from tensordict_memmap.schema.dtypes import dtype_from_name
from tensordict_memmap.schema.node import WRAPPED, find_class, show

__all__ = ["EXTRA_START", "FIELDS", "LENGTHS", "OFFSETS", "VALUES", "end_of_leaves", "jagged", "parse_extra", "unpack"]

VALUES, OFFSETS, LENGTHS = "<NJT_VALUES>", "<NJT_OFFSETS>", "<NJT_LENGTHS>"
"""The prefixes of the names of the parts of a jagged tensor."""

FIELDS = ("cls", "non_tensors", "leaves", "cls_metadata")
"""The fields of a description that are about the node itself: no node inside can have such a name."""

EXTRA = "tensordict_memmap"
"""The key of the list of exact forms, each with its path."""

EXTRA_START = b'{"tensordict_memmap":'
"""How the list of exact forms starts."""

_DEEPEST = 200

Exact = dict[tuple[str, ...], Any]


def unpack(record: Any, exact: Exact, buffer: Any, nbytes: int, where: str) -> Any:
    """The tensordict over the bytes of a file.

    Args:
        record: the description.
        exact: the exact forms of values, by key.
        buffer: the bytes of the leaves.
        nbytes: how many there are.
        where: the path, which errors name.

    Raises:
        ValueError: The description is damaged.
    """
    reader = _Reader(buffer, nbytes, where, exact)
    try:
        return reader.node(record, ())
    except RecursionError:
        raise reader.damaged((), "more nodes in one another than tensordicts can have") from None


def parse_extra(text: bytes) -> Exact:
    """The exact forms of values in the bytes between the leaves and the description, by key.

    Raises:
        ValueError, KeyError, TypeError: They are damaged.
    """
    if not text.startswith(EXTRA_START):
        return {}
    return {tuple(path): form for path, form in values.loads(text)[EXTRA] if isinstance(path, list)}


def jagged(flat: torch.Tensor, offsets: torch.Tensor, lengths: torch.Tensor | None, ragged: int) -> torch.Tensor:
    """A jagged tensor from its parts."""
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(flat, offsets, lengths, jagged_dim=ragged)
    return made


def _records(record: Any) -> Iterator[dict[str, Any]]:
    stack = [record]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            yield one
            stack.extend(inner for name, inner in one.items() if name not in FIELDS)


def end_of_leaves(record: Any) -> Any:
    """The offset in the file where the bytes of the leaves end."""
    stops = [0]
    for one in _records(record):
        table = one.get("leaves")
        for about in table.values() if isinstance(table, dict) else ():
            if isinstance(about, list) and len(about) > 3 and type(about[3]) is int:
                stops.append(about[3])
    return max(stops)


@dataclass
class _Reader:
    buffer: Any
    nbytes: int
    where: str
    exact: Exact

    def node(self, record: Any, key: tuple[str, ...]) -> Any:
        if not isinstance(record, dict) or not all(isinstance(record.get(name), dict) for name in FIELDS[1:]):
            raise self.damaged(key, f"the description {record!r:.100}")
        if len(key) > _DEEPEST:
            raise self.damaged(key[:3], "more nodes in one another than tensordicts can have")
        cls, about = record.get("cls"), record["cls_metadata"]
        inner = {name: self.node(one, (*key, name)) for name, one in record.items() if name not in FIELDS}
        if cls in ("LazyStackedTensorDict", "NonTensorStack"):
            return self.stack(cls, record, about, inner, key)
        size, names = about.get("batch_size"), about.get("names")
        if not isinstance(size, list) or any(type(n) is not int or not 0 <= n < 1 << 63 for n in size):
            raise self.damaged(key, f"the batch size {size!r:.100}")
        if names is not None and not (
            isinstance(names, list) and len(names) == len(size) and all(isinstance(name, str | None) for name in names)
        ):
            raise self.damaged(key, f"the dimension names {names!r:.100}")
        named = names is not None and any(name is not None for name in names)
        try:
            entries = {**self.leaves(record["leaves"], key), **self.plain_values(record["non_tensors"], key), **inner}
            made = TensorDict(entries, batch_size=size, names=names if named else None)
        except RuntimeError as error:
            raise self.damaged(key, f"entries that do not fit it ({error})") from None
        if cls == "TensorDict":
            return made
        found = find_class(cls) if isinstance(cls, str) else None
        if found is None or not hasattr(found, "_from_disk_form"):
            raise ValueError(
                f"classes are found by their registered names, and {cls!r:.100} in {self.where} is not registered "
                "here; import the module that defines it first"
            )
        return found._from_disk_form({}, {WRAPPED: made})

    def stack(
        self, cls: str, record: dict[str, Any], about: dict[str, Any], inner: dict[str, Any], key: tuple[str, ...]
    ) -> Any:
        found = {**inner, **self.plain_values(record["non_tensors"], key)}
        parts = [found.get(str(number)) for number in range(len(found))]
        dim, name = about.get("stack_dim"), about.get("stack_dim_name")
        if not parts or any(part is None for part in parts) or type(dim) is not int or not isinstance(name, str | None):
            raise self.damaged(key, f"a stack of {sorted(found)[:5]} along {dim!r:.20}")
        try:
            if cls == "LazyStackedTensorDict":
                return LazyStackedTensorDict(*parts, stack_dim=dim, stack_dim_name=name)
            return NonTensorStack(*parts, stack_dim=dim)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise self.damaged(key, f"parts that make no stack ({error})") from None

    def leaves(self, table: dict[str, Any], key: tuple[str, ...]) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for name, about in table.items():
            if name.startswith((OFFSETS, LENGTHS)):
                continue
            if not name.startswith(VALUES):
                made[name] = self.leaf(about, (*key, name))
                continue
            real = name.removeprefix(VALUES)
            try:
                offsets, lengths = table[OFFSETS + real], table.get(LENGTHS + real)
                parts = [None if one is None else self.leaf(one, (*key, real)) for one in (about, offsets, lengths)]
                ragged = offsets[5] if len(offsets) > 5 else 1
                assert parts[0] is not None and parts[1] is not None
                made[real] = self.checked_jagged(parts[0], parts[1], parts[2], ragged)
            except (KeyError, TypeError, AssertionError, RuntimeError, IndexError) as error:
                raise self.damaged((*key, real), f"parts that make no jagged tensor ({error})") from None
        return made

    @staticmethod
    def checked_jagged(
        flat: torch.Tensor, offsets: torch.Tensor, lengths: torch.Tensor | None, ragged: Any
    ) -> torch.Tensor:
        along = flat.shape[ragged - 1] if type(ragged) is int and 1 <= ragged <= flat.ndim else -1
        starts = offsets.tolist()
        rising = all(a <= b for a, b in itertools.pairwise(starts))
        if offsets.ndim != 1 or not starts or starts[0] != 0 or starts[-1] > along or not rising:
            raise RuntimeError("its offsets do not fit its values")
        return jagged(flat, offsets, lengths, ragged)

    def leaf(self, about: Any, key: tuple[str, ...]) -> torch.Tensor:
        try:
            name, shape, start, stop, pad = about[:5]
            dtype = dtype_from_name(name)
            size = dtype.itemsize
            for n in shape:
                if type(n) is not int or not 0 <= n < 1 << 62:
                    raise ValueError(f"the shape {shape!r:.100}")
                size *= n
            if not all(type(one) is int for one in (start, stop, pad)) or pad < 0 or stop - pad - start != size:
                raise ValueError(f"bytes {start!r:.30} to {stop!r:.30} for {size}")
            if not 0 <= start <= stop <= self.nbytes:
                raise ValueError(f"bytes {start} to {stop} of {self.nbytes}")
            if not size:
                return torch.empty(shape, dtype=dtype)
            if dtype is torch.complex128 and start % dtype.itemsize:  # torch's kernels would end the process
                raise ValueError(f"complex numbers of 16 bytes from byte {start} on, which is no multiple of that")
            flat = torch.frombuffer(self.buffer, dtype=dtype, count=size // dtype.itemsize, offset=start)
            return flat if len(shape) == 1 else flat.resize_(shape)
        except (ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise self.damaged(key, f"what cannot be: {error}") from None

    def plain_values(self, table: dict[str, Any], key: tuple[str, ...]) -> dict[str, Any]:
        made = {}
        for name, about in table.items():
            inner = (*key, name)
            try:
                value, size, _ = about
                form = self.exact.get(inner)
                made[name] = NonTensorData(value if form is None else values.decode(form), batch_size=size)
            except (ValueError, TypeError) as error:
                raise self.damaged(inner, f"a value that cannot be read ({error})") from None
        return made

    def damaged(self, key: tuple[str, ...], what: str) -> ValueError:
        where = f"key {show(key)}" if key else "the whole"
        return ValueError(f"the description in {self.where} gives {where} {what}; the file is damaged: save it again")
