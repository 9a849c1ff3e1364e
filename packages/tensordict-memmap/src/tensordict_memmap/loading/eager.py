"""Eager loads: the bytes of mapped tensors are read into memory or to a GPU by several threads, in blocks of megabytes.

A mapping reads a few pages of a file at a time, when they are accessed. If a request takes a
millisecond, as over a network, threads that read large blocks are several times as fast. A lost connection raises an
error during the load, instead of a signal that ends the process later.

On the way to a GPU each block passes through pinned memory, from which the GPU copies several times as fast.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from tensordict_memmap.engine import executor, syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.engine.gpu import staging
from tensordict_memmap.engine.mounts import is_on_network
from tensordict_memmap.engine.tuning import JOB_BYTES
from tensordict_memmap.schema.node import nearest
from tensordict_memmap.tensor.mapping import MappedPages, places_of

_BLOCK_BYTES = 1 << 20
"""The maximum number of bytes that one request reads into memory. Larger blocks leave the cache of the processor
before they are copied, and take up to 1.5 times as long."""
_PINNED_BYTES = JOB_BYTES
"""The maximum number of bytes that one request reads on the way to a GPU; they fit into a pinned block."""
_MAX_GAP = 1 << 16
"""A gap of at most this many bytes between two tensors is read and discarded, which is faster than a second request."""
_MOST_PARTS = 512
"""The maximum number of tensors that one request fills; the limit of Linux is 1,024."""
_THREADS = 16
"""The number of threads that read from a network or for a GPU; they wait, so it does not depend on the processors."""
_DISK_THREADS = 4
"""The minimum number of threads that read from a disk, where more of them than processors take longer."""


Target = memoryview | torch.Tensor
"""Bytes of memory, or of a GPU (a tensor of bytes)."""


class _Read(NamedTuple):
    """Consecutive bytes of a file, and the memory that they go to, in order."""

    place: MappedPages
    offset: int
    parts: list[Target]


def in_memory(loaded: Any, device: torch.device | None = None) -> Any:
    """Return a loaded tensordict or tensor with the values of its mapped tensors in memory.

    Args:
        loaded: The tensordict or the tensor over mapped files.
        device: The GPU to which they go; by default they stay on the host.

    Raises:
        ValueError: A file has become shorter, or was replaced, since it was mapped.

    >>> from tensordict_memmap import load_memmap
    >>> _ = TensorDict({"a": torch.arange(3)}).save("there")
    >>> td = load_memmap("there", mode="r")
    >>> type(td["a"]).__name__, type(in_memory(td)["a"]).__name__
    ('MemoryMappedTensor', 'Tensor')
    """
    made: dict[int, torch.Tensor] = {}
    wanted: list[tuple[MappedPages, int, Target]] = []
    target = torch.device("cpu") if device is None else device
    tensors = _tensors(loaded)
    for tensor, place in zip(tensors, places_of(tensors), strict=True):
        if id(tensor) in made or tensor.is_nested:
            continue
        if place is None:
            made[id(tensor)] = tensor.to(target) if tensor.numel() else tensor.to(target, copy=True)
        elif not place.filename:
            made[id(tensor)] = tensor.to(target)  # decompressed
        elif tensor.is_contiguous() and (at := place.in_file(tensor)) is not None:
            made[id(tensor)] = new = torch.empty(tensor.shape, dtype=tensor.dtype, device=target)
            own = new.reshape(-1).view(torch.uint8)
            if device is None:
                syscalls.prefer_huge_pages(own.data_ptr(), own.nbytes)
            wanted.append((place, at, own.numpy().data if device is None else own))
        else:
            made[id(tensor)] = tensor.to(target, copy=True)
    read, block, threads = _read, _BLOCK_BYTES, _THREADS
    if device is not None:
        # memory of the new tensors may still be in use by earlier work of the caller's stream
        ready = torch.cuda.current_stream(device).record_event()
        read, block = functools.partial(_read_to_gpu, device, ready), _PINNED_BYTES
    elif wanted and not is_on_network(wanted[0][0].filename):
        threads = max(_DISK_THREADS, executor.default_threads())
    jobs = [functools.partial(read, one) for one in _reads(wanted, block)]
    share = -(-len(jobs) // threads) or 1  # consecutive blocks for each thread, which the system reads ahead
    executor.run([jobs[first : first + share] for first in range(0, len(jobs), share)], threads=threads)

    def new_of(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(target, copy=True) if tensor.is_nested else made[id(tensor)]

    if isinstance(loaded, torch.Tensor):
        return new_of(loaded)
    return loaded.apply(new_of) if device is None else loaded.apply(new_of, device=device)


def _tensors(loaded: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = [loaded] if isinstance(loaded, torch.Tensor) else loaded._leaves()
    return found


def _reads(wanted: Iterable[tuple[MappedPages, int, Target]], block: int) -> Iterator[_Read]:
    """Yield the requests of at most ``block`` bytes that fill parts of memory from places in files."""
    dropped = memoryview(bytearray(_MAX_GAP))
    place: MappedPages | None = None
    begin = end = 0
    parts: list[Target] = []
    for here, offset, own in sorted(wanted, key=lambda one: (one[0].filename, one[1])):
        gap = offset - end
        if place is None or here.filename != place.filename or not 0 <= gap <= _MAX_GAP or len(parts) >= _MOST_PARTS:
            if place is not None and parts:
                yield _Read(place, begin, parts)
            place, begin, end, parts, gap = here, offset, offset, [], 0
        if gap:
            parts.append(dropped[:gap])
            end += gap
        while len(own):
            free = block - (end - begin)
            if free <= 0:
                yield _Read(place, begin, parts)
                begin, parts, free = end, [], block
            parts.append(own[:free])
            end += min(len(own), free)
            own = own[free:]
    if place is not None and parts:
        yield _Read(place, begin, parts)


def _read(one: _Read) -> None:
    _read_file(one.place, one.offset, one.parts)


def _read_to_gpu(device: torch.device, ready: torch.cuda.Event, one: _Read) -> None:
    """Read a block into the pinned memory of this thread, and copy its parts from there to the GPU."""
    pinned, stream = staging(device)
    block = pinned[: sum(map(len, one.parts))]
    _read_file(one.place, one.offset, [block.numpy().data])
    with torch.cuda.stream(stream):
        stream.wait_event(ready)
        start = 0
        for part in one.parts:
            if isinstance(part, torch.Tensor):
                part.copy_(block[start : start + len(part)], non_blocking=True)
            start += len(part)
    stream.synchronize()


def _read_file(place: MappedPages, offset: int, parts: list[Any]) -> None:
    with Descriptor(os.open, place.filename, os.O_RDONLY | syscalls.BINARY | syscalls.NO_WAIT) as file:
        info = os.fstat(file.fileno())
        if (info.st_dev, info.st_ino) != place.identity:
            raise ValueError(f"{place.filename} was replaced while it was loaded; load it again")
        syscalls.read_parts(file.fileno(), parts, offset, place.filename)


def is_worth_reading(path: str | os.PathLike[str], loaded: Any) -> bool:
    """Return whether a load is eager by default: from a network, at most a quarter of free memory.

    >>> is_worth_reading(".", torch.zeros(3))
    False
    """
    if not is_on_network(os.fspath(path)):
        return False
    return 4 * sum(tensor.numel() * tensor.element_size() for tensor in _tensors(loaded)) <= free_memory()


def free_memory() -> int:
    """Return the bytes of memory that programs may take; 0 if the system does not report it."""
    lines = syscalls.system_text("/proc/meminfo").splitlines()
    found = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(found.split()[1]) * 1024 if found is not None else 0


def prefetch(td: Any, *keys: Any) -> Any:
    """Start reading the mapped tensors of entries from disk, without waiting for them.

    Args:
        td: The tensordict, or a tensor.
        *keys: The nested keys of the entries to read; by default all.

    Returns:
        The tensordict itself. Tensors that are not mapped are left alone.

    Raises:
        KeyError: There is no such entry.

    >>> from tensordict_memmap import load_memmap
    >>> _ = TensorDict({"a": torch.ones(3), "b": torch.ones(3)}).save("there")
    >>> td = load_memmap("there")
    >>> prefetch(td, "a")["a"].sum()
    tensor(3.)
    """
    chosen = [td] if not keys else [td.get(key, None) for key in keys]
    for key, entry in zip(keys, chosen, strict=False):
        if entry is None:
            raise KeyError(f"there is no entry {key!r} to read ahead; the nearest are {nearest(str(key), td.keys())}")
    tensors = [tensor for entry in chosen for tensor in _tensors(entry) if tensor.is_contiguous()]
    for tensor, place in zip(tensors, places_of(tensors), strict=True):
        if place is not None and place.filename:
            syscalls.read_ahead(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return td
