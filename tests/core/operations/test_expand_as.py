"""``expand_as``: batch dimensions and leaves expand to those of another tensordict or tensor."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, lazy_stack


def other_shapes(size):
    return TensorDict(
        {"a": torch.zeros(*size, 5), "n": {"b": torch.zeros(*size, 2, 6)}, "more": torch.zeros(*size)}, size
    )


def test_leaves_expand_to_the_shapes_of_the_other_tensordict():
    td = TensorDict({"a": torch.ones(3, 1), "n": {"b": torch.ones(3, 2, 1)}, "s": "text"}, [3], names=["x"])
    out = td.expand_as(other_shapes([2, 3]))
    assert out.batch_size == (2, 3) and out["a"].shape == (2, 3, 5) and out["n", "b"].shape == (2, 3, 2, 6)
    assert out["s"] == "text" and "more" not in out and out.names == td.expand(2, 3).names
    assert out["a"].data_ptr() == td["a"].data_ptr()
    assert td.expand_as(torch.zeros(2, 3))["a"].shape == (2, 3, 1)
    stacked = lazy_stack([td, td]).expand_as(other_shapes([2, 3]))
    assert type(stacked) is LazyStackedTensorDict and stacked["a"].shape == (2, 3, 5)
    assert td.expand_as(lazy_stack([other_shapes([3])] * 2))["n", "b"].shape == (2, 3, 2, 6)


def test_a_nested_batch_size_is_kept_unless_it_would_expand():
    other = TensorDict({"n": {"b": torch.zeros(2, 3, 4)}}, [2, 3])
    one = TensorDict({"n": TensorDict({"b": torch.ones(3, 1)}, [3, 1])}, [3]).expand_as(other)
    assert one["n"].batch_size == (2, 3) and one["n", "b"].shape == (2, 3, 4)
    whole = TensorDict({"n": TensorDict({"b": torch.ones(3, 4)}, [3, 4])}, [3]).expand_as(other)
    assert whole["n"].batch_size == (2, 3, 4)


def test_a_leaf_that_cannot_expand_is_named_in_the_error():
    td = TensorDict({"n": {"b": torch.ones(3, 4)}}, [3])
    with pytest.raises(RuntimeError, match=r"key \('n', 'b'\) has shape \[2, 3, 4\].*repeat"):
        td.expand_as(TensorDict({"n": {"b": torch.zeros(2, 3, 5)}}, [2, 3]))
    with pytest.raises(KeyError, match="b"):
        td.expand_as(TensorDict({"n": {}}, [2, 3]))
    with pytest.raises(KeyError, match="no entries"):
        td.expand_as(TensorDict({"n": {"b": {"c": torch.zeros(2, 3)}}}, [2, 3]))
    with pytest.raises(RuntimeError):
        td.expand_as(TensorDict({"n": {"b": torch.zeros(2, 4, 4)}}, [2, 4]))
