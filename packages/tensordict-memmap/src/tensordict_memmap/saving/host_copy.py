"""Host copies: copies of the parts of a rank, so a background save writes the values that they had when it started.

The memory is kept for the next save, whose copy then takes no page faults. It is pinned if a part is on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import torch

from tensordict_memmap.engine.gpu import finish_device_work

_ALIGNMENT = 64


class HostMemory:
    """Blocks of host memory that are lent to one save at a time.

    >>> memory = HostMemory()
    >>> first = memory.take(100, pinned=False)
    >>> memory.give_back(first)
    >>> memory.take(50, pinned=False) is first
    True
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int, *, pinned: bool) -> torch.Tensor:
        """Return a block of at least some bytes: the smallest free one, or a new one in the place of a free one."""
        with self._lock:
            free = [block for block in self._free if not pinned or block.is_pinned()]  # which asks CUDA
            fitting = min((block for block in free if block.numel() >= nbytes), key=len, default=None)
            found = fitting if fitting is not None else max(free, key=len, default=None)
            if found is not None:
                self._free = [block for block in self._free if block is not found]
                if fitting is not None:
                    return found
        del found
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned, device="cpu")

    def give_back(self, block: torch.Tensor) -> None:
        """Take a block back for the next save."""
        with self._lock:
            self._free.append(block)


_memory = HostMemory()


def copy_to_host(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], None]]:
    """Copy tensors to reused host memory.

    Args:
        tensors: Strided tensors, on any device.

    Returns:
        The copies, contiguous, and a function to call when they are not needed any more.

    >>> copies, release = copy_to_host([torch.arange(3), torch.ones(2, 2).T])
    >>> copies[0].tolist(), copies[1].shape
    ([0, 1, 2], torch.Size([2, 2]))
    >>> release()
    """
    places, end = _places(tensor.numel() * tensor.element_size() for tensor in tensors)
    pinned = any(tensor.device.type == "cuda" for tensor in tensors)
    block = _memory.take(end, pinned=pinned)
    copies = [
        block[place : place + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        for place, tensor in zip(places, tensors, strict=True)
    ]
    with torch.no_grad():
        if copies:
            torch._foreach_copy_(copies, list(tensors), non_blocking=pinned)
    finish_device_work(tensors)
    return copies, lambda: _memory.give_back(block)


def _places(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Aligned positions for blocks of some sizes, one after another, and the end of the last one."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, end
