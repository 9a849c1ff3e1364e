"""The operations that are timed: each on a tensordict, and the same on a plain dictionary of tensors.

A row's two functions take what `Operands` holds; the tensordict one runs on any library that has the names of the
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch


@dataclass
class Operands:
    """A tensordict of one library, the same tensors in a dictionary, and values to write."""

    library: ModuleType
    leaves: int = 10
    depth: int = 1

    def __post_init__(self) -> None:
        self.source: dict[str, Any] = {f"key{i}": torch.randn(3, 4) for i in range(self.leaves)}
        nested: Any = self.source
        for level in range(self.depth - 1):
            nested = {**self.source, f"level{level}": nested} if level == 0 else {f"level{level}": nested}
        self.TensorDict = self.library.TensorDict
        self.td = self.TensorDict(nested, batch_size=[3])
        self.td["node", "leaf"] = torch.randn(3, 4)
        self.flat = self.TensorDict(self.source, batch_size=[3])
        self.many = [self.flat.clone() for _ in range(8)]
        self.plain_many = [dict(self.source) for _ in range(8)]
        self.value = torch.randn(3, 4)
        self.rows = torch.tensor([0, 2])


@dataclass(frozen=True)
class Operation:
    """One row of the table."""

    name: str
    run: Callable[[Operands], Any]
    plain: Callable[[Operands], Any] | None = None


def each(function: Callable[[torch.Tensor], Any]) -> Callable[[Operands], Any]:
    """The function on every tensor of the plain dictionary."""
    return lambda o: {key: function(leaf) for key, leaf in o.source.items()}


def columns(function: Callable[[list[torch.Tensor]], Any]) -> Callable[[Operands], Any]:
    """The function on the tensors of one key of eight plain dictionaries."""
    return lambda o: {key: function([d[key] for d in o.plain_many]) for key in o.source}


def plain_unbind(o: Operands) -> list[dict[str, torch.Tensor]]:
    """The rows of a plain dictionary."""
    parts = {key: leaf.unbind(0) for key, leaf in o.source.items()}
    return [{key: part[i] for key, part in parts.items()} for i in range(3)]


OPERATIONS = (
    Operation("construct", lambda o: o.TensorDict(o.source, [3]), lambda o: dict(o.source)),
    Operation("get", lambda o: o.flat.get("key1"), lambda o: o.source["key1"]),
    Operation("td[key]", lambda o: o.flat["key1"], lambda o: o.source["key1"]),
    Operation("nested get", lambda o: o.td.get(("node", "leaf"))),
    Operation("set", lambda o: o.flat.set("key1", o.value), lambda o: o.source.__setitem__("key1", o.value)),
    Operation("nested set", lambda o: o.td.set(("node", "leaf"), o.value)),
    Operation("td[0]", lambda o: o.flat[0], each(lambda leaf: leaf[0])),
    Operation("td[:2]", lambda o: o.flat[:2], each(lambda leaf: leaf[:2])),
    Operation("td[rows]", lambda o: o.flat[o.rows], lambda o: {k: leaf[o.rows] for k, leaf in o.source.items()}),
    Operation("clone", lambda o: o.flat.clone(), each(torch.clone)),
    Operation("stack 8", lambda o: torch.stack(o.many), columns(torch.stack)),
    Operation("cat 8", lambda o: torch.cat(o.many), columns(torch.cat)),
    Operation("td + 1", lambda o: o.flat + 1, each(lambda leaf: leaf + 1)),
    Operation("td + td", lambda o: o.flat + o.flat, each(lambda leaf: leaf + leaf)),
    Operation("td == td", lambda o: o.flat == o.flat, each(lambda leaf: leaf == leaf)),
    Operation("apply(sin)", lambda o: o.flat.apply(torch.sin), each(torch.sin)),
    Operation("sum(0)", lambda o: o.flat.sum(0), each(lambda leaf: leaf.sum(0))),
    Operation("reshape", lambda o: o.flat.reshape(3, 1), each(lambda leaf: leaf.reshape(3, 1, 4))),
    Operation("unsqueeze", lambda o: o.flat.unsqueeze(0), each(lambda leaf: leaf.unsqueeze(0))),
    Operation("unbind", lambda o: o.flat.unbind(0), plain_unbind),
    Operation("split", lambda o: o.flat.split(1), each(lambda leaf: leaf.split(1))),
    Operation("to(float64)", lambda o: o.flat.to(torch.float64), each(lambda leaf: leaf.to(torch.float64))),
    Operation("select", lambda o: o.flat.select("key1", "key2"), lambda o: {k: o.source[k] for k in ("key1", "key2")}),
    Operation("exclude", lambda o: o.flat.exclude("key1")),
    Operation("update", lambda o: o.flat.update(o.source), lambda o: dict(o.source).update(o.source)),
    Operation("flatten_keys", lambda o: o.td.flatten_keys(".")),
    Operation("items", lambda o: list(o.flat.items()), lambda o: list(o.source.items())),
    Operation("lock and unlock", lambda o: o.td.lock_().unlock_()),
)
