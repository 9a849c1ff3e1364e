"""The kernels as Python calls them: on arrays and addresses, without the GIL, whether or not Numba is imported.

``kernels.py`` says what each does. Sizes, strides and indices are arrays of 64-bit integers.
"""

from __future__ import annotations

import numpy as np

from tensordict_memmap.engine.kernels.compile import functions
from tensordict_memmap.engine.kernels.digest import Digest

__all__ = [
    "gather_rows",
    "scatter_rows",
    "stream",
    "transpose_tile",
    "write_all",
    "write_range",
    "write_tiled",
]

_Integers = np.ndarray


def _address(numbers: _Integers) -> int:
    assert numbers.dtype == np.int64 and numbers.flags.c_contiguous
    return int(numbers.ctypes.data)


def _layout(shape: _Integers, strides: _Integers) -> tuple[int, int, int]:
    return _address(shape), _address(strides), shape.size


def _memory(digest: Digest | None) -> int:
    return 0 if digest is None else digest.address


def write_all(fd: int, address: int, nbytes: int, offset: int) -> int:
    """Writes ``nbytes`` bytes at ``address`` to ``offset`` of a file; returns 0 or an errno."""
    return functions(0)["write_all"](fd, address, nbytes, offset)


def write_range(
    fd: int,
    offset: int,
    source: int,
    shape: _Integers,
    strides: _Integers,
    first: int,
    last: int,
    staging: int,
    room: int,
    width: int,
    digest: Digest | None = None,
) -> int:
    """Writes the items ``first`` to ``last`` of a strided array, through staging; returns 0 or an errno."""
    return functions(width)["write_range"](
        fd, offset, source, *_layout(shape, strides), first, last, staging, room, _memory(digest), 0
    )


def transpose_tile(
    target: int, pitch: int, source: int, row_step: int, column_step: int, rows: int, columns: int, width: int
) -> None:
    """``target[i, j] = source[i, j]`` for a source that is dense along ``i`` and a target that is dense along ``j``."""
    functions(width)["transpose_tile"](target, pitch, source, row_step, column_step, rows, columns, 0)


def write_tiled(
    fd: int,
    offset: int,
    source: int,
    shape: _Integers,
    strides: _Integers,
    axis: int,
    box: _Integers,
    staging: int,
    room: int,
    width: int,
    digest: Digest | None = None,
) -> int:
    """Writes a box of an array that is dense along ``axis`` rather than along its last one; returns 0 or an errno."""
    return functions(width)["write_tiled"](
        fd, offset, source, *_layout(shape, strides), axis, _address(box), staging, room, _memory(digest), 0
    )


def gather_rows(
    target: int, source: int, source_step: int, row_bytes: int, index: _Integers, first: int, last: int
) -> None:
    """``target[k] = source[index[k]]`` for the rows ``first`` to ``last`` of a contiguous target."""
    functions(0)["gather_rows"](target, source, source_step, row_bytes, _address(index), first, last)


def scatter_rows(
    target: int, target_step: int, source: int, source_step: int, row_bytes: int, index: _Integers, low: int, high: int
) -> None:
    """``target[index[k]] = source[k]`` in order, for the target rows from ``low`` to below ``high``."""
    functions(0)["scatter_rows"](
        target, target_step, source, source_step, row_bytes, _address(index), index.size, low, high
    )


def stream(target: int, source: int, nbytes: int) -> None:
    """Copies memory past the caches; the two do not overlap."""
    functions(0)["stream"](target, source, nbytes)
