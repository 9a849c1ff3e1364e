"""The measured operations: each on a tensordict, and the same on a plain dictionary of tensors.

The two functions of a row take `Operands`; the tensordict function runs on any library with the names of the reference.
The plain function is what a program without tensordicts would use: a comprehension over a flat dictionary, or a
recursive function over a nested one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

ROWS, COLUMNS, MANY = 3, 4, 8


@dataclass
class Operands:
    """A tensordict of one library, the same tensors in a dictionary, and values to write.

    Args:
        library: The library.
        leaves: The number of tensors of ``[3, 4]`` of each level.
        depth: The number of levels; each except the last also holds the next one.
    """

    library: ModuleType
    leaves: int = 10
    depth: int = 1

    def __post_init__(self) -> None:
        level: dict[str, Any] = {}
        for _ in range(self.depth):
            below = {"level": level} if level else {}
            level = {**{f"key{i}": torch.randn(ROWS, COLUMNS) for i in range(self.leaves)}, **below}
        self.source = level
        self.TensorDict = self.library.TensorDict
        self.flat = self.TensorDict(self.source, batch_size=[ROWS])
        self.other = self.flat.clone()
        self.plain_other = copy(self.source)
        self.td = self.TensorDict(self.source, batch_size=[ROWS])
        self.td["node", "leaf"] = torch.randn(ROWS, COLUMNS)
        self.many = [self.flat.clone() for _ in range(MANY)]
        self.plain_many = [copy(self.source) for _ in range(MANY)]
        self.value = torch.randn(ROWS, COLUMNS)
        self.rows = torch.tensor([0, 2])


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Args:
        name: The name in the table.
        run: The operation on tensordicts.
        plain: The same on dictionaries, if possible.
        grows: Whether the time grows with the number of leaves.
    """

    name: str
    run: Callable[[Operands], Any]
    plain: Callable[[Operands], Any] | None = None
    grows: bool = False


def nested(function: Callable[..., Any], tree: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Applies a function to every tensor of nested dictionaries, and to those of others under the same keys."""
    return {
        key: nested(function, value, *[other[key] for other in others])
        if type(value) is dict
        else function(value, *[other[key] for other in others])
        for key, value in tree.items()
    }


def copy(tree: dict[str, Any]) -> dict[str, Any]:
    """Copies a tree and its tensors."""
    return nested(torch.clone, tree)


def each(function: Callable[[torch.Tensor], Any]) -> Callable[[Operands], Any]:
    """Applies a function to every tensor of the plain dictionary."""

    def run(o: Operands) -> Any:
        if o.depth > 1:
            return nested(function, o.source)
        return {key: function(leaf) for key, leaf in o.source.items()}

    return run


def pairs(function: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[[Operands], Any]:
    """Applies a function to the tensors of two plain dictionaries under each key."""

    def run(o: Operands) -> Any:
        if o.depth > 1:
            return nested(function, o.source, o.plain_other)
        other = o.plain_other
        return {key: function(leaf, other[key]) for key, leaf in o.source.items()}

    return run


def columns(function: Callable[[list[torch.Tensor]], Any]) -> Callable[[Operands], Any]:
    """Applies a function to the tensors of eight plain dictionaries under each key."""

    def run(o: Operands) -> Any:
        if o.depth > 1:
            return nested(lambda *column: function(list(column)), *o.plain_many)
        return {key: function([d[key] for d in o.plain_many]) for key in o.source}

    return run


def plain_unbind(o: Operands) -> list[dict[str, torch.Tensor]]:
    """Unbinds a plain dictionary into its rows."""
    if o.depth > 1:
        parts = nested(lambda leaf: leaf.unbind(0), o.source)
        return [nested(lambda leaf, i=i: leaf[i], parts) for i in range(ROWS)]
    parts = {key: leaf.unbind(0) for key, leaf in o.source.items()}
    return [{key: part[i] for key, part in parts.items()} for i in range(ROWS)]


def plain_rows(o: Operands) -> dict[str, Any]:
    """Selects rows of a plain dictionary by number."""
    rows = o.rows
    return each(lambda leaf: leaf[rows])(o) if o.depth > 1 else {key: leaf[rows] for key, leaf in o.source.items()}


OPERATIONS = (
    Operation("construct", lambda o: o.TensorDict(o.source, [ROWS]), lambda o: dict(o.source), grows=True),
    Operation("get", lambda o: o.flat.get("key0"), lambda o: o.source["key0"]),
    Operation("td[key]", lambda o: o.flat["key0"], lambda o: o.source["key0"]),
    Operation("nested get", lambda o: o.td.get(("node", "leaf"))),
    Operation("td[nested key]", lambda o: o.td["node", "leaf"]),
    Operation("set", lambda o: o.flat.set("key0", o.value), lambda o: o.source.__setitem__("key0", o.value)),
    Operation("nested set", lambda o: o.td.set(("node", "leaf"), o.value)),
    Operation("td[0]", lambda o: o.flat[0], each(lambda leaf: leaf[0]), grows=True),
    Operation("td[:2]", lambda o: o.flat[:2], each(lambda leaf: leaf[:2]), grows=True),
    Operation("td[rows]", lambda o: o.flat[o.rows], plain_rows, grows=True),
    Operation("clone", lambda o: o.flat.clone(), each(torch.clone), grows=True),
    Operation("stack 8", lambda o: torch.stack(o.many), columns(torch.stack), grows=True),
    Operation("cat 8", lambda o: torch.cat(o.many), columns(torch.cat), grows=True),
    Operation("td + 1", lambda o: o.flat + 1, each(lambda leaf: leaf + 1), grows=True),
    Operation("td + td", lambda o: o.flat + o.other, pairs(lambda leaf, other: leaf + other), grows=True),
    Operation("td == td", lambda o: o.flat == o.other, pairs(lambda leaf, other: leaf == other), grows=True),
    Operation("apply(sin)", lambda o: o.flat.apply(torch.sin), each(torch.sin), grows=True),
    Operation("sin", lambda o: o.flat.sin(), each(torch.sin), grows=True),
    Operation("sum(0)", lambda o: o.flat.sum(0), each(lambda leaf: leaf.sum(0)), grows=True),
    Operation(
        "reshape",
        lambda o: o.flat.reshape(ROWS, 1),
        each(lambda leaf: leaf.reshape(ROWS, 1, COLUMNS)),
        grows=True,
    ),
    Operation("unsqueeze", lambda o: o.flat.unsqueeze(0), each(lambda leaf: leaf.unsqueeze(0)), grows=True),
    Operation("unbind", lambda o: o.flat.unbind(0), plain_unbind, grows=True),
    Operation("split", lambda o: o.flat.split(1), each(lambda leaf: leaf.split(1)), grows=True),
    Operation("to(float64)", lambda o: o.flat.to(torch.float64), each(lambda leaf: leaf.to(torch.float64)), grows=True),
    Operation("select", lambda o: o.td.select("key0", "node"), lambda o: {k: o.source[k] for k in ("key0",)}),
    Operation("exclude", lambda o: o.flat.exclude("key0")),
    Operation("update", lambda o: o.flat.update(o.source), lambda o: dict(o.source).update(o.source), grows=True),
    Operation("flatten_keys", lambda o: o.td.flatten_keys("."), grows=True),
    Operation("items", lambda o: list(o.flat.items()), lambda o: list(o.source.items())),
    Operation("lock and unlock", lambda o: o.td.lock_().unlock_(), grows=True),
)
