"""DCP: what its planners save goes to the files of save and loads on any ranks; its own files are the oracle."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from tensordict_core import TensorDict
from tensordict_memmap import TensorDictReader, TensorDictWriter, load_memmap
from tensordict_memmap.dcp import coordinate, reader, values

TARGETS = {
    "one file": ("saved.safetensors", {}),
    "shards": ("saved", {"format": "safetensors", "shard_size": 4000}),
    "tree": ("saved", {}),
}


@pytest.fixture(autouse=True)
def _quiet():
    """DCP warns of each call without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
        yield


def net(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5), torch.nn.LayerNorm(5))


def trained(seed, mesh=None):
    """A model and its Adam after two steps; sharded over a mesh if there is one."""
    model = net(seed)
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    adam = torch.optim.Adam(model.parameters(), lr=0.01 * (seed + 1), betas=(0.8, 0.9))
    torch.manual_seed(seed + 100)
    for _ in range(2):
        model(torch.randn(7, 16)).square().mean().backward()
        adam.step()
        adam.zero_grad()
    return model, adam


def state_of(model, adam, **more):
    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, adam), **more}


def flat(state, path=()):
    """The entries of a state dict by path, DTensors as their whole values."""
    if isinstance(state, dict):
        pairs = state.items()
    elif isinstance(state, list) and any(isinstance(one, dict | list | torch.Tensor) for one in state):
        pairs = enumerate(state)
    else:
        yield path, state.full_tensor() if isinstance(state, DTensor) else state
        return
    for key, value in pairs:
        yield from flat(value, (*path, key))


def same_state(found, expected):
    one, two = dict(flat(found)), dict(flat(expected))
    assert one.keys() == two.keys()
    for path, value in two.items():
        if isinstance(value, torch.Tensor):
            assert one[path].dtype == value.dtype and torch.equal(one[path], value), path
        else:
            assert type(one[path]) is type(value) and one[path] == value, path


def alone():
    """A state dict of one process, with what trainers put into one."""
    return {
        "model": {"layers.0.weight": torch.rand(4, 3), "layers.0.bias": torch.rand(3), "empty": torch.empty(0, 4)},
        "optim": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.rand(4, 3)}}, "param_groups": []},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "name": None}, {"lr": float("inf"), "betas": (), "name": "x"}],
        "list": [torch.arange(3), torch.ones(2, dtype=torch.complex128)],
        "half": torch.rand(3).to(torch.bfloat16),
        "step": 7,
        "text": 'with "quotes" and ü',
    }


def blank(state):
    """The same structure without the values."""
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list) and state:
        return [blank(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None if state is not None else 0


def save(state, path, planner=None, **options):
    dcp.save(state, storage_writer=TensorDictWriter(path, **options), planner=planner, no_dist=True)


def load(state, path, **options):
    dcp.load(state, storage_reader=TensorDictReader(path, **options), no_dist=True)
    return state


def files_of(path):
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


# --- one process


@pytest.mark.parametrize("target", TARGETS)
def test_a_state_dict_comes_back_in_one_process(tmp_path, target):
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


def test_planners_that_change_objects_are_heard(tmp_path):
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
    with pytest.raises(CheckpointException, match=r"hold 3 of the 6 elements of 'a'"):
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
    pytest.importorskip("fsspec")
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


# --- ranks


@pytest.mark.parametrize("target", TARGETS)
def test_fsdp_states_come_back_as_from_dcps_own_files(ranks, tmp_path, target):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        saved = state_of(*trained(1, mesh), step=rank * 0 + 5)
        dcp.save(saved, storage_writer=TensorDictWriter(tmp_path / name, **options))
        dcp.save(saved, checkpoint_id=tmp_path / "oracle")
        found = []
        for storage in (TensorDictReader(tmp_path / name), dcp.FileSystemReader(tmp_path / "oracle")):
            model, adam = trained(2, mesh)
            state = state_of(model, adam, step=0)
            dcp.load(state, storage_reader=storage)
            set_model_state_dict(model, state["model"])
            set_optimizer_state_dict(model, adam, state["optim"])
            found.append(state_of(model, adam, step=state["step"]))
        same_state(found[0], saved)
        same_state(found[0], found[1])

    ranks.run(2, work)
    model, adam = trained(3)
    state = state_of(model, adam, step=0)  # 2 ranks -> 1 process
    load(state, tmp_path / name)
    oracle = state_of(*trained(3), step=0)
    dcp.load(oracle, checkpoint_id=tmp_path / "oracle", no_dist=True)
    same_state(state, oracle)
    loaded = load_memmap(tmp_path / name)
    assert torch.equal(loaded["model", "0.weight"], state["model"]["0.weight"])
    assert loaded["optim", "param_groups", "0", "betas"] == (0.8, 0.9)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "oracle"])


def test_two_ranks_load_what_one_process_saved(ranks, tmp_path):
    expected = state_of(*trained(1), step=3)
    save(expected, tmp_path / "saved.safetensors")

    def work(rank):
        model, adam = trained(2, init_device_mesh("cpu", (2,)))
        state = state_of(model, adam, step=0)
        dcp.load(state, storage_reader=TensorDictReader(tmp_path / "saved.safetensors"))
        same_state(state, expected)

    ranks.run(2, work)


def sharded(mesh, version):
    whole = torch.arange(7 * 5).reshape(7, 5) + version
    kinds = {"rows": Shard(0), "columns": Shard(1), "same": Replicate()}
    state = {name: distribute_tensor(whole, mesh, [kind], src_data_rank=None) for name, kind in kinds.items()}
    return {**state, "plain": torch.full((3,), version), "one": torch.tensor(version), "n": version}


def version_of(path):
    loaded = load_memmap(path)
    version = loaded["n"]
    whole = torch.arange(7 * 5).reshape(7, 5) + version
    assert all(torch.equal(loaded[name], whole) for name in ("rows", "columns", "same"))
    assert loaded["plain"].tolist() == [version] * 3 and loaded["one"] == version
    return version


@pytest.mark.parametrize("target", TARGETS)
def test_uneven_shards_columns_replicas_and_plain_tensors_mix(ranks, tmp_path, target):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        keeper = TensorDictWriter(tmp_path / name, **options)
        for version in (1, 2):  # the second replaces the first
            dcp.save(sharded(mesh, version), storage_writer=keeper)
        state = sharded(mesh, 0)
        dcp.load(state, storage_reader=TensorDictReader(tmp_path / name))
        same_state(state, sharded(mesh, 2))
        like = {key: entry for key, entry in sharded(mesh, 0).items() if key != "n"}
        loaded = load_memmap(tmp_path / name, like=TensorDict(like), strict=False)
        assert torch.equal(loaded["columns"].to_local(), state["columns"].to_local())

    ranks.run(2, work)
    assert version_of(tmp_path / name) == 2 and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("target", TARGETS)
def test_ranks_with_different_keys_save_one_checkpoint(ranks, tmp_path, target):
    name, options = TARGETS[target]

    def work(rank):
        stage = {"stages": {str(rank): {"weight": torch.full((3, 2), float(rank)), "lr": rank}}, "all": torch.ones(2)}
        dcp.save(stage, storage_writer=TensorDictWriter(tmp_path / name, durable=True, **options))

    ranks.run(2, work)
    loaded = load_memmap(tmp_path / name)
    for rank in range(2):
        assert loaded["stages", str(rank), "weight"].eq(rank).all() and loaded["stages", str(rank), "lr"] == rank
    assert loaded["all"].tolist() == [1, 1]


def test_an_async_save_stores_what_was_there_when_it_was_called(ranks, tmp_path):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        state = sharded(mesh, 4)
        future = dcp.async_save(state, storage_writer=TensorDictWriter(tmp_path / "saved.safetensors"))
        for entry in state.values():
            if isinstance(entry, torch.Tensor):
                entry.zero_()
        future.result()

    ranks.run(2, work)
    assert version_of(tmp_path / "saved.safetensors") == 4


@pytest.mark.parametrize("target", TARGETS)
def test_a_failing_rank_leaves_the_earlier_checkpoint_and_is_named(ranks, tmp_path, target):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        keeper = TensorDictWriter(tmp_path / name, **options)
        dcp.save(sharded(mesh, 1), storage_writer=keeper)
        state = sharded(mesh, 2)
        if rank == 1:
            state["odd"] = object()
        with pytest.raises(CheckpointException, match=r"RANK 1(.|\n)*key 'odd' has no JSON form"):
            dcp.save(state, storage_writer=keeper)
        dist = torch.distributed
        dist.barrier()
        if rank == 0:
            assert version_of(tmp_path / name) == 1
        dist.barrier()
        dcp.save(sharded(mesh, 3), storage_writer=keeper)

    ranks.run(2, work)
    assert version_of(tmp_path / name) == 3 and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("target", TARGETS)
def test_a_killed_rank_leaves_the_earlier_checkpoint(ranks, tmp_path, target, victim):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        dcp.save(sharded(mesh, 1), storage_writer=TensorDictWriter(tmp_path / name, **options))
        if rank == victim:
            step = "finish" if rank == 0 else "write_data"
            setattr(TensorDictWriter, step, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
        dcp.save(sharded(mesh, 2), storage_writer=TensorDictWriter(tmp_path / name, **options))

    outcomes = ranks.start(2, work).wait()
    assert outcomes[victim].died and outcomes[1 - victim].error
    assert version_of(tmp_path / name) == 1
    save({"n": 5}, tmp_path / name, **options)
    assert os.listdir(tmp_path) == [name]


def save_forever(rank, path, options, first):
    mesh = init_device_mesh("cpu", (2,))
    version = first
    while True:
        dcp.save(sharded(mesh, version), storage_writer=TensorDictWriter(path, **options))
        version += 1


@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("target", TARGETS)
def test_a_rank_killed_at_random_moments_leaves_a_whole_checkpoint(ranks, tmp_path, target, victim, times):
    name, options = TARGETS[target]
    path = tmp_path / name
    chance = random.Random(victim)
    last = 0
    whole = torch.arange(7 * 5).reshape(7, 5)
    parts = {"rows": whole, "columns": whole, "same": whole, "plain": torch.zeros(3, dtype=torch.int64)}
    save({**parts, "one": torch.tensor(0), "n": 0}, path, **options)
    for _ in range(times):
        ranks.start(2, save_forever, path, options, last + 1)
        deadline = time.monotonic() + 20
        while version_of(path) <= last and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.03)
        os.kill(ranks.children[victim][0], signal.SIGKILL)
        outcomes = ranks.wait()
        assert outcomes[victim].died and outcomes[1 - victim].error not in (None, "Hung")
        found = version_of(path)
        assert found > last
        last = found
    save({"n": 5}, path, **options)
    assert os.listdir(tmp_path) == [name]
