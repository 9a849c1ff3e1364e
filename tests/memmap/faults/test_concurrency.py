"""Threads and processes: whoever saves and loads at once sees whole saves, whatever forks in the middle of them."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import from_consolidated, load_memmap, memmap, memmap_like, save, to_safetensors
from tensordict_memmap.engine import syscalls as system

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked")

LARGE = 1 << 20
"""Elements of a leaf that is worth several threads."""


def content(number, size=3000):
    return TensorDict(
        {f"leaf{i}": torch.full((size,), number) for i in range(5)}
        | {"in": {"strided": torch.full((40, 50), number).T, "text": f"number {number}"}}
    )


def number_of(td):
    """Which content was loaded; an assertion where it is a mixture."""
    numbers = {int(n) for leaf in td.values(True, True) if isinstance(leaf, torch.Tensor) for n in leaf.unique()}
    assert len(numbers) == 1, numbers
    (number,) = numbers
    assert td["in", "text"] == f"number {number}"
    return number


def save_shards(td, path):
    save(td, path, format="safetensors", shard_size=20_000)


FORMATS = {
    "tree": ("x", save, load_memmap),
    "safetensors": ("x.safetensors", save, load_memmap),
    "shards": ("x", save_shards, load_memmap),
    "archive": ("x.tdz", save, load_memmap),
    "consolidated": ("x.bin", lambda td, path: td.consolidate(path), from_consolidated),
}


def in_threads(count, work):
    """Runs ``work(0)`` to ``work(count - 1)`` at once; the first error of any is raised here."""
    errors = []
    start = threading.Barrier(count)

    def run(number):
        try:
            start.wait(120)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("name", FORMATS)
def test_eight_threads_save_and_load_separate_paths(tmp_path, name):
    file, store, load = FORMATS[name]

    def work(number):
        for turn in range(5):
            store(content(10 * number + turn), tmp_path / f"{number}{file}")
            assert number_of(load(tmp_path / f"{number}{file}")) == 10 * number + turn

    in_threads(8, work)


@pytest.mark.parametrize("name", FORMATS)
def test_eight_threads_save_to_one_place_and_one_wins_whole(tmp_path, leftovers, name):
    file, store, load = FORMATS[name]
    in_threads(8, lambda number: [store(content(number), tmp_path / file) for _ in range(5)])
    assert number_of(load(tmp_path / file)) in range(8)
    assert not leftovers(tmp_path, tmp_path / file)


@pytest.mark.parametrize("name", ["safetensors", "archive", "consolidated", "tree", "shards"])
def test_loads_during_other_saves_return_one_save_whole(tmp_path, leftovers, name):
    """A folder is opened file by file; the exchange in the middle of that is noticed, and the load begins again."""
    file, store, load = FORMATS[name]
    store(content(0), tmp_path / file)

    def work(number):
        for turn in range(10):
            if number % 2:
                store(content(10 * number + turn), tmp_path / file)
            else:
                number_of(load(tmp_path / file))

    in_threads(8, work)
    folder = [tmp_path / file] if name in ("tree", "shards") else []
    assert not leftovers(tmp_path, *folder)


@pytest.mark.parametrize("verify", ["size", "full"])
@pytest.mark.parametrize("name", ["safetensors", "archive", "deflated archive", "consolidated"])
def test_a_file_replaced_whenever_it_is_opened_loads_as_one_save(tmp_path, before_opening, name, verify):
    if name == "consolidated" and verify == "full":
        pytest.skip("consolidated files hold no checksums")
    options = {"deflated archive": {"compression": "deflate"}, "safetensors": {"checksum": True}}.get(name, {})
    kind = name.split()[-1]
    file, store, load = FORMATS[kind]
    path = str(tmp_path / file)
    for number in range(12):  # of different sizes
        store(content(number, 3000 - 200 * number), tmp_path / f"{number}{file}", **options)
    first, *spares = [str(tmp_path / f"{number}{file}") for number in range(12)]
    os.replace(first, path)
    before_opening(path, *[functools.partial(os.replace, spare, path) for spare in spares])
    loaded = load(path, verify=verify) if load is load_memmap else load(path)
    assert before_opening.done
    assert loaded["leaf0"].shape[0] == 3000 - 200 * number_of(loaded)


def test_eight_threads_write_rows_of_one_dataset(tmp_path):
    data = memmap_like(TensorDict({"x": torch.zeros(3)}).expand(8000), tmp_path / "data")

    def work(number):
        mine = load_memmap(tmp_path / "data", mode="r+")
        rows = TensorDict({"x": torch.full((1000, 3), float(number))}, [1000])
        for _ in range(5):
            mine[1000 * number : 1000 * (number + 1)] = rows

    in_threads(8, work)
    assert torch.equal(data["x"][:, 0], torch.arange(8.0).repeat_interleave(1000))


@pytest.mark.parametrize("name", FORMATS)
def test_two_processes_save_to_one_place_and_one_wins_whole(tmp_path, fork, leftovers, name):
    file, store, load = FORMATS[name]

    def work(first):
        for number in range(first, 60, 2):
            store(content(number), tmp_path / file)

    children = [fork(work, first) for first in (0, 1)]
    assert [child.wait() for child in children] == [0, 0]
    assert number_of(load(tmp_path / file)) in (58, 59)
    store(content(7), tmp_path / file)
    assert number_of(load(tmp_path / file)) == 7 and not leftovers(tmp_path, tmp_path / file)


@pytest.mark.parametrize("name", FORMATS)
def test_a_child_that_is_forked_while_threads_save_saves_and_loads(tmp_path, fork, name):
    """The child has none of the threads, and whatever lock one of them held stays held in it: it must need none."""
    file, store, load = FORMATS[name]
    stop = threading.Event()

    def forever(number):
        while not stop.is_set():
            store(content(number, LARGE // 16), tmp_path / f"{number}{file}")

    def in_child(number):
        store(content(number, LARGE // 16), tmp_path / f"child{number}{file}")
        assert number_of(load(tmp_path / f"child{number}{file}")) == number
        memmap(content(number))

    threads = [threading.Thread(target=forever, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(12):
            assert fork(in_child, number).wait(60) == 0
            time.sleep(0.003 * number)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(number_of(load(tmp_path / f"{number}{file}")) == number for number in range(3))


def test_a_child_that_is_forked_while_another_thread_writes_one_large_leaf_is_not_held_up(tmp_path, fork):
    large = TensorDict({"a": torch.ones(LARGE * 16), "strided": torch.ones(2048, 4096).T})
    thread = threading.Thread(target=lambda: [save(large, tmp_path / "large") for _ in range(4)])
    thread.start()

    def in_child():
        save(TensorDict({"t": torch.ones(4096, 2048).T}), tmp_path / f"small{os.getpid()}", num_threads=4)

    statuses = []
    while thread.is_alive():
        statuses.append(fork(in_child).wait(60))
    thread.join()
    assert statuses and set(statuses) == {0}
    assert load_memmap(tmp_path / "large")["a"].sum() == LARGE * 16


def _in_spawned(path, pipe):
    td = load_memmap(path)
    saved = content(number_of(td) + 1)
    save(saved, path, num_threads=4)
    to_safetensors(saved, f"{path}.safetensors")
    pipe.send(number_of(load_memmap(path)))


def test_spawned_processes_save_over_files_that_their_parent_has_open(tmp_path):
    path = tmp_path / "x"
    mapped = memmap(content(1), path)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_in_spawned, args=(str(path), theirs))
    process.start()
    assert ours.poll(60) and ours.recv() == 2
    process.join(60)
    assert process.exitcode == 0
    assert number_of(mapped) == 1 and number_of(load_memmap(path)) == 2, "what is mapped keeps the earlier save"
    assert number_of(load_memmap(f"{path}.safetensors")) == 2


class Rows(torch.utils.data.Dataset):
    """Rows of a saved dataset, as a worker reads them."""

    def __init__(self, td):
        self.td = td

    def __len__(self):
        return len(self.td)

    def __getitems__(self, indices):
        return self.td[torch.tensor(indices)]


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_loader_read_after_a_parallel_save_in_the_parent(tmp_path, context, workers):
    large = torch.ones(3000, 1000).T
    td = TensorDict({"x": torch.arange(4000.0).reshape(1000, 4), "large": large}, [1000])
    save(td, tmp_path / "data", num_threads=4)
    loader = torch.utils.data.DataLoader(
        Rows(load_memmap(tmp_path / "data")),
        batch_size=100,
        num_workers=workers,
        collate_fn=as_it_is,
        multiprocessing_context=context,
    )
    rows = torch.cat([batch["x"] for batch in loader])
    assert torch.equal(rows, td["x"])


def as_it_is(batch):
    return batch
