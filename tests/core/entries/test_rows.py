"""Rows by value (`isin`, `remove_duplicates`), expansion on the right, and names of older documentation."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import (
    NO_DEFAULT,
    LazyStackedTensorDict,
    TensorDict,
    expand_as_right,
    expand_right,
    group_by,
    isin,
    lazy_legacy,
    lazy_stack,
    remove_duplicates,
    set_lazy_legacy,
)


@pytest.fixture
def td() -> TensorDict:
    x = torch.tensor([[1, 2], [3, 4], [1, 2], [5, 6]])
    return TensorDict({"x": x, "n": {"y": torch.arange(4)}}, [4])


def test_rows_are_found_by_their_value(td: TensorDict) -> None:
    other = TensorDict({"x": torch.tensor([[5, 6], [1, 2], [2, 1]])}, [3])
    assert isin(td, other, "x").tolist() == [True, False, True, True]
    assert isin(td, other, "x", dim=-1).tolist() == [True, False, True, True]
    wide = TensorDict({"x": torch.tensor([[1, 2, 1], [3, 4, 3]])}, [2, 3])
    assert isin(wide, wide[:, 1:2], "x", dim=1).tolist() == [False, True, False]


def test_rows_with_a_value_of_before_are_dropped(td: TensorDict) -> None:
    result, place = remove_duplicates(td, "x", return_indices=True)
    assert result["n", "y"].tolist() == [0, 1, 3] and place.tolist() == [0, 1, 0, 2]
    assert result[place]["x"].equal(td["x"])
    assert remove_duplicates(td, ("n", "y")).batch_size == (4,)
    wide = TensorDict({"x": torch.tensor([[1, 2, 1], [3, 4, 3]])}, [2, 3])
    assert remove_duplicates(wide, "x", dim=1)["x"].tolist() == [[1, 2], [3, 4]]


def test_incomparable_rows_are_refused(td: TensorDict) -> None:
    for function in (lambda key, dim: remove_duplicates(td, key, dim), lambda key, dim: isin(td, td, key, dim)):
        with pytest.raises(ValueError, match=r"dim 1 is none of the 1 batch dimensions of \[4\]; .* takes one"):
            function("x", 1)
        with pytest.raises(KeyError, match='key "z" not found'):
            function("z", 0)
        with pytest.raises(KeyError, match=r"compares tensors, but key 'n' holds a TensorDict; name a .* of it"):
            function("n", 0)
    with pytest.raises(ValueError, match=r"equally many batch dimensions.*reshape"):
        isin(td, td.reshape(2, 2), "x")
    with pytest.raises(ValueError, match=r"rows of one shape.*\[4, 2\] and \[4, 3\]"):
        isin(td, TensorDict({"x": torch.zeros(4, 3)}, [4]), "x")


def test_dimensions_are_added_on_the_right_without_a_copy(td: TensorDict) -> None:
    x = torch.arange(4)
    assert expand_as_right(x, td["x"]).equal(x[:, None].expand(4, 2))
    assert expand_right(x, (4, 2)).data_ptr() == x.data_ptr()
    assert expand_right(torch.zeros(1, 2), (3, 2, 4)).shape == (3, 2, 4)
    assert expand_as_right(td, torch.zeros(4, 3)).batch_size == (4, 3)
    assert expand_as_right(x, td).equal(x)
    for shape in ((3, 2), ()):
        with pytest.raises(RuntimeError, match=r"the shape \[4\] cannot be expanded on the right to .*; reshape"):
            expand_right(x, shape)


def test_earlier_names_are_aliases(td: TensorDict) -> None:
    assert set(td.clone().rename_key("x", "z").keys()) == {"z", "n"}
    td.get_sub_tensordict(0).set_(("n", "y"), torch.tensor(9))
    assert td["n", "y"][0] == 9
    assert td.to("cpu").clear_device().device is None
    with set_lazy_legacy(False):
        assert not lazy_legacy()
    with pytest.warns(DeprecationWarning, match="is deprecated; use lazy_stack"), set_lazy_legacy(True):
        assert lazy_legacy()
    assert not lazy_legacy()


def test_no_default_makes_get_strict(td: TensorDict) -> None:
    for call in (td.get, td.pop):
        for key in ("z", ("n", "z"), ("z", "z")):
            with pytest.raises(KeyError, match=r"z['\"]"):
                call(key, NO_DEFAULT)


class TestGroupBy:
    def test_groups_hold_the_rows_that_a_mask_selects_in_their_order(self):
        td = TensorDict({"uid": torch.tensor([2, 0, 2, 1, 0]), "n": {"r": torch.arange(5.0)}}, [5])
        values, groups = group_by(td, "uid")
        assert values.tolist() == [0, 1, 2]
        for value, group in zip(values, groups, strict=True):
            assert torch.equal(group["n", "r"], td[td["uid"] == value]["n", "r"])

    def test_rows_of_several_values_and_nested_keys_are_compared_whole(self):
        td = TensorDict({"n": {"pair": torch.tensor([[2, 1], [0, 1], [2, 1]])}}, [3])
        values, groups = group_by(td, ("n", "pair"))
        assert values.tolist() == [[0, 1], [2, 1]] and [len(group) for group in groups] == [1, 2]

    def test_non_tensor_values_are_grouped_by_equality(self):
        td = TensorDict({"name": ["b", "a", "b"], "r": torch.arange(3.0)}, [3])
        values, groups = group_by(td, "name")
        assert values == ["a", "b"] and groups[1]["r"].tolist() == [0.0, 2.0] and groups[1]["name"] == ["b", "b"]
        assert group_by(TensorDict({"name": "one"}, [3]), "name")[0] == ["one"]

    def test_groups_of_a_lazy_stack_are_lazy_stacks(self):
        stack = lazy_stack([TensorDict({"u": 1, "x": torch.zeros(n)}) for n in (1, 2)])
        (group,) = group_by(stack, "u")[1]
        assert isinstance(group, LazyStackedTensorDict) and len(group) == 2

    def test_without_rows_there_are_no_groups(self):
        values, groups = group_by(TensorDict({"u": torch.zeros(0)}, [0]), "u")
        assert values.shape == (0,) and groups == ()

    def test_values_that_cannot_be_grouped_are_refused(self):
        with pytest.raises(ValueError, match="batch size is"):
            group_by(TensorDict({"u": torch.tensor(1)}), "u")
        with pytest.raises(KeyError, match="u"):
            group_by(TensorDict({}, [1]), "u")
        with pytest.raises(TypeError, match="holds a TensorDict"):
            group_by(TensorDict({"u": {}}, [1]), "u")
        with pytest.raises(TypeError, match="key 'u' cannot be grouped"):
            group_by(TensorDict({"u": ["a", 1]}, [2]), "u")
