"""What published programs do with tensordicts whose entries differ: partial deletes, searches, writes into buffers."""

from __future__ import annotations

import re

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, assert_close, lazy_stack


def agents() -> LazyStackedTensorDict:
    return lazy_stack(
        [
            TensorDict({"obs": torch.zeros(2), "own": {"x": torch.ones(1), "y": torch.ones(1)}}),
            TensorDict({"obs": torch.zeros(3)}),
        ]
    )


@pytest.mark.parametrize("prefix", [(), ("group",)])
def test_a_nested_entry_of_some_elements_of_a_lazy_stack_is_deleted(prefix):
    td = agents()
    root = TensorDict({"group": td}) if prefix else td
    del root[(*prefix, "own", "x")]
    assert list(td.tensordicts[0]["own"].keys()) == ["y"]
    assert "own" not in td.tensordicts[1]
    with pytest.raises(KeyError, match="x"):
        del root[(*prefix, "own", "x")]


def test_a_locked_lazy_stack_refuses_to_delete_from_its_elements():
    td = agents().lock_()
    with pytest.raises(RuntimeError, match="lock"):
        del td["own", "x"]
    assert "x" in td.tensordicts[0]["own"]


def test_a_search_through_values_finds_a_lazy_stack_before_its_entries_that_do_not_stack():
    td = TensorDict({"group": agents()})
    assert any(isinstance(value, LazyStackedTensorDict) for value in td.values(True))
    with pytest.raises(RuntimeError, match="obs"):
        list(td.values(True))


def test_stacks_of_different_stack_dims_are_compared_row_by_row_where_entries_do_not_stack():
    def one(rows: int, value: float) -> TensorDict:
        return TensorDict({"obs": torch.full((rows, 2), value)})

    by_rows = lazy_stack([lazy_stack([one(1, 0.0), one(2, 1.0)], 0), lazy_stack([one(1, 2.0), one(2, 3.0)], 0)], 0)
    by_columns = lazy_stack([lazy_stack([one(1, 0.0), one(1, 2.0)], 0), lazy_stack([one(2, 1.0), one(2, 3.0)], 0)], 1)
    assert assert_close(by_rows, by_columns)
    by_columns.tensordicts[1].tensordicts[0]["obs"] += 1
    with pytest.raises(AssertionError, match="obs"):
        assert_close(by_rows, by_columns)


def test_an_update_in_place_leaves_out_values_that_have_no_entry():
    td = TensorDict({"a": torch.zeros(1)}, lock=True)
    td.update_(TensorDict({"a": torch.ones(1), "name": "bob"}))
    assert td["a"] == 1
    assert list(td.keys()) == ["a"]
    with pytest.raises(KeyError, match="name"):
        td.update_(TensorDict({"name": "bob"}))
    with pytest.raises(KeyError, match='"b"'):
        td.update_(TensorDict({"a": torch.zeros(1), "b": torch.ones(1), "name": "bob"}))
    assert td["a"] == 1


@pytest.mark.parametrize("function", [torch.stack, torch.cat])
def test_entries_that_out_lacks_are_added_and_a_locked_one_refuses_them(function):
    parts = [TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2)}}, [2]) for _ in range(2)]
    whole = function(parts)
    out = whole.select("a").zero_()
    memory = out["a"]
    assert function(parts, out=out) is out
    assert out["a"] is memory
    assert (out == whole).all()
    locked = whole.select("a").zero_().lock_()
    with pytest.raises(KeyError, match="n"):
        function(parts, out=locked)
    assert (locked["a"] == 0).all()


@pytest.mark.parametrize(
    ("other", "start"),
    [
        ({"b": torch.zeros(1)}, "The sets of keys in the tensordicts to stack are exclusive"),
        ({"a": torch.zeros(2)}, "The shapes of the tensors to stack is incompatible"),
    ],
)
def test_the_message_of_a_stack_that_fails_starts_with_the_reason(other, start):
    with pytest.raises(RuntimeError) as caught:
        torch.stack([TensorDict({"a": torch.zeros(1)}), TensorDict(other)])
    assert re.match(start, str(caught.value))


def test_the_message_about_a_bad_key_defines_keys():
    with pytest.raises(RuntimeError, match="key should be a Sequence<NestedKey>"):
        TensorDict({}).get(1)


def test_a_batch_size_is_parsed():
    parse = TensorDict._parse_batch_size
    assert parse({}, [2, 3]) == (2, 3) and parse({}, 2) == (2,) and parse({"a": torch.zeros(2)}) == ()
    assert parse(TensorDict({}, [4]), "unknown") == (4,)
    with pytest.raises(TypeError, match="unknown"):
        parse({}, "unknown")
