"""Datasets that grow: rows that are added while others read, and what a reader sees of them."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict
from tensordict_memmap import (
    MemmapDataset,
    append_memmap,
    load_memmap,
    memmap_refresh_,
    save,
)
from tensordict_memmap.storage.rows_committed import LOCK


def test_rows_are_appended_and_read_back(path, rows, row, alike):
    with MemmapDataset.create(path, row(0)) as dataset:
        assert len(dataset) == 0 and dataset.tensordict.batch_size == (0,)
        dataset.append(row(0))
        dataset.extend(rows(1, 10))
        assert len(dataset) == 10 and alike(dataset[2:5], rows(2, 5))
    whole = MemmapDataset.open(path).tensordict
    assert whole.is_locked
    for td in (whole, load_memmap(path), TensorDict.load(path)):
        assert td.batch_size == (10,) and td["deep"].batch_size == (10,) and alike(td, rows(0, 10))
    assert load_memmap(path)["split"] == "train"


@pytest.mark.filterwarnings("ignore:key 'v' is pickled")
def test_a_dataset_may_be_made_of_a_row_with_a_value_that_is_pickled(path):
    row = TensorDict({"v": NonTensorData(Fraction(1, 2)), "a": torch.tensor(1)})
    with MemmapDataset.create(path, row) as dataset:
        dataset.append(row)
    assert load_memmap(path, allow_pickle=True)["v"] == Fraction(1, 2) and load_memmap(path, subpath="a").tolist() == [
        1
    ]


def test_a_dataset_is_indexed_as_a_tensordict_is(dataset, rows, row, alike):
    dataset.extend(rows(0, 10))
    assert alike(dataset[3], row(3))
    assert alike(dataset[torch.tensor([7, -1])], rows(0, 10)[[7, 9]])
    assert alike(dataset.__getitems__([1, 4]), rows(0, 10)[[1, 4]])
    assert torch.equal(dataset["deep", "half"], rows(0, 10)["deep", "half"])
    assert repr(dataset).endswith("rows=10)")


def test_rows_that_were_written_count_when_they_are_committed(path, dataset, rows, row, alike):
    reader = MemmapDataset.open(path)
    dataset.extend(rows(0, 3), commit=False)
    dataset.append(row(3), commit=False)
    assert len(dataset) == len(dataset.tensordict) == reader.refresh() == len(load_memmap(path)) == 0
    dataset.commit()
    assert len(dataset) == reader.refresh() == len(load_memmap(path)) == 4
    assert alike(reader.tensordict, rows(0, 4))


def test_a_reader_sees_new_rows_after_a_refresh_and_keeps_earlier_tensors(path, dataset, rows, alike):
    dataset.extend(rows(0, 3))
    reader, mapped = MemmapDataset.open(path), load_memmap(path)
    before = reader.tensordict
    dataset.extend(rows(3, 2000))
    assert len(reader) == len(before) == 3
    assert reader.refresh() == 2000 and alike(reader.tensordict, rows(0, 2000))
    assert alike(before, rows(0, 3))
    assert reader.refresh() == 2000
    memmap_refresh_(mapped)
    assert alike(mapped, rows(0, 2000))


def test_writes_of_a_reader_stay_private(path, dataset, rows, row):
    dataset.extend(rows(0, 3))
    reader = MemmapDataset.open(path)
    reader["id"].fill_(77)
    with pytest.raises(RuntimeError, match="mode='r\\+'"):
        reader[0] = row(5)
    dataset.extend(rows(3, 4))
    assert reader.refresh() == 4 and reader["id"].tolist() == [0, 1, 2, 3]


def test_rows_that_count_are_overwritten_in_place(path, dataset, rows):
    dataset.extend(rows(0, 10))
    dataset[2:4] = rows(20, 22)
    dataset[torch.tensor([0, 9])] = rows(30, 32)
    assert load_memmap(path)["id"].tolist() == [30, 1, 20, 21, 4, 5, 6, 7, 8, 31]


def test_a_writer_continues_where_another_stopped(path, rows, row, alike):
    for start in range(0, 50, 10):
        with MemmapDataset.create(path, row(0)) if start == 0 else MemmapDataset.open(path, "r+") as dataset:
            dataset.extend(rows(start, start + 10))
    assert alike(load_memmap(path), rows(0, 50))


def test_after_an_error_in_the_block_only_committed_rows_are_kept(path, rows, row, alike):
    with pytest.raises(ZeroDivisionError), MemmapDataset.create(path, row(0)) as dataset:
        dataset.extend(rows(0, 5))
        dataset.extend(rows(5, 9), commit=False)
        raise ZeroDivisionError
    assert alike(load_memmap(path), rows(0, 5))
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.extend(rows(5, 6))
    assert alike(load_memmap(path), rows(0, 6))


def test_resizing_adds_zeros_and_cuts_rows_off(path, dataset, rows):
    dataset.extend(rows(1, 6))
    reader = MemmapDataset.open(path)
    dataset.resize(2)
    dataset.resize(4)
    assert load_memmap(path)["id"].tolist() == [1, 2, 0, 0]
    assert reader["id"].tolist()[:2] == [1, 2] and len(reader["id"].tolist()) == 5  # its mapping is whole
    assert reader.refresh() == 4
    dataset.extend(rows(9, 10))
    assert load_memmap(path)["id"].tolist() == [1, 2, 0, 0, 9]
    dataset.resize(0)
    assert len(dataset) == 0 and load_memmap(path).batch_size == (0,)
    with pytest.raises(ValueError, match="-1"):
        dataset.resize(-1)


def test_zeros_of_a_resize_take_no_space(path, dataset, row):
    dataset.resize(1_000_000)
    files = [found for found in path.rglob("*.memmap")]
    assert sum(file.stat().st_size for file in files) == 1_000_000 * (8 + 20 + 6 + 1)
    assert sum(file.stat().st_blocks for file in files) == 0
    dataset[999_999] = row(5)
    assert load_memmap(path)[-1]["id"] == 5


def test_closing_releases_space_that_was_not_reserved(path, rows, row, alike):
    with MemmapDataset.create(path, row(0)) as dataset:
        for number in range(20):
            dataset.append(row(number))
        assert (path / "id.memmap").stat().st_size > 160
    assert (path / "id.memmap").stat().st_size == 160
    with MemmapDataset.create(path, row(0), capacity=50, existsok=True) as dataset:
        dataset.extend(rows(0, 7))
    assert (path / "id.memmap").stat().st_size == 400 and alike(load_memmap(path), rows(0, 7))


def test_tensorclasses_keep_their_class(path):
    tensorclass = pytest.importorskip("tensordict_class", reason="tensorclasses are another package").tensorclass

    @tensorclass
    class Sample:
        x: torch.Tensor
        note: str

    def samples(start: int, stop: int) -> Sample:
        return Sample(torch.arange(start, stop), "n", batch_size=[stop - start])

    with MemmapDataset.create(path, samples(0, 1)[0]) as dataset:
        dataset.extend(samples(0, 4))
        dataset.append(samples(4, 5)[0])
    append_memmap(path, samples(5, 7))
    found = load_memmap(path)
    assert isinstance(found, Sample) and found.x.tolist() == list(range(7)) and found.note == "n"
    with pytest.raises(ValueError, match="Sample"):
        append_memmap(path, TensorDict({"x": torch.arange(2), "note": "n"}, [2]))


def test_lazy_rows_are_made_dense(path, dataset, rows, row, alike):
    lazy = LazyStackedTensorDict(row(0), row(1))
    dataset.extend(lazy)
    dataset.extend(LazyStackedTensorDict(rows(2, 4), rows(4, 6), stack_dim=0)[0])
    assert alike(load_memmap(path), rows(0, 4))


def test_rows_of_any_layout_and_size_are_written(path):
    like = TensorDict({"a": torch.zeros(300, 50), "c": torch.zeros(7, dtype=torch.complex64)})
    like["empty"] = torch.zeros(0, 3)
    batch = TensorDict(
        {
            "a": torch.randn(50, 300, 200).permute(2, 1, 0),
            "c": torch.randn(200, 7, dtype=torch.complex64).conj(),
            "empty": torch.zeros(200, 0, 3),
        },
        [200],
    )
    with MemmapDataset.create(path, like) as dataset:
        dataset.extend(batch[:20])
        dataset.extend(batch[20:], threads=3)
    found = load_memmap(path)
    assert torch.equal(found["a"], batch["a"]) and torch.equal(found["c"], batch["c"].resolve_conj())
    assert found["empty"].shape == (200, 0, 3)


def test_awkward_keys_grow_too(path, alike):
    keys = ["shape", "device", "weird/key.x", "meta.json", LOCK, "é", "a.b"]
    batch = TensorDict({key: torch.arange(3) for key in keys}, [3])
    batch["node"] = TensorDict({LOCK: TensorDict({"x": torch.arange(3)}, [3])}, [3])
    save(batch, path)
    append_memmap(path, batch)
    assert alike(load_memmap(path), torch.cat([batch, batch]))
