"""Kernels: every function that Numba compiles, and nothing else.

They see addresses, byte strides and item widths, never dtypes or tensors, so five widths (1, 2, 4, 8 and 16 bytes)
serve every dtype bit for bit. All arguments are 64-bit integers but for ``shape``, ``strides``, ``box`` and ``index``,
which point to such integers, and ``unit``, which points to nothing: its type says the width to move. ``jit.py`` keeps
the machine code on disk and calls it where Numba is not even imported, so nothing here may use Numba's runtime: no
array is made, nothing is raised, and what is called lies here, in ``intrinsics.py`` or in the C library. All return 0,
or the errno of the write that failed. A ``digest`` is the address of one (``digest.py``) that has taken all that was
written, in the order of the file, once a kernel returns; 0 asks for none.
"""

# mypy: ignore-errors
# Numba infers the types of kernels when it compiles them.

from __future__ import annotations

import errno
import inspect
import sys
from typing import Any

import numba
import numpy as np
from numba import types

from tensordict_memmap.engine.kernels.digest import BLOCK, HELD, LAST_KEY, SECRET, STRIPE, SUMS
from tensordict_memmap.engine.kernels.intrinsics import (
    bytes_of,
    counters,
    fence,
    hash_block,
    hash_stripe,
    integers,
    load,
    store,
    stream_line,
    transpose_8x8,
)

UNITS = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64, 16: types.complex128}
"""What a kernel moves, by its bytes."""

OPTIONS = {"error_model": "numpy", "forceinline": True}
"""How all of them are compiled: they neither raise on a division by zero nor call one another."""

POINTERS = ("shape", "strides", "box", "index")
"""The arguments that point to integers."""

_EINTR = errno.EINTR
_ENOSPC = errno.ENOSPC

_kernel = numba.njit(**OPTIONS)
_memcpy = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
_memmove = types.ExternalFunction("memmove", types.int64(types.int64, types.int64, types.int64))
_pwrite = types.ExternalFunction("pwrite", types.int64(types.int32, types.int64, types.int64, types.int64))
_errno_address = types.ExternalFunction(
    "__error" if sys.platform == "darwin" else "__errno_location", types.CPointer(types.int32)()
)


@_kernel
def write_all(fd, address, nbytes, offset):
    """Writes ``nbytes`` bytes at ``address`` to ``offset`` of a file; returns 0 or an errno."""
    while nbytes > 0:
        done = _pwrite(np.int32(fd), address, nbytes, offset)
        if done < 0:
            code = np.int64(_errno_address()[0])
            if code == _EINTR:
                continue
            return code
        if done == 0:
            return np.int64(_ENOSPC)
        address += done
        offset += done
        nbytes -= done
    return np.int64(0)


@_kernel
def hash_add(digest, address, nbytes):
    """Takes the next bytes into a digest, which holds the last 1 to `BLOCK` back: a hash ends unlike it goes on."""
    taken = integers(digest)
    total = taken[0]
    taken[0] = total + nbytes
    sums = digest + SUMS
    secret = digest + SECRET
    block = digest + HELD
    held = total - max(total - 1, 0) // BLOCK * BLOCK
    count = min(nbytes, BLOCK - held)
    _memcpy(block + held, address, count)
    if count == nbytes:
        return np.int64(0)
    hash_block(sums, block, secret)
    _memcpy(block - STRIPE, block + BLOCK - STRIPE, STRIPE)
    start = address + count
    rest = nbytes - count
    whole = (rest - 1) // BLOCK * BLOCK
    for position in range(0, whole, BLOCK):
        hash_block(sums, start + position, secret)
    if whole > 0:
        _memcpy(block - STRIPE, start + whole - STRIPE, STRIPE)
    _memcpy(block, start + whole, rest - whole)
    return np.int64(0)


@_kernel
def hash_end(digest):
    """Takes what a digest held back, unless that is all there was: of so little the hash is another."""
    total = integers(digest)[0]
    if total > BLOCK:
        block = digest + HELD
        held = total - (total - 1) // BLOCK * BLOCK
        for stripe in range((held - 1) // STRIPE):
            hash_stripe(digest + SUMS, block + stripe * STRIPE, digest + SECRET + stripe * 8)
        hash_stripe(digest + SUMS, block + held - STRIPE, digest + SECRET + LAST_KEY)
    return np.int64(0)


@_kernel
def write_hashed(fd, address, nbytes, offset, digest):
    """`write_all` of the next bytes of a digest, where there is one."""
    if digest != 0:
        hash_add(digest, address, nbytes)
    return write_all(fd, address, nbytes, offset)


@_kernel
def pack_range(target, source, shape, strides, ndim, first, last, unit):
    """Copies the items ``first`` to ``last`` (in C order) of a strided array to a contiguous ``target``."""
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
def write_range(fd, offset, source, shape, strides, ndim, first, last, staging, room, digest, unit):
    """Writes the items ``first`` to ``last`` (in C order) of a strided array, through ``room`` bytes of staging.

    ``offset`` is where item 0 of the array belongs in the file. Writes end at multiples of half of ``room`` in the
    file, as far as items do.
    """
    width = bytes_of(unit)
    part = max(room // 2, width)
    position = first
    while position < last:
        count = (part - (offset + position * width) % part) // width
        if count == 0:
            count = part // width
        end = min(position + count, last)
        pack_range(staging, source, shape, strides, ndim, position, end, unit)
        code = write_hashed(fd, staging, (end - position) * width, offset + position * width, digest)
        if code != 0:
            return code
        position = end
    if digest != 0:
        hash_end(digest)
    return np.int64(0)


@_kernel
def transpose_tile(target, pitch, source, row_step, column_step, rows, columns, unit):
    """``target[i, j] = source[i, j]`` for a source that is dense along ``i`` and a target that is dense along ``j``.

    Tiles of 8 x 8 go along sixteen rows at a time: the lines of the target that one tile begins are then still in the
    cache when the next one ends them, also where all of them fall into one set of it. Where rows are short, tiles go
    along the source's dense axis.
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
def pack_block(target, source, row_step, rows, shape, strides, ndim, axis, first, last, unit):
    """Packs, for ``rows`` steps along one axis, the items ``first`` to ``last`` of all axes behind it (in C order)."""
    width = bytes_of(unit)
    pitch = (last - first) * width
    columns = shape[ndim - 1]
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
        transpose_tile(out, pitch, start, row_step, strides[ndim - 1], rows, count, unit)
        position += count
    return np.int64(0)


@_kernel
def write_tiled(fd, offset, source, shape, strides, ndim, axis, box, staging, room, digest, unit):
    """Writes a part of an array that is dense along ``axis`` rather than along its last one.

    ``box`` is six numbers: the range of the axes in front of ``axis`` (flattened), that of ``axis``, and that of the
    axes behind it (flattened). A box that takes several of the first must take all of the second, so that what is
    packed one behind the other also lies so in the file; one that splits the third writes each row on its own, and has
    no digest. What lies so goes out up to the next multiple of half of ``room`` in the file, whatever rows end there.
    """
    width = bytes_of(unit)
    rows_all = shape[axis]
    behind = np.int64(1)
    for after in range(axis + 1, ndim):
        behind *= shape[after]
    block = room // width
    split = box[4] != 0 or box[5] != behind or behind > block // 8
    length = behind * width
    part = max(room // 2, np.int64(1))
    filled = np.int64(0)
    begun = offset + (box[0] * rows_all + box[2]) * length
    for outer in range(box[0], box[1]):
        base = source
        rest = outer
        for before in range(axis - 1, -1, -1):
            base += (rest % shape[before]) * strides[before]
            rest //= shape[before]
        i = box[2]
        while i < box[3]:
            start = base + i * strides[axis]
            if split:
                rows = min(box[3] - i, max(np.int64(8), 64 // width))
                piece = max(block // rows, np.int64(1))
                q = box[4]
                while q < box[5]:
                    end = min(q + piece, box[5])
                    pack_block(staging, start, strides[axis], rows, shape, strides, ndim, axis, q, end, unit)
                    for row in range(rows):
                        place = offset + ((outer * rows_all + i + row) * behind + q) * width
                        code = write_all(fd, staging + row * (end - q) * width, (end - q) * width, place)
                        if code != 0:
                            return code
                    q = end
                i += rows
                continue
            missing = part - (begun + filled) % part
            rows = (missing + 8 * length - 1) // (8 * length) * 8
            rows = min(box[3] - i, rows, (room - filled) // length)
            into = staging + filled
            pack_block(into, start, strides[axis], rows, shape, strides, ndim, axis, np.int64(0), behind, unit)
            filled += rows * length
            i += rows
            whole = filled - (begun + filled) % part
            if whole > 0:
                code = write_hashed(fd, staging, whole, begun, digest)
                if code != 0:
                    return code
                begun += whole
                filled -= whole
                _memmove(staging, staging + whole, filled)
    if filled > 0:
        code = write_hashed(fd, staging, filled, begun, digest)
        if code != 0:
            return code
    if digest != 0:
        hash_end(digest)
    return np.int64(0)


@_kernel
def gather_rows(target, source, source_step, row_bytes, index, first, last):
    """``target[k] = source[index[k]]`` for the rows ``first`` to ``last`` of a contiguous target."""
    for k in range(first, last):
        _memcpy(target + k * row_bytes, source + index[k] * source_step, row_bytes)
    return np.int64(0)


@_kernel
def scatter_rows(target, target_step, source, source_step, row_bytes, index, count, low, high):
    """``target[index[k]] = source[k]`` in order, for the target rows from ``low`` to below ``high``.

    Threads share the work by target rows, not by ``k``, so that a row named twice gets the later of its sources, whole.
    """
    for k in range(count):
        row = index[k]
        if low <= row < high:
            _memcpy(target + row * target_step, source + k * source_step, row_bytes)
    return np.int64(0)


@_kernel
def stream(target, source, nbytes):
    """Copies memory past the caches: a plain store first reads the line that it fills, which is a third of the traffic.

    The two do not overlap.
    """
    head = min(-target % 64, nbytes)
    _memcpy(target, source, head)
    end = head + (nbytes - head) // 64 * 64
    for position in range(head, end, 64):
        stream_line(target + position, source + position)
    _memcpy(target + end, source + end, nbytes - end)
    fence()
    return np.int64(0)


def entries(width: int) -> dict[str, Any]:
    """The kernels for a width, as Numba compiles them for callers of C; 0 is for those that move bytes."""
    pointers = dict.fromkeys(POINTERS, types.CPointer(types.int64))
    if width:
        pointers["unit"] = types.CPointer(UNITS[width])
    compiled = {}
    for kernel in MOVE_ITEMS if width else MOVE_BYTES:
        arguments = [pointers.get(name, types.int64) for name in inspect.signature(kernel.py_func).parameters]
        compiled[kernel.__name__] = numba.cfunc(types.int64(*arguments), **OPTIONS)(kernel.py_func)
    return compiled


MOVE_BYTES = (write_all, gather_rows, scatter_rows, stream)
MOVE_ITEMS = (write_range, transpose_tile, write_tiled)
