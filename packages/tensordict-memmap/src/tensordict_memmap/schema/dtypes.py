"""Dtypes by name, as files spell them (``torch.float32``), and the integer that moves an item of a dtype unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

DTYPES: dict[str, torch.dtype] = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""Every dtype of this torch by its canonical name."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_from_name(name: str) -> torch.dtype:
    """Finds the dtype that a file names.

    Args:
        name: the name, with or without ``torch.`` in front.

    Raises:
        ValueError: if this torch has no dtype of that name.

    >>> dtype_from_name("torch.bfloat16")
    torch.bfloat16
    """
    full = name if name.startswith("torch.") else f"torch.{name}"
    try:
        return DTYPES[full]
    except KeyError:
        raise ValueError(
            f"a file names a dtype of torch, and {name!r} is none in torch {torch.__version__}; "
            "load it with the torch that wrote it"
        ) from None


def is_possible(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether a tensor may have a shape: torch counts bytes in 63 bits, those of strides of empty ones included.

    >>> is_possible((1 << 30, 1 << 30), torch.uint8), is_possible((0, 1 << 32, 1 << 32), torch.uint8)
    (True, False)
    """
    return (prod(shape) or prod(max(n, 1) for n in shape)) * dtype.itemsize < 1 << 62


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's values, one after the other; a copy where they do not lie so.

    >>> as_bytes(torch.tensor([1, 2], dtype=torch.int16)[::2])
    tensor([1, 0], dtype=torch.uint8)
    """
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    # one element counts as contiguous whatever its stride is, and a view of another width takes no stride but 1
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the same width, for operations that many dtypes lack; unchanged for 16-byte items.

    >>> as_bits(torch.zeros(2, dtype=torch.bfloat16)).dtype
    torch.int16
    """
    width = _BITS.get(tensor.element_size())
    return tensor if width is None else tensor.view(width)
