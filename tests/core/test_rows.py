"""Rows by value (`isin`, `remove_duplicates`), expansion on the right, and names of older documentation."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import (
    NO_DEFAULT,
    TensorDict,
    expand_as_right,
    expand_right,
    isin,
    lazy_legacy,
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
        with pytest.raises(KeyError, match="key 'z' not found"):
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
    with pytest.warns(DeprecationWarning, match="no longer lazy; use lazy_stack"), set_lazy_legacy(True):
        assert not lazy_legacy()


def test_no_default_makes_get_strict(td: TensorDict) -> None:
    for call in (td.get, td.pop):
        for key in ("z", ("n", "z"), ("z", "z")):
            with pytest.raises(KeyError, match="'z'"):
                call(key, NO_DEFAULT)
