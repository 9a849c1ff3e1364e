"""Select keys and rows of a save by patterns and indices, for every format.

A pattern is a nested key whose parts may hold wildcards. A tuple is matched part by part, a string is split on ``.``
like the names of a state dict; ``*``, ``?`` and ``[...]`` match characters within one part, and the part ``**`` matches
any number of parts. A matching key is selected with everything below it. Keys are those of the loaded tensordict, so
the elements of a lazy stack and the fields of a tensorclass add no part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tensordict_memmap.schema.node import STACKED, WRAPPED, Dense, Leaf, Node, Parts, Path, nearest, show, subject

Keys = str | tuple[str, ...] | Iterable[str | tuple[str, ...]]
"""The type of ``keys=``: a pattern, or several."""

Rows = int | slice | range | Sequence[int] | torch.Tensor
"""The type of ``rows=``: an index of the first batch dimension."""

_END = "\0"


class Selection:
    """The keys that match one of several patterns.

    Args:
        keys: A pattern, or several.

    Raises:
        TypeError: A pattern is neither a string nor a tuple of strings.
        ValueError: There are no patterns, or a pattern is empty.

    >>> chosen = Selection([("encoder", "*", "weight"), "head.**.bias"])
    >>> [chosen.takes(key) for key in [("encoder", "0", "weight"), ("encoder", "0", "bias"), ("head", "bias")]]
    [True, False, True]
    """

    def __init__(self, keys: Keys) -> None:
        if isinstance(keys, str) or (isinstance(keys, tuple) and all(isinstance(part, str) for part in keys)):
            patterns: list[Any] = [keys]
        else:
            patterns = list(keys)
        if not patterns:
            raise ValueError("keys= is empty, and it requires at least one pattern; leave it out to load all keys")
        self.patterns = [_parts(one) for one in patterns]
        self._matches = [re.compile("".join(map(_expression, parts)), re.DOTALL).match for parts in self.patterns]
        self._used = [False] * len(patterns)

    def takes(self, key: Path) -> bool:
        """Return whether a pattern matches a key or one of its parents."""
        text = _END.join(key) + _END
        found = False
        for number, match in enumerate(self._matches):
            if match(text):
                self._used[number] = found = True
        return found

    def check(self, known: Iterable[Path]) -> None:
        """Refuse patterns that have matched no key so far.

        Args:
            known: The existing keys, for suggestions.

        Raises:
            KeyError: A pattern has matched no key.
        """
        for parts, used in zip(self.patterns, self._used, strict=True):
            if not used:
                near = nearest(".".join(parts), {".".join(key) for key in known})
                raise KeyError(f"the pattern {show(parts)} in keys= matches no saved key; the nearest are {near}")


def _parts(pattern: Any) -> tuple[str, ...]:
    parts = tuple(pattern.split(".")) if isinstance(pattern, str) else pattern
    if not isinstance(parts, tuple) or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"keys= takes strings and tuples of strings, not {pattern!r:.100}")
    if not parts:
        raise ValueError("the pattern () in keys= has no part; leave keys= out to load all keys")
    return parts


def _expression(part: str) -> str:
    if part == "**":
        return f"(?:[^{_END}]*{_END})*"
    out, position = "", 0
    while position < len(part):
        character = part[position]
        end = part.find("]", position + 2) if character == "[" else -1
        if character in "*?":
            out += f"[^{_END}]" + ("*" if character == "*" else "")
        elif end > 0:
            inside = part[position + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out += f"[^{_END}{inside[1:]}]" if inside[0] == "!" else f"[{inside.replace('^', chr(92) + '^')}]"
            position = end
        else:
            out += re.escape(character)
        position += 1
    return out + _END


# --- keys


def prune(node: Node, selection: Selection) -> Node:
    """Return the schema with only the selected entries and their parent nodes.

    Raises:
        KeyError: A pattern matches no key.
    """
    known: list[Path] = []

    def takes(key: Path) -> bool:
        known.append(key)
        return selection.takes(key)

    pruned = keep(node, takes)
    selection.check(known)
    assert pruned is not None
    return pruned


def keep(node: Node, takes: Callable[[Path], bool], path: Path = ()) -> Node | None:
    """Return the schema with only the entries whose keys are taken and their parent nodes; None if nothing remains.

    Args:
        node: The schema; its entries are removed in place.
        takes: Whether a key, or one of its parents, is wanted.
        path: The key of the node as the loaded tensordict has it, without the elements of lazy stacks.
    """
    if isinstance(node, Parts):
        kept = {name: keep(part, takes, path) for name, part in node.parts.items()}
        if path and not any(kept.values()):
            return None
        for name, part in kept.items():
            node.parts[name] = part if part is not None else _emptied(node.parts[name])
    elif isinstance(node, Dense):
        entries: dict[str, Any] = {}
        for name, entry in node.entries.items():
            key = (*path, name)
            taken = takes(key)
            if not isinstance(entry, Leaf):
                inner = keep(entry, takes, key)
                if inner is not None or taken:
                    entries[name] = entry
            elif taken:
                entries[name] = entry
        if path and not entries and not takes(path):
            return None
        node.entries = entries
    elif path and not takes(path):
        return None
    return node


def _emptied(node: Node) -> Node:
    """Remove all entries of an element of a stack, so that the stack keeps its length."""
    if isinstance(node, Dense):
        node.entries = {}
    elif isinstance(node, Parts):
        node.parts = {name: _emptied(part) for name, part in node.parts.items()}
    return node


class Part(NamedTuple):
    """The requested part of a schema.

    Args:
        entry: The node or the tensor.
        holder: The node itself; of a tensor, the node that holds it, with no other entry.
        place: The index to apply to what is built of it, where it is an element of tensors that are stored stacked.
    """

    entry: Node | Leaf
    holder: Node
    place: tuple[Any, ...] = ()


def part_of(node: Node, only: Path, selection: Selection | None) -> Part:
    """Return the part of a schema below a nested key, pruned to the selected entries.

    Args:
        node: The schema; entries that are not selected are removed in place.
        only: The nested key; the elements of lazy stacks have their numbers as names.
        selection: The keys to select below it; None is all.

    Raises:
        KeyError: There is no such entry, or a pattern matches no key.

    >>> a, b = (Leaf((name,), name, torch.uint8, ()) for name in "ab")
    >>> part = part_of(Dense((), "", (), entries={"a": a, "b": b}), ("b",), None)
    >>> part.entry is b, list(part.holder.entries)
    (True, ['b'])
    """
    entry: Node | Leaf = node
    holder: Node = node
    place: tuple[Any, ...] = ()
    for depth, name in enumerate(only):
        if isinstance(entry, Leaf):
            raise KeyError(f"there is nothing below key {show(entry.key)}, which is a tensor; leave {only[depth:]} out")
        holder = _content(entry)
        if isinstance(holder, Parts) and STACKED in holder.parts:
            dim, stacked = holder.facts["stack_dim"], holder.parts[STACKED]
            assert isinstance(stacked, Dense)
            count = stacked.batch_size[dim]
            if not (name.isascii() and name.isdigit() and int(name) < count):
                raise KeyError(f"{subject(holder.key)} is a lazy stack of {count} elements, none of which is {name!r}")
            entry, place = stacked, (*(slice(None),) * dim, int(name))
            continue
        table = holder.entries if isinstance(holder, Dense) else holder.parts if isinstance(holder, Parts) else {}
        if name not in table:
            where = f"under {show(holder.key)}" if holder.key else "there"
            raise KeyError(f"no entry {name!r} was saved {where}; the nearest are {nearest(name, table)}")
        entry = table[name]
    if isinstance(entry, Leaf):
        if selection is not None:
            raise KeyError(
                "keys= chooses entries of a tensordict, and subpath= leads to a tensor; leave one of them out"
            )
        assert isinstance(holder, Dense)
        return Part(entry, replace(holder, entries={only[-1]: entry}), place)
    pruned = entry if selection is None else prune(entry, selection)
    return Part(pruned, pruned, place)


def _content(node: Node) -> Node:
    """Return the node inside of tensorclasses, whose content has no key of its own."""
    while isinstance(node, Parts) and WRAPPED in node.parts:
        node = node.parts[WRAPPED]
    return node


# --- rows


def take_rows(loaded: Any, rows: Rows) -> Any:
    """Return rows of a loaded tensordict: a slice stays mapped, other rows are read into memory.

    Raises:
        ValueError: The tensordict has no batch dimension.
        IndexError: A row is out of range.

    >>> take_rows(TensorDict({"a": torch.arange(4)}, [4]), range(1, 3))["a"].tolist()
    [1, 2]
    """
    return loaded[as_index(rows, _count(loaded))]


def row_runs(loaded: Any, rows: Rows) -> list[slice]:
    """Return the slices of consecutive rows, in order.

    >>> row_runs(torch.zeros(10), [7, 2, 3, 2])
    [slice(2, 4, None), slice(7, 8, None)]
    """
    count = _count(loaded)
    index = as_index(rows, count)
    if isinstance(index, int):
        index = torch.tensor([index % count], device="cpu")
    elif isinstance(index, slice):
        index = torch.arange(count, device="cpu")[index]
    numbers = torch.unique(index)
    ends = (numbers.diff() != 1).nonzero()[:, 0] + 1
    return [slice(int(run[0]), int(run[-1]) + 1) for run in numbers.tensor_split(ends) if run.numel()]


def _count(loaded: Any) -> int:
    size = loaded.shape if isinstance(loaded, torch.Tensor) else loaded.batch_size
    if not size:
        raise ValueError(
            "rows= selects along the first batch dimension, and the save has the batch size []; leave rows= out, or "
            "load one entry with subpath="
        )
    return int(size[0])


def as_index(rows: Rows, count: int) -> int | slice | torch.Tensor:
    """Convert ``rows=`` to an index of tensors; a slice with a negative step becomes a list of row numbers.

    >>> as_index(slice(None, None, -2), 5), as_index(range(2), 5)
    (tensor([4, 2, 0]), slice(0, 2, 1))
    """
    if isinstance(rows, bool | str) or not isinstance(rows, int | slice | range | Sequence | torch.Tensor):
        raise TypeError(f"rows= takes a number, a slice, a range, a list or a tensor of numbers, not {rows!r:.100}")
    if isinstance(rows, int):
        if not -count <= rows < count:
            raise IndexError(f"row {rows} is out of range for {count} rows; pass {_range(count)}")
        return rows
    if isinstance(rows, slice):
        rows = range(*rows.indices(count))
    elif isinstance(rows, range) and rows and not -count <= min(rows) <= max(rows) < count:
        raise IndexError(f"{rows} is out of range for {count} rows; pass {_range(count)}")
    if isinstance(rows, range):
        if rows.step > 0 and (not rows or rows[0] >= 0):
            return slice(rows.start, rows.stop, rows.step) if rows else slice(0, 0)
        rows = list(rows)
    return _row_numbers(rows, count)


def _range(count: int) -> str:
    return f"numbers from {-count} to {count - 1}" if count else "an empty list or slice"


def _row_numbers(rows: Sequence[int] | torch.Tensor, count: int) -> torch.Tensor:
    """Convert a list or a tensor of row numbers, or a mask, to a tensor of row numbers from 0 on."""
    index = torch.as_tensor(rows, dtype=None if len(rows) else torch.int64, device="cpu")
    if index.dtype is torch.bool:
        if tuple(index.shape) != (count,):
            raise IndexError(f"the mask has shape {list(index.shape)}, and it requires [{count}], one element a row")
        return index.nonzero()[:, 0]
    if index.ndim != 1 or index.is_floating_point():
        raise TypeError(f"rows= takes a list of numbers, not {index.dtype} of shape {list(index.shape)}")
    index = index.to(torch.int64)  # as an index, bytes would be a mask, and narrow integers cannot hold a large count
    if index.numel() and not -count <= int(index.min()) <= int(index.max()) < count:
        raise IndexError(f"a row of {rows!r:.100} is out of range for {count} rows; pass {_range(count)}")
    return index % count
