"""How memory-mapped tensors travel: by the name of their file, by a descriptor, or, where there is neither, by value.

A pickle holds the file's name, where the tensor lies in it and the file's identity (device, inode, time of birth): a
few hundred bytes whatever the size of the tensor, and an error where another file has that name by now. Values travel
where no file holds them: the file was replaced or deleted since it was mapped, the tensor was changed in a mapping that
keeps changes to itself, or the memory has no name. ``multiprocessing`` sends such memory as a descriptor instead, so
that both processes see one memory; a pickle that may be stored cannot, since the memory goes with its last owner.
"""

from __future__ import annotations

import os
import pickle
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any

import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.schema.dtypes import as_bytes
from tensordict_memmap.tensor.mapping import Mapping

if TYPE_CHECKING:
    from tensordict_memmap.tensor.memmap import MemoryMappedTensor

_Place = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
"""The byte where a tensor starts, its dtype, shape and strides."""


def reduce(tensor: MemoryMappedTensor, protocol: int) -> Any:
    """What a pickle of any kind holds."""
    mapping, filename = tensor.handler, tensor.handler.filename
    # In a mapping that keeps changes to itself, the count of in-place operations tells whether there were any.
    in_file = tensor.numel() and filename is not None and (mapping.mode == "r+" or tensor._version == 0)
    if in_file and filename is not None:
        identity = _identity(filename)
        if identity[:2] == mapping.identity:
            return _from_file, (type(tensor), filename, identity, mapping.mode, _place(tensor), tensor.requires_grad)
    data: Any = b""
    if tensor.numel():
        values = as_bytes(torch.Tensor.detach(tensor).as_subclass(torch.Tensor)).numpy()
        data = pickle.PickleBuffer(values.data) if protocol >= 5 else values.tobytes()
    return _from_values, (type(tensor), data, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


def reduce_between_processes(tensor: MemoryMappedTensor) -> Any:
    """What ``multiprocessing`` sends."""
    mapping = tensor.handler
    if mapping.descriptor is None or tensor.numel() == 0:
        return reduce(tensor, pickle.HIGHEST_PROTOCOL)
    descriptor = DupFd(mapping.descriptor.fd)
    return _from_descriptor, (type(tensor), descriptor, mapping.nbytes, _place(tensor), tensor.requires_grad)


def _place(tensor: MemoryMappedTensor) -> _Place:
    return tensor.offset, tensor.dtype, tuple(tensor.shape), tensor.stride()


def _identity(filename: str) -> tuple[int, int, int]:
    try:
        info = os.stat(filename)
    except OSError:
        return 0, 0, 0
    return info.st_dev, info.st_ino, syscalls.born(filename)


def _from_values(
    cls: type[MemoryMappedTensor], data: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool
) -> MemoryMappedTensor:
    tensor = cls.empty(shape, dtype=dtype)
    tensor.handler.array()[:] = memoryview(data)
    tensor.requires_grad_(requires_grad)
    return tensor


def _from_file(
    cls: type[MemoryMappedTensor],
    filename: str,
    identity: tuple[int, int, int],
    mode: str,
    place: _Place,
    requires_grad: bool,
) -> MemoryMappedTensor:
    _check_identity(filename, identity)
    offset, dtype, shape, stride = place
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
    try:
        mapping = Mapping.open(filename, reach * dtype.itemsize, offset=offset, mode=mode)
    except (OSError, ValueError):
        _check_identity(filename, identity)
        raise
    # what is mapped keeps its inode: where the name still has that, with its birth, nothing came in between
    _check_identity(filename, identity, mapping.identity)
    return _at(cls, mapping, (0, dtype, shape, stride), requires_grad)


def _check_identity(filename: str, identity: tuple[int, int, int], mapped: tuple[int, int] | None = None) -> None:
    if _identity(filename) != identity or mapped not in (None, identity[:2]):
        raise RuntimeError(
            f"a pickled tensor belongs to the file it was made from, and {filename} is gone or another file by now; "
            "load the tensor from where it was saved"
        )


def _from_descriptor(
    cls: type[MemoryMappedTensor], descriptor: Any, nbytes: int, place: _Place, requires_grad: bool
) -> MemoryMappedTensor:
    return _at(cls, Mapping.from_descriptor(descriptor.detach(), nbytes), place, requires_grad)


def _at(cls: type[MemoryMappedTensor], mapping: Mapping, place: _Place, requires_grad: bool) -> MemoryMappedTensor:
    offset, dtype, shape, stride = place
    tensor = cls.from_handler(mapping, dtype, shape, offset=offset, stride=stride)
    tensor.requires_grad_(requires_grad)
    return tensor
