"""Fields that hide members hide them from users, not from core: it holds, updates, copies and saves such instances."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from tensordict_class import TensorClass
from tensordict_core import TensorDict, lazy_stack


class Hiding(TensorClass, shadow=True):
    items: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    set: str = "text"
    get: torch.Tensor | None = None
    shape: torch.Tensor | None = None
    update: torch.Tensor | None = None
    clone: torch.Tensor | None = None


def hiding(start: float = 0.0) -> Hiding:
    return Hiding(*(torch.full((2,), start + i) for i in range(3)), batch_size=[2])


def holder(start: float = 0.0) -> TensorDict:
    return TensorDict({"s": hiding(start)}, [2])


def flat() -> TensorDict:
    return TensorDict({name: torch.zeros(2) for name in ("items", "keys", "values")} | {"set": "x"}, [2])


# from instances that start at 0 and at 5 to something that has the items of the latter
GIVES_FIVES = {
    "a tensordict is made of one": lambda: TensorDict(hiding(5.0), [2])["items"],
    "a tensordict is updated with one": lambda: flat().update(hiding(5.0))["items"],
    "a tensordict takes its values": lambda: flat().update_(hiding(5.0))["items"],
    "it is updated where it is held": lambda: holder().update(holder(5.0))["s"].items,
    "it takes values where it is held": lambda: holder().update_(holder(5.0))["s"].items,
    "it is updated by keys": lambda: holder().update(holder(5.0), keys_to_update=[("s", "items")])["s"].items,
    "it takes values by keys": lambda: holder().update_(holder(5.0), keys_to_update=[("s", "items")])["s"].items,
    "it is updated by a dictionary": lambda: holder().update({"s": {"items": torch.full((2,), 5.0)}})["s"].items,
    "it is replaced": lambda: holder().replace({"s": hiding(5.0)})["s"].items,
    "a nested key is set": lambda: holder().set(("s", "items"), torch.full((2,), 5.0))["s"].items,
    "it is copied into": lambda: holder().copy_(holder(5.0))["s"].items,
    "it copies from its kind": lambda: hiding().copy_(hiding(5.0)).items,
    "it takes the values of its kind": lambda: hiding().update_(hiding(5.0)).items,
    "it is flattened": lambda: holder(5.0).flatten_keys(".")["s.items"],
    "it is mapped": lambda: holder(4.0).apply(lambda leaf: leaf + 1)["s"].items,
    "it is stacked": lambda: torch.stack([hiding(5.0)] * 2)[0].items,
    "it is concatenated": lambda: torch.cat([hiding(5.0)] * 2)[:2].items,
    "it is stacked lazily": lambda: lazy_stack([hiding(5.0)] * 2)[1].items,
    "it is chosen": lambda: torch.where(torch.ones(2, dtype=torch.bool), hiding(5.0), hiding()).items,
    "it is copied": lambda: copy.deepcopy(hiding(5.0)).items,
    "it is pickled": lambda: pickle.loads(pickle.dumps(hiding(5.0))).items,
    "it loads a state": lambda: hiding().load_state_dict(hiding(5.0).state_dict()).items,
    "it is vectorised over": lambda: torch.vmap(lambda one: one.items + 1)(hiding(4.0)),
}


@pytest.mark.parametrize("case", GIVES_FIVES)
def test_core_works_on_instances_of_which(case):
    assert GIVES_FIVES[case]().tolist() == [5.0, 5.0]


def test_a_row_is_written_from_another_instance():
    td = holder()
    td[0] = holder(5.0)[1]
    assert td["s"].items.tolist() == [5.0, 0.0]
