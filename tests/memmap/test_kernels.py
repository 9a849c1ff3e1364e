"""Kernels against plain NumPy: every width, layout and alignment."""

from __future__ import annotations

import os

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.kernels import loader as kernels
from tensordict_memmap.engine.kernels.digest import Digest

pytestmark = pytest.mark.skipif(not syscalls.POSIX, reason="kernels write with pwrite")

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
def test_write_range_equals_a_plain_copy_whatever_the_staging(tmp_path, width, name):
    source = LAYOUTS[name](numbers((37, 29), width))
    for number, room in enumerate([width, 1000, 1 << 16]):
        for first, last in [(0, source.size), (1, source.size - 1), (source.size // 2, source.size // 2 + 3), (5, 5)]:
            path, staging = tmp_path / f"{number}-{first}-{last}", np.full(room + 1, 77, dtype=np.uint8)
            with open(path, "wb") as file:
                place = file.fileno(), 0, source.ctypes.data, *layout(source), first, last
                assert kernels.write_range(*place, staging.ctypes.data, room, width) == 0
            expected = bytes(first * width) + source.reshape(-1)[first:last].tobytes() if first < last else b""
            assert path.read_bytes() == expected
            assert staging[-1] == 77, "nothing is packed behind the staging"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("rows", "columns"), [(8, 8), (16, 24), (7, 9), (1, 17), (33, 1), (64, 65), (33, 136), (5, 130), (47, 203)]
)
def test_a_transposed_tile_equals_a_plain_copy(width, rows, columns):
    source = unaligned(numbers((columns, rows), width)).T
    target = np.zeros((rows, columns + 1), dtype=WIDTHS[width])
    kernels.transpose_tile(
        target.ctypes.data, target.strides[0], source.ctypes.data, *source.strides, rows, columns, width
    )
    assert np.array_equal(target[:, :-1], source)
    assert not target[:, -1].any(), "the gap between the rows is left alone"


@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("permutation", [(2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1)])
@pytest.mark.parametrize("room", [64 * 16, 5000, 1 << 20])
def test_write_tiled_equals_a_plain_copy_whatever_the_staging(tmp_path, width, permutation, room):
    source = numbers((11, 13, 21), width).transpose(permutation)
    axis = int(np.argmin(source.strides))
    if axis == 2:
        pytest.skip("dense along the last axis: not this kernel's")
    rows, outer, behind = source.shape[axis], int(np.prod(source.shape[:axis])), int(np.prod(source.shape[axis + 1 :]))
    staging = np.zeros(room, dtype=np.uint8)
    boxes = {
        "whole": [(0, outer, 0, rows, 0, behind)],
        "by outer": [(o, o + 1, 0, rows, 0, behind) for o in range(outer)],
        "by rows": [(o, o + 1, r, min(r + 3, rows), 0, behind) for o in range(outer) for r in range(0, rows, 3)],
        "split": [(o, o + 1, 0, rows, q, min(q + 4, behind)) for o in range(outer) for q in range(0, behind, 4)],
    }
    for name, parts in boxes.items():
        path = tmp_path / name
        with open(path, "wb") as file:
            for box in parts:
                corners = np.array(box, dtype=np.int64)
                arguments = (*layout(source), axis, corners, staging.ctypes.data, room, width)
                assert kernels.write_tiled(file.fileno(), 7, source.ctypes.data, *arguments) == 0
        assert path.read_bytes() == bytes(7) + source.tobytes(), name


LENGTHS = [0, 1, 63, 64, 65, 240, 241, 1023, 1024, 1025, 1087, 1088, 2048, 2049, 5000, 70_000]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("room", [1, 40, 64, 1000, 1024, 4096, 65_537])
def test_a_digest_is_the_hash_of_all_that_is_written_whatever_the_staging(length, room):
    source = numbers(2 * length, 1)[::2]
    staging, digest = np.zeros(room, dtype=np.uint8), Digest()
    with open(os.devnull, "wb") as file:
        place = file.fileno(), 0, source.ctypes.data, *layout(source), 0, length, staging.ctypes.data, room, 1
        assert kernels.write_range(*place, digest) == 0
    assert digest.value() == xxh3_64_intdigest(source.tobytes())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("room", [8 * 21 * 16, 5000, 1 << 20])
def test_a_digest_takes_the_bytes_of_a_box_in_the_order_of_the_file(tmp_path, width, room):
    source = numbers((11, 21, 13), width).transpose(0, 2, 1)
    staging = np.zeros(room, dtype=np.uint8)
    for box in [(0, 11, 0, 13, 0, 21), (2, 9, 0, 13, 0, 21), (3, 4, 5, 12, 0, 21)]:
        digest, corners = Digest(), np.array(box, dtype=np.int64)
        with open(tmp_path / "x", "wb") as file:
            arguments = (*layout(source), 1, corners, staging.ctypes.data, room, width, digest)
            assert kernels.write_tiled(file.fileno(), 0, source.ctypes.data, *arguments) == 0
        expected = source[box[0] : box[1], box[2] : box[3]].tobytes()
        assert (tmp_path / "x").read_bytes().endswith(expected)
        assert digest.value() == xxh3_64_intdigest(expected)


def test_a_write_that_fails_returns_its_errno(tmp_path):
    source = numbers((4, 4), 4)
    path = tmp_path / "read only"
    path.touch()
    with open(path, "rb") as file:
        assert os.strerror(kernels.write_all(file.fileno(), source.ctypes.data, 64, 0)) == "Bad file descriptor"


@pytest.mark.parametrize("row_bytes", [1, 3, 64, 1000])
def test_rows_are_gathered_and_scattered_like_numpy_does(row_bytes):
    table = numbers((50, row_bytes + 5), 1)
    source = table[:, :row_bytes]
    index = np.array([3, 49, 0, 3, 17], dtype=np.int64)
    out = np.zeros((5, row_bytes), dtype=np.uint8)
    kernels.gather_rows(out.ctypes.data, source.ctypes.data, table.strides[0], row_bytes, index, 1, 4)
    assert np.array_equal(out[1:4], source[index][1:4])
    assert not out[0].any() and not out[4].any()

    values = numbers((5, row_bytes), 1, seed=1)
    expected = table.copy()
    for row, value in zip(index, values, strict=True):
        if 3 <= row < 49:
            expected[row, :row_bytes] = value
    kernels.scatter_rows(table.ctypes.data, table.strides[0], values.ctypes.data, row_bytes, row_bytes, index, 3, 49)
    assert np.array_equal(table, expected)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, 100_003])
@pytest.mark.parametrize(("target", "source"), [(0, 0), (1, 0), (0, 1), (63, 5), (64, 64)])
def test_streamed_bytes_equal_a_plain_copy_and_nothing_else_changes(nbytes, target, source):
    values, memory = numbers(nbytes + 100, 1), np.zeros(nbytes + 200, dtype=np.uint8)
    expected = memory.copy()
    expected[target : target + nbytes] = values[source : source + nbytes]
    kernels.stream(memory.ctypes.data + target, values.ctypes.data + source, nbytes)
    assert np.array_equal(memory, expected)
