"""Saves in the background: how far they are, how they stop, and which state they save."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import CancelledError

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import SaveFuture, save
from tensordict_memmap.engine import executor, write_plan
from tensordict_memmap.saving import writer
from tensordict_memmap.storage import cleanup
from tensordict_memmap.storage.ownership import read_manifest

NAMES = ["x", "x.safetensors", "x.tdz"]
BYTES = 12 * (5 << 20)


@pytest.fixture
def td():
    return TensorDict({f"k{i}": torch.full((5 << 20,), i, dtype=torch.uint8) for i in range(12)})


class Gate:
    """Lets through so many jobs, and says when the next one waits."""

    def __init__(self) -> None:
        self.left = threading.Semaphore(0)
        self.waits = threading.Event()

    def __call__(self) -> None:
        if not self.left.acquire(blocking=False):
            self.waits.set()
            assert self.left.acquire(timeout=60)

    def let_through(self, count: int) -> None:
        for _ in range(count):
            self.left.release()


@pytest.fixture
def gate(monkeypatch):
    """A save is one thread that asks the gate before each job."""
    gate = Gate()
    run = executor.run

    def one_by_one(queues, *, threads=None, cancelled=None):
        def guarded(job):
            def call():
                gate()
                job()

            return call

        return run([[guarded(job) for job in queue] for queue in queues], threads=1, cancelled=cancelled)

    monkeypatch.setattr(write_plan.executor, "run", one_by_one)
    yield gate
    gate.let_through(1000)
    cleanup.wait()


@pytest.mark.parametrize("name", NAMES)
def test_progress_counts_the_bytes_that_are_out(tmp_path, td, gate, name):
    future = td.save(tmp_path / name, return_early=True)
    assert isinstance(future, SaveFuture)
    assert gate.waits.wait(60) and not future.done()
    assert future.bytes_written == 0 and future.progress == 0 and future.bytes_total >= BYTES
    gate.waits.clear()
    gate.let_through(8)
    assert gate.waits.wait(60)
    some = future.bytes_written
    assert 8 << 20 <= some <= 8 * (5 << 20) and some / future.bytes_total == future.progress
    assert future.bytes_per_second > 0 and not (tmp_path / name).exists()
    gate.let_through(1000)
    assert future.result(timeout=60) is td and future.progress == 1
    assert future.bytes_written >= BYTES and not future.cancel()


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("name", [*NAMES, "deep/er/x", "deep/er/x.safetensors"])
def test_cancelling_leaves_no_files_and_the_earlier_save_whole(tmp_path, td, gate, name, earlier):
    path = tmp_path / name
    if earlier:
        gate.let_through(100)
        TensorDict({"a": torch.arange(3)}).save(path)
        while gate.left.acquire(blocking=False):
            pass
        before = sorted(str(one) for one in tmp_path.rglob("*"))
    future = td.save(path, return_early=True)
    assert gate.waits.wait(60)
    gate.let_through(5)
    stop = future._stop.set
    future._stop.set = lambda: (stop(), gate.let_through(1))
    assert future.cancel() and future.cancelled() and future.done()
    with pytest.raises(CancelledError):
        future.result()
    if earlier:
        assert sorted(str(one) for one in tmp_path.rglob("*")) == before
        assert TensorDict.load_memmap(path)["a"].tolist() == [0, 1, 2]
    else:
        assert os.listdir(tmp_path) == []


def test_the_entries_of_a_save_are_those_at_the_call(tmp_path, td, gate):
    future = td.save(tmp_path / "x", return_early=True)
    assert gate.waits.wait(60)
    td["later"] = torch.zeros(1)
    del td["k0"]
    td["k1"] = torch.zeros(5 << 20, dtype=torch.uint8)
    gate.let_through(1000)
    future.result(timeout=60)
    saved = TensorDict.load_memmap(tmp_path / "x")
    assert sorted(saved.keys()) == sorted(f"k{i}" for i in range(12)) and saved["k1"].float().mean() == 1


def test_values_are_read_during_the_save_and_a_clone_is_a_snapshot(tmp_path, td, gate):
    shared, copied = (one.save(tmp_path / n, return_early=True) for one, n in ((td, "x"), (td.clone(), "y")))
    assert gate.waits.wait(60)
    td["k11"].fill_(99)
    gate.let_through(1000)
    shared.result(timeout=60), copied.result(timeout=60)
    assert TensorDict.load_memmap(tmp_path / "y")["k11"].float().mean() == 11
    assert TensorDict.load_memmap(tmp_path / "x")["k11"].float().mean() in (11, 99)


def test_a_future_raises_the_error_of_the_save_and_no_files_are_left(tmp_path, td, monkeypatch):
    def full(fd, addresses, sizes, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write_plan.syscalls, "write_ranges_at", full)
    future = td.save(tmp_path / "new" / "x", return_early=True)
    with pytest.raises(OSError, match="k"):
        future.result(timeout=60)
    assert not future.cancelled() and future.progress < 1 and os.listdir(tmp_path) == []


def test_callbacks_and_waiting_work_as_for_any_future(tmp_path, td):
    from concurrent.futures import as_completed, wait

    seen = threading.Event()
    futures = [td.save(tmp_path / str(n), return_early=True) for n in range(3)]
    futures[0].add_done_callback(lambda future: seen.set())
    assert not wait(futures, timeout=60).not_done and set(as_completed(futures)) == set(futures)
    assert seen.wait(60) and all(read_manifest(tmp_path / str(n)).complete for n in range(3))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("early", [False, True])
def test_a_bar_shows_the_bytes(tmp_path, td, capsys, name, early):
    pytest.importorskip("tqdm", reason="the extra that draws the bar")
    result = td.memmap(tmp_path / name, pbar=True, return_early=early)
    assert (result.result(timeout=60) if early else result)["k3"].float().mean() == 3
    shown = capsys.readouterr().err
    assert "save: 100%" in shown and "60.0M/60.0M" in shown.replace("60.0MB", "60.0M")


def test_without_tqdm_it_is_a_counter(tmp_path, td, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    td.save(tmp_path / "x", pbar=True)
    assert capsys.readouterr().err.endswith("save: 63/63 MB\n")


def test_nothing_is_shown_unasked(tmp_path, td, capsys):
    td.save(tmp_path / "x")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", [*NAMES, "shards", "consolidated"])
@pytest.mark.parametrize("size", [10, 1 << 18])
def test_parameters_that_get_other_memory_during_the_save_are_saved_unchanged(tmp_path, monkeypatch, name, size):
    parameters = {f"k{i}": torch.nn.Parameter(torch.full((size,), float(i))) for i in range(30)}
    td, go, path = TensorDict(parameters), threading.Event(), tmp_path / name
    write_files = write_plan.write_files
    monkeypatch.setattr(writer, "write_files", lambda *args, **more: go.wait() and write_files(*args, **more))
    if name == "consolidated":
        future = td.consolidate(path, return_early=True, num_threads=2)
    else:
        options = {"format": "safetensors", "shard_size": 1 << 20} if name == "shards" else {}
        future = save(td, path, return_early=True, **options)
    for parameter in parameters.values():  # as module.half() does
        parameter.data = torch.full((size // 2,), -1.0, dtype=torch.float16)
    others = [torch.full((size,), 7.0) for _ in range(60)]  # in the memory that is free now, if it is
    go.set()
    future.result()
    back = TensorDict.load_memmap(path)
    assert others and all(torch.equal(back[f"k{i}"], torch.full((size,), float(i))) for i in range(30))
