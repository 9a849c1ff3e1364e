"""Tests of keys, entries, updates, and of the errors of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_core.base.node import Node, has_entries
from tensordict_core.testing.container import ContainerCase
from tensordict_core.testing.contents import assert_rows, contents, map_rows, rows


class AccessTests(ContainerCase):
    """Keys, entries and updates."""

    def _needs_new_keys(self) -> Any:
        if not self.supports_new_keys:
            pytest.skip("entries cannot be added or removed")
        return self.make()

    def test_keys_are_those_of_the_plain_tensordict(self) -> None:
        td, dense = self.make(), self.dense()
        assert set(td.keys()) == set(dense.keys())
        assert set(td.keys(True)) == set(dense.keys(True))
        assert set(td.keys(True, True)) == set(dense.keys(True, True))
        assert list(td.keys(sort=True)) == sorted(dense.keys())
        assert len(td.keys()) == len(dense.keys())

    def test_membership_answers_for_nested_keys(self) -> None:
        td = self.make()
        key, node = self.tensor_key(td), self.node_key(td)
        assert key in td and key in td.keys() and "absent" not in td.keys()
        assert (key, "below") not in td.keys(True)
        if node is not None:
            path = next(path for path in td._leaf_keys() if path[0] == node)
            assert path in td.keys(True) and path in td.keys(True, True) and path not in td.keys()
            assert node in td.keys() and node not in td.keys(leaves_only=True)

    def test_items_and_values_agree_with_keys(self) -> None:
        if self.ragged:
            pytest.skip("ragged entries are not read whole")
        td = self.make()
        for nested, leaves in ((False, False), (True, False), (True, True)):
            keys = list(td.keys(nested, leaves))
            assert [key for key, _ in td.items(nested, leaves)] == keys
            assert len(list(td.values(nested, leaves))) == len(keys)

    def test_views_of_keys_are_live(self) -> None:
        td = self._needs_new_keys()
        keys = td.keys()
        assert "new" not in keys
        td["new"] = torch.zeros(td.batch_size)
        assert "new" in keys

    def test_a_missing_key_is_a_key_error_that_names_near_ones(self) -> None:
        td = self.make()
        key = self.tensor_key(td)
        with pytest.raises(KeyError, match=key):
            td[key + "x"]
        with pytest.raises(KeyError):
            td["absent", "below"]
        assert td.get("absent") is None
        assert td.get(("absent", "below"), 3) == 3

    def test_keys_of_other_types_are_refused(self) -> None:
        td = self.make()
        with pytest.raises(TypeError):
            td.get(1)
        with pytest.raises(TypeError):
            td.get((1, "a"))

    def test_set_stores_and_replaces(self) -> None:
        td = self._needs_new_keys()
        value = torch.rand(*td.batch_size, 2)
        td.set("new", value)
        torch.testing.assert_close(td["new"], value)
        td["new"] = value + 1
        torch.testing.assert_close(td["new"], value + 1)
        td["deep", "er", "still"] = value
        torch.testing.assert_close(td["deep", "er", "still"], value)
        torch.testing.assert_close(td["deep"]["er"]["still"], value)

    def test_numbers_and_dictionaries_are_converted(self) -> None:
        td = self._needs_new_keys()
        td["dict"] = {"x": torch.ones(td.batch_size), "y": {"z": torch.zeros(*td.batch_size, 1)}}
        assert td["dict", "y", "z"].shape == (*td.batch_size, 1)
        td["list"] = torch.ones(td.batch_size).tolist()
        assert td["list"].shape == td.batch_size

    def test_non_tensor_values_are_kept(self) -> None:
        td = self._needs_new_keys()
        if not self.holds_values:
            pytest.skip("values are tensors only")
        td["value"] = "text"
        assert td.is_non_tensor("value")
        td.set_non_tensor("number", 3)
        for row in rows(td):
            assert row["value",] == "text" and row["number",] == 3

    def test_a_value_without_the_batch_size_is_refused(self) -> None:
        td = self._needs_new_keys()
        with pytest.raises(RuntimeError, match="batch size"):
            td["bad"] = torch.zeros(7)
        with pytest.raises(RuntimeError, match="batch size"):
            td["nested", "bad"] = torch.zeros(())
        assert "bad" not in td.keys()

    def test_in_place_writes_keep_the_tensors(self) -> None:
        td = self.make()
        key = self.tensor_key(td)
        before = [leaf.data_ptr() for leaf in td._leaves()]
        if self.ragged:
            td.update_(td * 2)
            assert_rows(td, map_rows(lambda x: x * 2, rows(self.make())))
        else:
            value = torch.zeros_like(td[key])
            td.set_(key, value)
            assert not td[key].any()
            td.update_({key: value + 1})
            assert td[key].all()
            td.set(key, value, inplace=True)
            assert not td[key].any()
        if self.shares_slices:
            assert [leaf.data_ptr() for leaf in td._leaves()] == before

    def test_in_place_writes_of_another_shape_or_key_are_refused(self) -> None:
        td = self.make()
        key = self.tensor_key(td)
        with pytest.raises(KeyError):
            td.set_("absent", torch.zeros(td.batch_size))
        with pytest.raises(KeyError):
            td.update_({"absent": torch.zeros(td.batch_size)})
        with pytest.raises(RuntimeError):
            td.set_(key, torch.zeros(*td.batch_size, 9))

    @pytest.mark.parametrize("wrong", ["missing", "shape", "kind"])
    def test_update_in_place_is_all_or_nothing(self, wrong: str) -> None:
        if self.ragged:
            pytest.skip("ragged entries are not read whole")
        td, before = self.make(), rows(self.make())
        source: dict[Any, Any] = {key: td[key] * 2 for key, value in td._peek_items() if not isinstance(value, Node)}
        if self.holds_values:
            source = {"text": "other", **source}
        last = list(source)[-1]
        expected: type[Exception] = KeyError
        if wrong == "missing":
            source["absent"] = torch.zeros(td.batch_size)
        elif wrong == "kind":
            source[last] = {"below": torch.zeros(td.batch_size)}
        else:
            source[last], expected = torch.zeros(*td.batch_size, 7, 7, 7), RuntimeError
        with pytest.raises(expected):
            td.update_(source)
        assert_rows(td, before)

    def test_update_in_place_repeats_sizes_of_one(self) -> None:
        if self.ragged:
            pytest.skip("ragged entries are not read whole")
        td = self.make()
        key = self.tensor_key(td)
        td.update_({key: td[key][..., :1]})
        torch.testing.assert_close(td[key], td[key][..., :1].expand(td[key].shape))

    def test_update_in_place_writes_every_row(self) -> None:
        td = self.make()
        td.update_(td * 2)
        assert_rows(td, map_rows(lambda x: x * 2, rows(self.make())))

    def test_update_merges_nested_entries(self) -> None:
        td = self._needs_new_keys()
        node = self.node_key(td)
        names = set(td.keys(True, True))
        td.update({"new": torch.ones(td.batch_size), "made": {"x": torch.ones(td.batch_size)}})
        assert set(td.keys(True, True)) == names | {"new", ("made", "x")}
        if node is not None:
            td.update({node: {"more": torch.ones(td.batch_size)}})
            assert set(td.keys(True, True)) == names | {"new", ("made", "x"), (node, "more")}

    @pytest.mark.parametrize("inplace", [False, True])
    @pytest.mark.parametrize("wrong", ["shape", "nested"])
    def test_update_stores_all_or_nothing(self, wrong: str, inplace: bool) -> None:
        if self.ragged:
            pytest.skip("ragged entries are not read whole")
        td, before = self.make(), rows(self.make())
        names = set(td.keys(True, True))
        source: dict[Any, Any] = {key: td[key] * 2 for key, value in td._peek_items() if not isinstance(value, Node)}
        if wrong == "shape":
            source[list(source)[-1]] = torch.zeros(7, 7, 7)
        else:
            node = self.node_key(td)
            if node is None:
                pytest.skip("nothing is nested")
            source[node] = {"new": torch.zeros(7, 7, 7)}
        with pytest.raises((RuntimeError, AttributeError)):
            td.update(source, inplace=inplace)
        assert_rows(td, before)
        assert set(td.keys(True, True)) == names

    def test_update_takes_the_entries_of_its_kind(self) -> None:
        td = self._needs_new_keys()
        td.update(td * 2)
        assert_rows(td, map_rows(lambda x: x * 2, rows(self.make())))

    def test_removing_and_renaming(self) -> None:
        td = self._needs_new_keys()
        key = self.tensor_key(td)
        before = rows(td)
        td.rename_key_(key, "other")
        assert "other" in td.keys() and key not in td.keys()
        td.rename_key_("other", key)
        assert_rows(td, before)
        with pytest.raises(KeyError):
            td.rename_key_(key, "count" if "count" in td.keys() else key + "2", safe="count" in td.keys()) if (
                "count" in td.keys()
            ) else td.rename_key_("absent", "x")
        del td[key]
        assert key not in td.keys()
        with pytest.raises(KeyError):
            del td[key]
        with pytest.raises(KeyError):
            td.pop("absent")
        assert td.pop("absent", None) is None
        td["new"] = torch.ones(td.batch_size)
        assert td.pop("new").all() and "new" not in td.keys()
        assert td.setdefault("new", torch.ones(td.batch_size)).all()
        td.clear()
        assert not list(td.keys())

    def test_select_and_exclude_part_the_entries(self) -> None:
        td = self.make()
        key = self.tensor_key(td)
        whole = [set(row) for row in rows(td)]
        chosen, rest = rows(td.select(key)), rows(td.exclude(key))
        assert [set(row) for row in chosen] == [{(key,)} for _ in whole]
        assert [set(one) | set(other) for one, other in zip(chosen, rest, strict=True)] == whole
        with pytest.raises(KeyError):
            td.select("absent")
        assert not list(td.select("absent", strict=False).keys())

    def test_select_reaches_nested_keys(self) -> None:
        td = self.make()
        node = self.node_key(td)
        if node is None:
            pytest.skip("no nested entries")
        path = next(path for path in td._leaf_keys() if path[0] == node)
        assert list(td.select(path).keys(True, True)) == [path]
        assert path not in td.exclude(path).keys(True)

    def test_split_keys_shares_the_entries_out(self) -> None:
        td = self.make()
        key = self.tensor_key(td)
        one, rest = td.split_keys([key])
        assert list(one.keys()) == [key] and key not in rest.keys()
        assert key in td.keys()

    def test_empty_has_the_metadata_and_no_leaves(self) -> None:
        td = self.make()
        assert td.empty().batch_size == td.batch_size and not list(td.empty().keys())
        assert set(td.empty(recurse=True).keys()) == {key for key, value in td._peek_items() if has_entries(value)}
        assert td.empty().is_empty() and not td.is_empty()

    def test_contents_of_a_nested_entry_are_those_below_its_key(self) -> None:
        td = self.make()
        node = self.node_key(td)
        if node is None or self.ragged:
            pytest.skip("no nested entries that are read whole")
        assert {(node, *path) for path in contents(td[node])} == {path for path in contents(td) if path[0] == node}
        assert td[node].batch_size[: td.batch_dims] == td.batch_size
