"""Block cache: local sparse copies of remote files, of which only the blocks that were read take disk space.

A copy has the size and the offsets of the remote file, so it is mapped and read like a local file when the blocks that
a read needs are present. One byte for each block, in a file that all processes map, is its state: 0 absent, 1 present,
2 read since the last search for blocks to remove (the clock algorithm). Blocks beyond the limit are removed by punching
holes. Processes share the cache: a reader holds a shared file lock while it copies rows, and blocks are removed under
an exclusive one. Both end with their process. Behind the states is the number of removals: until it changes, rows whose
blocks were present need no further look at the states.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.syscalls import fcntl
from tensordict_memmap.remote.store import Store

T = TypeVar("T")

_BLOCK_BITS = 16
BLOCK_BYTES = 1 << _BLOCK_BITS
"""The size of a block: reading less from an object store takes no less time."""

_MOST_REQUEST_BLOCKS = 128
_MOST_ATTEMPTS = 100
_ABSENT, _PRESENT, _READ = 0, 1, 2


class CachedFile(NamedTuple):
    """A file of a cache: its path in the local folder, its path in the store, and its size in bytes."""

    path: str
    remote: str
    size: int


class Spans(NamedTuple):
    """Byte ranges of one file, given by its number; none is empty."""

    file: int
    starts: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]


_attaching = threading.Lock()


def _forget_after_fork() -> None:
    global _attaching
    _attaching = threading.Lock()  # a thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


class BlockCache:
    """Sparse copies of the files of a store.

    Args:
        folder: The local folder, in which the copies exist with their full sizes.
        control: The path of the file with the states of the blocks; the lock file is beside it.
        files: The files.
        limit: The number of bytes that the blocks may take.
        connect: A function that makes the store; called again in each process.
        check: A function that is called after blocks were read from the store, with the remote paths that were read;
            raises an error if these files were replaced.
    """

    def __init__(
        self,
        folder: str,
        control: str,
        files: Sequence[CachedFile],
        limit: int,
        connect: Callable[[], Store],
        check: Callable[[Store, set[str]], None],
    ) -> None:
        self.folder, self.control, self.files, self.limit = folder, control, list(files), limit
        self._connect, self._check = connect, check
        counts = [-(-file.size // BLOCK_BYTES) for file in files]
        self._first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        total = int(self._first[-1])
        self.most_blocks = limit // BLOCK_BYTES
        self.is_bounded = total > self.most_blocks
        """Whether blocks may have to be removed."""
        counter = -(-total // 8) * 8
        self._make_control(counter + 8)
        self._removals = np.asarray(np.memmap(control, np.int64, "r+", shape=(1,), offset=counter))
        states = np.memmap(control, np.uint8, "r+", shape=(total,)) if total else np.zeros(0, np.uint8)
        self.states: np.ndarray[Any, Any] = np.asarray(states)
        self._states_of = [self.states[first:end] for first, end in pairwise(self._first.tolist())]
        # if nothing is removed, readers need no lock, as the bytes of a block are written before it counts
        self._locks = self.is_bounded and fcntl is not None
        self._complete = [self._is_complete(file) for file in range(len(self.files))]
        self.expect_rows(0, [])
        self._random = np.random.default_rng()
        self._pid = -1

    def _make_control(self, total: int) -> None:
        with contextlib.suppress(FileExistsError):
            Descriptor(os.open, self.control, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600).close()
        if os.path.getsize(self.control) < total:
            os.truncate(self.control, total)

    @property
    def is_complete(self) -> bool:
        """Whether all blocks are present, and stay."""
        return all(self._complete)

    def _is_complete(self, file: int) -> bool:
        """Return whether all blocks of a file are present, and stay."""
        return not self.is_bounded and bool(self.states[self._first[file] : self._first[file + 1]].all())

    @property
    def present_bytes(self) -> int:
        """The number of bytes of the blocks that are present."""
        return int(np.count_nonzero(self.states)) * BLOCK_BYTES

    # --- reading

    def fits(self, spans: Sequence[Spans]) -> bool:
        """Return whether all blocks of some spans can be present at once."""
        return not self.is_bounded or len(self._blocks(spans)) <= self.most_blocks

    def read(self, spans: Sequence[Spans], copy: Callable[[], T]) -> T:
        """Return the result of ``copy``, called while all blocks of some spans are present.

        Args:
            spans: The byte ranges that ``copy`` reads; they must fit.
            copy: A function that copies them from the local files.

        Raises:
            FileNotFoundError: A file was removed from the store.
            ValueError: A file of the store was truncated.
            OSError: The local disk is full, or a process removes blocks faster than they are read.
        """
        self._attach()
        for _ in range(_MOST_ATTEMPTS):
            with self._locked(exclusive=False):
                if self._are_present(spans):
                    return copy()
            blocks = self._blocks(spans)
            found = self._fetch(blocks[self.states[blocks] == _ABSENT])
            with self._locked(exclusive=True):
                self._insert(found, blocks)
                if self._are_present(spans):
                    return copy()
        raise OSError(f"other processes remove the blocks of {self.folder} while they are read; use a larger cache")

    def expect_rows(self, count: int, columns: Sequence[tuple[int, int]]) -> None:
        """Prepare `read_present`.

        Args:
            count: The number of rows.
            columns: The number of the file of each column, and the number of bytes of its rows, at most a block.
        """
        self._columns, self._rows = list(columns), count
        # rows are looked up in groups, of which no column has more bytes than a block
        widest = max((width for _, width in columns), default=BLOCK_BYTES)
        self._group_bits = max((BLOCK_BYTES // widest).bit_length() - 1, 0)
        # twice as many as there are, so that negative row numbers find a zero
        self._known = np.zeros(2 * -(-count >> self._group_bits), np.uint8)
        self._removals_seen = -1

    def read_present(self, rows: np.ndarray[Any, Any], copy: Callable[[], T]) -> T | None:
        """Return the result of ``copy`` if all blocks of some rows are present, else None; the fast path of `read`.

        Args:
            rows: The numbers of the rows.
            copy: A function that copies these rows from the local files.
        """
        self._attach()
        if not self._locks:
            return copy() if self._has_rows(rows) else None
        with self._mutex:  # without the context manager of the lock, which takes as long as the lock
            fcntl.flock(self._lock.fileno(), fcntl.LOCK_SH)
            try:
                return copy() if self._has_rows(rows) else None
            finally:
                fcntl.flock(self._lock.fileno(), fcntl.LOCK_UN)

    def _has_rows(self, rows: np.ndarray[Any, Any]) -> bool:
        """Return whether the blocks of some rows are present; they are marked as read then."""
        removals = self._removals.item(0)
        if removals != self._removals_seen:
            self._known[:] = 0
            self._removals_seen = removals
        groups = rows >> self._group_bits
        try:
            if b"\x00" not in self._known.take(groups).tobytes():  # which is searched faster than an array
                return True
        except IndexError:
            return False
        if rows.min() < 0 or rows.max() >= self._rows:
            return False
        for file, width in self._columns:
            if not self._complete[file]:
                states, starts = self._states_of[file], rows * width
                if not _touch(states, starts >> _BLOCK_BITS):
                    return False
                if BLOCK_BYTES % width and not _touch(states, (starts + (width - 1)) >> _BLOCK_BITS):
                    return False
        self._learn(np.unique(groups))
        return True

    def _learn(self, groups: np.ndarray[Any, Any]) -> None:
        """Record of which groups of rows all blocks are present; they count as read."""
        known = np.ones(len(groups), bool)
        ends = []
        for file, width in self._columns:
            first = (groups << self._group_bits) * width
            last = np.minimum(((groups + 1) << self._group_bits) * width, self.files[file].size) - 1
            ends.append((self._states_of[file], first >> _BLOCK_BITS, last >> _BLOCK_BITS))
            for blocks in ends[-1][1:]:
                known &= ends[-1][0][blocks] != _ABSENT
        for states, first, last in ends:
            states[first[known]] = states[last[known]] = _READ
        self._known[groups[known]] = 1

    def _are_present(self, spans: Sequence[Spans]) -> bool:
        for file, starts, ends in spans:
            if self._complete[file]:
                continue
            first = starts // BLOCK_BYTES + self._first[file]
            last = (ends - 1) // BLOCK_BYTES + self._first[file]
            longest = int((last - first).max(initial=-1)) + 1
            for number in range(longest):
                blocks = first if number == 0 else last if longest == 2 else np.minimum(first + number, last)
                if not _touch(self.states, blocks):
                    return False
        return True

    def _blocks(self, spans: Sequence[Spans]) -> np.ndarray[Any, Any]:
        """Return the numbers of all blocks of some spans, in order."""
        found = [np.empty(0, np.int64)]
        for file, starts, ends in spans:
            first = starts // BLOCK_BYTES + self._first[file]
            last = (ends - 1) // BLOCK_BYTES + self._first[file]
            counts = last - first + 1
            within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            found.append(np.repeat(first, counts) + within)
        return np.unique(np.concatenate(found))

    # --- filling

    def _fetch(self, blocks: np.ndarray[Any, Any]) -> list[tuple[int, int, bytes]]:
        """Read blocks from the store; return runs of blocks: the number of the file, the offset and the bytes."""
        if not len(blocks):
            return []
        files = np.searchsorted(self._first, blocks, "right") - 1
        within = blocks - self._first[files]
        breaks = np.flatnonzero((np.diff(blocks) != 1) | (np.diff(files) != 0)) + 1
        ranges: list[tuple[int, int, int]] = []
        for run in np.split(np.arange(len(blocks)), breaks):
            file = int(files[run[0]])
            for cut in range(0, len(run), _MOST_REQUEST_BLOCKS):
                part = within[run[cut : cut + _MOST_REQUEST_BLOCKS]]
                end = min((int(part[-1]) + 1) * BLOCK_BYTES, self.files[file].size)
                ranges.append((file, int(part[0]) * BLOCK_BYTES, end))
        store = self._store
        wanted = [(self.files[file].remote, start, end) for file, start, end in ranges]
        contents = store.read_in_batches(wanted)
        out = [(file, start, bytes(data)) for (file, start, _), data in zip(ranges, contents, strict=True)]
        self._check(store, {path for path, _, _ in wanted})
        return out

    def _insert(self, found: Sequence[tuple[int, int, bytes]], needed: np.ndarray[Any, Any]) -> None:
        fresh = [
            (self._first[file] + start // BLOCK_BYTES, -(-len(data) // BLOCK_BYTES)) for file, start, data in found
        ]
        absent = sum(int(np.count_nonzero(self.states[first : first + count] == _ABSENT)) for first, count in fresh)
        if self.is_bounded:
            self._make_room(absent, needed)
        for (file, start, data), (first, count) in zip(found, fresh, strict=True):
            with self._opened(file) as fd:
                view = memoryview(data)
                while view:
                    written = os.pwrite(fd, view, start)
                    view, start = view[written:], start + written
            self.states[first : first + count] = _READ  # last, since a process may be killed at any moment
        for file in {file for file, _, _ in found}:
            self._complete[file] = self._is_complete(file)

    def _make_room(self, count: int, needed: np.ndarray[Any, Any]) -> None:
        """Remove blocks until ``count`` more may be present, but none that the current read needs."""
        excess = int(np.count_nonzero(self.states)) + count - self.most_blocks
        if excess <= 0:
            return
        kept = np.zeros(len(self.states), bool)
        kept[needed] = True
        old = np.flatnonzero((self.states == _PRESENT) & ~kept)
        if len(old) < excess:
            self.states[self.states == _READ] = _PRESENT
            old = np.flatnonzero((self.states == _PRESENT) & ~kept)
        # some more at once, so that not every read has to search
        gone = np.sort(self._random.permutation(old)[: max(excess, self.most_blocks // 32)])
        self._removals += 1
        self.states[gone] = _ABSENT  # first, since a process may be killed at any moment
        for file in np.unique(np.searchsorted(self._first, gone, "right") - 1).tolist():
            first, end = int(self._first[file]), int(self._first[file + 1])
            own = gone[(gone >= first) & (gone < end)] - first
            with self._opened(file) as fd:
                for run in np.split(own, np.flatnonzero(np.diff(own) != 1) + 1):
                    if not _punch(fd, int(run[0]) * BLOCK_BYTES, len(run) * BLOCK_BYTES):
                        self.states[first:end] = _ABSENT  # a file system without holes: the whole copy is emptied
                        os.ftruncate(fd, 0)
                        os.ftruncate(fd, self.files[file].size)
                        break

    @contextlib.contextmanager
    def _opened(self, file: int) -> Iterator[int]:
        path = os.path.join(self.folder, *self.files[file].path.split("/"))
        with Descriptor(os.open, path, os.O_RDWR | getattr(os, "O_BINARY", 0)) as opened:
            yield opened.fileno()

    # --- processes

    def _attach(self) -> None:
        """Open the connections that a forked process cannot take over from its parent."""
        if self._pid == os.getpid():
            return
        with _attaching:
            if self._pid != os.getpid():
                self._mutex = threading.RLock()  # threads share a file lock
                self._lock = Descriptor(os.open, f"{self.control}.lock", os.O_CREAT | os.O_RDWR, 0o600)
                self._made: Store | None = None
                self._pid = os.getpid()  # last: other threads look at it first

    @property
    def _store(self) -> Store:
        if self._made is None:
            self._made = self._connect()
        return self._made

    @contextlib.contextmanager
    def _locked(self, *, exclusive: bool) -> Iterator[None]:
        if not self._locks:
            yield
            return
        with self._mutex:
            fcntl.flock(self._lock.fileno(), fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            try:
                yield
            finally:
                fcntl.flock(self._lock.fileno(), fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file."""
        if self._pid == os.getpid():
            self._lock.close()
            self._pid = -1


def _touch(states: np.ndarray[Any, Any], blocks: np.ndarray[Any, Any]) -> bool:
    """Return whether some blocks are present; they are marked as read then."""
    found = states.take(blocks).tobytes()  # which is searched faster than an array
    if b"\x00" in found:
        return False
    if b"\x01" in found:
        states[blocks] = _READ
    return True


@functools.cache
def _fallocate() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (AttributeError, OSError, TypeError):  # a system without it
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function


def _punch(fd: int, offset: int, nbytes: int) -> bool:
    """Make a hole in a file, which gives its disk space back; return whether the file system can."""
    function = _fallocate()
    return function is not None and function(fd, 0x03, offset, nbytes) == 0  # PUNCH_HOLE | KEEP_SIZE
