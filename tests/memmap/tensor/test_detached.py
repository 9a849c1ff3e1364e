"""Detached tensors: pickles of them hold the values, so that ``torch.save`` of a state dict is a checkpoint."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemoryMappedTensor


class TestCheckpointsOfTorch:
    """State dicts have detached tensors, and ``torch.save`` of them is a checkpoint of its own."""

    @pytest.fixture
    def td(self, tmp_path):
        return TensorDict({"a": torch.arange(4.0), "n": {"b": torch.ones(4, 2)}}, [4]).memmap(tmp_path / "td")

    @pytest.mark.parametrize("weights_only", [True, False])
    @pytest.mark.parametrize(
        "state_of",
        [
            lambda td: td.state_dict(),
            lambda td: td.detach().flatten_keys(".").to_dict(),
            lambda td: {"a": td["a"].detach(), "n.b": td["n", "b"].detach()[:]},
        ],
        ids=["state_dict", "detach", "parts"],
    )
    def test_it_holds_the_values(self, td, tmp_path, state_of, weights_only):
        torch.save(dict(state_of(td)), tmp_path / "saved.pt")
        td.zero_()
        state = torch.load(tmp_path / "saved.pt", weights_only=weights_only)
        assert type(state["a"]) is torch.Tensor and state["a"].tolist() == [0, 1, 2, 3]
        assert state["n.b"].tolist() == [[1, 1]] * 4

    @pytest.mark.parametrize("weights_only", [True, False])
    def test_that_of_a_module_holds_the_values(self, td, tmp_path, weights_only):
        module = torch.nn.Linear(2, 4, bias=False)
        module.weight = torch.nn.Parameter(td["n", "b"])
        module.register_buffer("a", td["a"])
        torch.save(module.state_dict(), tmp_path / "saved.pt")
        td.zero_()
        state = torch.load(tmp_path / "saved.pt", weights_only=weights_only)
        assert state["weight"].tolist() == [[1, 1]] * 4 and state["a"].tolist() == [0, 1, 2, 3]

    def test_a_parameter_stays_one(self, td):
        found = pickle.loads(pickle.dumps(torch.nn.Parameter(td["a"], requires_grad=False)))
        assert isinstance(found, torch.nn.Parameter) and not found.requires_grad

    def test_a_shallow_copy_is_still_pickled_by_its_file(self, td):
        found = pickle.loads(pickle.dumps(copy.copy(td["a"])))
        assert found.filename == td["a"].filename

    def test_a_tensor_without_elements_keeps_its_file(self, tmp_path):
        empty = MemoryMappedTensor.empty((0, 3), dtype=torch.int64, filename=tmp_path / "empty.memmap")
        found = pickle.loads(pickle.dumps(empty))
        assert (found.filename, found.shape, found.dtype) == (empty.filename, (0, 3), torch.int64)
