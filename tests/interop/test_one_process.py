"""Ours and the reference live in one process: it replaces functions of torch when imported, and ours still work."""

from __future__ import annotations

import pytest
import torch

import tensordict as reference
from tensordict_class import tensorclass
from tensordict_core import TensorDict, lazy_stack


@tensorclass
class Point:
    x: torch.Tensor


def containers():
    rows = [TensorDict({"x": torch.tensor(float(i))}) for i in range(3)]
    return {
        "dense": torch.stack(rows),
        "lazy": lazy_stack(rows),
        "tensorclass": Point(x=torch.arange(3.0), batch_size=[3]),
    }


@pytest.mark.parametrize("kind", ["dense", "lazy", "tensorclass"])
def test_vmap_maps_over_ours_after_the_reference_was_imported(kind):
    assert reference.TensorDict is not TensorDict
    result = torch.vmap(lambda row: row + 1)(containers()[kind])
    assert result.get("x").tolist() == [1.0, 2.0, 3.0]


def test_both_stack_their_own():
    ours = torch.stack([TensorDict({"a": torch.zeros(2)})] * 2)
    theirs = torch.stack([reference.TensorDict({"a": torch.zeros(2)})] * 2)
    assert type(ours) is TensorDict and type(theirs) is reference.TensorDict
    assert ours.batch_size == theirs.batch_size == torch.Size([2])
