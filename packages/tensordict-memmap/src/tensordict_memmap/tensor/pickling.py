"""Pickling of memory-mapped tensors: by file name, by file descriptor, or by value.

A pickle holds the name of the file, the place of the tensor in it, and the identity of the file (device, inode,
creation time). It has a few hundred bytes for a tensor of any size, and unpickling raises an error if the file was
replaced. Values are pickled if no file holds them: the file was replaced or deleted since it was mapped, the tensor was
changed in a private mapping, or it is in anonymous shared memory. So are those of detached tensors, as plain tensors:
``torch.save`` of a state dict is a checkpoint of its own. ``multiprocessing`` sends anonymous shared memory as a
descriptor instead, so that both processes share it; a pickle that may be stored cannot, since the memory is freed with
its last mapping.

The functions take the class and the mapping of a tensor, so that this module does not import `MemoryMappedTensor`.
"""

from __future__ import annotations

import os
import pickle
from multiprocessing.reduction import DupFd
from typing import Any

import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.schema.dtypes import as_bytes, reach
from tensordict_memmap.schema.nested import shape_of, values
from tensordict_memmap.tensor.mapping import Mapping

_Place = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
"""The offset of a tensor in bytes, its dtype, shape and strides."""

Identity = tuple[int, int, int]
"""The device, inode and time of creation of a file."""


def reduce(tensor: torch.Tensor, mapping: Mapping, offset: int, protocol: int) -> Any:
    """Reduce a tensor for any pickle.

    Args:
        tensor: The tensor.
        mapping: The mapping that holds its memory.
        offset: Its offset in the file, in bytes.
        protocol: The pickle protocol.
    """
    filename = mapping.filename
    if filename is not None and not tensor.numel():  # there is no file
        return _from_no_file, (type(tensor), filename, tensor.dtype, tuple(tensor.shape), mapping.mode)
    # In a private mapping, the version counter shows whether the tensor was changed.
    if filename is not None and (mapping.mode == "r+" or tensor._version == 0):
        identity = identity_of(filename)
        if identity[:2] == mapping.identity:
            place = _place(tensor, offset)
            return _from_file, (type(tensor), filename, identity, mapping.mode, place, tensor.requires_grad)
    data: Any = b""
    if tensor.numel():
        values = as_bytes(torch.Tensor.detach(tensor).as_subclass(torch.Tensor)).numpy()
        data = pickle.PickleBuffer(values.data) if protocol >= 5 else values.tobytes()
    return _from_values, (type(tensor), data, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


def reduce_plain(tensor: torch.Tensor, protocol: int) -> Any:
    """Reduce a tensor as torch reduces the plain tensor, or parameter, of its values."""
    plain: Any = torch.Tensor.detach(tensor).as_subclass(torch.Tensor)
    if isinstance(tensor, torch.nn.Parameter):
        plain = torch.nn.Parameter(plain, requires_grad=tensor.requires_grad)
    else:
        plain.requires_grad_(tensor.requires_grad)
    return plain.__reduce_ex__(protocol)


def reduce_between_processes(tensor: torch.Tensor, mapping: Mapping, offset: int) -> Any:
    """Reduce a tensor for ``multiprocessing``, which can send file descriptors."""
    if mapping.descriptor is None or tensor.numel() == 0:
        return reduce(tensor, mapping, offset, pickle.HIGHEST_PROTOCOL)
    descriptor = DupFd(mapping.descriptor.fileno())
    return _from_descriptor, (type(tensor), descriptor, mapping.nbytes, _place(tensor, offset), tensor.requires_grad)


def reduce_nested(tensor: torch.Tensor, mapping: Mapping, offset: int) -> Any:
    """Reduce a strided nested tensor to its values in one row, which are reduced for themselves, and its shapes."""
    cls: Any = type(tensor)
    if tensor.is_contiguous() and mapping.mode == "r+" and tensor.numel():
        flat = cls.from_handler(mapping, tensor.dtype, (tensor.numel(),), offset=offset - mapping.offset)
    else:
        flat = cls.from_tensor(values(tensor))
    return _nested, (flat, shape_of(tensor))


def _place(tensor: torch.Tensor, offset: int) -> _Place:
    return offset, tensor.dtype, tuple(tensor.shape), tensor.stride()


def identity_of(filename: str) -> Identity:
    """Return the identity of a file; zeros if there is none."""
    try:
        info = os.stat(filename)
    except OSError:
        return 0, 0, 0
    return info.st_dev, info.st_ino, syscalls.born(filename)


# Pickles name the functions below by their module, so they keep their names and arguments; ``cls`` is
# `MemoryMappedTensor` or a subclass.


def _nested(flat: Any, rows: torch.Tensor) -> Any:
    return flat._nested(rows)


def _from_values(cls: Any, data: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> torch.Tensor:
    tensor = cls.empty(shape, dtype=dtype)
    tensor.handler.array()[:] = memoryview(data)
    filled: torch.Tensor = tensor.requires_grad_(requires_grad)
    return filled


def _from_no_file(cls: Any, filename: str, dtype: torch.dtype, shape: tuple[int, ...], mode: str) -> torch.Tensor:
    empty: torch.Tensor = cls.from_filename(filename, dtype, shape, mode=mode)
    return empty


def _from_file(
    cls: Any,
    filename: str,
    identity: Identity,
    mode: str,
    place: _Place,
    requires_grad: bool,
) -> torch.Tensor:
    offset, dtype, shape, stride = place
    mapping = open_again(filename, identity, reach(shape, stride) * dtype.itemsize, offset, mode)
    return _at(cls, mapping, (0, dtype, shape, stride), requires_grad)


def open_again(filename: str, identity: Identity, nbytes: int, offset: int, mode: str) -> Mapping:
    """Map a range of the file that a pickle names.

    Raises:
        RuntimeError: The file was removed or replaced.
    """
    _check_identity(filename, identity)
    try:
        mapping = Mapping.open(filename, nbytes, offset=offset, mode=mode)
    except (OSError, ValueError):
        _check_identity(filename, identity)
        raise
    # A mapping keeps the inode in use: if inode and creation time are unchanged, it is still the same file.
    _check_identity(filename, identity, mapping.identity)
    return mapping


def _check_identity(filename: str, identity: Identity, mapped: tuple[int, int] | None = None) -> None:
    if identity_of(filename) != identity or mapped not in (None, identity[:2]):
        raise RuntimeError(
            f"{filename} was removed or replaced since a tensor in it was pickled, and the pickle does not hold its "
            "values; load the tensor from the place where it was saved"
        )


def _from_descriptor(cls: Any, descriptor: Any, nbytes: int, place: _Place, requires_grad: bool) -> torch.Tensor:
    return _at(cls, Mapping.from_descriptor(descriptor.detach(), nbytes), place, requires_grad)


def _at(cls: Any, mapping: Mapping, place: _Place, requires_grad: bool) -> torch.Tensor:
    offset, dtype, shape, stride = place
    tensor: torch.Tensor = cls.from_handler(mapping, dtype, shape, offset=offset, stride=stride)
    return tensor.requires_grad_(requires_grad)
