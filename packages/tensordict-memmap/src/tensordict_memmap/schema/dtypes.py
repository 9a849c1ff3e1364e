"""Dtypes by name, as in saved files (``torch.float32``), and views of tensors as bytes or integers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from tensordict_core.extension import DTYPES

QUANTIZED = frozenset(value for name, value in DTYPES.items() if name.startswith("torch.q"))
"""Dtypes of quantized tensors, whose scale and zero point no file holds. Torch ends the process where it reads bytes
as one of them, so no tensor is made over a file before its dtype was checked (`check_dtype`)."""

_NUMPY_NAMES = "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128"

NUMPY = {getattr(torch, name): np.dtype(name) for name in _NUMPY_NAMES.split()}
"""The dtypes that NumPy has: it makes an array with its shape at once, in half the time that torch takes for a tensor
over a buffer."""

NUMPY_DIMS = 31
"""The most dimensions of arrays in every version of NumPy, one of which may be added to a shape."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_from_name(name: str) -> torch.dtype:
    """Return the dtype of a name in a file.

    Args:
        name: The name, with or without the prefix ``torch.``.

    Raises:
        ValueError: The installed torch has no dtype of that name, or no file can hold a tensor of it.

    >>> dtype_from_name("torch.bfloat16")
    torch.bfloat16
    """
    full = name if name.startswith("torch.") else f"torch.{name}"
    try:
        return check_dtype(DTYPES[full])
    except KeyError:
        raise ValueError(
            f"{name!r:.100} is not a dtype of torch {torch.__version__}, and a file names one; load it with the torch "
            "that wrote it"
        ) from None


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return a dtype if bytes can be read as it.

    Raises:
        ValueError: It is the dtype of quantized tensors.

    >>> check_dtype(torch.int8)
    torch.int8
    """
    if dtype in QUANTIZED:
        raise ValueError(
            f"{dtype} is a dtype of quantized tensors, whose scale and zero point a file does not hold; save "
            "q.int_repr(), q.q_scale() and q.q_zero_point(), or q.dequantize()"
        )
    return dtype


def is_possible(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Return whether a tensor can have a shape: its bytes, and the strides of an empty one, must fit in 63 bits.

    >>> is_possible((1 << 30, 1 << 30), torch.uint8), is_possible((0, 1 << 32, 1 << 32), torch.uint8)
    (True, False)
    """
    return (prod(shape) or prod(max(n, 1) for n in shape)) * dtype.itemsize < 1 << 62


def reach(shape: Sequence[int], strides: Sequence[int] | None = None) -> int:
    """Return the number of elements of memory from the first element of a tensor to its last.

    Args:
        shape: The shape.
        strides: The strides in elements; contiguous if None.

    >>> reach((2, 3)), reach((2, 3), (10, 1)), reach((0, 3), (10, 1))
    (6, 13, 0)
    """
    if strides is None or 0 in shape:
        return prod(shape)
    return sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor as a contiguous tensor of bytes; copy only if they are not contiguous.

    >>> as_bytes(torch.tensor([1, 2], dtype=torch.int16)[::2])
    tensor([1, 0], dtype=torch.uint8)
    """
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    # a tensor of one element is contiguous with any stride, but a view of another width requires stride 1
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view as integers of the same width, for operations that many dtypes lack; 16-byte items stay unchanged.

    >>> as_bits(torch.zeros(2, dtype=torch.bfloat16)).dtype
    torch.int16
    """
    width = _BITS.get(tensor.element_size())
    return tensor if width is None else tensor.view(width)
