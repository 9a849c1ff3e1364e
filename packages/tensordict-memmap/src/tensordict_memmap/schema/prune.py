"""Pruning of safetensors saves: the tensors that a load needs, so that other shards are not opened.

Keys are those of the structure, or names split on dots if there is none. If a pattern names nothing or a key is
missing, everything is loaded, and the load raises the error.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tensordict_memmap.schema.node import Path
from tensordict_memmap.schema.select import Selection

__all__ = ["Choice", "Part", "part_of_names", "part_of_record"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The keys that a load asks for: a nested key, and patterns of keys below it."""

    only: Path
    selection: Selection | None

    def takes(self, key: Path) -> bool:
        """Whether a key is asked for, or lies below one that is.

        >>> choice = Choice(("a",), Selection("*.x"))
        >>> choice.takes(("a", "b", "x")), choice.takes(("a", "b", "y")), choice.takes(("b", "b", "x"))
        (True, False, False)
        """
        depth = len(self.only)
        if key[:depth] != self.only:
            return False
        return self.selection is None or (len(key) > depth and self.selection.takes(key[depth:]))

    def is_answered(self) -> bool:
        """Whether each pattern named something so far."""
        return self.selection is None or self.selection.is_answered()


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a save that a load asks for.

    Attributes:
        names: all tensors that it holds.
        taken: those that are wanted.
        root: the record of those; None where there is no record.
    """

    names: Collection[str]
    taken: Collection[str]
    root: dict[str, Any] | None = None


def part_of_names(keys: dict[str, Path], choice: Choice) -> Part | None:
    """The part of a save without a structure.

    Args:
        keys: the key of each tensor by its name.
        choice: what is asked for.

    >>> part_of_names({"a.x": ("a", "x"), "b": ("b",)}, Choice((), Selection("a"))).taken
    {'a.x'}
    """
    taken = {name for name, key in keys.items() if choice.takes(key)}
    for node in {key[:depth] for key in keys.values() for depth in range(1, len(key))}:
        choice.takes(node)  # a pattern may name a node
    return Part(keys, taken) if taken and choice.is_answered() else None


def part_of_record(root: dict[str, Any], names: Collection[str], choice: Choice) -> Part | None:
    """The part of a save with a structure.

    Args:
        root: the record of the root. What is damaged in it stays, for who reads it.
        names: all tensors.
        choice: what is asked for.

    >>> root = {"batch_size": [], "keys": {"a": {"tensor": "a"}, "b": {"tensor": "b"}}}
    >>> part_of_record(root, ["a", "b"], Choice((), Selection("b"))).root
    {'batch_size': [], 'keys': {'b': {'tensor': 'b'}}}
    """
    pruned, found = _pruned(root, (), choice)
    if not found or not choice.is_answered():
        return None
    return Part(names, _stored(pruned), pruned)


def _pruned(record: dict[str, Any], path: Path, choice: Choice) -> tuple[dict[str, Any], bool]:
    """A node of the structure with only the chosen entries, and whether there are any."""
    parts, entries = record.get("parts"), record.get("keys")
    if isinstance(parts, list):
        cut = [_pruned(part, path, choice) if isinstance(part, dict) else (part, True) for part in parts]
        return {**record, "parts": [part for part, _ in cut]}, any(found for _, found in cut)
    if not isinstance(entries, dict):
        return record, True
    kept: dict[str, Any] = {}
    for name, about in entries.items():
        key = (*path, name)
        taken = choice.takes(key)
        node = about.get("td") if isinstance(about, dict) else None
        inner, found = _pruned(node, key, choice) if isinstance(node, dict) else (node, False)
        if taken:
            kept[name] = about
        elif found:
            kept[name] = {**about, "td": inner}
    return {**record, "keys": kept}, bool(kept)


def _stored(record: dict[str, Any]) -> set[str]:
    """The names of the tensors in a structure."""
    found: set[str] = set()
    stack: list[Any] = [record]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            found.update(name for name in (one.get("tensor"), one.get("shapes")) if isinstance(name, str))
            stack.extend(one.values())
        elif isinstance(one, list):
            stack.extend(one)
    return found
