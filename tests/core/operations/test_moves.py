"""Moves of leaves that share a storage: one copy, and the results share memory as their sources do."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_core.ops import cast


@pytest.fixture
def copies(monkeypatch):
    """The number of copies between devices; one from the CPU to itself stands for them."""
    counted = []
    plain = torch.Tensor.to

    def to(tensor, *args, **kwargs):
        counted.append(tensor)
        return plain(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", to)
    return counted


def shared():
    whole = torch.arange(24.0)
    return [whole[:6].reshape(2, 3), whole[6:12].reshape(3, 2).T, whole[12:].view(torch.int32)]


def test_leaves_of_one_storage_move_in_one_copy(copies):
    td = TensorDict({"a": shared()[0], "n": {"b": shared()[1]}})
    assert len(td.to("meta")._leaves()) == 2 and len(copies) == 2  # each has a storage of its own
    copies.clear()
    leaves = shared()
    moved = TensorDict({"a": leaves[0], "n": {"b": leaves[1], "c": leaves[2]}}).to("meta")
    assert len(copies) == 1
    for leaf, source in zip(moved._leaves(), leaves, strict=True):
        assert leaf.is_meta and leaf.dtype == source.dtype and leaf.shape == source.shape
        assert leaf.stride() == source.stride() and leaf.storage_offset() == source.storage_offset()


@pytest.mark.parametrize(
    "leaves",
    [
        [torch.arange(3.0)],
        [torch.arange(100.0)[:3], torch.arange(100.0)[3:5]],
        [torch.arange(4.0)[:2].requires_grad_(), torch.arange(4.0)[2:]],
        [torch.zeros(2), torch.zeros(0)],
        [torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.complex64)],
    ],
    ids=["one leaf", "small parts", "gradient", "empty", "conjugate"],
)
def test_other_leaves_move_one_by_one(leaves):
    assert cast._shared_bytes(leaves) is None


def test_small_parts_of_one_large_storage_move_one_by_one():
    whole = torch.arange(1000.0)
    assert cast._shared_bytes([whole[:3], whole[3:6]]) is None
    assert cast._shared_bytes([whole[:500], whole[500:]]).nbytes == 4000
