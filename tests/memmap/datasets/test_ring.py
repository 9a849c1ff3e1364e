"""Rings: datasets of bounded capacity, in which no reader takes a torn row for a valid one."""

from __future__ import annotations

import os
import random
import time
import uuid

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, append_memmap, load_memmap
from tensordict_memmap.dataset import ring, upload

WIDTH = 64


def rows(start, stop):
    number = torch.arange(start, stop)
    return TensorDict({"id": number, "deep": {"x": number[:, None].expand(-1, WIDTH)}}, [stop - start])


def make(path, capacity, **options):
    return MemmapDataset.create(path, rows(0, 1)[0], capacity=capacity, ring=True, **options)


def check(batch, numbers):
    """Whether a batch holds these rows, and whether each of them is whole."""
    assert batch["id"].tolist() == list(numbers)
    assert (batch["deep", "x"] == batch["id"][:, None]).all()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ring"


def test_the_oldest_rows_make_place_for_new_ones(path):
    with make(path, 5) as dataset:
        assert len(dataset) == 0
        for number in range(13):
            dataset.append(rows(number, number + 1)[0])
            assert len(dataset) == min(number + 1, 5)
            check(dataset[:], range(max(0, number - 4), number + 1))
        size = os.path.getsize(path / "id.memmap")
        dataset.extend(rows(13, 17))
        check(dataset[:], range(12, 17))
        assert os.path.getsize(path / "id.memmap") == size
    check(MemmapDataset.open(path)[:], range(12, 17))


def test_positions_count_from_the_oldest_row(path):
    dataset = make(path, 4)
    dataset.extend(rows(0, 7))
    assert dataset[0]["id"] == 3 and dataset[-1]["id"] == 6 and dataset["id"].tolist() == [3, 4, 5, 6]
    check(dataset[torch.tensor([3, 0, -2])], [6, 3, 5])
    check(dataset.__getitems__([1, 2]), [4, 5])
    check(dataset.tensordict, range(3, 7))
    with pytest.raises(IndexError, match="row 4 is not one of 4"):
        dataset[4]
    kept = dataset[0]
    dataset.extend(rows(7, 30))
    assert kept["id"] == 3 and (kept["deep", "x"] == 3).all()


def test_a_batch_larger_than_the_ring_leaves_its_last_rows(path):
    with make(path, 4) as dataset:
        dataset.extend(rows(0, 103))
        check(dataset[:], range(99, 103))
        dataset.extend(rows(103, 203), commit=False)
        assert len(dataset) == 4
        check(dataset[:], dataset["id"].tolist())
    check(MemmapDataset.open(path)[:], range(199, 203))


def test_order_and_cursor_outlive_the_writer(path):
    with make(path, 6) as dataset:
        dataset.extend(rows(0, 9))
    with MemmapDataset.open(path, "r+") as dataset:
        check(dataset[:], range(3, 9))
        dataset.extend(rows(9, 11))
        check(dataset[:], range(5, 11))
    append_memmap(path, rows(11, 12))
    check(MemmapDataset.open(path)[:], range(6, 12))


def test_rows_that_are_not_committed_are_not_seen_and_damage_none(path):
    dataset = make(path, 6)
    dataset.extend(rows(0, 9))
    dataset.extend(rows(100, 105), commit=False)
    reader = MemmapDataset.open(path)
    check(reader[:], range(3, 9))
    check(dataset[:], range(3, 9))
    dataset._writer.close()  # as if it was killed
    with MemmapDataset.open(path, "r+") as again:
        again.extend(rows(9, 10))
        check(again[:], range(4, 10))


def test_a_reader_refreshes_and_hears_of_rows_that_left(path):
    writer = make(path, 5)
    writer.extend(rows(0, 5))
    reader = MemmapDataset.open(path)
    check(reader[:], range(5))
    writer.extend(rows(5, 7))
    check(reader[2:], range(2, 5))  # these are still valid
    with pytest.raises(RuntimeError, match=r"the 2 oldest of the 5 rows were overwritten .* row 1; call refresh"):
        reader[1]
    assert reader.refresh() == 5
    check(reader[:], range(2, 7))


def test_rows_are_overwritten_by_position(path):
    dataset = make(path, 4)
    dataset.extend(rows(0, 6))
    dataset[1] = rows(50, 51)[0]
    dataset[torch.tensor([0, 3])] = rows(60, 62)
    check(dataset[:], [60, 50, 4, 61])


def test_unsupported_operations_of_rings_are_refused(path):
    dataset = make(path, 4)
    dataset.extend(rows(0, 6))
    with pytest.raises(RuntimeError, match="keeps its size"):
        dataset.resize(2)
    with pytest.raises(ValueError, match="is a ring of slots that are overwritten"):
        load_memmap(path)
    dataset.close()
    with pytest.raises(ValueError, match="one writer"):
        MemmapDataset.open(path, "r+", part=(0, 2))
    with pytest.raises(ValueError, match="capacity=0 is less than 1"):
        make(path.with_name("other"), 0)
    with pytest.raises(ValueError, match="rows of one size"):
        make(path.with_name("other"), 3, ragged=[("deep", "x")])


@pytest.fixture
def url():
    pytest.importorskip("fsspec", reason="fsspec is an extra")
    return f"memory://rings/{uuid.uuid4().hex}"


@pytest.mark.parametrize("count", [0, 3, 5, 8, 14])
def test_an_upload_has_the_valid_rows_in_order_and_is_not_a_ring(path, url, count):
    with make(path, 5) as dataset:
        for number in range(count):
            dataset.append(rows(number, number + 1)[0])
        dataset.extend(rows(count, count + 3), commit=False)
        dataset.upload(url)
        remote = MemmapDataset.open(url)
        assert len(remote) == min(count, 5)
        if count:
            check(remote[:], range(max(0, count - 5), count))
        check(load_memmap(url), range(max(0, count - 5), count))
        dataset.upload(url)  # now with the rows that were waiting, as extend() commits what does not fit
        assert remote.refresh() == len(MemmapDataset.open(url))


def test_rows_that_are_overwritten_during_an_upload_are_copied_again(path, url, monkeypatch):
    with make(path, 5) as dataset:
        dataset.extend(rows(0, 7))
        plain, number = upload._copy_rows, iter(range(7, 100))

        def overwrite(*arguments):
            plain(*arguments)
            if (now := next(number)) < limit:
                dataset.append(rows(now, now + 1)[0])

        monkeypatch.setattr(upload, "_copy_rows", overwrite)
        limit = 9
        reader = MemmapDataset.open(path)
        reader.upload(url)
        check(load_memmap(url), range(4, 9))
        limit = 100
        with pytest.raises(RuntimeError, match="were overwritten during each of 5 attempts"):
            reader.upload(url)
        check(load_memmap(url), range(4, 9))


def test_a_full_disk_leaves_the_ring_as_it_was(path, monkeypatch):
    from tensordict_memmap.dataset import writer

    dataset = make(path, 6)
    dataset.extend(rows(0, 9))
    plain, calls = writer.write_rows, []

    def fails(columns, tensors, start, *options):
        calls.append(start)
        plain(columns[:1] if start == 0 else columns, tensors[:1] if start == 0 else tensors, start, *options)
        if start == 0:
            raise OSError("disk full")

    monkeypatch.setattr(writer, "write_rows", fails)
    with pytest.raises(OSError, match="disk full"):
        dataset.extend(rows(20, 25))
    assert calls == [9, 0]  # the first part of the batch was written before the end of the files
    monkeypatch.undo()
    check(dataset[:], range(3, 9))
    dataset.extend(rows(9, 12))
    check(dataset[:], range(6, 12))


def fill(path, capacity):
    with MemmapDataset.open(path, "r+") as dataset:
        start = int(dataset[-1]["id"]) + 1 if len(dataset) else 0
        generator = random.Random(start)
        while True:
            number = generator.randint(1, 2 * capacity)
            dataset.extend(rows(start, start + number), commit=generator.random() < 0.7)
            start += number


@pytest.mark.parametrize("seed", range(6))
def test_a_writer_that_is_killed_at_any_moment_leaves_whole_rows_in_order(path, fork, seed):
    capacity = 17
    make(path, capacity).close()
    waits = random.Random(seed)
    last = -1
    for _ in range(4):
        child = fork(fill, path, capacity)
        time.sleep(waits.random() * 0.15)
        child.kill()
        reader = MemmapDataset.open(path)
        found = reader["id"].tolist()
        if found:
            check(reader[:], range(found[0], found[0] + len(found)))
            assert found[-1] >= last
            last = found[-1]


def test_a_reader_never_takes_a_torn_row_for_a_valid_one(path, fork):
    capacity = 40
    with make(path, capacity) as dataset:
        dataset.extend(rows(0, capacity))
    child = fork(fill, path, capacity)
    reader, seen = MemmapDataset.open(path), 0
    begin = time.monotonic()
    while (spent := time.monotonic() - begin) < 1.5 or (seen <= 10 and spent < 60):  # longer on a busy machine
        reader.refresh()
        try:
            batch = reader[torch.randint(len(reader), (16,))]
        except RuntimeError as error:
            assert "were overwritten since" in str(error)
            continue
        assert (batch["deep", "x"] == batch["id"][:, None]).all()
        seen += 1
    child.kill()
    assert seen > 10


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.booleans()), max_size=8))
def test_a_ring_is_a_queue_of_bounded_length(tmp_path_factory, capacity, steps):
    path = tmp_path_factory.mktemp("law") / "ring"
    dataset = make(path, capacity)
    head = 0
    for number, commit, reopen in steps:
        dataset.extend(rows(head, head + number), commit=commit)
        head += number
        shown = dataset["id"].tolist() if len(dataset) else []
        assert shown == list(range(shown[0], shown[0] + len(shown))) if shown else True
        if reopen:
            dataset.close()
            dataset = MemmapDataset.open(path, "r+")
            check(dataset[:], range(max(0, head - capacity), head))
    dataset.commit()
    check(dataset[:], range(max(0, head - capacity), head))
    dataset.close()


def test_spare_slots_are_bounded():
    assert [ring.new_ring(n).slots - n for n in (1, 1024, 5000, 1 << 20)] == [1, 1024, 1024, 1 << 17]
