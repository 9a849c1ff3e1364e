"""Kernels against plain NumPy: every width, layout and alignment."""

from __future__ import annotations

import numpy as np
import pytest

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.kernels import loader as kernels

pytestmark = pytest.mark.skipif(not syscalls.POSIX, reason="kernels are used on POSIX systems")

WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def numbers(shape, width, seed=0):
    """Random bits; for 16 bytes random finite numbers, whose equality NumPy can tell."""
    random = np.random.default_rng(seed)
    if width == 16:
        return (random.random(shape) + 1j * random.random(shape)).astype(np.complex128)
    return random.integers(0, np.iinfo(WIDTHS[width]).max, size=shape, dtype=WIDTHS[width], endpoint=True)


def layout(array):
    return np.array(array.shape, dtype=np.int64), np.array(array.strides, dtype=np.int64)


def unaligned(array):
    """The same values at an address that is a multiple of nothing."""
    memory = np.zeros(array.nbytes + 3, dtype=np.uint8)
    moved = memory[3:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


LAYOUTS = {
    "every other column": lambda a: a[:, ::2],
    "reversed": lambda a: a[::-1, ::-1],
    "transposed": lambda a: a.T,
    "a column repeated": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "a row repeated": lambda a: np.broadcast_to(a[:1], a.shape),
    "overlapping windows": lambda a: np.lib.stride_tricks.sliding_window_view(a.reshape(-1), 5),
    "a window": lambda a: a[3:-2, 1:-1],
    "unaligned": unaligned,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_range_of_any_layout_and_axis_is_packed_as_a_plain_copy(width, name):
    source = LAYOUTS[name](numbers((37, 29), width))
    flat = source.reshape(-1)
    for axis in range(source.ndim):
        for first, last in [(0, flat.size), (1, flat.size - 1), (flat.size // 2, flat.size // 2 + 3), (5, 5)]:
            target = np.full((last - first) * width + 1, 77, dtype=np.uint8)
            kernels.pack_range(target.ctypes.data, source.ctypes.data, *layout(source), axis, first, last, width)
            assert target[:-1].tobytes() == flat[first:last].tobytes()
            assert target[-1] == 77, "nothing is packed behind the range"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("rows", "columns"), [(8, 8), (16, 24), (7, 9), (1, 17), (33, 1), (64, 65), (33, 136), (5, 130), (47, 203)]
)
def test_a_transposed_block_equals_a_plain_copy(width, rows, columns):
    source = unaligned(numbers((columns, rows), width)).T
    for first, last in [(0, columns), (columns // 3, columns), (0, columns // 2 + 1)]:
        target = np.full(rows * (last - first) * width + 1, 77, dtype=np.uint8)
        place = target.ctypes.data, source.ctypes.data, *layout(source)
        kernels.pack_block(*place, 0, 0, rows, first, last, width)
        assert target[:-1].tobytes() == source[:, first:last].tobytes()
        assert target[-1] == 77, "nothing is packed behind the block"


@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("permutation", [(2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1)])
def test_ranges_and_blocks_of_permuted_arrays_equal_a_plain_copy(width, permutation):
    source = numbers((11, 13, 21), width).transpose(permutation)
    axis = int(np.argmin(source.strides))
    flat, place = source.reshape(-1), (source.ctypes.data, *layout(source))
    rng = np.random.default_rng(0)
    for _ in range(30):
        first, last = sorted(rng.integers(0, flat.size, 2).tolist())
        target = np.zeros(last - first, dtype=WIDTHS[width])
        kernels.pack_range(target.ctypes.data, *place, axis, first, last, width)
        assert np.array_equal(target, flat[first:last])
    if axis == 2:
        return
    rows, behind = source.shape[axis], int(np.prod(source.shape[axis + 1 :]))
    whole = source.reshape(-1, behind)
    for row in range(0, whole.shape[0], rows):
        for start, stop in [(0, rows), (2, rows - 1)]:
            for first, last in [(0, behind), (behind // 3, behind), (1, 2)]:
                target = np.zeros((stop - start, last - first), dtype=WIDTHS[width])
                kernels.pack_block(target.ctypes.data, *place, axis, row + start, stop - start, first, last, width)
                assert np.array_equal(target, whole[row + start : row + stop, first:last])
