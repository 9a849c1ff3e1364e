"""Datasets that grow: rows that are added while others read, several writers, room on the disk, and errors."""

from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import textwrap
import threading
from fractions import Fraction

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap import (
    MemmapDataset,
    append_memmap,
    convert,
    load_memmap,
    memmap,
    memmap_refresh_,
    pack_memmap,
    save,
    unpack_memmap,
)
from tensordict_memmap.growth import LOCK, Growth, Part
from tensordict_memmap.manifest import NAME, Manifest


def rows(start: int, stop: int) -> TensorDict:
    """Rows that say in every leaf which they are."""
    number = torch.arange(start, stop)
    return TensorDict(
        {
            "id": number,
            "image": number.to(torch.uint8)[:, None, None].expand(-1, 4, 5),
            "deep": {"half": number.to(torch.bfloat16)[:, None].expand(-1, 3), "er": {"done": number % 2 == 0}},
            "split": "train",
        },
        batch_size=[stop - start],
    ).auto_batch_size_(1)


def row(number: int) -> TensorDict:
    return rows(number, number + 1)[0]


def same(a, b) -> bool:
    return list(a.keys(True, True)) == list(b.keys(True, True)) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(a.values(True, True), b.values(True, True), strict=True)
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def dataset(path):
    with MemmapDataset.create(path, row(0)) as made:
        yield made


# --- growing


def test_rows_are_appended_and_read_back(path):
    with MemmapDataset.create(path, row(0)) as dataset:
        assert len(dataset) == 0 and dataset.tensordict.batch_size == (0,)
        dataset.append(row(0))
        dataset.extend(rows(1, 10))
        assert len(dataset) == 10 and same(dataset[2:5], rows(2, 5))
    for td in (MemmapDataset.open(path).tensordict, load_memmap(path), TensorDict.load(path)):
        assert td.batch_size == (10,) and td["deep"].batch_size == (10,) and td.is_locked and same(td, rows(0, 10))
    assert load_memmap(path)["split"] == "train"


def test_a_dataset_is_indexed_as_a_tensordict_is(dataset):
    dataset.extend(rows(0, 10))
    assert same(dataset[3], row(3))
    assert same(dataset[torch.tensor([7, -1])], rows(0, 10)[[7, 9]])
    assert same(dataset.__getitems__([1, 4]), rows(0, 10)[[1, 4]])
    assert torch.equal(dataset["deep", "half"], rows(0, 10)["deep", "half"])
    assert repr(dataset).endswith("rows=10)")


def test_rows_that_were_written_count_when_they_are_committed(path, dataset):
    reader = MemmapDataset.open(path)
    dataset.extend(rows(0, 3), commit=False)
    dataset.append(row(3), commit=False)
    assert len(dataset) == len(dataset.tensordict) == reader.refresh() == len(load_memmap(path)) == 0
    dataset.commit()
    assert len(dataset) == reader.refresh() == len(load_memmap(path)) == 4
    assert same(reader.tensordict, rows(0, 4))


def test_a_reader_sees_new_rows_when_it_refreshes_and_keeps_what_it_has(path, dataset):
    dataset.extend(rows(0, 3))
    reader, mapped = MemmapDataset.open(path), load_memmap(path)
    before = reader.tensordict
    dataset.extend(rows(3, 2000))
    assert len(reader) == len(before) == 3
    assert reader.refresh() == 2000 and same(reader.tensordict, rows(0, 2000))
    assert same(before, rows(0, 3))
    assert reader.refresh() == 2000
    memmap_refresh_(mapped)
    assert same(mapped, rows(0, 2000))


def test_what_a_reader_writes_stays_with_it(path, dataset):
    dataset.extend(rows(0, 3))
    reader = MemmapDataset.open(path)
    reader["id"].fill_(77)
    with pytest.raises(RuntimeError, match="mode='r\\+'"):
        reader[0] = row(5)
    dataset.extend(rows(3, 4))
    assert reader.refresh() == 4 and reader["id"].tolist() == [0, 1, 2, 3]


def test_rows_that_count_are_overwritten_in_place(path, dataset):
    dataset.extend(rows(0, 10))
    dataset[2:4] = rows(20, 22)
    dataset[torch.tensor([0, 9])] = rows(30, 32)
    assert load_memmap(path)["id"].tolist() == [30, 1, 20, 21, 4, 5, 6, 7, 8, 31]


def test_a_writer_goes_on_where_another_stopped(path):
    for start in range(0, 50, 10):
        with MemmapDataset.create(path, row(0)) if start == 0 else MemmapDataset.open(path, "r+") as dataset:
            dataset.extend(rows(start, start + 10))
    assert same(load_memmap(path), rows(0, 50))


def test_after_an_error_in_the_block_only_what_counts_is_kept(path):
    with pytest.raises(ZeroDivisionError), MemmapDataset.create(path, row(0)) as dataset:
        dataset.extend(rows(0, 5))
        dataset.extend(rows(5, 9), commit=False)
        raise ZeroDivisionError
    assert same(load_memmap(path), rows(0, 5))
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.extend(rows(5, 6))
    assert same(load_memmap(path), rows(0, 6))


def test_resizing_adds_zeros_and_cuts_rows_off(path, dataset):
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


def test_zeros_of_a_resize_take_no_space(path, dataset):
    dataset.resize(1_000_000)
    files = [found for found in path.rglob("*.memmap")]
    assert sum(file.stat().st_size for file in files) == 1_000_000 * (8 + 20 + 6 + 1)
    assert sum(file.stat().st_blocks for file in files) == 0
    dataset[999_999] = row(5)
    assert load_memmap(path)[-1]["id"] == 5


def test_closing_gives_room_back_that_nobody_asked_for(path):
    with MemmapDataset.create(path, row(0)) as dataset:
        for number in range(20):
            dataset.append(row(number))
        assert (path / "id.memmap").stat().st_size > 160
    assert (path / "id.memmap").stat().st_size == 160
    with MemmapDataset.create(path, row(0), capacity=50, existsok=True) as dataset:
        dataset.extend(rows(0, 7))
    assert (path / "id.memmap").stat().st_size == 400 and same(load_memmap(path), rows(0, 7))


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


def test_lazy_rows_are_made_dense(path, dataset):
    lazy = LazyStackedTensorDict(row(0), row(1))
    dataset.extend(lazy)
    dataset.extend(LazyStackedTensorDict(rows(2, 4), rows(4, 6), stack_dim=0)[0])
    assert same(load_memmap(path), rows(0, 4))


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


def test_awkward_keys_grow_too(path):
    keys = ["shape", "device", "weird/key.x", "meta.json", LOCK, "é", "a.b"]
    batch = TensorDict({key: torch.arange(3) for key in keys}, [3])
    batch["node"] = TensorDict({LOCK: TensorDict({"x": torch.arange(3)}, [3])}, [3])
    save(batch, path)
    append_memmap(path, batch)
    assert same(load_memmap(path), torch.cat([batch, batch]))


# --- append_memmap


def test_rows_are_appended_to_any_save(path):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 5))
    append_memmap(path, rows(5, 5))
    append_memmap(path, rows(5, 6))
    assert same(load_memmap(path), rows(0, 6)) and same(load_memmap(path, subpath="deep"), rows(0, 6)["deep"])
    assert (path / "id.memmap").stat().st_size == 48  # no longer than its rows


def test_rows_are_appended_to_a_save_without_rows(path):
    save(rows(0, 0), path)
    append_memmap(path, rows(0, 4))
    assert same(load_memmap(path), rows(0, 4))


def test_a_dataset_is_appended_to_itself(path):
    save(rows(0, 3), path)
    append_memmap(path, load_memmap(path))
    assert load_memmap(path)["id"].tolist() == [0, 1, 2, 0, 1, 2]


def test_tied_leaves_part_ways_when_they_grow(path):
    tied = torch.arange(3)
    save(TensorDict({"a": tied, "b": tied}, [3]), path)
    append_memmap(path, TensorDict({"a": torch.tensor([7]), "b": torch.tensor([8])}, [1]))
    found = load_memmap(path)
    assert found["a"].tolist() == [0, 1, 2, 7] and found["b"].tolist() == [0, 1, 2, 8]


def test_other_names_of_a_file_keep_what_they_stand_for(path, tmp_path):
    save(rows(0, 3), path)
    os.link(path / "id.memmap", tmp_path / "snapshot")
    append_memmap(path, rows(3, 4))
    assert (tmp_path / "snapshot").stat().st_size == 24
    assert same(load_memmap(path), rows(0, 4))


def test_another_save_replaces_a_dataset_whole(path):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 5))
    save(TensorDict({"z": torch.ones(2)}, [2]), path)
    assert sorted(found.name for found in path.iterdir()) == ["meta.json", NAME, "z.memmap"]
    assert list(load_memmap(path).keys()) == ["z"]


WRONG = {
    "keys": (lambda td: td.exclude("id"), "'deep', 'image', 'split'"),
    "more keys": (lambda td: td.set("more", torch.zeros(2)), "more"),
    "nested keys": (lambda td: td.set(("deep", "more"), torch.zeros(2)), "'deep'"),
    "dtype": (lambda td: td.set("id", td["id"].float()), "'id' is torch.float32"),
    "shape": (lambda td: td.set("image", torch.zeros(2, 4, 6).byte()), r"'image' is torch.uint8 \[2, 4, 6\]"),
    "value": (lambda td: td.set("split", "test"), "'split' holds 'test'"),
    "values": (lambda td: td.set("split", NonTensorStack("train", "test")), "'split'"),
    "no tensor": (lambda td: td.set("id", "x"), "'id'"),
    "no node": (lambda td: td.set("deep", torch.zeros(2)), "'deep'"),
    "no rows": (lambda td: td[0], r"batch size of the saved ones, \[n\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_differ_are_refused_before_anything_is_written(path, name):
    save(rows(0, 3), path)
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        append_memmap(path, change(rows(3, 5)))
    assert same(load_memmap(path), rows(0, 3))


def test_equal_values_of_all_rows_are_one_value(path):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 5).set("split", NonTensorStack("train", "train")))
    assert load_memmap(path)["split"] == "train" and load_memmap(path).get("split").batch_size == (5,)


@pytest.mark.filterwarnings("ignore:key 'f' is pickled")
def test_pickled_values_are_compared_where_that_is_allowed(path):
    held = TensorDict({"a": torch.arange(2), "f": NonTensorData(Fraction(1, 2), [2])}, [2])
    save(held, path)
    with pytest.raises(ValueError, match="allow_pickle=True"):
        append_memmap(path, held)
    append_memmap(path, held, allow_pickle=True)
    assert load_memmap(path, allow_pickle=True).batch_size == (4,)


CANNOT = {
    "no batch": (TensorDict({"a": torch.zeros(2)}, []), r"batch size \[\]"),
    "lazy": (LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(2)}, []) for _ in range(2))), "lazy"),
    "values": (TensorDict({"a": torch.zeros(2), "s": NonTensorStack("x", "y")}, [2]), "'s'"),
    "nested tensor": (
        TensorDict({"a": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)}, [2]),
        "'a'",
    ),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_grow_says_so(path, name):
    saved, message = CANNOT[name]
    save(saved, path)
    with pytest.raises(ValueError, match=message):
        append_memmap(path, rows(0, 1))


def test_appending_needs_a_save_and_rows(path, tmp_path):
    with pytest.raises(ValueError, match="none"):
        append_memmap(path, rows(0, 1))
    (tmp_path / "bare").mkdir()
    with pytest.raises(FileNotFoundError, match=r"meta\.json"):
        append_memmap(tmp_path / "bare", rows(0, 1))
    save(rows(0, 1), path)
    with pytest.raises(TypeError, match="int"):
        append_memmap(path, 3)
    with pytest.raises(ValueError, match="open the whole"):
        append_memmap(path / "deep", rows(0, 1)["deep"])


def test_a_leaf_whose_file_is_gone_or_short_is_not_grown(path):
    save(rows(0, 3), path)
    os.truncate(path / "id.memmap", 20)
    with pytest.raises(ValueError, match=r"'id' takes 24 bytes.* 20"):
        append_memmap(path, rows(3, 4))
    os.unlink(path / "id.memmap")
    with pytest.raises(FileNotFoundError):
        append_memmap(path, rows(3, 4))


# --- writers


def test_a_second_writer_is_told_so(path, dataset):
    with pytest.raises(BlockingIOError, match="one writer at a time"):
        MemmapDataset.open(path, "r+")
    with pytest.raises(BlockingIOError, match="one writer at a time"):
        append_memmap(path, rows(0, 1))
    dataset.close()
    append_memmap(path, rows(0, 1))
    with pytest.raises(RuntimeError, match="mode='r\\+'"):
        dataset.append(row(1))


def test_a_writer_notices_that_its_folder_was_saved_over(path, dataset):
    dataset.extend(rows(0, 2))
    save(TensorDict({"z": torch.ones(2)}, [2]), path)
    with pytest.raises(RuntimeError, match="saved over"):
        dataset.extend(rows(2, 4))
    assert load_memmap(path)["z"].tolist() == [1, 1]
    dataset._writer.close()
    dataset._writer = None
    assert load_memmap(path)["z"].tolist() == [1, 1]


def test_a_forked_child_is_no_second_writer_and_keeps_nobody_out(path, dataset):
    dataset.extend(rows(0, 2))
    read_end, write_end = os.pipe()
    begun, ready = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(write_end)
            os.write(ready, b".")
            try:
                dataset.append(row(2))
            except RuntimeError as error:
                status = 0 if "forked" in str(error) else 2
            os.read(read_end, 1)  # until the parent is done
        finally:
            os._exit(status)
    os.close(read_end)
    os.read(begun, 1)
    dataset.close()
    append_memmap(path, rows(2, 3))
    for end in (write_end, begun, ready):
        os.close(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(load_memmap(path), rows(0, 3))


def test_threads_share_a_writer(path, dataset):
    def work(number: int) -> None:
        for repeat in range(10):
            dataset.append(row(number * 10 + repeat), commit=repeat % 3 == 0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dataset.commit()
    found = load_memmap(path)
    order = found["id"].argsort()
    assert same(found[order], rows(0, 80))


def test_ranges_count_once_all_rows_before_them_do(path, dataset):
    dataset.extend(rows(0, 2))
    dataset.close()
    first, second = MemmapDataset.open(path, "r+", part=(2, 6)), MemmapDataset.open(path, "r+", part=(6, 9))
    second.extend(rows(6, 8))
    assert len(load_memmap(path)) == first.refresh() == 2
    first.extend(rows(2, 5))
    assert len(load_memmap(path)) == 5 and second.refresh() == 5
    with pytest.raises(ValueError, match="2 of these are behind"):
        first.extend(rows(5, 8))
    first.append(row(5))
    assert len(load_memmap(path)) == 8
    second.append(row(8))
    first.close()
    second.close()
    assert same(load_memmap(path), rows(0, 9))
    append_memmap(path, rows(9, 10))
    assert same(load_memmap(path), rows(0, 10))


def test_a_range_is_one_writers_and_goes_on_where_it_stopped(path, dataset):
    dataset.extend(rows(0, 2))
    with pytest.raises(BlockingIOError):
        MemmapDataset.open(path, "r+", part=(2, 6))
    dataset.close()
    writer = MemmapDataset.open(path, "r+", part=(4, 8))
    with pytest.raises(BlockingIOError, match="3 to 5"):
        MemmapDataset.open(path, "r+", part=(3, 5))
    with pytest.raises(BlockingIOError, match="all rows"):
        MemmapDataset.open(path, "r+")
    with pytest.raises(RuntimeError, match="without a part"):
        writer[0] = row(0)
    with pytest.raises(RuntimeError, match="without a part"):
        writer.resize(3)
    writer.extend(rows(4, 6))
    writer.extend(rows(6, 7), commit=False)
    writer._writer.close()  # as a killed process would
    with pytest.raises(ValueError, match="4 to 8 were begun"):
        MemmapDataset.open(path, "r+", part=(5, 9))
    with pytest.raises(ValueError, match="2 rows that count"):
        MemmapDataset.open(path, "r+", part=(1, 3))
    with MemmapDataset.open(path, "r+") as dataset, pytest.raises(RuntimeError, match=r"part=\(4, 8\)"):
        dataset.append(row(2))
    with MemmapDataset.open(path, "r+", part=(4, 8)) as again:
        again.extend(rows(6, 8))
    with MemmapDataset.open(path, "r+", part=(2, 4)) as hole:
        hole.extend(rows(2, 4))
    assert same(load_memmap(path), rows(0, 8))


def test_ranges_that_nobody_finishes_are_given_up(path, dataset):
    dataset.close()
    with MemmapDataset.open(path, "r+", part=(2, 4)) as part:
        part.extend(rows(2, 4))
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.resize(len(dataset))
        dataset.extend(rows(0, 3))
    assert same(load_memmap(path), rows(0, 3))


def test_several_processes_fill_ranges_at_once(path, dataset):
    dataset.close()
    script = textwrap.dedent("""
        import sys, torch
        from tensordict_core import TensorDict
        from tensordict_memmap import MemmapDataset
        start, stop = int(sys.argv[2]), int(sys.argv[3])
        with MemmapDataset.open(sys.argv[1], "r+", part=(start, stop)) as part:
            for first in range(start, stop, 25):
                number = torch.arange(first, first + 25)
                deep = {"half": number.bfloat16()[:, None].expand(-1, 3), "er": {"done": number % 2 == 0}}
                image = number.to(torch.uint8)[:, None, None].expand(-1, 4, 5)
                part.extend(TensorDict({"id": number, "image": image, "deep": deep, "split": "train"}, [25]))
    """)
    ranges = [(start, start + 250) for start in range(0, 1000, 250)]
    running = [subprocess.Popen([sys.executable, "-c", script, path, str(a), str(b)]) for a, b in ranges[::-1]]
    assert [process.wait(timeout=120) for process in running] == [0] * 4
    assert same(load_memmap(path), rows(0, 1000))


def test_a_pickled_dataset_is_a_reader_of_the_same_rows(path, dataset):
    dataset.extend(rows(0, 4))
    data = pickle.dumps(dataset)
    assert len(data) < 5000
    dataset.extend(rows(4, 5))
    copy = pickle.loads(data)
    assert len(copy) == 4 and same(copy.tensordict, rows(0, 4)) and copy.refresh() in (4, 5)
    with pytest.raises(RuntimeError, match="reads"):
        copy.append(row(0))


# --- the disk


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit on the size of files")
def test_a_full_disk_is_an_error_that_names_the_key_and_costs_no_row(path):
    script = textwrap.dedent("""
        import errno, resource, sys, torch
        from tensordict_core import TensorDict
        from tensordict_memmap import MemmapDataset, load_memmap
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        row = TensorDict({"a": torch.ones(1 << 10), "b": {"big": torch.ones(1 << 14)}})
        dataset = MemmapDataset.create(sys.argv[1], row)
        dataset.extend(row.expand(10))
        for work, count in (dataset.extend, 10), (dataset.reserve, 17), (dataset.extend, 100):
            try:
                work(count if work == dataset.reserve else row.expand(count))
            except OSError as error:
                assert error.errno == errno.EFBIG and "('b', 'big')" in str(error), error
            else:
                raise SystemExit("no error")
        assert len(dataset) == 10
        dataset.extend(row.expand(6))
        dataset.close()
        found = load_memmap(sys.argv[1])
        assert found.batch_size == (16,) and found["b", "big"].min() == 1
        try:
            MemmapDataset.create(sys.argv[1] + "2", row, capacity=1000, reserve=True)
        except OSError as error:
            assert "'a'" in str(error), error
        else:
            raise SystemExit("no error")
    """)
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [found.name for found in path.parent.iterdir()] == ["data"]


def test_reserved_room_is_taken_at_once(path):
    with MemmapDataset.create(path, row(0), capacity=10_000, reserve=True) as dataset:
        taken = (path / "image.memmap").stat().st_blocks * 512
        if taken == 0:
            pytest.skip("this file system reports no blocks")
        assert taken >= 200_000
        dataset.extend(rows(0, 5))
    assert (path / "image.memmap").stat().st_blocks * 512 >= 200_000  # it is kept
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.reserve(20_000)
        assert (path / "image.memmap").stat().st_blocks * 512 >= 400_000
    assert same(load_memmap(path), rows(0, 5))


def test_no_file_is_left_open(path, dataset):
    dataset.close()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("needs /proc")
    for number in range(20):
        append_memmap(path, rows(number, number + 1))
        MemmapDataset.open(path).refresh()
    forgotten = MemmapDataset.open(path, "r+")
    del forgotten
    assert len(os.listdir("/proc/self/fd")) == before


# --- what is on the disk


def test_descriptions_say_how_many_rows_there_are_and_keep_their_length(path, dataset):
    sizes = set()
    for number in range(0, 120, 40):
        dataset.extend(rows(number, number + 40))
        for place, keys in {"": ["id", "image"], "deep": ["half"], "deep/er": ["done"]}.items():
            document = (path / place / "meta.json").read_bytes()
            record = json.loads(document)
            assert record["shape"][0] == number + 40 == {record[key]["shape"][0] for key in keys}.pop()
            sizes.add((place, len(document)))
    assert len(sizes) == 3
    manifest = Manifest.loads((path / NAME).read_bytes())
    assert manifest.growth.rows == 120 and manifest.files["id.memmap"].size == 960


def test_a_writer_that_was_killed_before_the_descriptions_followed_is_finished(path):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 4))
    old = {name: (path / name).read_bytes() for name in ("meta.json", "deep/meta.json")}
    append_memmap(path, rows(4, 6))
    for broken in (["meta.json"], ["meta.json", "deep/meta.json"]):
        for name in broken:
            (path / name).write_bytes(old[name])
        assert same(load_memmap(path), rows(0, 6)) and same(load_memmap(path, subpath="deep"), rows(0, 6)["deep"])
    (path / f"{NAME}.0123456789abcdef").write_bytes(b"{")
    append_memmap(path, rows(6, 7))
    assert same(load_memmap(path), rows(0, 7)) and not list(path.glob(f"{NAME}.*"))
    assert json.loads((path / "deep" / "meta.json").read_bytes())["shape"] == [7]


def test_rows_behind_those_that_count_are_never_seen(path, dataset):
    dataset.extend(rows(0, 3))
    dataset.extend(rows(50, 90), commit=False)
    dataset._writer.close()
    dataset._writer = None
    assert same(load_memmap(path), rows(0, 3))
    with MemmapDataset.open(path, "r+") as again:
        again.resize(6)
    assert load_memmap(path)["id"].tolist() == [0, 1, 2, 0, 0, 0]


HOSTILE = [
    {"rows": -1, "shown": 3, "meta": []},
    {"rows": 3, "shown": 2, "meta": []},
    {"rows": True, "shown": 3, "meta": []},
    {"rows": 3, "shown": 3},
    {"rows": 3, "shown": 3, "meta": [1]},
    {"rows": 3, "shown": 3, "meta": [], "parts": [[5, 4, 5]]},
    {"rows": 3, "shown": 3, "meta": [], "parts": [[1, 2]]},
    {"rows": 1 << 63, "shown": 1 << 63, "meta": []},
    [3],
    None,
]


@pytest.mark.parametrize("record", HOSTILE, ids=str)
def test_what_does_not_say_how_far_a_dataset_has_grown_is_refused(path, record):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 4))
    manifest = json.loads((path / NAME).read_bytes())
    manifest["growing"] = record
    (path / NAME).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="has grown"):
        load_memmap(path)


def test_more_rows_than_files_hold_is_an_error(path):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 4))
    manifest = json.loads((path / NAME).read_bytes())
    manifest["growing"] |= {"rows": 5, "shown": 5}
    (path / NAME).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="'id' takes 40 bytes"):
        load_memmap(path)


def test_growth_round_trips():
    growth = Growth(3, 9, ("xxh64:1", "xxh64:2"), (Part(3, 6, 4), Part(8, 9, 8)))
    assert Growth.read(json.loads(json.dumps(growth.record()))) == growth


# --- preallocation


def test_preallocation_takes_no_space_unless_it_is_reserved(tmp_path):
    data = TensorDict({"a": torch.zeros(1000), "b": {"c": torch.zeros(2, dtype=torch.int16)}}).expand(500)
    sparse = data.memmap_like(tmp_path / "sparse")
    taken = data.memmap_like(tmp_path / "taken", reserve=True)
    for made in (sparse, taken):
        assert made.batch_size == (500,) and not made["a"].any()
    blocks = [(tmp_path / name / "a.memmap").stat().st_blocks * 512 for name in ("sparse", "taken")]
    assert blocks[0] == 0 and blocks[1] >= 2_000_000
    shared = data.memmap_like(reserve=True)
    assert shared.is_memmap() and os.fstat(shared["a"].handler.descriptor.fd).st_blocks * 512 >= 2_000_000
    for name in ("x.tdz", "x.safetensors"):
        with pytest.raises(ValueError, match="reserve"):
            data.memmap_like(tmp_path / name, reserve=True)


def test_a_disk_that_is_too_small_shows_when_room_is_reserved(tmp_path):
    script = textwrap.dedent("""
        import errno, os, resource, sys, torch
        from tensordict_core import TensorDict
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            row = TensorDict({"a": torch.zeros(10), "b": {"c": torch.zeros(1000)}})
            row.expand(1000).memmap_like(sys.argv[1], reserve=True)
        except OSError as error:
            assert error.errno == errno.EFBIG and "('b', 'c')" in str(error), error
        else:
            raise SystemExit("no error")
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_rows_that_are_cut_off_stay_readable_where_they_are_mapped(path, dataset):
    dataset.extend(rows(0, 5000))
    reader = load_memmap(path)
    dataset.resize(1)
    dataset.close()  # gives nothing back that a reader may have mapped
    assert reader["id"].sum() == sum(range(5000))
    assert same(memmap(load_memmap(path).clone(), path.parent / "copy"), rows(0, 1))


def test_archives_and_other_formats_hold_the_rows_that_count(tmp_path, dataset):
    dataset.reserve(100)
    dataset.extend(rows(0, 7))
    dataset.extend(rows(7, 9), commit=False)
    pack_memmap(dataset.path, tmp_path / "packed.tdz")
    convert(dataset.path, tmp_path / "one.safetensors")
    for name in ("packed.tdz", "one.safetensors"):
        assert same(load_memmap(tmp_path / name), rows(0, 7))
    unpack_memmap(tmp_path / "packed.tdz", tmp_path / "unpacked")
    append_memmap(tmp_path / "unpacked", rows(7, 8))
    assert same(load_memmap(tmp_path / "unpacked"), rows(0, 8))


def test_rows_added_to_a_save_with_checksums_drop_those_that_they_make_wrong(path):
    save(rows(0, 3), path, checksum=True)
    append_memmap(path, rows(3, 5))
    assert same(load_memmap(path), rows(0, 5))
    with pytest.raises(ValueError, match="has none for"):
        load_memmap(path, verify="full")
