"""Background checkpoints: the state at the call is saved while training goes on, one checkpoint at a time."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tensordict_core import LazyStackedTensorDict, TensorDict
from tensordict_memmap import SaveFuture, latest, load_checkpoint, save_checkpoint
from tensordict_memmap.engine import executor, syscalls, write_plan
from tensordict_memmap.saving.host_copy import _memory

FORMATS = [{}, {"format": "safetensors"}, {"format": "safetensors", "shard_size": 2000}]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def model(value):
    made = nn.Linear(40, 30)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(value)
    return made


def check(path, step):
    loaded = model(-1)
    found = load_checkpoint(path, model=loaded, verify="full")
    assert found.step == step == found.extra["step"]
    assert all((parameter == step).all() for parameter in loaded.parameters())


def begin(step, **options):
    return save_checkpoint("runs", model=model(step), step=step, extra={"step": step}, return_early=True, **options)


class Gate:
    """Without a lock, which a forked child might find taken."""

    is_open = False

    def set(self):
        self.is_open = True

    def clear(self):
        self.is_open = False


@pytest.fixture
def gate(monkeypatch):
    """Saves write nothing until the gate is opened; loads, which use the same executor, are not held up."""
    made = Gate()

    def run(queues, *, cancelled=None, **options):
        while not made.is_open:
            time.sleep(0.005)
            if cancelled is not None and cancelled():
                raise CancelledError("the save was cancelled")
        return executor.run(queues, cancelled=cancelled, **options)

    monkeypatch.setattr(write_plan, "executor", SimpleNamespace(**{**vars(executor), "run": run}))
    yield made
    made.set()


@pytest.mark.parametrize("options", FORMATS)
def test_training_continues_while_the_state_at_the_call_is_saved(gate, options):
    one = model(3)
    optimizer = torch.optim.SGD(one.parameters(), lr=1.0, momentum=0.9)
    future = save_checkpoint(
        "runs", model=one, optimizer=optimizer, step=3, extra={"step": 3}, return_early=True, **options
    )
    with torch.no_grad():
        one.weight.zero_()
    assert isinstance(future, SaveFuture) and not future.done() and future.stall_seconds > 0
    assert not os.path.exists("runs")
    gate.set()
    assert future.result().name == "runs" and future.progress == 1.0
    check("runs", 3)


def test_tied_weights_stay_tied():
    one = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    one[1].weight = one[0].weight
    save_checkpoint("tied.safetensors", model=one, return_early=True).result()
    save_checkpoint("plain.safetensors", model=one)
    assert os.path.getsize("tied.safetensors") == os.path.getsize("plain.safetensors")


def test_the_host_memory_is_used_again():
    begin(1).result()
    blocks = [block.data_ptr() for block in _memory._free]
    begin(2).result()
    assert [block.data_ptr() for block in _memory._free] == blocks
    check("runs", 2)


def test_the_next_checkpoint_waits_for_the_one_in_the_background(gate):
    first = begin(1, keep=2)
    threading.Timer(0.1, gate.set).start()
    save_checkpoint("runs", model=model(2), step=2, extra={"step": 2}, keep=2)
    assert first.done() and sorted(os.listdir("runs")) == ["step-000001", "step-000002"]


def test_the_next_checkpoint_cancels_the_one_in_the_background_on_request(gate):
    first = begin(1, keep=2)
    second = begin(2, keep=2, pending="cancel")
    assert first.cancelled()
    gate.set()
    assert second.result().name == "step-000002"
    assert os.listdir("runs") == ["step-000002"]
    with pytest.raises(ValueError, match="pending='never'"):
        begin(3, pending="never")


def test_a_cancelled_checkpoint_leaves_the_earlier_ones(gate):
    gate.set()
    begin(1, keep=1).result()
    gate.clear()
    future = begin(2, keep=1)
    assert future.cancel() and os.listdir("runs") == ["step-000001"]
    check(latest("runs"), 1)
    with pytest.raises(CancelledError):
        future.result()


def test_a_failed_checkpoint_raises_its_error_and_rotates_nothing(monkeypatch):
    begin(1, keep=1).result()

    def full(fd, address, nbytes, offset):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "write_at", full)
        patch.setattr(syscalls, "write_ranges_at", full)
        with pytest.raises(OSError, match="No space left"):
            begin(2, keep=1).result()
    assert os.listdir("runs") == ["step-000001"]
    check(latest("runs"), 1)


def test_old_checkpoints_are_removed_once_the_new_one_is_complete(gate):
    gate.set()
    begin(1, keep=1).result()
    gate.clear()
    future = begin(2, keep=1)
    assert sorted(name for name in os.listdir("runs") if not name.startswith(".")) == ["step-000001"]
    gate.set()
    future.result()
    assert os.listdir("runs") == ["step-000002"]


def test_a_delta_is_saved_in_the_background_too():
    save_checkpoint("base", model=model(1), step=1, extra={"step": 1})
    begin(2, base="base").result()
    check("runs", 2)


@pytest.mark.parametrize("lengths", [[3, 3], [3, 4]], ids=str)
def test_lazy_stacks_are_copied_element_by_element(lengths):
    elements = [TensorDict({"a": torch.arange(length), "text": "t"}) for length in lengths]
    stack = LazyStackedTensorDict(*elements, stack_dim=0)
    future = save_checkpoint("lazy", extra=TensorDict({"stack": stack}), return_early=True)
    for element in elements:
        element["a"].zero_()
    future.result()
    found = load_checkpoint("lazy").extra["stack"]
    assert [one["a"].tolist() for one in found] == [list(range(length)) for length in lengths]


def test_nested_tensors_and_values_are_copied_too():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    extra = {"epoch": 1, "losses": [0.5], "nested": nested}
    future = save_checkpoint("run", extra=extra, return_early=True)
    nested.values().zero_()
    extra["losses"].append(0.25)
    future.result()
    found = load_checkpoint("run").extra
    assert found["losses"] == [0.5] and found["nested"].values().tolist() == [1.0] * 5


@pytest.mark.skipif(not syscalls.POSIX, reason="children are forked")
def test_a_forked_child_does_not_wait_for_a_checkpoint_of_its_parent(gate, fork):
    def save_another():
        gate.set()
        save_checkpoint("child", rng=False)

    future = begin(1)
    child = fork(save_another)
    assert child.wait(20) == 0 and os.path.exists("child") and not future.done()
    gate.set()
    future.result()


def save_steps(first, options):
    step = first
    while True:
        begin(step, keep=2, pending=random.choice(["wait", "cancel"]), **options)
        time.sleep(random.uniform(0, 0.01))
        step += 1


ROUNDS = [pytest.param(8, id="8 kills"), pytest.param(200, id="200 kills", marks=pytest.mark.long)]


@pytest.mark.skipif(not syscalls.POSIX, reason="children are forked and killed")
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("options", FORMATS[:2])
def test_a_kill_leaves_the_newest_checkpoints_whole(fork, options, rounds):
    for step in (1, 2):
        begin(step, keep=2, **options).result()
    newest = 2
    for _ in range(rounds):
        child = fork(save_steps, newest + 1, options)
        time.sleep(random.uniform(0, 0.08))
        child.kill()
        names = sorted(name for name in os.listdir("runs") if not name.startswith("."))
        assert len(names) >= 2, names
        for name in names:
            check(f"runs/{name}", int(name[5:11]))  # a name stands for a whole checkpoint
        found = latest("runs")
        step = int(found.name[5:11])
        assert found.name == names[-1] and step >= newest
        newest = step
    begin(newest + 1, keep=2, **options).result()
    assert len(os.listdir("runs")) == 2
