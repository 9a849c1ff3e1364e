"""Dtypes: which NumPy dtype stores a tensor; those that NumPy lacks are stored as unsigned integers of their size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

DTYPE = "__tensordict_dtype__"
"""Attribute of an array of unsigned integers that are the bits of another dtype: its name."""

_NATIVE: dict[torch.dtype, Any] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}
_FROM_NUMPY = {dtype: own for own, dtype in _NATIVE.items()}
_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_STORED_AS_BITS = ("bfloat16", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_NAMED: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in (*_STORED_AS_BITS, "float8_e8m0fnu") if hasattr(torch, name)
}


def numpy_dtype(dtype: torch.dtype) -> tuple[Any, str | None]:
    """Return the NumPy dtype that stores a dtype, and the name to keep beside it if the two differ.

    Raises:
        TypeError: No NumPy dtype stores it.

    >>> numpy_dtype(torch.float32), numpy_dtype(torch.bfloat16)
    ((dtype('float32'), None), (dtype('uint16'), 'bfloat16'))
    """
    native = _NATIVE.get(dtype)
    if native is not None:
        return native, None
    name = str(dtype).removeprefix("torch.")
    if name not in _NAMED:
        raise TypeError(f"dtype {dtype} cannot be stored in an array; convert the entry to a plain dtype first")
    return _NATIVE[_BITS[dtype.itemsize]], name


def check_plain(key: str, value: Any, form: str) -> None:
    """Check that a tensor can be stored as an array or as bytes; ``form`` is which, for the error.

    Raises:
        TypeError: The tensor has no plain form.
    """
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        raise TypeError(f"the entry {key!r} has layout {value.layout} and cannot be stored as {form}; densify it first")
    numpy_dtype(value.dtype)


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """Return the torch dtype of a NumPy dtype; ``None`` if torch has none, as for strings and records.

    >>> torch_dtype(np.dtype(">f4")), torch_dtype(np.dtype("S3"))
    (torch.float32, None)
    """
    return _FROM_NUMPY.get(dtype.newbyteorder("="))


def dtype_named(name: str) -> torch.dtype:
    """Return the dtype that `numpy_dtype` named.

    Raises:
        ValueError: This release of torch does not have it.

    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    if name not in _NAMED:
        raise ValueError(f"the stored dtype {name!r} is unknown to this release of torch; install a newer one")
    return _NAMED[name]


def empty(shape: Sequence[int], dtype: torch.dtype) -> tuple[np.ndarray[Any, Any], Tensor]:
    """Return an array and a tensor of the same memory, which is not initialized.

    >>> array, tensor = empty([2], torch.bfloat16)
    >>> array[:] = 16256
    >>> tensor
    tensor([1., 1.], dtype=torch.bfloat16)
    """
    native = _NATIVE.get(dtype)
    array = np.empty(shape, _NATIVE[_BITS[dtype.itemsize]] if native is None else native)
    tensor = torch.from_numpy(array)
    return array, tensor if native is not None else tensor.view(dtype)


def as_bits(tensor: Tensor) -> Tensor:
    """Return a tensor that NumPy can take: itself, or its bits as unsigned integers."""
    return tensor if tensor.dtype in _NATIVE else tensor.view(_BITS[tensor.dtype.itemsize])


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a tensor as a contiguous NumPy array, in the dtype that stores them.

    >>> as_array(torch.ones(2, dtype=torch.bfloat16))
    array([16256, 16256], dtype=uint16)
    """
    if type(tensor) is Tensor:
        try:
            return np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape)
        except (TypeError, RuntimeError):  # another device or dtype, a graph, or a value that is conjugated when read
            pass
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    array: np.ndarray[Any, Any] = as_bits(plain).numpy()
    return array
