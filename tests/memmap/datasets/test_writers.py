"""Writers of a dataset: one at a time, or several of ranges, in threads and in processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import (
    MemmapDataset,
    append_memmap,
    load_memmap,
    save,
)


def test_a_second_writer_is_refused(path, dataset, rows, row):
    with pytest.raises(BlockingIOError, match="one writer at a time"):
        MemmapDataset.open(path, "r+")
    with pytest.raises(BlockingIOError, match="one writer at a time"):
        append_memmap(path, rows(0, 1))
    dataset.close()
    append_memmap(path, rows(0, 1))
    with pytest.raises(RuntimeError, match="mode='r\\+'"):
        dataset.append(row(1))


def test_a_writer_detects_that_its_folder_was_replaced(path, dataset, rows):
    dataset.extend(rows(0, 2))
    save(TensorDict({"z": torch.ones(2)}, [2]), path)
    with pytest.raises(RuntimeError, match="was replaced by another save"):
        dataset.extend(rows(2, 4))
    assert load_memmap(path)["z"].tolist() == [1, 1]
    dataset._writer.close()
    dataset._writer = None
    assert load_memmap(path)["z"].tolist() == [1, 1]


def test_a_forked_child_is_not_a_writer_and_holds_no_lock(path, dataset, rows, row, alike):
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
    assert alike(load_memmap(path), rows(0, 3))


def test_threads_share_a_writer(path, dataset, rows, row, alike):
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
    assert alike(found[order], rows(0, 80))


def test_rows_of_a_range_are_committed_once_all_rows_before_them_are(path, dataset, rows, row, alike):
    dataset.extend(rows(0, 2))
    dataset.close()
    first, second = MemmapDataset.open(path, "r+", part=(2, 6)), MemmapDataset.open(path, "r+", part=(6, 9))
    second.extend(rows(6, 8))
    assert len(load_memmap(path)) == first.refresh() == 2
    first.extend(rows(2, 5))
    assert len(load_memmap(path)) == 5 and second.refresh() == 5
    with pytest.raises(ValueError, match="2 of the rows are beyond"):
        first.extend(rows(5, 8))
    first.append(row(5))
    assert len(load_memmap(path)) == 8
    second.append(row(8))
    first.close()
    second.close()
    assert alike(load_memmap(path), rows(0, 9))
    append_memmap(path, rows(9, 10))
    assert alike(load_memmap(path), rows(0, 10))


def test_a_range_has_one_writer_and_is_continued_by_the_next(path, dataset, rows, row, alike):
    dataset.extend(rows(0, 2))
    with pytest.raises(BlockingIOError):
        MemmapDataset.open(path, "r+", part=(2, 6))
    dataset.close()
    writer = MemmapDataset.open(path, "r+", part=(4, 8))
    with pytest.raises(BlockingIOError, match="3 to 5"):
        MemmapDataset.open(path, "r+", part=(3, 5))
    with pytest.raises(BlockingIOError, match="some of the rows"):
        MemmapDataset.open(path, "r+")
    with pytest.raises(RuntimeError, match="without a part"):
        writer[0] = row(0)
    with pytest.raises(RuntimeError, match="without a part"):
        writer.resize(3)
    writer.extend(rows(4, 6))
    writer.extend(rows(6, 7), commit=False)
    writer._writer.close()  # as a killed process would
    with pytest.raises(ValueError, match="4 to 8, which another writer began"):
        MemmapDataset.open(path, "r+", part=(5, 9))
    with pytest.raises(ValueError, match="2 committed rows"):
        MemmapDataset.open(path, "r+", part=(1, 3))
    with MemmapDataset.open(path, "r+") as dataset, pytest.raises(RuntimeError, match=r"part=\(4, 8\)"):
        dataset.append(row(2))
    with MemmapDataset.open(path, "r+", part=(4, 8)) as again:
        again.extend(rows(6, 8))
    with MemmapDataset.open(path, "r+", part=(2, 4)) as hole:
        hole.extend(rows(2, 4))
    assert alike(load_memmap(path), rows(0, 8))


def test_ranges_without_a_writer_are_dropped(path, dataset, rows, alike):
    dataset.close()
    with MemmapDataset.open(path, "r+", part=(2, 4)) as part:
        part.extend(rows(2, 4))
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.resize(len(dataset))
        dataset.extend(rows(0, 3))
    assert alike(load_memmap(path), rows(0, 3))


def test_several_processes_fill_ranges_at_once(path, dataset, rows, alike):
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
    ranges = [(0, 250), (250, 500)]
    running = [subprocess.Popen([sys.executable, "-c", script, path, str(a), str(b)]) for a, b in ranges[::-1]]
    assert [process.wait(timeout=600) for process in running] == [0] * 2
    assert alike(load_memmap(path), rows(0, 500))


def test_a_pickled_dataset_is_a_reader_of_the_same_rows(path, dataset, rows, row, alike):
    dataset.extend(rows(0, 4))
    data = pickle.dumps(dataset)
    assert len(data) < 5000
    dataset.extend(rows(4, 5))
    copy = pickle.loads(data)
    assert len(copy) == 4 and alike(copy.tensordict, rows(0, 4)) and copy.refresh() in (4, 5)
    with pytest.raises(RuntimeError, match="open for reading"):
        copy.append(row(0))
