"""Kernels: every function that Numba compiles. They pack strided memory into contiguous memory.

Kernels see addresses, byte strides and item widths, never dtypes or tensors, so five widths (1, 2, 4, 8 and 16 bytes)
serve every dtype bit for bit. All arguments are 64-bit integers, except ``shape`` and ``strides``, which point to such
integers, and ``unit``, a null pointer whose type gives the width. ``loader.py`` keeps the machine code on disk and runs
it where Numba is not imported, so nothing here may use Numba's runtime: kernels make no array, raise nothing, and call
only each other, ``intrinsics.py`` and ``memcpy``. All return 0.
"""

# mypy: ignore-errors
# Numba infers the types of kernels when it compiles them.

from __future__ import annotations

import inspect
from typing import Any

import numba
import numpy as np
from numba import types

from tensordict_memmap.engine.kernels.intrinsics import bytes_of, counters, load, store, transpose_8x8

UNITS = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64, 16: types.complex128}
"""The type that a kernel moves, by its bytes."""

OPTIONS = {"error_model": "numpy", "forceinline": True}
"""The options of the compiler: a division by zero does not raise, and kernels are inlined into one another."""

POINTERS = ("shape", "strides")
"""The arguments that point to integers."""

_kernel = numba.njit(**OPTIONS)
_memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))


@_kernel
def pack_rows(target, source, shape, strides, ndim, first, last, unit):
    """Pack the items ``first`` to ``last`` (in C order) of a strided array, row by row along the last axis."""
    width = bytes_of(unit)
    columns = shape[ndim - 1]
    step = strides[ndim - 1]
    index = counters()
    rest = first // columns
    column = first - rest * columns
    row = source
    for axis in range(ndim - 2, -1, -1):
        index[axis] = rest % shape[axis]
        rest //= shape[axis]
        row += index[axis] * strides[axis]
    position = first
    while position < last:
        count = min(columns - column, last - position)
        start = row + column * step
        if step == width and count * width > 64:  # below that the call costs more than the loop
            _memcpy(target, start, count * width)
        else:
            for item in range(count):
                store(target + item * width, load(start + item * step, unit))
        target += count * width
        position += count
        column = 0
        axis = ndim - 2
        while axis >= 0:
            index[axis] += 1
            row += strides[axis]
            if index[axis] < shape[axis]:
                break
            row -= strides[axis] * shape[axis]
            index[axis] = 0
            axis -= 1
    return np.int64(0)


@_kernel
def transpose_tile(target, pitch, source, row_step, column_step, rows, columns, unit):
    """``target[i, j] = source[i, j]`` for a source that is dense along ``i`` and a target that is dense along ``j``.

    Tiles of 8 x 8 are copied along sixteen rows at a time. Cache lines of the target that one tile begins are then
    still in the cache when the next tile ends them, even where all of them fall into one cache set. Where rows are
    short, tiles are copied along the source's dense axis.
    """
    width = bytes_of(unit)
    full_rows = rows - rows % 8
    full_columns = columns - columns % 8
    bundle = np.int64(16) if columns > 128 else max(full_rows, np.int64(1))
    for top in range(0, full_rows, bundle):
        for j in range(0, full_columns, 8):
            for i in range(top, min(top + bundle, full_rows), 8):
                into = target + i * pitch + j * width
                out_of = source + i * row_step + j * column_step
                if row_step == width and width <= 8:
                    transpose_8x8(into, pitch, out_of, column_step, unit)
                    continue
                for a in range(8):
                    for b in range(8):
                        store(into + a * pitch + b * width, load(out_of + a * row_step + b * column_step, unit))
    for j in range(full_columns, columns):
        for i in range(rows):
            store(target + i * pitch + j * width, load(source + i * row_step + j * column_step, unit))
    for i in range(full_rows, rows):
        for j in range(full_columns):
            store(target + i * pitch + j * width, load(source + i * row_step + j * column_step, unit))
    return np.int64(0)


@_kernel
def pack_block(target, source, shape, strides, ndim, axis, row, rows, first, last, unit):
    """Pack, for ``rows`` steps along ``axis``, the items ``first`` to ``last`` (in C order) of the axes behind it.

    ``row`` is the first step, counted over ``axis`` and the axes before it. All steps have the same place in the axes
    before ``axis``.
    """
    width = bytes_of(unit)
    pitch = (last - first) * width
    columns = shape[ndim - 1]
    rest = row
    for before in range(axis, -1, -1):
        source += (rest % shape[before]) * strides[before]
        rest //= shape[before]
    position = first
    while position < last:
        rest = position // columns
        column = position - rest * columns
        start = source + column * strides[ndim - 1]
        for between in range(ndim - 2, axis, -1):
            start += (rest % shape[between]) * strides[between]
            rest //= shape[between]
        count = min(columns - column, last - position)
        out = target + (position - first) * width
        transpose_tile(out, pitch, start, strides[axis], strides[ndim - 1], rows, count, unit)
        position += count
    return np.int64(0)


@_kernel
def pack_range(target, source, shape, strides, ndim, axis, first, last, unit):
    """Pack the items ``first`` to ``last`` (in C order) of a strided array that is dense along ``axis``.

    Where that is not the last axis, whole rows along it are transposed in tiles. A row of which the range takes a part
    is packed alone.
    """
    behind = np.int64(1)
    for after in range(axis + 1, ndim):
        behind *= shape[after]
    if axis == ndim - 1:
        behind = last + 1  # all of the range is then a part of one row
    position = first
    while position < last:
        row = position // behind
        count = min((row + 1) * behind, last) - position
        if count < behind:
            pack_rows(target, source, shape, strides, ndim, position, position + count, unit)
        else:
            rows = min(shape[axis] - row % shape[axis], (last - position) // behind)
            pack_block(target, source, shape, strides, ndim, axis, row, rows, np.int64(0), behind, unit)
            count = rows * behind
        target += count * bytes_of(unit)
        position += count
    return np.int64(0)


def entries(width: int) -> dict[str, Any]:
    """Compile the kernels for an item width as C functions."""
    pointers = dict.fromkeys(POINTERS, types.CPointer(types.int64))
    pointers["unit"] = types.CPointer(UNITS[width])
    compiled = {}
    for kernel in KERNELS:
        arguments = [pointers.get(name, types.int64) for name in inspect.signature(kernel.py_func).parameters]
        compiled[kernel.__name__] = numba.cfunc(types.int64(*arguments), **OPTIONS)(kernel.py_func)
    return compiled


KERNELS = (pack_block, pack_range)
"""The kernels that are called from Python."""
