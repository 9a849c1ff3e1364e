"""Locks: what they refuse, who holds whom, and blocks that undo themselves."""

from __future__ import annotations

import gc

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict


def make():
    return TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2), "deep": {"c": torch.ones(2)}}}, [2])


@pytest.mark.parametrize(
    "change",
    [
        lambda td: td.set("new", torch.zeros(2)),
        lambda td: td.set(("n", "new"), torch.zeros(2)),
        lambda td: td.set(("made", "new"), torch.zeros(2)),
        lambda td: td.set("a", torch.ones(2)),
        lambda td: td.del_("a"),
        lambda td: td.__delitem__(("n", "b")),
        lambda td: td.pop("a"),
        lambda td: td.popitem(),
        lambda td: td.clear(),
        lambda td: td.rename_key_("a", "b"),
        lambda td: td.update({"a": torch.ones(2)}),
        lambda td: td.update({"n": {"new": torch.ones(2)}}),
        lambda td: td.select("a", inplace=True),
        lambda td: td.exclude("a", inplace=True),
        lambda td: td.create_nested("x"),
        lambda td: td.setdefault("x", torch.zeros(2)),
        lambda td: td.set_non_tensor("x", 1),
        lambda td: td.__setitem__(0, TensorDict({"x": 1.0})),
        lambda td: td.split_keys(["a"], inplace=True),
        lambda td: td.repeat(2, inplace=True),
    ],
)
def test_entries_of_a_locked_tensordict_stay(change):
    td = make().lock_()
    with pytest.raises(RuntimeError, match="lock"):
        change(td)
    assert set(td.keys(True, True)) == {"a", ("n", "b"), ("n", "deep", "c")}


def test_values_of_a_locked_tensordict_change():
    td = make().lock_()
    td.set_("a", torch.ones(2))
    td.set("a", torch.full((2,), 2.0), inplace=True)
    td.update_({"n": {"b": torch.ones(2)}})
    td[0] = TensorDict({"a": 5.0})
    td.add_(1)
    td["n"].zero_()
    assert td["a"].tolist() == [6.0, 3.0] and not td["n", "deep", "c"].any()


def test_locking_reaches_every_node_and_unlocking_too():
    td = make().lock_()
    assert td["n"].is_locked and td["n", "deep"].is_locked
    td.unlock_()
    assert not (td.is_locked or td["n"].is_locked or td["n", "deep"].is_locked)
    td.is_locked = True
    assert td["n"].is_locked
    td.is_locked = False
    assert not td["n"].is_locked
    assert TensorDict({"a": 1}, lock=True).is_locked


def test_only_the_locked_root_unlocks_its_nested_tensordicts():
    td = make().lock_()
    for child in (td["n"], td["n", "deep"]):
        with pytest.raises(RuntimeError, match="locked graph"):
            child.unlock_()
        assert child.is_locked


def test_a_node_of_two_locked_trees_needs_both_unlocked():
    node = TensorDict({"x": torch.zeros(2)}, [2])
    one, two = TensorDict({}, [2]), TensorDict({}, [2])
    one["n"] = node
    two["n"] = node
    assert one["n"] is two["n"] is node
    one.lock_()
    two.lock_()
    with pytest.raises(RuntimeError, match="locked graph"):
        one.unlock_()
    assert one.is_locked and node.is_locked
    del two
    gc.collect()
    one.unlock_()
    assert not node.is_locked


def test_a_locked_child_may_join_a_parent_and_is_held_when_that_locks():
    child = TensorDict({"x": torch.zeros(2)}, [2]).lock_()
    parent = TensorDict({}, [2])
    parent["n"] = child
    assert parent["n"].is_locked and not parent.is_locked
    parent.lock_()
    with pytest.raises(RuntimeError, match="locked graph"):
        parent["n"].unlock_()
    parent.unlock_()


def test_blocks_undo_what_they_began_even_on_errors():
    td = make()
    with td.lock_():
        assert td.is_locked
        with td.unlock_():
            td["x"] = torch.zeros(2)
        assert td.is_locked
        with td.lock_():
            pass
        assert td.is_locked, "the inner block found it locked and leaves it so"
    assert not td.is_locked
    td.lock_()
    with pytest.raises(ZeroDivisionError), td.unlock_():
        _ = 1 / 0
    assert td.is_locked


def test_views_are_locked_and_copies_are_not():
    td = make().lock_()
    for view in (td.reshape(1, 2), td.unsqueeze(0), td.permute(0), td.split(1)[0], td.expand(3, 2)):
        assert view.is_locked
    for copy in (td.clone(), td.clone(False), td.copy(), td[0], td[:1], td.select("a"), torch.stack([td, td])):
        assert not copy.is_locked
        copy["fresh"] = torch.zeros(copy.batch_size)


def test_update_may_ignore_the_lock_on_request():
    td = make().lock_()
    td.update({"x": torch.ones(2)}, ignore_lock=True)
    assert td.is_locked and td["x"].all()


CHANGES = {
    "set": lambda td: td.set("a", torch.ones(2, 3)),
    "set of a new key": lambda td: td.set("new", torch.ones(2)),
    "set of a nested key": lambda td: td.set(("n", "new"), torch.ones(2)),
    "update": lambda td: td.update({"a": torch.ones(2, 3), "new": torch.ones(2)}),
    "update in place": lambda td: td.update({"a": torch.ones(2, 3), "new": torch.ones(2)}, inplace=True),
    "del_": lambda td: td.del_("a"),
    "del_ of a nested key": lambda td: td["n"].del_("b"),
    "rename_key_": lambda td: td.rename_key_("a", "z"),
    "rename_key_ to another node": lambda td: td.rename_key_("a", ("n", "z")),
    "flatten_keys": lambda td: td.flatten_keys(inplace=True),
    "clear": lambda td: td.clear(),
    "indexed write": lambda td: td.__setitem__(slice(None), TensorDict({"new": torch.ones(2)}, [2])),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("locked", [(True, True), (False, True)])
def test_a_lazy_stack_changes_no_keys_where_an_element_is_locked(change, locked):
    parts = [TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(())}}, lock=lock) for lock in locked]
    stack = LazyStackedTensorDict(*parts)
    assert stack.is_locked is all(locked)
    with pytest.raises(RuntimeError, match="locked"):
        change(stack)
    assert all(set(part.keys(True)) == {"a", "n", ("n", "b")} and not part["a"].any() for part in parts)


def test_a_part_of_a_locked_lazy_stack_is_locked_and_the_stack_of_locked_elements_is_unlocked_with_them():
    stack = LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(3)}) for _ in range(2))).lock_()
    assert stack[:].is_locked and stack[[0]].is_locked
    stack.unlock_()
    again = LazyStackedTensorDict(*(part.lock_() for part in stack.tensordicts))
    assert again.is_locked
    with pytest.raises(RuntimeError, match="locked"):
        again.append(TensorDict({"a": torch.zeros(3)}))
    with again.unlock_():
        again["new"] = torch.ones(2)
    assert again.is_locked and set(again.keys()) == {"a", "new"}


def test_a_view_whose_tensordict_is_not_locked_refuses_before_anything_is_locked():
    source = TensorDict({"a": torch.zeros(3, 2)}, batch_size=[3])
    nested = TensorDict({"b": 1})
    td = TensorDict({"n": nested, "view": source.view_at(0), "m": {"c": 1}})
    with pytest.raises(RuntimeError, match=r"Cannot lock a SubTensorDict.*Lock the parent tensordict instead"):
        td.lock_()
    assert not td.is_locked and not nested.is_locked and not td["m"].is_locked
    nested.lock_().unlock_()  # nothing holds it
    source.lock_()
    td.lock_()
    td.unlock_()
    assert not td.is_locked and source.is_locked and td.get("view").is_locked


def test_references_to_deleted_locked_parents_do_not_accumulate():
    shared = TensorDict({"a": 1})
    for _ in range(1000):
        TensorDict({"n": shared}).lock_()
    assert len(shared._holders) < 20
    keep = [TensorDict({"n": shared}).lock_() for _ in range(100)]
    with pytest.raises(RuntimeError):
        shared.unlock_()
    keep.clear()
    assert not shared.unlock_().is_locked


@pytest.mark.parametrize(
    "operation",
    [
        lambda td: torch.zeros_like(td),
        lambda td: td.flip(0),
        lambda td: td.roll(1, 0),
        lambda td: td.repeat(2),
        lambda td: td.repeat_interleave(2, 0),
        lambda td: td.narrow(0, 0, 1),
        lambda td: td.where(td["a"] > 0, 0.0),
        lambda td: td.norm(),
        lambda td: td.isnan(),
    ],
    ids=["zeros_like", "flip", "roll", "repeat", "repeat_interleave", "narrow", "where", "norm", "isnan"],
)
def test_these_results_of_a_locked_tensordict_are_locked(operation):
    td = TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2)}}, [2])
    assert not operation(td).is_locked
    result = operation(td.lock_())
    assert result.is_locked and result["n"].is_locked


@pytest.mark.parametrize(
    "operation",
    [lambda td: td.clamp(0, 1), lambda td: td.masked_fill(td["a"] > 0, 0.0), lambda td: td.expand_as(td)],
    ids=["clamp", "masked_fill", "expand_as"],
)
def test_these_results_of_a_locked_tensordict_are_not_locked(operation):
    assert not operation(TensorDict({"a": torch.ones(2)}, [2]).lock_()).is_locked
