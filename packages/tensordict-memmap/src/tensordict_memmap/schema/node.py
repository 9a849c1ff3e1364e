"""Schema nodes: the one description of a tensordict that every format writes and parses.

A schema is a tree of four kinds of records: `Leaf` (a tensor), `Dense` (a dictionary of entries), `Parts` (a lazy stack
or a tensorclass: a node made of other nodes) and `Value` (non-tensor data). `plan` makes one from a tensordict, each
format writes one as documents and parses documents back to one, and `build` makes the tensordict of one. Nothing here
reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from typing import Any

import torch

from tensordict_core.extension import find_type, type_name

WRAPPED = "_tensordict"
"""The name of the one part of a tensorclass."""

STACKED = "_stacked"
"""The name of the one part of a lazy stack whose elements are stored as one node, with their tensors stacked."""

Path = tuple[str, ...]
"""A nested key."""

_SHOWN = 20


@dataclass(slots=True)
class Stacked:
    """Tensors of one shape to write stacked along a dimension."""

    parts: Sequence[torch.Tensor]
    dim: int


@dataclass(slots=True)
class Leaf:
    """A tensor.

    Args:
        key: Its nested key.
        file: Where its format stores it: the path of a file under the saved folder, with ``/`` between folders, or the
            name of a tensor within one file.
        dtype: Its dtype.
        shape: Its shape; of a nested tensor the number of components and of their dimensions.
        source: The tensor to write, or the view of a parsed file; None where the file of the leaf is opened later.
        address: The address of its bytes in memory, if they are those that a file stores; else 0.
        layout: ``"strided"``, or ``"nested"`` and ``"jagged"`` for nested tensors.
        alias: The ``file`` of the leaf that has the same memory (tied weights).
        ragged: The dimension of a jagged tensor that differs between components.
        shapes_file: The path of the shapes of the components of a nested tensor, if its format stores them in a file.
        stacked: The tensors to write stacked in the place of one ``source``.
        unbatched: Whether the tensor is in an `UnbatchedTensor`, which need not start with the batch size.
    """

    key: Path
    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    source: torch.Tensor | None = None
    address: int = 0
    layout: str = "strided"
    alias: str | None = None
    ragged: int = 1
    shapes_file: str = ""
    unbatched: bool = False
    stacked: Stacked | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of a strided tensor."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True)
class Dense:
    """A node that is a dictionary of entries.

    Args:
        key: Its nested key.
        folder: The path of its folder, where the format has folders.
        batch_size: Its batch size.
        names: The names of its batch dimensions, if they have any.
        entries: Its entries by name.
        escaped: The stems of the entries whose files are not named as usual.
        owner: The registered name of the tensorclass that this node is the content of, where its class string lacks it.
        origin: The tensordict that it was planned from.
    """

    key: Path
    folder: str
    batch_size: tuple[int, ...]
    names: tuple[str | None, ...] | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    escaped: dict[str, str] = field(default_factory=dict)
    owner: str | None = None
    origin: Any = None
    type_name: str = "TensorDict"


@dataclass(slots=True)
class Parts:
    """A node that is made of other nodes: a lazy stack, or a tensorclass around its content.

    Args:
        key: Its nested key.
        folder: The path of its folder, where the format has folders.
        cls: Its class; None where that is not registered here.
        class_string: Its class as files name it.
        facts: Its own fields, such as the stack dimension.
        parts: The nodes that it is made of.
        origin: The tensordict that it was planned from.
    """

    key: Path
    folder: str
    cls: type[Any] | None
    class_string: str
    facts: dict[str, Any]
    parts: dict[str, Node] = field(default_factory=dict)
    origin: Any = None

    @property
    def type_name(self) -> str:
        """Its class as the description of the node that holds it names it."""
        return "" if self.cls is None else self.cls.__name__


@dataclass(slots=True)
class Value:
    """Non-tensor data: one value, or one for each position of a batch (``stack``).

    Args:
        key: Its nested key.
        folder: The path of its folder, where the format has folders.
        batch_size: Its batch size.
        stack: Whether it holds a value for each position.
        value: The value, or the nested list of values.
        files: The content of its folder, by file name.
        pickle: The path of the file that holds the value pickled, where it is still to be read.
        origin: The tensordict that it was planned from.
        metadata: Whether the single value is `MetaData`.
    """

    key: Path
    folder: str
    batch_size: tuple[int, ...]
    stack: bool = False
    value: Any = None
    files: dict[str, bytes] = field(default_factory=dict)
    pickle: str | None = None
    origin: Any = None
    metadata: bool = False

    @property
    def type_name(self) -> str:
        """Its class as the description of the node that holds it names it."""
        if self.metadata:
            return "MetaData"
        return "NonTensorStack" if self.stack else "NonTensorData"

    def content(self) -> Any:
        """Return the value, or the nested list of values, of the tensordict or of the file that the node comes from."""
        if self.origin is None:
            return self.value
        return self.origin.tolist() if self.stack else self.origin.data


Node = Dense | Parts | Value
Entry = Leaf | Node


def nearest(name: str, names: Iterable[Any]) -> str:
    """Return the names that are most like one that is missing, or the first of them, as errors list them.

    >>> nearest("wieght", ["weight", "bias"]), nearest("x", [])
    ("'weight'", 'none')
    """
    known = sorted(map(str, names))
    return ", ".join(map(repr, get_close_matches(name, known, 3) or known[:10])) or "none"


def listed(lines: Iterable[str]) -> str:
    """Return lines side by side, as errors show them; of many, the number of the last ones.

    >>> listed(["a", "b"]), listed("abcdefghijklmnopqrstuvwxyz")[-12:]
    ('a, b', 't and 6 more')
    """
    shown = list(lines)
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def show(key: Path) -> str:
    """Return a nested key as errors show it.

    >>> show(("a",)), show(("a", "b"))
    ("'a'", "('a', 'b')")
    """
    return repr(key[0]) if len(key) == 1 else repr(key)


def subject(key: Path, whole: str = "the saved object") -> str:
    """Return a nested key as the subject of an error; ``whole`` for the empty one."""
    return f"key {show(key)}" if key else whole


def plain(key: Path) -> Any:
    """Return a nested key in the form that tensordicts return: a string if it has one part."""
    return key[0] if len(key) == 1 else key


def nodes(node: Node) -> Iterator[Node]:
    """Yield the nodes of a schema, each before those below it."""
    stack: list[Node] = [node]
    while stack:
        one = stack.pop()
        yield one
        if isinstance(one, Dense):
            stack.extend(entry for entry in reversed(one.entries.values()) if not isinstance(entry, Leaf))
        elif isinstance(one, Parts):
            stack.extend(reversed(one.parts.values()))


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the leaves of a schema."""
    for one in nodes(node):
        if isinstance(one, Dense):
            for entry in one.entries.values():
                if isinstance(entry, Leaf):
                    yield entry


def are_names(found: Any, size: Sequence[int]) -> bool:
    """Return whether a value of a file holds the names of the batch dimensions of a node.

    >>> are_names(["time", None], (3, 4)), are_names(["time"], (3, 4))
    (True, False)
    """
    return isinstance(found, list) and len(found) == len(size) and all(isinstance(name, str | None) for name in found)


def outer_size(entry: Entry, dims: int) -> tuple[int, ...]:
    """Return the first ``dims`` sizes of an entry, which are those of the batch size of its node.

    A lazy stack has the sizes of its first element and the stack dimension.

    >>> outer_size(Leaf(("a",), "a", torch.uint8, (2, 3)), 1)
    (2,)
    """
    if isinstance(entry, Leaf):
        shape = entry.shape if entry.source is None else entry.source.shape
        return tuple(shape[:dims])
    if not isinstance(entry, Parts):
        return entry.batch_size[:dims]
    sizes = [outer_size(part, dims) for part in entry.parts.values()]
    if "stack_dim" not in entry.facts or not sizes or STACKED in entry.parts:
        return sizes[0] if sizes else ()
    dim = entry.facts["stack_dim"]
    return (*sizes[0][:dim], len(sizes), *sizes[0][dim:])[:dims]


# --- classes


def candidate_names(class_string: str) -> list[str]:
    """Return the registered names that a class string (``<class 'module.Class'>``) may mean, likeliest first.

    >>> candidate_names("<class 'a.b.C'>"), candidate_names("<class '__main__.C'>")
    (['a.b:C', 'a:b.C'], ['C'])
    """
    path = class_string.removeprefix("<class '").removesuffix("'>")
    if path.startswith("__main__."):
        return [path.removeprefix("__main__.")]
    parts = path.split(".")
    return [f"{'.'.join(parts[:cut])}:{'.'.join(parts[cut:])}" for cut in range(len(parts) - 1, 0, -1)]


def registered_name(node: Parts) -> str | None:
    """Return the registered name of a tensorclass, if its class string does not have it."""
    registered = None if node.cls is None else type_name(node.cls)
    return None if registered in candidate_names(node.class_string) else registered


def find_class(class_string: str, owner: str | None = None) -> type[Any] | None:
    """Return the class that a class string names; None if no wrapper of a tensordict is registered under its names.

    Args:
        class_string: The class as a file names it.
        owner: The registered name, where a file has that too.
    """
    for name in [owner] if owner is not None else candidate_names(class_string):
        found = find_type(name)
        if found is not None:
            return found if hasattr(found, "_from_disk_form") else None
    return None
