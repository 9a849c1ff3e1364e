"""`MappedStorage`: the storage of tensors whose writes reach a mapped file, or anonymous shared memory.

Views of a memory-mapped tensor are plain tensors over its storage. When ``multiprocessing`` sends a tensor, and in
``share_memory_``, torch replaces the memory of the storage by a copy in shared memory: writes into the memory-mapped
tensor would no longer reach the file. A `MappedStorage` keeps its memory: ``multiprocessing`` sends its place in the
file, and ``share_memory_`` moves nothing, since the pages of a file are shared between processes.
"""

from __future__ import annotations

from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, cast

import torch
from torch.multiprocessing.reductions import reduce_storage

from tensordict_memmap.tensor.mapping import Mapping
from tensordict_memmap.tensor.pickling import Identity, identity_of, open_again


class MappedStorage(torch.UntypedStorage):
    """The storage of a tensor over a mapping with the mode ``"r+"``; `keep_mapped` makes one.

    >>> from tensordict_memmap import MemoryMappedTensor
    >>> x = MemoryMappedTensor.zeros(4)
    >>> _ = x.view(2, 2).share_memory_().fill_(1)
    >>> x
    MemoryMappedTensor([1., 1., 1., 1.])
    """

    _mapping: Mapping | None = None  # slices of a storage have none
    _was_shared = False

    def share_memory_(self) -> MappedStorage:
        """Return the storage itself: its pages are those of all processes that map the file."""
        self._was_shared = True
        return self

    def is_shared(self) -> bool:
        """Return whether it is that of a file, or ``share_memory_`` was called."""
        return self._was_shared or (self._mapping is not None and self._mapping.filename is not None)

    def clone(self) -> torch.UntypedStorage:
        """Return a copy, which is not mapped."""
        copy: torch.UntypedStorage = torch.UntypedStorage(self.nbytes()).copy_(self, False)
        return copy

    def cpu(self) -> torch.UntypedStorage:
        """Return a copy, since the typed storages of torch take no subclass."""
        return self.clone()


def keep_mapped(tensor: torch.Tensor, mapping: Mapping) -> torch.Tensor:
    """Make the storage of a tensor over the memory of a mapping one that keeps this memory, and return the tensor.

    The storage of a private mapping stays plain, since no file has the values that are written to it; so does that of a
    tensor without elements.

    >>> mapping = Mapping.anonymous(8)
    >>> tensor = keep_mapped(torch.frombuffer(mapping.buffer, dtype=torch.int32), mapping)
    >>> type(tensor[1:].untyped_storage()).__name__
    'MappedStorage'
    """
    if mapping.mode == "r+" and tensor.numel():
        storage = tensor.untyped_storage()
        storage.__class__ = MappedStorage  # torch keeps the Python object of a storage as long as the storage
        cast(MappedStorage, storage)._mapping = mapping
    return tensor


def _reduce_between_processes(storage: MappedStorage) -> Any:
    mapping, nbytes = storage._mapping, storage.nbytes()
    if mapping is None:
        return reduce_storage(storage.clone())  # by value
    start = storage.data_ptr() - mapping.address
    if mapping.descriptor is not None:
        return _from_descriptor, (DupFd(mapping.descriptor.fileno()), mapping.nbytes, start, nbytes)
    if mapping.filename is not None:
        identity = identity_of(mapping.filename)
        if identity[:2] == mapping.identity:
            return _from_file, (mapping.filename, identity, mapping.offset + start, nbytes)
    return reduce_storage(storage.clone())  # by value: the file was replaced or removed


def _from_file(filename: str, identity: Identity, offset: int, nbytes: int) -> Any:
    return _over(open_again(filename, identity, nbytes, offset, "r+"), 0, nbytes)


def _from_descriptor(descriptor: Any, size: int, start: int, nbytes: int) -> Any:
    return _over(Mapping.from_descriptor(descriptor.detach(), size), start, nbytes)


def _over(mapping: Mapping, start: int, nbytes: int) -> torch.UntypedStorage:
    tensor = torch.frombuffer(mapping.buffer, dtype=torch.uint8, count=nbytes, offset=start)
    return keep_mapped(tensor, mapping).untyped_storage()


ForkingPickler.register(MappedStorage, _reduce_between_processes)
