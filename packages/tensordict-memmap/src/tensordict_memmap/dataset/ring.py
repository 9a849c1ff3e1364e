"""Ring: the rows of a dataset of fixed capacity, in which new rows replace the oldest ones.

Row number ``p``, counted from the first row ever appended, is stored in slot ``p % slots`` of each file. The manifest
commits the number of appended rows, ``head``; the last ``capacity`` of them are valid. There are more slots than that,
so a writer writes to spare slots and never to a valid one, and committed rows remain intact if a writer is killed. A
reader compares the head after it has copied rows: rows that have left the ring meanwhile may be partly overwritten, and
raise an error.
"""

from __future__ import annotations

from typing import Any

import torch

from tensordict_memmap.dataset.row_numbers import RowReader, row_numbers
from tensordict_memmap.engine import syscalls
from tensordict_memmap.loading.open import open_folder
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.storage import ownership
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.rows_committed import Ring
from tensordict_memmap.storage.snapshot import SavedFolder

_LEAST_SPARE = 1024


def new_ring(capacity: int) -> Ring:
    """Return an empty ring with spare slots: an eighth of its capacity, but at least 1024 or as many as it holds.

    >>> new_ring(10), new_ring(100_000)
    (Ring(capacity=10, slots=20, head=0), Ring(capacity=100000, slots=112500, head=0))
    """
    if capacity < 1:
        raise ValueError(
            f"a ring has a capacity, and capacity={capacity} is less than 1; pass the number of rows to keep"
        )
    return Ring(capacity, capacity + max(min(capacity, _LEAST_SPARE), capacity // 8), 0)


class RingRows(RowReader):
    """The valid rows of a ring, oldest first.

    Args:
        root: The absolute path of the saved folder.
        slots: The tensordict of all slots, locked.
        ring: The ring as it was committed when the slots were opened, or before.
    """

    def __init__(self, root: str, slots: Any, ring: Ring) -> None:
        self.root, self.slots, self.ring = root, slots, ring
        self._seen: syscalls.Stamp | None = None

    def __len__(self) -> int:
        """Return the number of valid rows."""
        return self.ring.rows

    def refresh(self) -> None:
        """Make the rows visible that were committed since, and drop those that left the ring."""
        stamp = syscalls.stamp(f"{self.root}/{NAME}")
        if stamp != self._seen or stamp is None:
            self.ring, self._seen = latest(self.root), stamp

    def _column(self, key: str | tuple[str, ...]) -> Any:
        return self[:][key]

    def _row(self, number: int) -> Any:
        return self._checked(number, self.slots[self._slots(number)].clone())

    def _batch(self, rows: torch.Tensor) -> Any:
        batch = self.slots[self._slots(rows)]
        return self._checked(int(rows.min()), batch) if len(rows) else batch

    def __setitem__(self, index: Any, value: Any) -> None:
        """Overwrite rows in place."""
        self.slots[self._slots(row_numbers(index, len(self)))] = value

    def _slots(self, rows: Any) -> Any:
        return (rows + self.ring.first) % self.ring.slots

    def _checked(self, oldest: int, batch: Any) -> Any:
        """Return a batch if its oldest row was valid while it was copied."""
        stamp = syscalls.stamp(f"{self.root}/{NAME}")
        if stamp != self._seen or stamp is None:
            now = latest(self.root)
            if now.head == self.ring.head:
                self._seen = stamp
            gone = now.first - self.ring.first
            if oldest < gone:
                raise RuntimeError(
                    f"the {gone} oldest of the {len(self)} rows were overwritten since they were looked up, among them "
                    f"row {oldest}; call refresh() and read again"
                )
        return batch


def read_ring(folder: SavedFolder, mode: str, allow_pickle: bool | None) -> RingRows:
    """Open the slots of a folder."""
    folder.shows_slots = True
    ring = latest(folder.root)
    slots = open_folder(folder, LoadRequest(mode=mode, allow_pickle=allow_pickle))
    return RingRows(folder.root, slots.lock_(), ring)


def latest(root: str) -> Ring:
    """Return the ring as the current manifest has it."""
    growth = ownership.rows_committed(root)
    if growth is None or growth.ring is None:
        raise RuntimeError(f"{root} was replaced by another save, which is not a ring; open it again")
    return growth.ring
