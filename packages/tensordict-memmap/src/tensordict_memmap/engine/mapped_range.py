"""`MappedRange`: a mapped range of a file, unmapped with its last reference, also if an exception interrupts.

As in `Descriptor`, one call of a function written in C maps and stores the address, another takes it out and unmaps.
A signal between the two system calls, or in a destructor written in Python, would leave the pages mapped, and with them
the blocks of a file that was removed since.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from tensordict_memmap.engine import syscalls

_FAILED = ctypes.c_void_p(-1).value
_NOTHING = itertools.repeat((None, 0))
_starmap: Any = itertools.starmap.__new__
_numbers = itertools.count()
_ranges: dict[int, tuple[int, int]] = {}
"""The addresses and sizes of all mapped ranges."""
_take = _ranges.pop


class MappedRange(itertools.starmap):  # type: ignore[type-arg]  # it is no generic class at run time
    """A range of a file in memory, until `close`, the end of a ``with`` block, or until nothing refers to it.

    ``mmap.mmap`` keeps a descriptor for each mapping, and thousands of leaves would exceed the limit of a process.

    Args:
        fd: The file, which may be closed afterwards.
        nbytes: The number of bytes, not 0.
        offset: The offset of the first byte in the file, a multiple of `syscalls.PAGE`.
        shared: Whether writes reach the file.

    Raises:
        OSError: The system refuses.

    >>> with open("some.bin", "w+b") as file:
    ...     _ = file.write(b"hello"), file.flush()
    ...     with MappedRange(file.fileno(), 5, 0, shared=True) as mapped:
    ...         bytes(syscalls.view(mapped.address, 5))
    b'hello'
    """

    __slots__ = ("__weakref__", "_number", "address")

    address: int
    """The address of the first byte, while it is mapped."""
    _number: int

    def __new__(cls, fd: int, nbytes: int, offset: int, shared: bool) -> Self:
        """Map the range and store its address."""
        number = next(_numbers)
        # An item of this iterator takes the range out, for another thread may map the same address at once, and unmaps
        # it. All later ones unmap no bytes, which the system refuses.
        self: Self = _starmap(cls, syscalls.unmap_pages, map(_take, itertools.repeat(number), _NOTHING))
        self._number = number
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        arguments = (None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
        addresses = itertools.starmap(syscalls.map_pages, (arguments,))
        _ranges.update(zip((number,), zip(addresses, (nbytes,))))  # noqa: B905 (strict= takes longer; one item each)
        self.address = _ranges[number][0]
        if self.address == _FAILED:
            code = ctypes.get_errno()
            del _ranges[number]
            raise syscalls.os_error(code)
        return self

    @property
    def is_mapped(self) -> bool:
        """Whether it is still mapped."""
        return self._number in _ranges

    def close(self) -> None:
        """Unmap the range; do nothing if it was."""
        next(self)

    __del__ = itertools.starmap.__next__  # not a function of Python, which could be interrupted before it unmaps

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        next(self)


@contextlib.contextmanager
def mapped_range(fd: int, offset: int, nbytes: int) -> Iterator[int]:
    """Map a range of a file during a ``with`` block, in huge pages if possible, and yield its address."""
    skipped = offset % syscalls.PAGE
    with MappedRange(fd, nbytes + skipped, offset - skipped, shared=True) as mapped:
        syscalls.prefer_huge_pages(mapped.address, nbytes + skipped)
        yield mapped.address + skipped


def keep_open(fd: int) -> MappedRange:
    """Keep the blocks of a file that is about to be unlinked, by a mapping of its first page.

    Freeing the blocks takes long. An open descriptor would keep them too, but a forked child would inherit it, and
    could not determine later whether its number belongs to another file. A child does not inherit this mapping.

    Args:
        fd: The file, not empty; it may be closed afterwards.
    """
    kept = MappedRange(fd, syscalls.PAGE, 0, shared=False)
    syscalls.keep_from_children(kept.address, syscalls.PAGE)
    return kept
