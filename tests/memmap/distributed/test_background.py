"""Background saves of ranks: they copy what they hold, return, and write while the program goes on."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from tensordict_core import NonTensorData, TensorDict
from tensordict_memmap import load_memmap
from tensordict_memmap.distributed import save as saves


def content(value, mesh):
    rows = distribute_tensor(torch.full((1000, 64), value), mesh, [Shard(0)], src_data_rank=None)
    columns = distribute_tensor(torch.full((50, 60), value), mesh, [Shard(1)], src_data_rank=None)
    plain = torch.full((7,), value)
    td = TensorDict({"rows": rows, "in": {"columns": columns, "plain": plain, "tied": plain}})
    return td.set("text", NonTensorData({"value": value}))


def value_of(path):
    loaded = load_memmap(path)
    tensors = [leaf for leaf in loaded.values(True, True) if isinstance(leaf, torch.Tensor)]
    found = {int(value) for leaf in tensors for value in leaf.unique()}
    assert loaded["text"] == {"value": min(found)} and len(found) == 1
    return found.pop()


@pytest.mark.parametrize("name", ["x.safetensors", "x"])
def test_changes_after_the_call_do_not_reach_the_file(ranks, tmp_path, name):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        td = content(1, mesh)
        future = td.save(tmp_path / name, return_early=True)
        with torch.no_grad():
            td["rows"].to_local().zero_()
            td["in", "columns"].to_local().zero_()
            td["in", "plain"].zero_()
        td.get("text").data["value"] = 0
        assert future.result() is td
        assert future.progress == 1.0 and future.bytes_written >= future.bytes_total * 0.9 > 0
        return future.stall_seconds

    assert all(0 < stall < 5 for stall in ranks.run(2, work))
    assert value_of(tmp_path / name) == 1


def test_the_program_uses_its_process_group_during_the_save(ranks, tmp_path):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        for value in range(1, 20):
            future = content(value, mesh).save(tmp_path / "x", return_early=True)
            for _ in range(20):
                total = torch.ones(1000)
                torch.distributed.all_reduce(total)
                assert total.sum() == 2000
        future.result()

    ranks.run(2, work)
    assert value_of(tmp_path / "x") == 19


def slowly(seconds):
    """Makes writes of this rank start late."""
    plain = saves.writes_of

    def wait(*arguments, **options):
        time.sleep(seconds)
        return plain(*arguments, **options)

    saves.writes_of = wait


@pytest.mark.parametrize("who", [[0, 1], [0], [1]], ids=str)
def test_a_cancelled_save_leaves_the_earlier_checkpoint(ranks, tmp_path, leftovers, who):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        content(1, mesh).save(tmp_path / "x.safetensors")
        slowly(0.3)
        future = content(2, mesh).save(tmp_path / "x.safetensors", return_early=True)
        time.sleep(0.1)
        if rank in who:
            assert future.cancel()
        error = future.exception()
        assert future.cancelled(), error
        return str(error)

    texts = ranks.run(2, work)
    if who == [1]:
        assert "cancelled on rank 1" in texts[0]
    assert value_of(tmp_path / "x.safetensors") == 1 and not leftovers(tmp_path)


@pytest.mark.parametrize("late", [None, 0, 1])
def test_ranks_that_cancel_at_different_steps_meet_at_the_next_save(ranks, tmp_path, late):
    """One rank is still on its way to the first save when the other has given it up, or both are."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        for number in range(5):
            if rank == late:
                time.sleep(0.03 * number)
            content(1, mesh).save(tmp_path / "x", return_early=True)
            if rank == 0:
                time.sleep(0.01 * number)
            content(2 + number, mesh).save(tmp_path / "x", return_early=True, pending="cancel").result()
            assert value_of(tmp_path / "x") == 2 + number
            torch.distributed.barrier()

    ranks.run(2, work)


@pytest.mark.parametrize(("pending", "expected"), [("wait", 2), ("cancel", 1)])
def test_the_next_save_waits_for_the_earlier_one_or_cancels_it(ranks, tmp_path, pending, expected):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        slowly(0.2)
        first = content(1, mesh).save(tmp_path / "first", return_early=True)
        second = content(2, mesh).save(tmp_path / "second", return_early=True, pending=pending)
        assert first.done() and first.cancelled() == (pending == "cancel")
        second.result()
        content(3, mesh).save(tmp_path / "third")

    ranks.run(2, work)
    assert len(os.listdir(tmp_path)) == expected + 1
    assert value_of(tmp_path / "second") == 2 and value_of(tmp_path / "third") == 3


def test_a_failure_in_the_background_is_an_error_of_the_future_on_all_ranks(ranks, tmp_path):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        if rank:

            def fail(*arguments, **options):
                raise OSError(5, "the disk is gone")

            saves.writes_of = fail
        future = content(1, mesh).save(tmp_path / "x", return_early=True)
        with pytest.raises((OSError, RuntimeError), match="the disk is gone"):
            future.result(20)
        with pytest.raises(ValueError, match="pass 'wait' or 'cancel'"):
            content(1, mesh).save(tmp_path / "x", return_early=True, pending="skip")

    ranks.run(2, work)
    assert os.listdir(tmp_path) == []


def test_the_memory_of_a_copy_is_used_again(ranks, tmp_path):
    def work(rank):
        from tensordict_memmap.saving.host_copy import _memory

        mesh = init_device_mesh("cpu", (2,))
        places = set()
        for value in range(3):
            content(value, mesh).save(tmp_path / "x", return_early=True).result()
            places.add(_memory._free[0].data_ptr())
        return len(places), len(_memory._free)

    assert ranks.run(2, work) == [(1, 1)] * 2


MEBI = 1 << 20


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_a_save_and_a_load_take_little_memory_beside_the_tensors(ranks, tmp_path, placement):
    """128 MiB of tensors; what a save adds to the memory of a rank stays below half of that."""

    def peak():
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10

    def reset():
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        td = TensorDict(
            {
                "x": distribute_tensor(torch.ones(4096, 4096), mesh, [placement], src_data_rank=None),
                "y": distribute_tensor(torch.ones(16 * MEBI), mesh, [Shard(0)], src_data_rank=None),
            }
        )
        TensorDict({"a": torch.ones(3)}).save(tmp_path / "warm", group=torch.distributed.group.WORLD)
        reset()
        before = peak()
        td.save(tmp_path / "x.safetensors")
        saved = peak() - before
        reset()
        before = peak()
        td.load_(tmp_path / "x.safetensors")
        return saved, peak() - before

    for saved, loaded in ranks.run(2, work):
        assert saved < 64 * MEBI and loaded < 64 * MEBI, (saved / MEBI, loaded / MEBI)
