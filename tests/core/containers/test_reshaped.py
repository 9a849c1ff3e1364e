"""Reshaped views: what shape operations return in the legacy lazy mode."""

from __future__ import annotations

import warnings

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, set_lazy_legacy

OPERATIONS = {
    "view": lambda td: td.view(-1),
    "permute": lambda td: td.permute(1, 0),
    "transpose": lambda td: td.transpose(0, 1),
    "unsqueeze": lambda td: td.unsqueeze(1),
    "squeeze": lambda td: td.unsqueeze(0).squeeze(0),
}
INVERSES = {
    "view": lambda td: td.view(3, 4),
    "permute": lambda td: td.permute(1, 0),
    "transpose": lambda td: td.transpose(0, 1),
    "unsqueeze": lambda td: td.squeeze(1),
}


@pytest.fixture(autouse=True)
def lazy_mode():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        mode = set_lazy_legacy(True)
    with mode:
        yield


def sources():
    td = TensorDict({"a": torch.arange(12.0).view(3, 4), "n": {"b": torch.ones(3, 4)}}, [3, 4])
    return {"dense": td, "lazy": LazyStackedTensorDict(*td.clone().unbind(1), stack_dim=1)}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kind", sources())
def test_writes_and_new_keys_reach_the_source(kind, name):
    td = sources()[kind]
    view = OPERATIONS[name](td)
    view["new"] = torch.arange(12).view(view.shape)
    view["n", "new"] = torch.ones(view.shape)
    assert td["new"].shape == td["n", "new"].shape == (3, 4)
    assert OPERATIONS[name](td)["new"].flatten().tolist() == list(range(12))
    view.set_("a", torch.full(view.shape, 2.0))
    assert (td["a"] == 2).all()
    view.add_(1)
    assert (td["a"] == 3).all() and (td["n", "b"] == 2).all()
    view[0] = view[0].clone().zero_()
    assert (td["a"] == 0).any() and (OPERATIONS[name](td)["a"][0] == 0).all()
    del view["a"]
    view.rename_key_("new", "renamed")
    assert sorted(td.keys()) == ["n", "renamed"]


@pytest.mark.parametrize("name", INVERSES)
def test_the_inverse_of_a_view_is_the_source(name):
    td = sources()["dense"]
    assert INVERSES[name](OPERATIONS[name](td)) is td
    assert OPERATIONS[name](td).clone() is not td and type(OPERATIONS[name](td).clone()) is TensorDict


def test_a_view_that_the_strides_forbid_raises_when_it_is_read():
    view = sources()["dense"].permute(1, 0).view(-1)
    assert view.batch_size == (12,)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        view["a"]


def test_a_view_is_locked_with_its_source():
    td = sources()["dense"]
    view = td.view(-1)
    assert view.lock_() is view and td.is_locked and td["n"].is_locked
    with pytest.raises(RuntimeError, match="locked"):
        view["new"] = torch.ones(12)
    td.unlock_()
    assert not view.is_locked and not view["n"].is_locked
    with pytest.raises(RuntimeError, match=r"a lazy TD.*clone\(\)"):
        view.batch_size = [3]


def test_a_view_of_shared_memory_shares_the_source():
    td = sources()["dense"]
    view = td.view(-1)
    assert view.share_memory_() is view and td.is_shared() and view.is_shared() and not view.is_memmap()


def test_detaching_a_view_in_place_detaches_the_source():
    td = sources()["dense"]
    td["a"] = td["a"].double().requires_grad_() * 2
    view = td.permute(1, 0)
    assert view.detach_() is view and not td["a"].requires_grad and not view["a"].requires_grad
