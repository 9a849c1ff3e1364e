"""Layouts: the tensors that one file holds, in columns, and where the bytes of each go.

Columns, and not an object a tensor: thousands of small tensors are then looked at, placed and described by a few calls
that loop in C, which takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from math import prod
from operator import attrgetter
from typing import NamedTuple, overload

import torch

from tensordict_memmap.engine.sources import FileRange, Run, detached
from tensordict_memmap.engine.tuning import SMALL
from tensordict_memmap.formats.safetensors.header import METADATA, Form, ranks
from tensordict_memmap.schema.node import Path

__all__ = ["Keys", "Layout", "Source", "Stacked", "Tensors", "cut"]

_nbytes = attrgetter("nbytes")


@dataclass(slots=True)
class Stacked:
    """Tensors of one shape to write stacked along a dimension."""

    parts: Sequence[torch.Tensor]
    dim: int

    def pieces(self, key: object, offset: int) -> Iterator[FileRange]:
        """Where each part of them goes."""
        first = self.parts[0]
        size = prod(first.shape[self.dim :]) * first.element_size()
        rows = [part.detach().flatten(0, self.dim - 1) if self.dim else part.detach()[None] for part in self.parts]
        for number in range(len(rows[0])):
            for row in rows:
                yield FileRange(key, row[number], offset)
                offset += size


Source = torch.Tensor | Stacked


class Keys(Sequence[Path]):
    """Nested keys, each made when it is asked for: of thousands, an error names one.

    >>> keys = Keys()
    >>> keys.extend(("a", "b"), ["c", "d"])
    >>> keys[1], list(keys[:1])
    (('a', 'b', 'd'), [('a', 'b', 'c')])
    """

    __slots__ = ("_above", "_last")

    def __init__(self, above: Iterable[Path] = (), last: Iterable[str] = ()) -> None:
        self._above, self._last = list(above), list(last)

    def __len__(self) -> int:
        return len(self._last)

    @overload
    def __getitem__(self, place: int) -> Path: ...
    @overload
    def __getitem__(self, place: slice) -> Keys: ...
    def __getitem__(self, place: int | slice) -> Path | Keys:
        if isinstance(place, slice):
            return Keys(self._above[place], self._last[place])
        return (*self._above[place], self._last[place])

    def extend(self, above: Path, names: Sequence[str]) -> None:
        """Adds keys that differ in nothing but the last name."""
        self._above += [above] * len(names)
        self._last += names

    def add(self, others: Keys) -> None:
        """Adds those of another."""
        self._above += others._above
        self._last += others._last

    def at(self, places: Sequence[int]) -> Keys:
        """Those at some places, in their order."""
        return Keys([self._above[place] for place in places], [self._last[place] for place in places])


class Layout(NamedTuple):
    """Tensors in a row, without gaps.

    Args:
        names: in the order of their bytes.
        forms: what each of them is.
        ends: where the bytes of each end; those of the first start at 0.
        pieces: what to write, from offset 0 on.
        alone: offset and size of each tensor that is in no run.
    """

    names: Sequence[str]
    forms: Sequence[Form]
    ends: Sequence[int]
    pieces: list[FileRange | Run]
    alone: list[tuple[int, int]]


class Tensors:
    """The tensors of a file.

    Attributes:
        names: the number of each.
        forms: the dtype and shape that the file gives each.
        sizes: the bytes of each.
        addresses: where each lies in memory, if it lies there just as in the file and has bytes; else 0.
        sources: what each is made from.
        keys: the nested key of each.
    """

    __slots__ = ("addresses", "forms", "keys", "names", "sizes", "sources")

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.forms: list[Form] = []
        self.sizes: list[int] = []
        self.addresses: list[int] = []
        self.sources: list[Source] = []
        self.keys = Keys()

    def add(self, name: str, form: Form, address: int, source: Source, key: Path) -> None:
        """Adds one under a name that is free."""
        self.names[name] = len(self.forms)
        self.forms.append(form)
        self.sizes.append(form.nbytes)
        self.addresses.append(address)
        self.sources.append(source)
        self.keys.extend(key[:-1], key[-1:])

    def extend(
        self,
        names: Sequence[str],
        forms: Sequence[Form],
        addresses: Sequence[int],
        sources: Sequence[Source],
        keys: Keys,
    ) -> bool:
        """Adds many, or none and says so, where a name is not free or comes twice."""
        new = dict(zip(names, count(len(self.forms))))
        if len(new) != len(names) or METADATA in new or (self.names and not self.names.keys().isdisjoint(new)):
            return False
        self.names = self.names | new if self.names else new
        self.forms += forms
        self.sizes += map(_nbytes, forms)
        self.addresses += addresses
        self.sources += sources
        self.keys.add(keys)
        return True

    def hold(self) -> None:
        """Keeps the memory of the tensors as it is now, whatever they are given later."""
        for number, source in enumerate(self.sources):
            self.sources[number] = (
                Stacked(list(map(detached, source.parts)), source.dim)
                if isinstance(source, Stacked)
                else detached(source)
            )

    def is_free(self, name: str) -> bool:
        """Whether a tensor can get a name: the format does not keep it for itself, and no tensor has it."""
        return name != METADATA and name not in self.names

    def layout(self, part: range | None = None) -> Layout:
        """Puts tensors in a row, those of the widest dtypes first, so that each is aligned to its elements.

        Args:
            part: the numbers of those; None is all.
        """
        names, forms, sizes = list(self.names), self.forms, self.sizes
        addresses, sources, keys = self.addresses, self.sources, self.keys
        if part is not None:
            chosen = slice(part.start, part.stop)
            names, forms, sizes = names[chosen], forms[chosen], sizes[chosen]
            addresses, sources, keys = addresses[chosen], sources[chosen], keys[chosen]
        distinct = dict.fromkeys(forms)
        rank = ranks(distinct)
        if any(rank.values()):
            order = list(map(rank.__getitem__, forms))
            places = sorted(range(len(forms)), key=order.__getitem__)
            names, forms = [names[place] for place in places], [forms[place] for place in places]
            addresses, sources = [addresses[place] for place in places], [sources[place] for place in places]
            sizes, keys = [sizes[place] for place in places], keys.at(places)
        ends = list(accumulate(sizes))
        begins = [0, *ends[:-1]]
        if not all(form.nbytes for form in distinct):
            filled = [place for place, size in enumerate(sizes) if size]
            begins, sizes = [begins[place] for place in filled], [sizes[place] for place in filled]
            addresses, sources = [addresses[place] for place in filled], [sources[place] for place in filled]
            keys = keys.at(filled)
        return Layout(names, forms, ends, *cut(keys, sources, addresses, begins, sizes))


def cut(
    keys: Sequence[Path],
    sources: Sequence[Source],
    addresses: Sequence[int],
    begins: Sequence[int],
    sizes: Sequence[int],
) -> tuple[list[FileRange | Run], list[tuple[int, int]]]:
    """The pieces that put tensors into a file: small ones that follow one another there are one run.

    Args:
        keys: what errors call them.
        sources: what they are made from.
        addresses: where they lie in memory; 0 for those that lie there otherwise than in the file.
        begins: where they go, in ascending order.
        sizes: how many bytes each takes, none of them 0.

    Returns:
        The pieces; offset and size of each tensor that is in no run.
    """
    total = len(sizes)
    single: set[int] = set()
    if 0 in addresses or max(sizes, default=0) >= SMALL:
        single.update(n for n in range(total) if not addresses[n] or sizes[n] >= SMALL)
    cuts = {0, total, *single, *(n + 1 for n in single)}
    if total and begins[-1] + sizes[-1] - begins[0] != sum(sizes):
        cuts.update(n for n in range(1, total) if begins[n - 1] + sizes[n - 1] != begins[n])
    pieces: list[FileRange | Run] = []
    for first, last in pairwise(sorted(cuts)):
        offset = begins[first]
        if first not in single:
            pieces.append(
                Run(keys, addresses, sizes, offset, sources)
                if last - first == total
                else Run(keys[first:last], addresses[first:last], sizes[first:last], offset, sources[first:last])
            )
            continue
        key, source = keys[first], sources[first]
        named = key[0] if len(key) == 1 else key
        pieces += source.pieces(named, offset) if isinstance(source, Stacked) else [FileRange(named, source, offset)]
    return pieces, [(begins[n], sizes[n]) for n in sorted(single)]
