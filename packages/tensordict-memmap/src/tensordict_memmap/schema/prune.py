"""Pruning of safetensors saves: the tensors that a load needs, so that other shards are not opened.

Keys are those of the schema, or names split on dots if there is none. If a pattern matches nothing or a key is missing,
everything is loaded, and the load raises the error.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tensordict_memmap.schema.node import Dense, Leaf, Node, Path, Value, nodes
from tensordict_memmap.schema.select import Selection, keep


@dataclass(frozen=True, slots=True)
class Choice:
    """The keys that a load selects: a nested key, and patterns of keys below it."""

    only: Path
    selection: Selection | None

    def takes(self, key: Path) -> bool:
        """Return whether a key is selected, or is below a selected one.

        >>> choice = Choice(("a",), Selection("*.x"))
        >>> choice.takes(("a", "b", "x")), choice.takes(("a", "b", "y")), choice.takes(("b", "b", "x"))
        (True, False, False)
        """
        depth = len(self.only)
        if key[:depth] != self.only:
            return False
        return self.selection is None or (len(key) > depth and self.selection.takes(key[depth:]))

    def is_answered(self) -> bool:
        """Return whether each pattern has matched at least one key so far."""
        return self.selection is None or self.selection.is_answered()


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a save that a load selects.

    Attributes:
        names: The names of all tensors in the save.
        taken: The names of the selected tensors.
        schema: The schema of the selected entries; None if the save records no structure.
    """

    names: Collection[str]
    taken: Collection[str]
    schema: Node | None = None


def part_of_names(keys: dict[str, Path], choice: Choice) -> Part | None:
    """Select from a save that records no structure; None if a pattern matches nothing.

    Args:
        keys: The key of each tensor, by its name.
        choice: The keys to select.

    >>> part_of_names({"a.x": ("a", "x"), "b": ("b",)}, Choice((), Selection("a"))).taken
    {'a.x'}
    """
    taken = {name for name, key in keys.items() if choice.takes(key)}
    for node in {key[:depth] for key in keys.values() for depth in range(1, len(key))}:
        choice.takes(node)  # a pattern may name a node
    return Part(keys, taken) if taken and choice.is_answered() else None


def part_of_schema(schema: Node, names: Collection[str], choice: Choice) -> Part | None:
    """Select from a save that records its structure; None if a pattern matches nothing.

    Args:
        schema: The schema of the whole save; the chosen entries remain in it.
        names: The names of all tensors.
        choice: The keys to select.

    >>> a, b = (Leaf((name,), name, torch.uint8, ()) for name in "ab")
    >>> part_of_schema(Dense((), "", (), entries={"a": a, "b": b}), ["a", "b"], Choice((), Selection("b"))).taken
    {'b'}
    """
    kept = keep(schema, choice.takes)
    taken: set[str] = set()
    found = False
    for node in () if kept is None else nodes(kept):
        if isinstance(node, Value):
            found = True
            taken.update(() if node.pickle is None else (node.pickle,))
        elif isinstance(node, Dense):
            found = found or bool(node.entries)
            for entry in node.entries.values():
                if isinstance(entry, Leaf):
                    taken.update((entry.file, entry.shapes_file) if entry.shapes_file else (entry.file,))
    return Part(names, taken, kept) if found and choice.is_answered() else None
