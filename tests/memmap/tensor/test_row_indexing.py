"""Rows by index: what a mapped tensordict gives and takes equals what one in memory does."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemoryMappedTensor, load_memmap, memmap
from tensordict_memmap.engine import syscalls, tuning
from tensordict_memmap.schema.dtypes import DTYPES
from tensordict_memmap.tensor import indexing
from tensordict_memmap.tensor.indexing import gather_rows, scatter_rows

SIZES = {"bool": 1, "uint16": 2, "float8_e4m3fn": 1, "bfloat16": 2, "float32": 4, "complex64": 8, "complex128": 16}
ROWS = 700


def table(name: str, width: int) -> torch.Tensor:
    """Random bits, except that a bool is one."""
    generator = torch.Generator().manual_seed(width)
    if name == "bool":
        return torch.randint(2, (ROWS, width), generator=generator).bool()
    data = torch.randint(256, (ROWS, width * SIZES[name]), generator=generator, dtype=torch.uint8)
    return data.view(DTYPES[f"torch.{name}"])


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture(params=["warm", "cold"])
def pages(request, monkeypatch):
    """Whether the pages of the rows are taken to be in memory, whatever their size."""
    monkeypatch.setattr(indexing, "READ_AHEAD_MIN", 0)
    monkeypatch.setattr(indexing, "is_cold", lambda src, index: request.param == "cold")


@pytest.mark.parametrize("width", [1, 3, 64, 257])
@pytest.mark.parametrize("name", SIZES)
def test_rows_are_gathered_and_scattered_bit_for_bit(tmp_path, name, width, pages):
    source = table(name, width)
    mapped = MemoryMappedTensor.from_tensor(source, filename=tmp_path / "x")
    index = torch.randint(-ROWS, ROWS, (333,))
    numbers = [number % ROWS for number in index.tolist()]
    expected = np.frombuffer(raw(source), dtype=np.uint8).reshape(ROWS, -1)[numbers]
    assert raw(gather_rows(mapped, index)) == raw(mapped[index]) == expected.tobytes()

    values = table(name, width)[ROWS - 333 :]
    oracle = np.frombuffer(raw(source), dtype=np.uint8).reshape(ROWS, -1).copy()
    for number, row in zip(numbers, np.frombuffer(raw(values), dtype=np.uint8).reshape(333, -1), strict=True):
        oracle[number] = row
    scatter_rows(mapped, index, values)
    assert raw(mapped) == oracle.tobytes()


def test_rows_that_come_from_the_same_tensor_are_those_before_the_write(tmp_path, pages):
    rows = torch.arange(ROWS * 4).reshape(ROWS, 4)
    mapped = MemoryMappedTensor.from_tensor(rows, filename=tmp_path / "x")
    scatter_rows(mapped, torch.arange(1, ROWS), mapped[:-1])
    assert torch.equal(mapped[1:], rows[:-1])
    order = MemoryMappedTensor.from_tensor(torch.randperm(ROWS), filename=tmp_path / "order")
    inverse = torch.empty(ROWS, dtype=torch.int64)
    inverse[order.clone()] = torch.arange(ROWS)
    scatter_rows(order, order, torch.arange(ROWS))
    assert torch.equal(order, inverse)


def test_rows_written_to_a_private_mapping_are_pickled_with_it(tmp_path, pages):
    TensorDict({"x": torch.zeros(ROWS, 4)}, [ROWS]).save(tmp_path / "x")
    mine = load_memmap(tmp_path / "x", mode="r")["x"]
    scatter_rows(mine, torch.tensor([3, 5]), torch.ones(2, 4))
    assert torch.equal(pickle.loads(pickle.dumps(mine)), mine), "the file does not hold them"


@pytest.mark.parametrize("step", [1, 2, 3])
def test_rows_of_a_view_that_skips_are_found(tmp_path, step, pages):
    mapped = MemoryMappedTensor.from_tensor(torch.arange(2000).reshape(200, 10), filename=tmp_path / "x")
    view, plain = mapped[::step], mapped.clone()[::step]
    index = torch.randint(len(view), (100,))
    assert torch.equal(gather_rows(view, index), plain[index])
    columns, plain_columns = mapped[:, 1:7:step], mapped.clone()[:, 1:7:step]
    assert torch.equal(gather_rows(columns, index), plain_columns[index])
    scatter_rows(columns, index, torch.zeros(100, columns.shape[1], dtype=torch.int64))
    assert not columns[index].any() and mapped[:, 0].tolist() == list(range(0, 2000, 10))


def test_rows_without_bytes_and_no_rows(pages):
    assert gather_rows(torch.zeros(5, 0, 3), torch.tensor([4, 0])).shape == (2, 0, 3)
    assert gather_rows(torch.zeros(5, 2), torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 2)
    scatter_rows(torch.zeros(5, 0), torch.tensor([1]), torch.zeros(1, 0))


@pytest.fixture
def pair(tmp_path):
    """A tensordict on disk, and the same in memory."""
    td = TensorDict(
        {"a": torch.arange(ROWS * 40).reshape(ROWS, 40), "deep": {"b": torch.rand(ROWS, 9).bfloat16()}}, [ROWS]
    )
    return memmap(td, tmp_path / "x"), td


INDICES = {
    "one": 5,
    "slice": slice(10, 600),
    "slice with a step": slice(3, 690, 7),
    "rows": torch.randint(-ROWS, ROWS, (500,)),
    "int32 rows": torch.randint(ROWS, (500,), dtype=torch.int32),
    "list": [5, 3, -1, 5],
    "range": range(0, 700, 3),
    "array": np.arange(0, 700, 2),
    "mask": torch.rand(ROWS) < 0.5,
    "matrix": torch.randint(ROWS, (20, 30)),
    "nothing": torch.zeros(0, dtype=torch.int64),
}


@pytest.mark.parametrize("name", INDICES)
def test_a_mapped_tensordict_is_indexed_as_one_in_memory(pair, name):
    disk, memory = pair
    index = INDICES[name]
    found, expected = disk[index], memory[index]
    assert found.batch_size == expected.batch_size
    for key in ("a", ("deep", "b")):
        assert torch.equal(found[key], expected[key])


@pytest.mark.parametrize("name", [name for name in INDICES if name not in ("rows", "int32 rows", "list", "matrix")])
def test_rows_of_a_mapped_tensordict_are_written_as_those_in_memory(tmp_path, pair, name):
    disk, memory = pair
    index = INDICES[name]
    values = memory[index].apply(lambda leaf: leaf + 3)
    disk[index] = values
    memory[index] = values
    for td in (disk, load_memmap(tmp_path / "x")):
        assert all(torch.equal(td[key], memory[key]) for key in ("a", ("deep", "b")))


def test_a_row_that_is_written_twice_at_once_holds_the_later_one_whole(tmp_path):
    disk = memmap(TensorDict({"a": torch.zeros(50, 4000)}, [50]), tmp_path / "x")
    index = torch.arange(50).repeat(4)
    disk["a"][index] = torch.arange(200.0)[:, None].expand(-1, 4000)
    assert torch.equal(disk["a"], torch.arange(150.0, 200.0)[:, None].expand(-1, 4000))


def test_gathering_selecting_and_reading_lists_of_rows_agree(pair):
    disk, memory = pair
    rows = torch.randint(ROWS, (300,))
    for found in (disk.gather(0, rows), disk.__getitems__(rows.tolist()), disk[rows]):
        assert found.batch_size == (300,)
        assert torch.equal(found["a"], memory["a"][rows])
    assert torch.equal(torch.index_select(disk["a"], 0, rows), memory["a"][rows])
    with pytest.raises((IndexError, RuntimeError)):
        disk.gather(0, torch.tensor([ROWS]))


def test_a_dtype_that_torch_cannot_gather_is_gathered(tmp_path):
    disk = memmap(TensorDict({"a": torch.rand(20, 3).to(torch.float8_e5m2)}, [20]), tmp_path / "x")
    assert raw(disk.gather(0, torch.tensor([3, 19]))["a"]) == raw(disk["a"].clone()[[3, 19]])


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "first fill"])
@pytest.mark.parametrize(
    "how", ["contiguous", "transposed", "another dtype", "broadcast", "odd size", "negative strides"]
)
def test_updates_in_place_from_any_source_reach_the_file(tmp_path, how, warm):
    shape = (1031, 1033)
    sources = {
        "contiguous": lambda: torch.randn(shape),
        "transposed": lambda: torch.randn(shape[::-1]).T,
        "another dtype": lambda: torch.randn(shape, dtype=torch.float64),
        "broadcast": lambda: torch.randn(1033).expand(shape),
        "odd size": lambda: torch.randn(shape[0] * shape[1] + 1)[1:].view(shape),
        "negative strides": lambda: torch.from_numpy(np.ascontiguousarray(np.random.rand(*shape)[::-1, ::-1])),
    }
    source = sources[how]()
    disk = TensorDict({"a": torch.zeros(shape)}).memmap_like(tmp_path / "x")
    if warm:
        disk["a"].fill_(1)
    disk.update_(TensorDict({"a": source}))
    assert torch.equal(disk["a"], source.float())
    assert torch.equal(load_memmap(tmp_path / "x")["a"], source.float())


@pytest.mark.skipif(not syscalls.LINUX, reason="says which pages are in memory, and drops them")
@pytest.mark.parametrize("take", [lambda td, rows: td[rows]["x"], lambda td, rows: td["x"][rows]], ids=["td", "entry"])
def test_only_rows_on_the_disk_are_requested_and_at_once(tmp_path, monkeypatch, take):
    table = torch.arange(3000 * 4096, dtype=torch.int32).view(3000, 4096)
    TensorDict({"x": table}, [3000]).save(tmp_path / "x", durable=True)
    with open(tmp_path / "x" / "x.memmap", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    td = load_memmap(tmp_path / "x")
    rows = torch.arange(5, 3000, 100)
    plain = td["x"].as_subclass(torch.Tensor)
    if not tuning.is_cold(plain, rows):
        pytest.skip("this file system keeps its pages in memory")
    asked = []
    read_ahead = syscalls.read_ahead
    monkeypatch.setattr(syscalls, "read_ahead", lambda *where: asked.append(where) or read_ahead(*where))
    assert torch.equal(take(td, rows), table[rows])
    assert asked == [(plain.data_ptr() + row * 16384, 16384) for row in rows.tolist()]
    assert not tuning.is_cold(plain, rows) and tuning.is_cold(plain, rows + 50), "rows between them were not read"
    assert torch.equal(take(td, rows), table[rows]) and len(asked) == len(rows)
