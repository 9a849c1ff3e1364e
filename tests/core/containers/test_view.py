"""Views: a live part of a parent, whatever the index."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorStack, SubTensorDict, TensorDict

INDICES = [1, slice(0, 2), (slice(None), 1), torch.tensor([2, 0]), torch.tensor([True, False, True]), (..., 0), None]


def parent():
    return TensorDict({"a": torch.arange(12.0).reshape(3, 4), "n": {"b": torch.zeros(3, 4)}, "s": "text"}, [3, 4])


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_reading_indexes_the_parent_and_writing_writes_into_it(index):
    td = parent()
    view = td.view_at(index)
    assert view.batch_size == td[index].batch_size and view.parent is td
    assert torch.equal(view["a"], td["a"][index]) and view["s"] == "text"
    td["a"] += 1
    assert torch.equal(view["a"], td["a"][index])
    view["a"] = torch.full_like(view["a"], -1)
    view["n", "b"] = torch.ones_like(view["n", "b"])
    chosen = torch.zeros(3, 4, dtype=torch.bool)
    chosen[index] = True
    assert (td["a"] == -1).equal(chosen) and td["n", "b"].bool().equal(chosen)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_operations_in_place_reach_the_parent(index):
    td = parent()
    chosen = torch.zeros(3, 4, dtype=torch.bool)
    chosen[index] = True
    view = td.view_at(index)
    assert view.add_(100) is view
    assert (td["a"] >= 100).equal(chosen) and (td["n", "b"] == 100).equal(chosen)
    view.zero_()
    assert td["a"][chosen].sum() == 0
    view.apply_(lambda x: x + 5)
    assert (td["n", "b"] == 5).equal(chosen)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_a_new_key_gets_room_in_the_whole_parent(index):
    td = parent()
    view = td.view_at(index)
    view["new"] = torch.ones(*view.batch_size, 2)
    view["n", "deep", "er"] = torch.ones(view.batch_size)
    chosen = torch.zeros(3, 4, dtype=torch.bool)
    chosen[index] = True
    assert td["new"].shape == (3, 4, 2) and td["new"][..., 0].bool().equal(chosen)
    assert td["n", "deep", "er"].bool().equal(chosen)


def test_a_value_of_another_shape_is_refused():
    view = parent().view_at(0)
    with pytest.raises(RuntimeError, match="'a'"):
        view["a"] = torch.zeros(4, 7)
    with pytest.raises(RuntimeError, match="batch size"):
        view["a"] = torch.zeros(2)
    with pytest.raises(RuntimeError, match="view"):
        view.batch_size = []


def test_non_tensor_values_are_written_where_the_view_is():
    td = parent()
    td.view_at((0, 0))["s"] = "other"
    assert td[0, 0]["s"] == "other" and td[1, 1]["s"] == "text"


def test_keys_are_removed_and_renamed_in_the_parent():
    td = parent()
    view = td.view_at(0)
    view.rename_key_("a", "c")
    del view["s"]
    assert set(td.keys()) == {"c", "n"}


def test_moving_an_entry_to_another_level_keeps_what_the_view_does_not_show():
    td = parent()
    td.view_at(0).rename_key_("a", ("n", "a"))
    assert td["n", "a"].equal(parent()["a"]) and "a" not in td


def test_non_tensor_values_are_written_at_an_index_of_a_view():
    td = TensorDict({"s": NonTensorStack("x", "y", "z")}, [3])
    td.view_at(slice(1, 3))[0] = TensorDict({"s": "new"})
    assert td["s"] == ["x", "new", "z"]


def test_a_view_of_a_view_reaches_the_first_parent():
    td = parent()
    td.view_at(slice(1, 3)).view_at(1).fill_("a", 7.0)
    assert (td["a"] == 7).all(1).tolist() == [False, False, True]


def test_a_view_into_a_lazy_stack_reaches_its_elements():
    lazy = LazyStackedTensorDict(*parent().unbind(0))
    lazy.view_at((slice(None), 0))["a"] = torch.full((3,), -1.0)
    assert [td["a"][0].item() for td in lazy.tensordicts] == [-1.0] * 3


@pytest.mark.parametrize("views", ["view[0]", "view[1:3][0]", "view[0][()]"])
@pytest.mark.parametrize("nested", [False, True], ids=["root", "nested"])
def test_a_new_key_at_an_index_of_a_view_is_added_to_all_elements_of_a_lazy_stack(views, nested):
    lazy = LazyStackedTensorDict(*(TensorDict({"n": {}}, [4]) for _ in range(2)))
    view = lazy.view_at(0)
    part = eval(views, {"view": view})
    new = {"new": torch.ones(())}
    part[...] = {"n": new} if nested else new
    key = ("n", "new") if nested else "new"
    assert view[key].sum() == 1 and view[key].shape == (4,)
    assert lazy[key][1].eq(0).all() and lazy[key].shape == (2, 4)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_a_view_of_a_lazy_stack_has_the_leaves_of_its_part(index):
    lazy = LazyStackedTensorDict(*parent().unbind(0))
    expected = parent()[index]
    for view in (lazy.view_at(index), lazy.view_at(slice(None)).view_at(index)):
        for result in (view + 1, view.named_apply(lambda key, leaf: leaf + 1), view.zero_() + 1):
            assert result.batch_size == expected.batch_size
            assert all(result[key].shape == expected[key].shape for key in ("a", ("n", "b")))
    chosen = parent()["a"] == 0
    chosen[index] = True
    assert (lazy["a"] == 0).equal(chosen)


def test_locks_are_those_of_the_parent():
    td = parent()
    view = td.view_at(0)
    with pytest.raises(RuntimeError, match="parent"):
        view.lock_()
    td.lock_()
    assert view.is_locked
    with pytest.raises(RuntimeError, match="parent"):
        view.unlock_()
    with pytest.raises(RuntimeError, match="lock"):
        view["new"] = torch.zeros(4)
    view.zero_()
    assert not td["a"][0].any()


def test_results_are_tensordicts_of_their_own():
    td = parent()
    view = td.view_at(torch.tensor([0, 2]))
    for result in (view + 1, view.clone(), view.split(1)[0], view.reshape(-1), torch.stack([view, view])):
        assert type(result) is TensorDict
    view.clone().zero_()
    assert td["a"].sum() == 66


def test_an_index_that_does_not_fit_is_refused():
    with pytest.raises(IndexError):
        SubTensorDict(parent(), 7)


def test_the_name_that_programs_know_makes_a_view_too():
    assert type(parent()._get_sub_tensordict(0)) is SubTensorDict


def test_moving_or_detaching_the_tensors_of_the_parent_is_refused():
    view = parent().view_at(0)
    with pytest.raises(RuntimeError, match="Converting a sub-tensordict values to memmap cannot be done"):
        view.memmap_()
    with pytest.raises(RuntimeError, match="Casting a sub-tensordict values to shared memory cannot be done"):
        view.share_memory_()
    with pytest.raises(RuntimeError, match="Detaching a sub-tensordict in-place cannot be done"):
        view.detach_()
    with pytest.raises(TypeError, match="Cannot send a SubTensorDict instance to device/dtype inplace"):
        view.to(torch.float64, inplace=True)
    assert view.to(torch.float64)["a"].dtype == torch.float64 and view["a"].dtype == torch.float32


@pytest.mark.parametrize("rows", [0, slice(1), [0], torch.tensor([True, False])], ids=str)
@pytest.mark.parametrize("index", [slice(2), torch.tensor([0, 2])], ids=str)
def test_an_index_of_a_view_is_a_view(index, rows):
    td = parent()
    part = td.view_at(index)[rows]
    part.zero_()
    part["new"] = torch.ones(part.batch_size)
    assert not td["a"][0].any() and td["a"][1:].all()
    assert td["new"][0].all() and not td["new"][1:].any()


def test_another_batch_size_makes_a_view_a_tensordict_of_its_own():
    td = parent()
    view = td.view_at(0)
    changed = view.to(batch_size=[])
    assert type(changed) is TensorDict and changed.batch_size == () and view.batch_size == (4,)
    assert changed["a"].data_ptr() == td["a"].data_ptr()
    with pytest.raises(RuntimeError, match="incompatible with the batch-size"):
        view.to(batch_size=[9])
