"""DCP: what its planners save goes to the files of save and loads in one process; its own files are the oracle."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from tests.memmap.distributed.dcp_states import TARGETS, alone, blank, files_of, flat, load, same_state, save
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from tensordict_core import TensorDict
from tensordict_memmap import TensorDictReader, TensorDictWriter, load_memmap
from tensordict_memmap.dcp import coordinate, reader, values

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")  # DCP's, of one process


@pytest.mark.parametrize("target", TARGETS)
def test_a_state_dict_is_restored_in_one_process(tmp_path, target):
    name, options = TARGETS[target]
    state = alone()
    save(state, tmp_path / name, **options)
    expected = dict(state)
    expected["optim"] = {"state": {"0": state["optim"]["state"][0]}, "param_groups": []}  # keys are strings for DCP
    dcp.save(state, checkpoint_id=tmp_path / "oracle", no_dist=True)
    oracle = blank(expected)
    dcp.load(oracle, checkpoint_id=tmp_path / "oracle", no_dist=True)
    loaded = load(blank(expected), tmp_path / name)
    same_state(loaded, expected)
    same_state(loaded, oracle)
    rebuilt = _load_state_dict_from_keys(storage_reader=TensorDictReader(tmp_path / name))
    same_state(rebuilt, expected)
    assert type(rebuilt["list"]) is list and type(rebuilt["groups"]) is list


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensordict_loads_what_dcp_wrote_under_the_keys_of_the_state_dict(tmp_path, target):
    name, options = TARGETS[target]
    state = alone()
    save(state, tmp_path / name, **options)
    loaded = load_memmap(tmp_path / name)
    assert torch.equal(loaded["model", "layers.0.weight"], state["model"]["layers.0.weight"])
    assert torch.equal(loaded["optim", "state", "0", "exp_avg"], state["optim"]["state"][0]["exp_avg"])
    assert torch.equal(loaded["list", "1"], state["list"][1])
    assert loaded["groups", "0", "betas"] == (0.9, 0.99) and loaded["step"] == 7 and loaded["text"] == state["text"]


def test_safetensors_itself_reads_the_file(tmp_path):
    state = alone()
    save(state, tmp_path / "x.safetensors")
    found = load_file(tmp_path / "x.safetensors")
    assert torch.equal(found["model.layers.0.weight"], state["model"]["layers.0.weight"])
    assert torch.equal(found["optim.state.0.step"], torch.tensor(3.0)) and torch.equal(found["half"], state["half"])


@pytest.mark.parametrize("target", TARGETS)
def test_dcp_loads_what_a_tensordict_saved(tmp_path, target):
    name, options = TARGETS[target]
    td = TensorDict({"a": torch.rand(5, 4), "b": {"c": torch.arange(3), "text": "hello", "deep": {"d": torch.ones(2)}}})
    td["complex"] = torch.rand(3, dtype=torch.complex128)
    td.save(tmp_path / name, **options)
    state = {"a": torch.zeros(5, 4), "b": {"c": torch.zeros(3, dtype=torch.int64), "text": "", "deep": {}}}
    state["b"]["deep"]["d"] = torch.zeros(2)
    state["complex"] = torch.zeros(3, dtype=torch.complex128)
    load(state, tmp_path / name)
    same_state(state, td.to_dict())


def test_dcp_loads_published_files_and_casts_to_the_dtype_of_the_target(tmp_path):
    published = {"model.embed.weight": torch.rand(6, 4), "model.norm": torch.rand(4).to(torch.bfloat16)}
    save_file(published, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for path in (tmp_path / "model.safetensors", tmp_path):
        state = {"model": {"embed.weight": torch.zeros(6, 4), "norm": torch.zeros(4)}}
        load(state, path)
        assert torch.equal(state["model"]["embed.weight"], published["model.embed.weight"])
        assert torch.equal(state["model"]["norm"], published["model.norm"].float())
    flat_state = {name: torch.zeros_like(tensor) for name, tensor in published.items()}
    same_state(load(flat_state, tmp_path), published)


def test_dcp_loads_archives_and_tied_weights(tmp_path):
    weight = torch.rand(4, 4)
    TensorDict({"a": weight, "b": weight}).save(tmp_path / "x.tdz")
    state = {"a": torch.zeros(4, 4), "b": torch.zeros(4, 4)}
    same_state(load(state, tmp_path / "x.tdz"), {"a": weight, "b": weight})


def test_a_flat_state_dict_keeps_its_keys(tmp_path):
    state = {"layers.0.weight": torch.rand(2, 2), "layers.0.bias": torch.rand(2)}
    save(state, tmp_path / "x.safetensors", planner=DefaultSavePlanner(flatten_state_dict=False))
    assert set(load_memmap(tmp_path / "x.safetensors").keys()) == set(state)
    same_state(load({name: torch.zeros_like(one) for name, one in state.items()}, tmp_path / "x.safetensors"), state)


@pytest.mark.parametrize("target", TARGETS)
def test_values_larger_than_their_room_in_the_header_are_stored_too(tmp_path, target):
    name, options = TARGETS[target]
    state = {"a": torch.arange(5_000_000), "b": torch.rand(7, 3), "long": list(range(20_000)), "text": "ä" * 50_000}
    save(state, tmp_path / name, **options)
    loaded = load({"a": torch.zeros_like(state["a"]), "b": torch.zeros(7, 3), "long": [], "text": ""}, tmp_path / name)
    same_state(loaded, state)
    assert load_memmap(tmp_path / name, verify="size")["text"] == state["text"]


# --- no pickle


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_in_the_files_is_pickled(tmp_path, target, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("something is pickled")

    name, options = TARGETS[target]
    state = alone()
    with monkeypatch.context() as patch:
        for call in ("dump", "dumps", "load", "loads"):
            patch.setattr(pickle, call, refuse)
        patch.setattr(torch, "save", refuse)
        patch.setattr(torch, "load", refuse)
        save(state, tmp_path / name, **options)
        described = TensorDictReader(tmp_path / name)
        assert len(described.read_metadata().state_dict_metadata) == len(list(flat(state)))
        assert torch.equal(load({"half": torch.zeros(3, dtype=torch.bfloat16)}, tmp_path / name)["half"], state["half"])
    for path in files_of(tmp_path / name):
        with open(path, "rb") as file:
            data = file.read()
        assert b"ctorch" not in data and b"PK\3\4" not in data and b"\x80\x02}" not in data


class Opaque:
    """An object without a JSON form."""

    def __eq__(self, other):
        return isinstance(other, Opaque)

    __hash__ = None


@pytest.mark.parametrize("target", TARGETS)
def test_an_object_without_a_json_form_is_refused_and_stored_only_on_demand(tmp_path, target):
    name, options = TARGETS[target]
    state = {"a": torch.ones(2), "odd": Opaque()}
    with pytest.raises(CheckpointException, match=r"RANK 0(.|\n)*key 'odd' has no JSON form(.|\n)*allow_pickle=True"):
        save(state, tmp_path / name, **options)
    assert os.listdir(tmp_path) == []
    save(state, tmp_path / name, allow_pickle=True, **options)
    with pytest.raises(CheckpointException, match=r"key 'odd' was stored as the bytes of torch.save"):
        load({"a": torch.zeros(2), "odd": None}, tmp_path / name)
    assert torch.equal(load({"a": torch.zeros(2)}, tmp_path / name)["a"], torch.ones(2))
    assert load({"odd": None}, tmp_path / name, allow_pickle=True) == {"odd": Opaque()}
    assert isinstance(load_memmap(tmp_path / name)["odd"]["torch_save"], bytes)


class Halving(DefaultSavePlanner):
    """A planner that changes what it stores, and stores bytes of its own."""

    def transform_object(self, write_item, object):
        if write_item.index.fqn == "raw":
            return io.BytesIO(b"just bytes")
        return super().transform_object(write_item, object * 2)


def test_planners_that_change_objects_are_called(tmp_path):
    state = {"a": torch.ones(2), "n": 4, "raw": 1}
    save(state, tmp_path / "x", planner=Halving())
    loaded = load_memmap(tmp_path / "x")
    assert loaded["a"].tolist() == [2, 2] and loaded["n"] == 8
    stream = values.stream_of("raw", loaded["raw"], allow_pickle=False)
    assert stream.read() == b"just bytes"


# --- the checks of the planner, and ours


def test_missing_keys_and_wrong_shapes_are_the_errors_of_the_default_planner(tmp_path):
    state = {"a": torch.ones(2, 3), "b": torch.ones(4)}
    save(state, tmp_path / "ours")
    dcp.save(state, checkpoint_id=tmp_path / "oracle", no_dist=True)
    for wrong in ({"missing": torch.ones(1)}, {"a": torch.ones(3, 2)}, {"a": 1}):
        texts = []
        for storage in (TensorDictReader(tmp_path / "ours"), dcp.FileSystemReader(tmp_path / "oracle")):
            with pytest.raises(CheckpointException) as caught:
                dcp.load(dict(wrong), storage_reader=storage, no_dist=True)
            texts.append(str(caught.value).strip().splitlines()[-1])
        assert texts[0] == texts[1]
    partial = dcp.DefaultLoadPlanner(allow_partial_load=True)
    found = {"a": torch.zeros(2, 3), "missing": torch.zeros(1)}
    dcp.load(found, storage_reader=TensorDictReader(tmp_path / "ours"), planner=partial, no_dist=True)
    assert found["a"].sum() == 6 and found["missing"].sum() == 0


class Half(DefaultSavePlanner):
    """A planner that plans only the first rows of a tensor."""

    def create_local_plan(self):
        plan = super().create_local_plan()
        items = []
        for item in plan.items:
            data = item.tensor_data
            chunk = dataclasses.replace(data.chunk, sizes=torch.Size([1, *data.size[1:]]))
            items.append(dataclasses.replace(item, tensor_data=dataclasses.replace(data, chunk=chunk)))
        return dataclasses.replace(plan, items=items)


def test_a_plan_that_leaves_some_of_a_tensor_out_is_refused(tmp_path):
    with pytest.raises(CheckpointException, match=r"hold only 3 of the 6 elements of 'a'"):
        save({"a": torch.ones(2, 3)}, tmp_path / "x", planner=Half())
    assert os.listdir(tmp_path) == []


class Wider(DefaultSavePlanner):
    def transform_object(self, write_item, object):
        return super().transform_object(write_item, object.double())


def test_a_planner_that_gives_another_dtype_than_it_planned_is_refused(tmp_path):
    with pytest.raises(CheckpointException, match=r"key 'a' was planned as torch.float32(.|\n)*torch.float64"):
        save({"a": torch.ones(2, 3)}, tmp_path / "x.safetensors", planner=Wider())
    assert os.listdir(tmp_path) == []


def test_cached_plans_urls_and_a_missing_save_are_refused(tmp_path):
    state = {"a": torch.ones(2)}
    save(state, tmp_path / "x", planner=DefaultSavePlanner(enable_plan_caching=True))
    with pytest.raises(CheckpointException, match="enable_plan_caching=True hands no plan"):
        save(state, tmp_path / "x", planner=DefaultSavePlanner(enable_plan_caching=True))
    for cache in ("_cached_save_plan", "_cached_all_plans", "_cached_global_plan", "_cached_metadata"):
        getattr(dcp.SavePlanner, cache).clear()
    with pytest.raises(ValueError, match="is a URL"):
        TensorDictWriter("s3://bucket/run")
    assert TensorDictWriter.validate_checkpoint_id(tmp_path / "x")
    with pytest.raises(CheckpointException, match="nothing"):
        load(dict(state), tmp_path / "nothing")
    with pytest.raises(CheckpointException, match="existsok=False"):
        save(state, tmp_path / "x", existsok=False)


def test_keys_that_are_the_same_once_joined_are_refused(tmp_path):
    TensorDict({"a.b": torch.ones(1), "a": {"b": torch.ones(2)}}).save(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointException, match="are the same once joined"):
        load({"a.b": torch.zeros(1)}, tmp_path / "x.safetensors")


@pytest.mark.parametrize("target", TARGETS)
def test_an_error_while_the_files_are_completed_leaves_the_earlier_checkpoint(tmp_path, monkeypatch, target):
    name, options = TARGETS[target]
    save({"a": torch.ones(2), "n": 1}, tmp_path / name, **options)
    monkeypatch.setattr(coordinate, "load_value", lambda message: 1 / 0)
    keeper = TensorDictWriter(tmp_path / name, **options)
    with pytest.raises(CheckpointException, match="ZeroDivisionError"):
        dcp.save({"a": torch.zeros(2), "n": 2}, storage_writer=keeper, no_dist=True)
    assert os.listdir(tmp_path) == [name] and load_memmap(tmp_path / name)["a"].tolist() == [1, 1]


def test_a_load_to_another_device_or_a_view_is_copied_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_STAGED", 100)
    state = {str(n): torch.rand(5, 4) for n in range(6)}
    save(state, tmp_path / "x")
    targets = {name: torch.zeros(4, 5).T for name in state}
    same_state(load(targets, tmp_path / "x"), state)


@pytest.mark.parametrize("name", ["run.safetensors", "run"])
def test_dcp_loads_from_a_url(name):
    pytest.importorskip("fsspec", reason="fsspec is an extra")
    url = f"memory://test_dcp/{name}"
    td = TensorDict({"a": torch.rand(50, 40), "in": {"b": torch.arange(3), "text": "hello"}})
    td.save(url)
    state = {"a": torch.zeros(50, 40), "in": {"b": torch.zeros(3, dtype=torch.int64), "text": ""}}
    same_state(load(state, url), td.to_dict())


def test_a_writer_and_a_reader_go_to_another_process_and_a_durable_save_is_synced(tmp_path):
    writer = pickle.loads(
        pickle.dumps(TensorDictWriter(tmp_path / "x", shard_size=200, format="safetensors", durable=True))
    )
    state = {"a": torch.rand(5, 4), "b": torch.rand(50), "n": 3}
    dcp.save(state, storage_writer=writer, no_dist=True)
    found = {"a": torch.zeros(5, 4), "b": torch.zeros(50), "n": 0}
    dcp.load(found, storage_reader=pickle.loads(pickle.dumps(TensorDictReader(tmp_path / "x"))), no_dist=True)
    same_state(found, state)


def test_a_writer_saves_again_under_another_name(tmp_path):
    writer = TensorDictWriter(tmp_path / "0")
    for step in (1, 2):
        made = dcp.save({"n": step}, storage_writer=writer, checkpoint_id=tmp_path / str(step), no_dist=True)
        assert made.storage_meta.checkpoint_id == str(tmp_path / str(step))
    assert [load({"n": 0}, tmp_path / str(step))["n"] for step in (1, 2)] == [1, 2]
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_the_package_does_not_import_dcp_before_it_is_used():
    code = (
        "import sys, tensordict_memmap; assert 'TensorDictWriter' in dir(tensordict_memmap)\n"
        "assert not [name for name in sys.modules if name.startswith('torch.distributed.checkpoint')]\n"
        "tensordict_memmap.TensorDictReader\n"
        "assert 'torch.distributed.checkpoint' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
