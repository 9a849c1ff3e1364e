"""Updates: every value is looked at before the first is stored, and no entry vanishes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict


def tree() -> TensorDict:
    return TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(2), "deep": {"c": torch.zeros(2)}}}, [2])


def is_untouched(td: Any) -> bool:
    keys = {"a", ("n", "b"), ("n", "deep", "c")}
    return set(td.keys(True, True)) == keys and not any(leaf.any() for leaf in td.values(True, True))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"z": torch.ones(3)},
        {"n": {"b": torch.ones(2), "z": torch.ones(3)}},
        {"n": {"deep": {"z": torch.ones(3)}}},
        {("n", "deep", "z"): torch.ones(3)},
        {("a", "z"): torch.ones(2)},
    ],
    ids=["root", "nested", "deep", "path", "through a tensor"],
)
def test_a_value_that_does_not_fit_leaves_all_as_it_was(wrong: dict[Any, Any], stacked: bool, inplace: bool) -> None:
    td: Any = LazyStackedTensorDict(*tree().unbind(0)) if stacked else tree()
    with pytest.raises((RuntimeError, KeyError)):
        td.update({"a": torch.ones(2), "new": torch.ones(2), **wrong}, inplace=inplace)
    assert is_untouched(td)


def test_a_locked_node_below_leaves_all_as_it_was() -> None:
    td = tree()
    td["n", "deep"].lock_()
    with pytest.raises(RuntimeError, match="locked"):
        td.update({"a": torch.ones(2), "n": {"b": torch.ones(2), "deep": {"new": torch.ones(2)}}})
    assert is_untouched(td)


@pytest.mark.parametrize("value", [{"a": torch.ones(2), "n": {"b": torch.ones(5)}}, {"a": torch.ones(2), "z": 1.0}])
@pytest.mark.parametrize("method", ["update_", "update_at_"])
def test_in_place_updates_write_all_or_nothing(method: str, value: dict[str, Any]) -> None:
    td = tree()
    more = [slice(None)] if method == "update_at_" else []
    with pytest.raises((RuntimeError, KeyError)):
        getattr(td, method)(value, *more)
    assert is_untouched(td)


def test_an_assignment_to_rows_writes_all_or_nothing() -> None:
    td = tree()
    row = TensorDict({"a": torch.ones(()), "n": {"b": torch.ones(()), "deep": {"c": torch.ones(4)}}})
    with pytest.raises(RuntimeError, match="deep"):
        td[0] = row
    assert is_untouched(td)


def test_nested_keys_of_one_node_are_stored_together() -> None:
    td = tree().update({("m", "x"): torch.ones(2), ("m", "y", "z"): torch.ones(2), ("n", "b"): torch.ones(2)})
    assert set(td["m"].keys(True, True)) == {"x", ("y", "z")}
    assert td["n", "b"].all() and ("n", "deep", "c") in td


def test_nested_keys_add_to_a_node_of_the_same_update() -> None:
    node = TensorDict({"x": torch.ones(2, 3)}, [2, 3])
    td = tree().update({"m": node, ("m", "y"): torch.ones(2, 3)})
    assert td["m"].batch_size == (2, 3) and set(td["m"].keys()) == {"x", "y"}
    assert set(node.keys()) == {"x"}


def test_the_batch_size_of_the_source_removes_no_entry() -> None:
    td = TensorDict({"a": torch.zeros(2), "kept": torch.ones(2)}, [2])
    td.update(TensorDict({"a": torch.ones(2)}, [2]), update_batch_size=True)
    assert set(td.keys()) == {"a", "kept"}
    longer = TensorDict({"a": torch.ones(3), "kept": torch.ones(3)}, [3])
    with pytest.raises(RuntimeError, match="kept"):
        td.update(longer, update_batch_size=True, keys_to_update=["a"])
    assert td.update(longer, update_batch_size=True).batch_size == (3,)


def test_a_locked_tensordict_keeps_its_batch_size() -> None:
    td = tree().lock_()
    with pytest.raises(RuntimeError, match="locked"):
        td.update(tree().unsqueeze(0), update_batch_size=True)
    assert td.batch_size == (2,) and is_untouched(td)


def test_items_that_can_be_read_once_are_all_stored() -> None:
    class Once(dict[str, Any]):
        def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
            yield from super().items()

    assert set(tree().update(Once(x=torch.ones(2), y=torch.ones(2))).keys()) == {"a", "n", "x", "y"}


def test_a_cloned_dictionary_shares_nothing() -> None:
    value = torch.ones(2)
    td = TensorDict({}, [2]).update({"n": {"b": value}}, clone=True)
    assert td["n", "b"].data_ptr() != value.data_ptr()
