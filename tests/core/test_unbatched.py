"""Unbatched tensors: leaves that belong to the whole."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict, UnbatchedTensor, lazy_stack


def make():
    return TensorDict({"u": UnbatchedTensor(torch.arange(5)), "a": torch.zeros(3, 4)}, [3])


@pytest.mark.parametrize(
    "change",
    [
        lambda td: td[0],
        lambda td: td[torch.tensor([0, 0, 1, 2])],
        lambda td: td.reshape(1, 3),
        lambda td: td.expand(2, 3),
        lambda td: td.unsqueeze(0),
        lambda td: td.unbind(0)[1],
        lambda td: td.split(2)[1],
        lambda td: torch.stack([td, td], 1),
        lambda td: torch.cat([td, td]),
        lambda td: lazy_stack([td, td]),
        lambda td: td.flip(0),
        lambda td: td.sum(dim=0),
    ],
)
def test_operations_on_the_batch_change_its_batch_size_alone(change):
    td = change(make())
    assert td["u"].equal(torch.arange(5))
    assert td.get("u").batch_size == td.batch_size


def test_operations_on_leaves_run_on_its_tensor():
    td = make()
    assert (td + 1)["u"].equal(torch.arange(5) + 1)
    assert (td * td)["u"].equal(torch.arange(5) ** 2)
    assert td.apply(lambda x: -x)["u"].equal(-torch.arange(5))
    assert td.to(torch.float64)["u"].dtype is torch.float64
    assert isinstance((td + 1).get("u"), UnbatchedTensor)
    assert not td.clone().zero_()["u"].any() and td["u"].any()


def test_it_is_written_as_a_whole():
    td = make()
    td[0] = TensorDict({"u": UnbatchedTensor(torch.ones(5, dtype=torch.long)), "a": torch.ones(4)})
    assert td["u"].tolist() == [1] * 5
    td.update_(make())
    assert td["u"].tolist() == [0, 1, 2, 3, 4]
    td.update(make() + 1)
    assert td["u"].tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="shape"):
        td.update_({"u": UnbatchedTensor(torch.zeros(6))})


def test_its_shape_is_that_of_the_tensor():
    u = UnbatchedTensor(torch.zeros(2, 7), batch_size=[4])
    assert u.shape == (2, 7) and u.batch_size == (4,) and u.dtype is torch.float32 and u.device.type == "cpu"
    assert UnbatchedTensor(u).tensor is u.tensor and u.data.shape == (2, 7)
    with pytest.raises(TypeError, match="NonTensorData"):
        UnbatchedTensor("text")


def test_an_operand_that_lines_up_with_the_batch_is_refused():
    with pytest.raises(RuntimeError, match="unbatched"):
        make() * torch.arange(3)


def test_keys_pass_it_as_one_entry():
    td = make()
    assert set(td.keys(True)) == {"u", "a"} and "u" in td
    assert td.select("u")["u"].equal(torch.arange(5)) and "u" not in td.exclude("u")
    td.batch_size = [3, 4]
    assert td.get("u").batch_size in ((3,), (3, 4))
