"""Sampler: batches of row numbers for several ranks and workers, which can be resumed within an epoch.

The order of an epoch is a permutation that is computed from the seed, the epoch and the position, not stored: a Feistel
network with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). It takes no memory, every
rank can compute the whole order, and a sampler can start at any position. In each step, the ranks take the next
``world_size`` batches of this order; the consumed rows are therefore always a prefix of it, and another number of ranks
can continue the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import IterableDataset, Sampler, get_worker_info

from tensordict_memmap.schema.sharded import rank_and_size

T = TypeVar("T")

_ROUNDS = 6
_FIELDS = ("rows", "seed", "epoch", "position", "batch_size", "shuffle", "chunk", "drop_last")
_ORDER = ("rows", "seed", "shuffle", "chunk")
"""The fields that the order of an epoch depends on."""


def permuted(positions: np.ndarray[Any, Any], size: int, seed: int, epoch: int) -> np.ndarray[Any, Any]:
    """Return the elements at some positions of a random permutation of ``range(size)``.

    Args:
        positions: Positions in ``range(size)``.
        size: The number of elements.
        seed: With ``epoch``, selects the permutation.
        epoch: With ``seed``, selects the permutation.

    >>> sorted(permuted(np.arange(10), 10, seed=0, epoch=0).tolist()) == list(range(10))
    True
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask, bits = np.uint64((1 << half) - 1), np.uint64(half)
    keys = _keys(seed, epoch)
    out = np.array(positions, dtype=np.uint64)
    rest = np.arange(len(out))
    values = out
    while len(rest):  # the network permutes at most 4 x size numbers; those beyond size go through it again
        left, right = values >> bits, values & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & mask)
        values = (left << bits) | right
        out[rest] = values
        beyond = values >= np.uint64(size)
        rest, values = rest[beyond], values[beyond]
    return out.astype(np.int64)


def _keys(seed: int, epoch: int) -> list[np.uint64]:
    state = np.random.SeedSequence([seed & ((1 << 64) - 1), epoch])
    return list(state.generate_state(_ROUNDS, np.uint64))


def _mixed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the finalizer of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = np.multiply(values ^ (values >> np.uint64(shift)), np.uint64(factor))
    mixed: np.ndarray[Any, Any] = values ^ (values >> np.uint64(31))
    return mixed


class RowSampler(Sampler[list[int]]):
    """Yields the batches of one rank, as lists of row numbers; a ``batch_sampler`` of a ``DataLoader``.

    Over all ranks, each epoch has each row exactly once. The order depends on the seed and the epoch only. Each full
    iteration ends an epoch, and the next one starts with another order.

    A ``DataLoader`` with workers requests batches ahead of the training loop. Iterate over ``sampler.track(loader)``
    instead of over the loader, so that the state counts the batches that the loop has received.

    Args:
        rows: The number of rows, or a dataset.
        batch_size: The number of rows of a batch.
        shuffle: Whether rows come in random order.
        seed: The seed of the order, the same on all ranks.
        rank: The rank of this process; that of ``torch.distributed`` if it is initialized, else 0.
        world_size: The number of ranks; that of ``torch.distributed`` if it is initialized, else 1.
        drop_last: Whether to drop the rows at the end of an epoch that do not fill a batch on every rank. Otherwise
            they are divided evenly among the ranks; if they are fewer than the ranks, some ranks get no last batch.
        chunk: The number of consecutive rows that stay together when rows are shuffled, which is faster for remote
            storage and disks. 1 shuffles single rows.

    Attributes:
        epoch: The number of the current epoch.
        position: The number of rows of this epoch that all ranks together have consumed.

    Raises:
        ValueError: A number is out of range.

    >>> sampler = RowSampler(10, 4, seed=0)
    >>> sorted(row for batch in sampler for row in batch)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> sampler.epoch, len(sampler)
    (1, 3)
    >>> batches = iter(sampler)
    >>> first, state = next(batches), sampler.state_dict()
    >>> other = RowSampler(10, 4, seed=0)
    >>> other.load_state_dict(state)
    >>> list(other) == list(batches)
    True
    """

    def __init__(
        self,
        rows: int | Sized,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        chunk: int = 1,
    ) -> None:
        own_rank, own_size = rank_and_size()
        rank = own_rank if rank is None else rank
        world_size = own_size if world_size is None else world_size
        self.rows = rows if isinstance(rows, int) else len(rows)
        self.batch_size, self.shuffle, self.seed, self.chunk = batch_size, shuffle, seed, chunk
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last
        self.epoch = self.position = 0
        self._tracked = False
        for name, least in (("rows", 0), ("batch_size", 1), ("world_size", 1), ("chunk", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} is less than {least}; pass a larger number")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not one of {world_size} ranks; pass 0 <= rank < world_size")

    # --- batches

    def __len__(self) -> int:
        """Return the number of batches of this rank that are left in this epoch."""
        return self._batches(self.position)

    def _batches(self, position: int) -> int:
        step = self.batch_size * self.world_size
        full, tail = divmod(self.rows - position, step)
        return full + (not self.drop_last and self._share(tail)[1] > self._share(tail)[0])

    def _share(self, tail: int) -> tuple[int, int]:
        """Return the part of this rank of the last rows of an epoch."""
        return tail * self.rank // self.world_size, tail * (self.rank + 1) // self.world_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches that are left in this epoch, then begin the next epoch."""
        if self._tracked:
            yield from self.batches()
            return
        step = self.batch_size * self.world_size
        for batch in self.batches():
            # before the batch is yielded: the state counts it once the caller has it
            self.position = min(self.position + step, self.rows)
            yield batch
        self._begin_next()

    def batches(self, first: int = 0, every: int = 1) -> Iterator[list[int]]:
        """Yield the batches that are left in this epoch, and change no state.

        Args:
            first: The number of batches of this rank to skip.
            every: Yields each batch of this number, as one of so many workers.

        >>> list(RowSampler(10, 4, shuffle=False).batches(first=1))
        [[4, 5, 6, 7], [8, 9]]
        """
        epoch, position = self.epoch, self.position
        step = self.batch_size * self.world_size
        for number in range(first, self._batches(position), every):
            start = position + number * step
            if start + step <= self.rows:
                start += self.rank * self.batch_size
                stop = start + self.batch_size
            else:
                low, high = self._share(self.rows - start)
                start, stop = start + low, start + high
            yield self._rows_at(np.arange(start, stop), epoch).tolist()

    def _rows_at(self, positions: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
        if not self.shuffle:
            return positions
        if self.chunk == 1:
            return permuted(positions, self.rows, self.seed, epoch)
        # The chunks start at a random row, so that the rows that fill no chunk are others in each epoch.
        chunks = self.rows // self.chunk
        whole = chunks * self.chunk
        out = positions.copy()
        within = positions < whole
        if chunks:
            number, row = np.divmod(positions[within], self.chunk)
            turned = (row + permuted(number, chunks, self.seed + 1, epoch)) % self.chunk
            mixed = permuted(turned, self.chunk, self.seed + 2, epoch)
            out[within] = permuted(number, chunks, self.seed, epoch) * self.chunk + mixed
        shift = int(np.random.SeedSequence([self.seed & ((1 << 64) - 1), epoch, 1]).generate_state(1)[0])
        return (out + shift) % max(self.rows, 1)

    def track(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the batches of a loader with this sampler, and count those that were yielded.

        Args:
            loader: A ``DataLoader`` with this sampler, or with a `RowStream` of it.

        >>> sampler = RowSampler(10, 4, shuffle=False)
        >>> loader = torch.utils.data.DataLoader(range(10), batch_sampler=sampler, collate_fn=list)
        >>> for batch in sampler.track(loader):
        ...     break
        >>> batch, sampler.position
        ([0, 1, 2, 3], 4)
        """
        step = self.batch_size * self.world_size
        self._tracked = True
        try:
            for batch in loader:
                self.position = min(self.position + step, self.rows)
                yield batch
            self._begin_next()
        finally:
            self._tracked = False

    def _begin_next(self) -> None:
        self.epoch, self.position = self.epoch + 1, 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch.

        >>> sampler = RowSampler(10, 4)
        >>> sampler.set_epoch(3)
        >>> sampler.epoch, sampler.position
        (3, 0)
        """
        self.epoch, self.position = epoch, 0

    # --- state

    def state_dict(self) -> dict[str, int | bool]:
        """Return the state: plain numbers, the same on all ranks after the same number of batches.

        >>> RowSampler(100, 10, seed=3).state_dict()["seed"]
        3
        """
        return {name: getattr(self, name) for name in _FIELDS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a sampler was, on the same or another number of ranks.

        Args:
            state: The state from :meth:`state_dict`.

        Raises:
            ValueError: The state is of another order (rows, seed, shuffling), or is incomplete.

        >>> sampler = RowSampler(10, 4, shuffle=False)
        >>> sampler.load_state_dict(sampler.state_dict() | {"epoch": 2, "position": 8})
        >>> sampler.epoch, list(sampler)
        (2, [[8, 9]])
        """
        missing = [name for name in _FIELDS if name not in state]
        if missing:
            raise ValueError(f"the state lacks the field {missing[0]!r}; pass what state_dict() of a sampler returned")
        for name in _ORDER:
            if int(state[name]) != int(getattr(self, name)):
                raise ValueError(
                    f"the state is of a sampler with {name}={state[name]!r}, and this one has "
                    f"{name}={getattr(self, name)!r}, which orders the rest of the epoch differently; make the sampler "
                    "with the same arguments"
                )
        position, epoch = int(state["position"]), int(state["epoch"])
        if not 0 <= position <= self.rows or epoch < 0:
            raise ValueError(f"position {position} of epoch {epoch} is not one of {self.rows} rows; pass another state")
        self.epoch, self.position = epoch, position


class RowStream(IterableDataset[Any]):
    """The batches of a sampler, read in the workers of a ``DataLoader``.

    Each worker reads its share of the batches, and the loader returns them in the order of the sampler. Pass
    ``batch_size=None`` to the loader, and a ``collate_fn`` that returns the batch unchanged.

    Args:
        dataset: A dataset with ``__getitems__``, such as a `MemmapDataset`.
        sampler: The sampler of this rank. Iterate over ``sampler.track(loader)``.

    >>> import torch
    >>> from tensordict_core import TensorDict
    >>> td = TensorDict({"x": torch.arange(10)}, [10])
    >>> sampler = RowSampler(td, 4, shuffle=False)
    >>> loader = torch.utils.data.DataLoader(RowStream(td, sampler), batch_size=None, collate_fn=lambda batch: batch)
    >>> [batch["x"].tolist() for batch in sampler.track(loader)]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(self, dataset: Any, sampler: RowSampler) -> None:
        self.dataset, self.sampler = dataset, sampler

    def __len__(self) -> int:
        """Return the number of batches that are left."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this worker."""
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for rows in self.sampler.batches(first, every):
            yield self.dataset.__getitems__(rows)
