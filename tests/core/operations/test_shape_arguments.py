"""Arguments of shape operations: given once, by position or by name; a result is a tensordict of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_core import TensorDict


@pytest.fixture
def td() -> TensorDict:
    return TensorDict({"a": torch.zeros(3, 1, 5)}, batch_size=[3, 1])


TWICE: dict[str, Any] = {
    "permute": lambda td: td.permute(0, 1, dims=(0, 1)),
    "reshape": lambda td: td.reshape([3], size=[3]),
    "view": lambda td: td.view([3], size=[3]),
    "expand": lambda td: td.expand([3, 4], size=[3, 4]),
    "unsqueeze": lambda td: td.unsqueeze(0, dim=0),
    "squeeze": lambda td: td.squeeze(1, dim=1),
    "two dims": lambda td: td.unsqueeze(0, 1),
}


@pytest.mark.parametrize("name", TWICE)
def test_an_argument_that_is_given_twice_is_refused(td, name):
    with pytest.raises(TypeError, match="once"):
        TWICE[name](td)


SAME: dict[str, Any] = {
    "expand": lambda td: td.expand(3, 1),
    "expand_as": lambda td: td.expand_as(torch.zeros(3, 1)),
    "broadcast_to": lambda td: td.broadcast_to((3, 1)),
    "flatten": lambda td: td.flatten(0, 0),
}


@pytest.mark.parametrize("name", SAME)
def test_entries_that_are_added_to_a_result_of_the_same_shape_do_not_reach_the_source(td, name):
    result = SAME[name](td)
    result["new"] = torch.zeros(3, 1)
    assert "new" not in td.keys() and result["a"].data_ptr() == td["a"].data_ptr()  # noqa: SIM118 (iterating a tensordict gives its rows)


def test_squeeze_takes_several_dims():
    td = TensorDict({"a": torch.zeros(1, 3, 1)}, batch_size=[1, 3, 1])
    assert td.squeeze((0, 1)).batch_size == (3, 1)
    assert torch.squeeze(td, (0, 2)).batch_size == (3,)


def test_tile_adds_leading_dimensions_as_torch_does():
    td = TensorDict({"a": torch.arange(3)}, batch_size=[3])
    assert td.tile(2, 2)["a"].equal(torch.tile(torch.arange(3), (2, 2)))
    assert torch.tile(TensorDict({"a": 1}), (2,)).batch_size == (2,)


def test_rot90_takes_two_dims(td):
    for dims, error in ((0, TypeError), ([0], RuntimeError), ([0, 1, 1], ValueError)):
        with pytest.raises(error, match="two dims"):
            td.rot90(1, dims)


def test_a_negative_size_is_a_value_error_and_the_runtime_error_of_torch(td):
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="negative"):
            td.new_zeros(-1)


def test_clamp_without_limits_is_the_error_of_torch_and_of_python(td):
    for error in (ValueError, RuntimeError, TypeError):
        with pytest.raises(error, match="at least one limit"):
            td.clamp()


def test_a_mask_may_have_last_dimensions_of_size_one():
    td = TensorDict({"a": torch.arange(6).reshape(3, 2)}, batch_size=[3])
    mask = torch.tensor([[True], [False], [True]])
    assert td.masked_select(mask)["a"].tolist() == [[0, 1], [4, 5]]
    assert td.masked_fill(mask, -1)["a"].tolist() == [[-1, -1], [2, 3], [-1, -1]]


def test_get_at_needs_an_index(td):
    with pytest.raises(TypeError, match="index"):
        td.get_at("a")
    assert td.get_at("a", ...).shape == (3, 1, 5) and td.get_at("missing", 0, default=1) == 1


def test_replacing_nothing_gives_the_tensordict_itself(td):
    assert td.replace() is td and td.replace(a=torch.zeros(3, 1)) is not td


def test_the_empty_tuple_is_not_a_key(td):
    with pytest.raises(TypeError):
        () in td.keys(True)  # noqa: B015 (for its error)


def test_permute_moves_the_first_dimensions_and_keeps_the_others():
    td = TensorDict({"a": torch.rand(2, 3, 4, 5)}, [2, 3, 4], names=["x", "y", "z"])
    part = td.permute(1, 0)
    assert part.batch_size == (3, 2, 4) and part.names == ["y", "x", "z"]
    torch.testing.assert_close(part["a"], td["a"].permute(1, 0, 2, 3))
    assert td.permute() is td and td.permute(0) is td
    for dims in [(1,), (2, 0), (0, 0), (5,)]:
        with pytest.raises(ValueError, match="permutation"):
            td.permute(*dims)


def test_view_takes_the_batch_size_beside_the_same_shape(td):
    assert td.view(3, batch_size=[3]).batch_size == td.view(-1, batch_size=[3]).batch_size == (3,)
    with pytest.raises(TypeError, match=r"the shape \[3\] and batch_size=\[1\]"):
        td.view(3, batch_size=[1])


def test_flatten_of_one_dimension_has_the_same_tensors(td):
    flat = td.flatten(1, 1)
    assert flat is not td and flat["a"] is td["a"]


def test_two_ellipses_are_an_index_error_and_a_runtime_error(td):
    for error in (IndexError, RuntimeError):
        with pytest.raises(error, match="ellipses"):
            td[..., ...]


@pytest.mark.parametrize("batch_size", [slice(0, 1), 1.5, "a"], ids=str)
def test_a_batch_size_of_view_that_is_none_is_named(batch_size):
    with pytest.raises(TypeError, match="is not a batch size"):
        TensorDict({}, [4, 1]).view([-1], batch_size=batch_size)


@pytest.mark.parametrize("sections", [0, -2, torch.tensor(0), torch.tensor([1.5]), torch.tensor([[1]])])
def test_sections_that_are_none_are_a_value_error_and_a_runtime_error(sections):
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="tensor_split"):
            TensorDict({"a": torch.arange(5)}, [5]).tensor_split(sections)
