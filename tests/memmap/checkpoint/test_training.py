"""Checkpoints of training runs: what continues from one is, to the last bit, what would have gone on."""

from __future__ import annotations

import copy
import importlib.util
import os
import random
import subprocess
import sys
from collections import Counter, OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tensordict_core import NonTensorData, TensorDict
from tensordict_memmap import Checkpoint, compare, load_checkpoint, save_checkpoint
from tensordict_memmap_cli.main import main

SCRIPT = Path(__file__).with_name("training_run.py")
_spec = importlib.util.spec_from_file_location("training_run", SCRIPT)
training_run = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(training_run)
Run = training_run.Run


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


CASES = [
    *[(optimizer, "step") for optimizer in training_run.OPTIMIZERS],
    *[("SGD momentum", scheduler) for scheduler in training_run.SCHEDULERS if scheduler != "step"],
]


@pytest.mark.parametrize(("optimizer", "scheduler"), CASES)
def test_a_run_that_continues_equals_one_that_went_on(optimizer, scheduler):
    straight = Run(optimizer, scheduler)
    straight.train(5)
    save_checkpoint("five", **straight.parts(), step=5, extra={"losses": straight.losses[:5]})
    before = Path("five/tensordict.manifest.json").read_bytes()
    straight.train(5)
    save_checkpoint("straight", **straight.parts(), step=10, extra={"losses": straight.losses})
    training_run.resumed("five", "resumed", optimizer, scheduler)
    report = compare("straight", "resumed", values=True)
    assert not report, report
    assert Path("five/tensordict.manifest.json").read_bytes() == before
    load_checkpoint("five", verify="full")  # training changed no byte of it


@pytest.mark.parametrize("path", ["five", "five.safetensors"])
def test_a_new_process_continues_to_the_last_bit(path):
    straight = Run("Adam", "sequential")
    straight.train(5)
    save_checkpoint(path, **straight.parts(), step=5, extra={"losses": straight.losses[:5]})
    straight.train(5)
    save_checkpoint("straight", **straight.parts(), step=10, extra={"losses": straight.losses})
    done = subprocess.run(
        [sys.executable, str(SCRIPT), path, "resumed", "Adam", "sequential"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = compare("straight", "resumed", values=True)
    assert not report, report


def test_a_checkpoint_is_a_tensordict_with_readable_keys():
    run = Run("Adam", "step")
    run.train(1)
    save_checkpoint("run", **run.parts())
    td = TensorDict.load("run")
    assert torch.equal(td["model", "4", "weight"], run.model[4].weight)
    assert td["optimizer", "state", "0", "exp_avg"].shape == run.model[0].weight.shape
    fresh = Run("Adam", "step", seed=1).model
    fresh.load_state_dict(TensorDict.load("run")["model"].flatten_keys(".").to_dict())
    assert torch.equal(fresh[0].weight, run.model[0].weight)


def test_a_parameter_has_its_key_beside_one_of_the_same_name_above():
    model = nn.Linear(2, 3, bias=False)
    model.inner = nn.Linear(1, 1, bias=False)
    save_checkpoint("run", model=model, extra={"a": torch.ones(1), "b": {"a": torch.zeros(2)}})
    saved = TensorDict.load("run")
    assert torch.equal(saved["model", "weight"], model.weight)
    assert torch.equal(saved["model", "inner", "weight"], model.inner.weight)
    assert saved["extra", "b", "a"].shape == (2,)


def test_a_plain_load_of_a_checkpoint_is_private():
    model = nn.Linear(3, 2)
    save_checkpoint("run", model=model)
    other = nn.Linear(3, 2)
    other.load_state_dict(TensorDict.load("run")["model"].to_dict(), assign=True)  # mapped, not copied
    optimizer = torch.optim.SGD(other.parameters(), lr=1.0)
    other(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(other.weight, model.weight)
    assert torch.equal(load_checkpoint("run", model=other, verify="full") and other.weight, model.weight)


def test_restored_tensors_lie_in_memory_and_keep_their_strides():
    run = Run("SGD momentum", "none")
    run.train(2)
    save_checkpoint("run", **run.parts())
    buffer = run.optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert not buffer.is_contiguous()
    load_checkpoint("run", optimizer=run.optimizer)
    again = run.optimizer.state_dict()["state"][0]["momentum_buffer"]
    assert type(again) is torch.Tensor and again.stride() == buffer.stride() and torch.equal(again, buffer)
    assert not TensorDict({"x": again}).is_memmap()


def test_a_model_on_the_meta_device_gets_the_parameters():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    save_checkpoint("run", model=model)
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    load_checkpoint("run", model=empty)
    assert torch.equal(empty[0].weight, model[0].weight) and empty[0].weight.requires_grad
    with torch.no_grad():
        empty[0].weight.zero_()
    load_checkpoint("run", model=empty, verify="full")
    assert torch.equal(empty[0].weight, model[0].weight)


def test_several_models_and_optimizers_have_one_checkpoint():
    models = {"actor": nn.Linear(2, 1), "critic": nn.Linear(2, 2)}
    optimizers = [torch.optim.Adam(model.parameters()) for model in models.values()]
    policy = TensorDict({"w": torch.ones(3), "inner": {"b": torch.zeros(2)}})
    dice = np.random.default_rng(3)
    save_checkpoint("run", model=models, optimizer=optimizers, ema=policy, dice=dice)
    expected = copy.deepcopy(models)
    first = dice.random()
    for model in models.values():
        nn.init.zeros_(model.weight)
    policy.zero_()
    found = load_checkpoint("run", model=models, optimizer=optimizers, ema=policy, dice=dice)
    assert found.parts == ["model", "optimizer", "ema", "dice"]
    assert torch.equal(models["critic"].weight, expected["critic"].weight)
    assert policy["w"].tolist() == [1, 1, 1] and dice.random() == first
    with pytest.raises(ValueError, match=r"optimizer= has 1 objects, and 2 were saved"):
        load_checkpoint("run", optimizer=optimizers[:1])
    with pytest.raises(ValueError, match=r"model= has the objects \['actor'\], and saved were \['actor', 'critic'\]"):
        load_checkpoint("run", model={"actor": models["actor"]})


EXTRA = {
    "numbers": [1, 2.5, float("inf"), 10**30, True, None, 1 + 2j],
    "keys": {
        0: "a",
        (1, 2): "b",
        2.5: torch.ones(2),
        "0": torch.zeros(1),
        "$": 3,
        "": torch.ones(1),
        "a.b": torch.ones(1),
    },
    "same": {1: torch.ones(1), "1": torch.zeros(2), "1~": {}},
    "containers": (
        deque([1, torch.ones(1)], maxlen=3),
        Counter("aab"),
        OrderedDict(b=1, a=torch.ones(1)),
        {1, 2},
        b"x",
    ),
    "torch": [torch.float16, torch.Size([1, 2]), torch.device("cpu"), torch.tensor(3.5, dtype=torch.bfloat16)],
    "numpy": [np.arange(6.0).reshape(2, 3), np.float32(2.5), np.array(["a", "b"]), np.zeros((0, 2), np.int8)],
    "empty": [[], {}, (), torch.zeros(0, 3)],
}


def alike(a, b):
    if isinstance(a, torch.Tensor):
        return type(b) is torch.Tensor and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return (
            list(a) == list(b)
            and all(type(x) is type(y) for x, y in zip(a, b, strict=True))
            and all(alike(a[key], b[key]) for key in a)
        )
    if isinstance(a, list | tuple | deque):
        same = len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
        return same and (not isinstance(a, deque) or a.maxlen == b.maxlen)
    return a == b


@pytest.mark.parametrize("path", ["run", "run.safetensors"])
def test_extra_values_come_back_with_their_types(path):
    td = TensorDict({"a": torch.ones(4, 2), "text": "hello"}, [4])
    save_checkpoint(path, extra={**EXTRA, "td": td})
    found = load_checkpoint(path).extra
    again = found.pop("td")
    assert type(again) is TensorDict and again.batch_size == (4,) and again["text"] == "hello" and not again.is_locked
    assert alike(found, EXTRA)


def test_nothing_is_pickled():
    with pytest.raises(
        TypeError, match=r"extra\['f'\]\[0\] is a builtins.builtin_function_or_method, and a checkpoint"
    ):
        save_checkpoint("run", extra={"f": [print]})
    with pytest.raises(TypeError, match=r"extra\['td'\]\['f'\] would be pickled"):
        save_checkpoint("run", extra={"td": TensorDict({"f": NonTensorData(print)})})
    with pytest.raises(TypeError, match=r"the key of extra\[<object"):
        save_checkpoint("run", extra={object(): 1})
    assert not os.path.exists("run")


def test_errors_name_the_part():
    model = nn.Linear(2, 1)
    save_checkpoint("run", model=model, step=3)
    with pytest.raises(KeyError, match=r"has no state of 'optimizer'; it has \['model'\]"):
        load_checkpoint("run", optimizer=torch.optim.SGD(model.parameters()))
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_checkpoint("run", model=nn.Linear(3, 1))
    with pytest.raises(TypeError, match="epoch= is a int, and a checkpoint holds the states of objects"):
        save_checkpoint("run", epoch=3)
    with pytest.raises(ValueError, match="checkpoint= is not the name of an object"):
        save_checkpoint("run", checkpoint=model)
    with pytest.raises(ValueError, match="unknown format 'pickle'"):
        save_checkpoint("run", format="pickle")
    with pytest.raises(FileNotFoundError):
        load_checkpoint("nothing")
    TensorDict({"a": torch.ones(1)}).save("plain")
    with pytest.raises(ValueError, match="was not written by save_checkpoint"):
        load_checkpoint("plain")
    assert load_checkpoint("run", strict=True) == Checkpoint(Path("run"), 3, None, ["model"])


def test_missing_tensors_are_errors():
    save_checkpoint("run", extra={"a": torch.ones(2)})
    td = TensorDict.load("run").clone()
    del td["extra"]
    td.save("broken")
    with pytest.raises(ValueError, match=r"the tensor at extra\.a is missing"):
        load_checkpoint("broken")
    td["checkpoint"] = NonTensorData('{"version": 2}')
    td.save("later")
    with pytest.raises(ValueError, match="is not a checkpoint of version 1"):
        load_checkpoint("later")


def test_the_random_state_is_kept_on_request():
    save_checkpoint("run", rng=False)
    save_checkpoint("with")
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    load_checkpoint("run")
    load_checkpoint("with", rng=False)
    assert torch.equal(torch.get_rng_state(), expected)
    load_checkpoint("with")
    assert not torch.equal(torch.get_rng_state(), expected)


def test_a_checkpoint_may_be_a_delta(capsys):
    model = nn.Linear(300, 300)
    save_checkpoint("one", model=model, step=1)
    with torch.no_grad():
        model.bias[3] = 5
    save_checkpoint("two", model=model, step=2, base="one")
    assert os.path.getsize("two") < 50_000
    other = nn.Linear(300, 300)
    assert load_checkpoint("two", model=other, verify="full").step == 2
    assert torch.equal(other.weight, model.weight) and other.bias[3] == 5
    assert main(["verify", "two", "--full"]) == 0
    with pytest.raises(ValueError, match="base= makes one safetensors file"):
        save_checkpoint("three", model=model, base="one", format="tree")


@pytest.mark.parametrize(
    "options",
    [{"format": "safetensors", "shard_size": 100}, {"durable": True}, {"checksum": False}, {"format": "archive"}],
)
def test_options_are_those_of_a_save(options):
    model = nn.Linear(10, 10)
    save_checkpoint("run", model=model, **options)
    other = nn.Linear(10, 10)
    load_checkpoint("run", model=other)
    assert torch.equal(other.weight, model.weight)


def test_the_error_for_the_state_of_an_optimizer_names_save_checkpoint():
    run = Run("Adam", "none")
    run.train(1)
    with pytest.raises(KeyError, match=r"tensordict_memmap\.save_checkpoint\(path, optimizer=optimizer\)"):
        TensorDict({"opt": run.optimizer.state_dict()})


def test_a_damaged_random_state_is_an_error_before_anything_is_restored(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    save_checkpoint(tmp_path / "run", model=model)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random.Random, "setstate", _refuse)
        with pytest.raises(ValueError, match=r"random state of python .* is damaged .*rng=False"):
            load_checkpoint(tmp_path / "run", model=model)
    assert not model.weight.any()
    load_checkpoint(tmp_path / "run", model=model)
    assert torch.equal(model.weight, before)


def _refuse(*args: object) -> None:
    raise TypeError("an integer is required")
