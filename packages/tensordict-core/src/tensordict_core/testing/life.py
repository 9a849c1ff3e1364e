"""Tests of clones, copies, pickles, locks, printing and garbage collection."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_core.testing.container import ContainerCase
from tensordict_core.testing.contents import assert_rows, map_rows, rows


class LifeTests(ContainerCase):
    """Copies, locks and representation."""

    def test_a_clone_has_tensors_of_its_own(self) -> None:
        td = self.make()
        other = td.clone()
        other.zero_()
        assert_rows(td, rows(self.make()))
        assert other.batch_size == td.batch_size and other is not td
        assert not other.is_locked

    def test_a_shallow_clone_shares_tensors_but_not_keys(self) -> None:
        if not self.copies_shallowly:
            pytest.skip("a shallow clone has other tensors")
        td = self.make()
        other = td.clone(False)
        assert [leaf.data_ptr() for leaf in other._leaves()] == [leaf.data_ptr() for leaf in td._leaves()]
        if self.supports_new_keys:
            other["new"] = torch.zeros(td.batch_size)
            assert "new" not in td.keys()

    @pytest.mark.parametrize(
        "way", [copy.deepcopy, lambda td: pickle.loads(pickle.dumps(td))], ids=["deepcopy", "pickle"]
    )
    def test_copies_have_the_same_rows(self, way: Callable[[Any], Any]) -> None:
        td = self.make()
        other = way(td)
        assert_rows(other, rows(td))
        if way is copy.deepcopy or self.pickles_entries:
            other.zero_()
            assert_rows(td, rows(self.make()))

    def test_a_locked_one_is_copied_locked_by_pickle(self) -> None:
        if not self.supports_lock:
            pytest.skip("locks are not its own")
        td = self.make().lock_()
        other = pickle.loads(pickle.dumps(td))
        assert_rows(other, rows(td))
        assert other.is_locked
        other.unlock_()
        assert not other.is_locked and td.is_locked

    def test_printing_names_every_entry(self) -> None:
        td = self.make()
        text = repr(td)
        assert all(key in text for key in td.keys())
        assert "batch_size" in text

    def test_it_is_freed_when_it_is_not_referenced(self) -> None:
        td = self.make()
        seen = weakref.ref(td)
        td[0], td + 1, td.reshape(-1), list(td.keys(True))
        del td
        if seen() is not None:
            gc.collect()
        assert seen() is None

    # locks -----------------------------------------------------------------------------------------------------------

    def test_a_locked_one_refuses_other_entries_and_takes_values(self) -> None:
        if not self.supports_lock:
            pytest.skip("locks are not its own")
        td = self.make().lock_()
        key = self.tensor_key(td)
        assert td.is_locked
        changes: tuple[Callable[[], Any], ...] = (
            lambda: td.set("new", torch.zeros(td.batch_size)),
            lambda: td.__setitem__("new", torch.zeros(td.batch_size)),
            lambda: td.__setitem__(("nested", "new"), torch.zeros(td.batch_size)),
            lambda: td.del_(key),
            lambda: td.pop(key),
            lambda: td.rename_key_(key, "other"),
            lambda: td.update({"new": torch.zeros(td.batch_size)}),
            lambda: td.clear(),
            lambda: td.select(key, inplace=True),
            lambda: td.exclude(key, inplace=True),
        )
        for change in changes:
            with pytest.raises(RuntimeError, match="lock"):
                change()
        td.update_(td * 2)
        td[0] = td[0] * 2
        td.zero_()
        assert_rows(td, map_rows(torch.zeros_like, rows(self.make())))

    def test_unlocking_makes_it_changeable_again(self) -> None:
        if not (self.supports_lock and self.supports_new_keys):
            pytest.skip("locks are not its own")
        td = self.make().lock_()
        with td.unlock_():
            td["new"] = torch.ones(td.batch_size)
        assert td.is_locked and "new" in td.keys()
        td.unlock_()
        td["newer"] = torch.ones(td.batch_size)
        with td.lock_():
            assert td.is_locked
        assert not td.is_locked

    def test_a_child_of_a_locked_one_is_not_unlocked_alone(self) -> None:
        td = self.make()
        node = self.node_key(td)
        if not self.supports_lock or node is None:
            pytest.skip("locks are not its own")
        child = td.get(node)
        td.lock_()
        child = td.get(node)
        assert child.is_locked
        with pytest.raises(RuntimeError, match="lock"):
            child.unlock_()
        td.unlock_()
        assert not td.get(node).is_locked

    def test_copies_of_a_locked_one_are_not_locked(self) -> None:
        if not self.supports_lock:
            pytest.skip("locks are not its own")
        td = self.make().lock_()
        assert not td.clone().is_locked
        assert not td.clone(False).is_locked
        assert (td + 1).is_locked == td.is_locked
