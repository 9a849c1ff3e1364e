"""How a file stores tensors: with which dtype and shape, and whether their bytes in memory are just those in the file.

Thousands of small tensors are looked at by calls that loop in C.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import attrgetter

import torch

from tensordict_memmap.formats.safetensors.header import CODES, Form

__all__ = ["Forms", "stored"]

_PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
_INTEGERS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_QUICK = frozenset(dtype for dtype in CODES if not dtype.is_complex)
"""The dtypes that need no second look at a tensor."""

_CACHED = 512
"""Tensors that several passes look at: few enough to be in the cache of the processor from the second pass on."""

_dtype_and_shape, _is_cpu = attrgetter("dtype", "shape"), attrgetter("is_cpu")

_Pair = tuple[torch.dtype, tuple[int, ...]]


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as the file has it.

    >>> stored(torch.tensor([1 + 2j], dtype=torch.complex128))
    tensor([[1., 2.]], dtype=torch.float64)
    """
    dtype = tensor.dtype
    if dtype in CODES:
        return tensor
    tensor = tensor.detach()
    return torch.view_as_real(tensor.resolve_conj()) if dtype in _PAIRS else tensor.view(_stored_as(dtype))


def _stored_as(dtype: torch.dtype) -> torch.dtype:
    """The dtype that the file gives tensors of a dtype: of those that the format lacks are pairs or integers."""
    return dtype if dtype in CODES else _PAIRS.get(dtype) or _INTEGERS[dtype.itemsize]


class Forms(dict[_Pair, Form]):
    """What a file says of tensors: of each pair of their own dtype and of the shape in the file, made once.

    >>> forms = Forms()
    >>> forms[torch.complex128, (3, 2)].dtype
    torch.float64
    >>> weight = torch.ones(2, 3)
    >>> forms.look([weight, weight.T]) == ([weight.data_ptr()] * 2, [forms[torch.float32, (2, 3)], None])
    True
    """

    __slots__ = ("_quick",)

    def __init__(self) -> None:
        super().__init__()
        self._quick = _QuickForms(self)

    def __missing__(self, pair: _Pair) -> Form:
        dtype, shape = pair
        form = self[pair] = Form(_stored_as(dtype), tuple(shape), width=dtype.itemsize)
        return form

    def look(self, tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[Form | None]]:
        """Addresses and forms of tensors; no form where the bytes there are not just what a file holds of one."""
        addresses: list[int] = []
        forms: list[Form | None] = []
        for first in range(0, len(tensors), _CACHED):
            some_addresses, some_forms = self._look(tensors[first : first + _CACHED])
            addresses += some_addresses
            forms += some_forms
        return addresses, forms

    def _look(self, tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[Form | None]]:
        try:  # refused where one is not strided, or is made of others; whoever looks at that one alone says why
            addresses = list(map(torch.Tensor.data_ptr, tensors))
            forms = list(map(self._quick.__getitem__, map(_dtype_and_shape, tensors)))
        except RuntimeError:
            dense = [tensor.layout is torch.strided and not tensor.is_nested for tensor in tensors]
            if all(dense):
                return [0] * len(tensors), [None] * len(tensors)
            looks = zip(*self._look(list(compress(tensors, dense))), strict=True)
            rows = [next(looks) if is_dense else (0, None) for is_dense in dense]
            return [address for address, _ in rows], [form for _, form in rows]
        if not (
            all(map(_is_cpu, tensors))
            and all(map(torch.Tensor.is_contiguous, tensors))
            and not any(map(torch.Tensor.is_neg, tensors))
        ):
            plain = [tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() for tensor in tensors]
            forms = [form if is_plain else None for form, is_plain in zip(forms, plain, strict=True)]
        return addresses, forms


class _QuickForms(dict[_Pair, Form | None]):
    """The same for dtypes that need no second look, and None for others."""

    __slots__ = ("_forms",)

    def __init__(self, forms: Forms) -> None:
        super().__init__()
        self._forms = forms

    def __missing__(self, pair: _Pair) -> Form | None:
        form = self[pair] = self._forms[pair] if pair[0] in _QUICK else None
        return form
