"""System calls that Python lacks or that are slow there, each with a fallback for systems that lack it.

Functions take addresses and file descriptors, release the GIL during the call, and raise the ``OSError`` of the errno.
``tuning.py`` and ``storage`` decide which one to call. ``os.open`` sets ``O_CLOEXEC`` by default, so no call here does.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
import threading
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

try:
    import fcntl as fcntl  # locks use it too
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # of type module where there is one

from tensordict_memmap.engine.descriptor import Descriptor

# Offsets are 64 bits wide in the C library only where a long is; other systems use the portable fallbacks.
POSIX = os.name == "posix" and ctypes.sizeof(ctypes.c_long) == 8
LINUX = POSIX and sys.platform == "linux"

PAGE = mmap.PAGESIZE
_LARGEST_WRITE = 1 << 30
BINARY: int = getattr(os, "O_BINARY", 0)
"""The flag that opens a file without newline translation, on Windows; 0 elsewhere."""

NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""The flag that refuses to open a symbolic link; 0 if there is none."""

NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
"""The flag that opens pipes and devices without blocking; 0 if there is none."""

_IOV_MAX = 1024
_AT_FDCWD = -100
_STATX_BTIME = 0x800
_MADV_WILLNEED = 3
_MADV_DONTFORK = 10
_MADV_HUGEPAGE = 14
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602  # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
_TOP_OF_HIERARCHIES = 0x20000  # FS_TOPDIR_FL, what "chattr +T" sets
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, getattr(errno, "EOPNOTSUPP", -1), errno.ENOTTY})

_seek_lock = threading.Lock()


def _bind(name: str, result: type | None, *arguments: type) -> Any:
    function = getattr(_libc, name, None)
    if function is not None:
        function.restype = result
        function.argtypes = arguments
    return function


_libc = ctypes.CDLL(None, use_errno=True) if POSIX else None
_pwritev = _bind("pwritev", ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_memcmp = _bind("memcmp", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_fallocate = _bind("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_renameat2 = _bind(
    "renameat2", ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint
)
_statx = (
    _bind("statx", ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    if LINUX
    else None
)
map_pages = _bind(
    "mmap",
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
unmap_pages = _bind("munmap", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
_madvise = _bind("madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_msync = _bind("msync", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_mincore = _bind("mincore", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p) if LINUX else None

_PYBUF_READ, _PYBUF_WRITE = 0x100, 0x200
_view_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_memory.restype = ctypes.py_object
_view_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


def os_error(code: int, path: str | None = None) -> OSError:
    """Make the error of a system call from its ``errno``."""
    return OSError(code, os.strerror(code), path)


def write_at(fd: int, address: int, nbytes: int, offset: int) -> None:
    """Write the ``nbytes`` bytes at ``address`` to ``offset`` of a file, in as many system calls as necessary."""
    done = 0
    while done < nbytes:
        written = _pwrite(fd, view(address + done, min(nbytes - done, _LARGEST_WRITE)), offset + done)
        if written == 0:
            raise os_error(errno.ENOSPC)
        done += written


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """Read ``nbytes`` bytes at ``offset`` of a file; fewer if the file ends before."""
    parts = []
    while nbytes and (part := _pread(fd, min(nbytes, _LARGEST_WRITE), offset)):
        parts.append(part)
        nbytes, offset = nbytes - len(part), offset + len(part)
    return b"".join(parts)


def _seek_and_write(fd: int, data: memoryview, offset: int) -> int:
    with _seek_lock:  # without pwrite, threads share the file position
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


def _seek_and_read(fd: int, nbytes: int, offset: int) -> bytes:
    with _seek_lock:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, nbytes)


_pwrite = getattr(os, "pwrite", _seek_and_write)
_pread = getattr(os, "pread", _seek_and_read)
_preadv = getattr(os, "preadv", None)


def view(address: int, nbytes: int) -> memoryview:
    """Return a read-only view of the memory at an address; the owner of the memory must outlive it."""
    found: memoryview = _view_memory(address, nbytes, _PYBUF_READ)
    return found


def items(address: int, count: int, size: int, step: int) -> np.ndarray:
    """Return memory as a one-dimensional array of opaque items; the owner of the memory must outlive it.

    Args:
        address: The address of the first item.
        count: The number of items.
        size: The bytes of an item.
        step: The bytes from one item to the next.

    >>> data = ctypes.create_string_buffer(b"ab-cd-")
    >>> [item.tobytes() for item in items(ctypes.addressof(data), 2, 2, 3)]
    [b'ab', b'cd']
    """
    return np.asarray(_Items(address, count, size, step))


class _Items:
    """Memory at an address, as NumPy takes it."""

    def __init__(self, address: int, count: int, size: int, step: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "strides": (step,),
            "typestr": f"|V{size}",
            "version": 3,
        }


def is_same_memory(first: int, second: int, nbytes: int) -> bool:
    """Return whether the bytes at two addresses are equal; other threads run meanwhile.

    >>> data = ctypes.create_string_buffer(b"abcabd")
    >>> address = ctypes.addressof(data)
    >>> is_same_memory(address, address + 3, 2), is_same_memory(address, address + 3, 3)
    (True, False)
    """
    if _memcmp is None:
        return ctypes.string_at(first, nbytes) == ctypes.string_at(second, nbytes)
    return bool(_memcmp(first, second, nbytes) == 0)


def write_ranges_at(fd: int, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> None:
    """Write many ranges of memory one after another to ``offset`` of a file, without joining them first."""
    if _pwritev is None:
        joined = b"".join(map(ctypes.string_at, addresses, sizes))
        buffer = ctypes.create_string_buffer(joined, len(joined))
        write_at(fd, ctypes.addressof(buffer), len(joined), offset)
        return
    words = array("Q", bytes(16 * len(sizes)))
    words[::2], words[1::2] = array("Q", addresses), array("Q", sizes)
    vectors = words.buffer_info()[0]
    for first in range(0, len(sizes), _IOV_MAX):
        part = sizes[first : first + _IOV_MAX]
        expected = sum(part)
        done = _pwritev(fd, vectors + 16 * first, len(part), offset)
        if done < 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise os_error(code)
            done = 0
        if done != expected:  # a short or interrupted call: write range by range, which also raises the cause
            position = 0
            for address, nbytes in zip(addresses[first : first + _IOV_MAX], part, strict=True):
                skip = min(max(done - position, 0), nbytes)
                write_at(fd, address + skip, nbytes - skip, offset + position + skip)
                position += nbytes
        offset += expected


def born(path: str) -> int:
    """Return the creation time of a file in nanoseconds, to detect reused inodes; 0 if unknown."""
    if _statx is None:
        return 0
    record = ctypes.create_string_buffer(256)
    if _statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, record) != 0:
        return 0
    mask = int.from_bytes(record.raw[:4], sys.byteorder)
    seconds = int.from_bytes(record.raw[80:88], sys.byteorder, signed=True)
    return seconds * 10**9 + int.from_bytes(record.raw[88:92], sys.byteorder) if mask & _STATX_BTIME else 0


def reserve(fd: int, offset: int, nbytes: int) -> bool:
    """Reserve the disk blocks of a range of a file; return False if that is not supported.

    Raises:
        OSError: The disk is full.
    """
    if _fallocate is None or nbytes <= 0:
        return False
    while _fallocate(fd, 0, offset, nbytes) != 0:
        code = ctypes.get_errno()
        if code in _UNSUPPORTED:
            return False
        if code != errno.EINTR:
            raise os_error(code)
    return True


def scatter(folder: str) -> bool:
    """Set a flag so that new subfolders of a folder get separate block groups; return False if not supported.

    ext4 places files in the block group of their folder, and whenever it creates one it skips the inodes that were
    freed there in the last minutes. After a large save was removed, that takes longer than the rest of a new save.
    """
    if not LINUX:
        return False
    flags = array("i", [0, 0])
    with Descriptor(os.open, folder, os.O_RDONLY | os.O_DIRECTORY) as opened:
        try:
            fcntl.ioctl(opened.fileno(), _GET_FLAGS, flags)
            flags[0] |= _TOP_OF_HIERARCHIES
            fcntl.ioctl(opened.fileno(), _SET_FLAGS, flags)
        except OSError:
            return False
    return True


def system_text(path: str) -> str:
    """Return the text of a file in ``/proc``; empty if this system has no such file, or this user may not read it.

    >>> system_text("/proc/absent")
    ''
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def most_mappings() -> int | None:
    """Return the maximum number of mappings of a process; None if unknown."""
    text = system_text("/proc/sys/vm/max_map_count")
    return int(text) if text else None


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Ask for huge pages in a range of memory before its first access: fewer page faults."""
    if _madvise is not None and LINUX:
        start = -(-address // PAGE) * PAGE
        _madvise(start, max(address + nbytes - start, 0), _MADV_HUGEPAGE)  # may be refused


def keep_from_children(address: int, nbytes: int) -> None:
    """Leave a mapping to this process: children that it forks do not inherit it, unless the system refuses."""
    if _madvise is not None and LINUX:
        _madvise(address, nbytes, _MADV_DONTFORK)


def copy(target: int, source: int, nbytes: int) -> None:
    """Copy memory from one address to another."""
    ctypes.memmove(target, source, nbytes)


def sync_mapping(address: int, nbytes: int) -> None:
    """Sync changes made through a mapping to disk."""
    start = address - address % PAGE
    if _msync is not None and _msync(start, nbytes + address - start, 4 if LINUX else 0x10) != 0:
        raise os_error(ctypes.get_errno())


def read_ahead(address: int, nbytes: int) -> None:
    """Start reading exactly the pages of a range of a mapping into memory, without waiting for them."""
    start = address - address % PAGE
    if _madvise is not None and LINUX:
        _madvise(start, nbytes + address - start, _MADV_WILLNEED)  # may be refused


def resident(address: int, nbytes: int, samples: int = 16) -> float:
    """Return the fraction of sampled pages of a mapping that are in memory; 1.0 if unknown."""
    if _mincore is None or nbytes <= 0:
        return 1.0
    first, last = address // PAGE, (address + nbytes - 1) // PAGE
    count = min(samples, last - first + 1)
    flag = ctypes.c_ubyte(0)
    seen = 0
    for sample in range(count):
        page = first + (last - first) * sample // max(count - 1, 1)
        if _mincore(page * PAGE, PAGE, ctypes.byref(flag)) != 0:
            return 1.0
        seen += flag.value & 1
    return seen / count


def exchange(a: str, b: str) -> bool:
    """Exchange two folders or files in one atomic step; return False if that is not supported."""
    return _rename(a, b, _RENAME_EXCHANGE)


def rename_new(source: str, target: str) -> bool:
    """Rename a file or folder atomically only if the target is absent; return False if that is not supported.

    Raises:
        FileExistsError: The target exists.
    """
    return _rename(source, target, _RENAME_NOREPLACE)


def _rename(source: str, target: str, flags: int) -> bool:
    if not LINUX or _renameat2 is None:
        return False
    if _renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise os_error(code, target)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Sync the content of a file to disk."""
    with Descriptor(os.open, path, os.O_RDWR | BINARY) as file:
        os.fsync(file.fileno())


def is_there(path: str) -> bool:
    """Return whether there is a file or folder, as `os.path.exists`, in two thirds of its time if there is none.

    >>> is_there("."), is_there("absent")
    (True, False)
    """
    return os.access(path, os.F_OK, effective_ids=os.access in os.supports_effective_ids)


Stamp = tuple[int, int, int]
"""The inode, modification time and size of a file, which differ once the file is replaced or changed."""


def stamp(path: str) -> Stamp | None:
    """Return the stamp of a file; None if it is absent."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns, info.st_size


def read_file(path: str, stamps: dict[str, Stamp] | None = None) -> bytes | None:
    """Read a small file; return None if it is absent or not a regular file.

    Args:
        path: The file.
        stamps: A dictionary to which the stamp of the file is added under its path.
    """
    try:
        file = Descriptor(os.open, path, os.O_RDONLY | BINARY | NO_LINK | NO_WAIT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        if os.path.lexists(path) and not os.path.islink(path):
            raise
        return None
    with file:
        fd = file.fileno()
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return None
        if stamps is not None:
            stamps[path] = (info.st_ino, info.st_mtime_ns, info.st_size)
        parts = []
        while part := os.read(fd, max(info.st_size, 1) + 1):
            parts.append(part)
            if len(part) <= info.st_size and sum(map(len, parts)) >= info.st_size:
                break
        return b"".join(parts)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Sync the file names in a folder to disk; do nothing on systems that cannot open folders."""
    if os.name != "posix":
        return
    with Descriptor(os.open, path, os.O_RDONLY | os.O_DIRECTORY) as folder:
        os.fsync(folder.fileno())


def write_file(path: str, data: bytes, durable: bool) -> None:
    """Write a small file, and sync it to disk if ``durable``."""
    with Descriptor(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o666) as file:
        fd, done = file.fileno(), 0
        while done < len(data):
            done += os.write(fd, data[done:])
        if durable:
            os.fsync(fd)


def read_parts(fd: int, parts: Sequence[memoryview], offset: int, path: str) -> None:
    """Read consecutive bytes at ``offset`` of a file into parts of memory, in order.

    Raises:
        ValueError: The file ends before; the error names ``path``.
    """
    left = [part for part in parts if part]
    while left:
        if _preadv is None:
            data = _pread(fd, min(len(left[0]), _LARGEST_WRITE), offset)
            done = len(data)
            left[0][:done] = data
        else:
            fits = len(left[0]) <= _LARGEST_WRITE
            done = _preadv(fd, left if fits else [left[0][:_LARGEST_WRITE]], offset)
        if not done:
            raise ValueError(f"{path} ends at byte {offset}, before the tensors that it holds; get the file again")
        offset += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if done:
            left[0] = left[0][done:]


def read_into(fd: int, address: int, nbytes: int, offset: int, path: str) -> None:
    """Read ``nbytes`` bytes at ``offset`` of a file to an address; the owner of the memory must outlive the call.

    Raises:
        ValueError: The file ends before; the error names ``path``.
    """
    read_parts(fd, [_view_memory(address, nbytes, _PYBUF_WRITE)], offset, path)
