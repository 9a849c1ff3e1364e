"""Typed tensordicts: dictionaries whose keys are declared."""

from __future__ import annotations

import pickle
from typing import ClassVar, NotRequired

import pytest
import torch

from tensordict_class import TypedTensorDict
from tensordict_core import LazyStackedTensorDict, TensorDict, TensorDictBase


class State(TypedTensorDict):
    position: torch.Tensor
    mass: torch.Tensor | None = None
    note: NotRequired[str]
    dims: ClassVar[int] = 3

    def norm(self) -> torch.Tensor:
        return self.position.norm(dim=-1)


@pytest.fixture
def state() -> State:
    return State(position=torch.ones(4, 3), batch_size=[4])


def test_it_is_a_tensordict_with_attributes(state):
    assert isinstance(state, TensorDictBase)
    assert state.position is state["position"] and dict(**state).keys() == {"position"}
    assert state.norm().shape == (4,) and state.dims == State.dims == 3


def test_defaults_and_missing_entries(state):
    assert state.mass is None and "mass" not in state
    with pytest.raises(AttributeError, match="has field 'note' declared but not set"):
        _ = state.note
    with pytest.raises(KeyError):
        state["note"]
    state.note = "text"
    assert state.note == state["note"] == "text"
    del state.note
    assert "note" not in state


def test_the_constructor_checks_its_fields():
    with pytest.raises(TypeError, match=r"missing required field\(s\): position"):
        State(batch_size=[3])
    with pytest.raises(TypeError, match=r"got unexpected field\(s\): typo"):
        State(position=torch.zeros(3), typo=1)
    with pytest.raises(TypeError, match="missing required field"):
        State.from_tensordict(TensorDict({}))
    with pytest.raises(TypeError, match="takes a tensordict"):
        State.from_tensordict({"position": torch.zeros(3)})
    assert State({"position": torch.zeros(3), "other": 1}, batch_size=[]).get("other") == 1
    assert State(TensorDict({"position": torch.zeros(3)}, [3])).batch_size == torch.Size([3])


def test_writing_checks_the_batch_size(state):
    state.position = torch.zeros(4, 2)
    assert state["position"].shape == (4, 2)
    with pytest.raises(RuntimeError, match="batch size"):
        state.position = torch.zeros(3)


def test_results_keep_the_type(state):
    for result in (
        state + 1,
        state[0],
        state.clone(),
        state.reshape(2, 2),
        torch.stack([state, state]),
        state.to("cpu"),
    ):
        assert type(result) is State
    assert type(state.to_tensordict()) is TensorDict
    assert type(state.select("position")) is State and type(state.empty()) is State
    assert type(pickle.loads(pickle.dumps(state))) is State


def test_it_wraps_tensordicts_of_every_kind():
    lazy = LazyStackedTensorDict(*(TensorDict({"position": torch.zeros(n)}) for n in (1, 2)))
    state = State.from_tensordict(lazy)
    assert state[1].position.shape == (2,)
    state.set("more", torch.ones(2))
    assert lazy[0]["more"] == 1


def test_inheritance_adds_fields():
    class Moving(State):
        velocity: torch.Tensor

    with pytest.raises(TypeError, match="velocity"):
        Moving(position=torch.zeros(3))
    assert Moving(position=torch.zeros(3), velocity=torch.ones(3)).velocity.sum() == 3


def test_flags():
    class Frozen(TypedTensorDict["frozen"]):
        x: torch.Tensor

    with pytest.raises(RuntimeError, match="locked"):
        Frozen(x=torch.zeros(3)).x = torch.ones(3)
    with pytest.raises(AttributeError, match="Field 'keys' shadows a TensorDictBase attribute"):

        class Bad(TypedTensorDict):
            keys: torch.Tensor

    class Shadowed(TypedTensorDict, shadow=True):
        mean: torch.Tensor

    assert Shadowed(mean=torch.ones(2)).mean.sum() == 2
    with pytest.warns(DeprecationWarning, match="autocast has no effect"):

        class Cast(TypedTensorDict, autocast=True):
            x: torch.Tensor

    with pytest.raises(TypeError, match="Unknown TypedTensorDict option"):
        TypedTensorDict["bogus"]


def test_it_is_a_pytree_node_and_compiles(state):
    doubled = torch.utils._pytree.tree_map(lambda leaf: leaf * 2, state)
    assert type(doubled) is State and doubled.position.sum() == 24
    torch._dynamo.reset()
    compiled = torch.compile(lambda s: (s + 1).position, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(state), state.position + 1)
    assert torch.vmap(lambda s: s.position.sum())(state).tolist() == [3.0] * 4
