"""Lazy stacks made of tensordicts and of dictionaries: names, shapes that may differ, and what is refused."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, lazy_stack, maybe_dense_stack
from tensordict_core.containers import dense


@pytest.mark.parametrize("stack", [lazy_stack, TensorDict.lazy_stack, LazyStackedTensorDict.lazy_stack])
def test_the_stack_dim_is_named_and_the_elements_do_not_change(stack):
    tds = [TensorDict({"a": torch.zeros(3)}, [3], names=["x"]) for _ in range(2)]
    td = stack(tds, 1, stack_dim_name="s")
    assert td.names == ["x", "s"] and td.batch_size == (3, 2)
    assert tds[1].names == ["x"] and td.to_tensordict().names == ["x", "s"]
    with pytest.raises((TypeError, ValueError)):
        stack(tds, stack_dim_name=3)


def test_strict_shape_refuses_elements_of_several_batch_sizes():
    tds = [TensorDict({"a": torch.zeros(n)}, [n]) for n in (2, 3)]
    assert lazy_stack(tds).batch_size == (2, -1) and lazy_stack(tds[:1] * 2, strict_shape=True).batch_size == (2, 2)
    with pytest.raises(RuntimeError, match=r"element 0 has \[2\] and element 1 has \[3\].*strict_shape=False"):
        lazy_stack(tds, strict_shape=True)
    with pytest.raises(RuntimeError, match="strict_shape=False"):
        LazyStackedTensorDict(*tds, strict_shape=True)


def test_a_lazy_stack_of_dictionaries():
    dicts = [{"a": torch.zeros(3, 2), "n": {"b": 1}}, {"a": torch.ones(4, 2), "n": {"b": 2}}]
    for td in (
        LazyStackedTensorDict.from_dict(dicts),
        LazyStackedTensorDict.from_dict({"0": dicts[0], "1": dicts[1]}),
        LazyStackedTensorDict.from_dict(dicts[:1], dicts[1]),
        LazyStackedTensorDict.from_dict([TensorDict(one) for one in dicts]),
    ):
        assert type(td) is LazyStackedTensorDict and td.batch_size == (2,)
        assert td["n", "b"].tolist() == [1, 2] and td[1]["a"].shape == (4, 2)
    even = [{"a": torch.zeros(3)}] * 2
    assert LazyStackedTensorDict.from_dict(even, batch_size=[2, 3]).batch_size == (2, 3)
    assert LazyStackedTensorDict.from_dict(even, batch_dims=1).batch_size == (2,)
    along = LazyStackedTensorDict.from_dict(even, stack_dim=1, stack_dim_name="t")
    assert along.batch_size == (3, 2) and along.names == [None, "t"] and along["a"].shape == (3, 2)


def test_input_without_elements_is_refused():
    for wrong in ({"a": torch.zeros(3)}, {"0": {}, "2": {}}, [{"a": 1}, 5], "text", {"0": 1}):
        with pytest.raises(TypeError, match=r"list of dictionaries.*TensorDict\.from_dict"):
            LazyStackedTensorDict.from_dict(wrong)
    with pytest.raises(RuntimeError):
        LazyStackedTensorDict.from_dict([])


def test_maybe_dense_stack_does_not_take_a_failure_of_memory_for_shapes_that_differ(monkeypatch):
    def full(*args: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(dense, "STACK", dense.STACK._replace(leaves=full))
    with pytest.raises(RuntimeError, match="allocate"):
        maybe_dense_stack([TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.zeros(2)})])


def test_a_batch_size_that_is_not_that_of_the_elements_is_refused():
    td = TensorDict({"a": torch.zeros(3)}, [3])
    assert LazyStackedTensorDict(td, td, batch_size=[2, 3]).batch_size == (2, 3)
    for wrong in ([3], [2], [2, 4], 2):
        with pytest.raises(RuntimeError, match=r"is not \[2, 3\], the batch size of the stack"):
            LazyStackedTensorDict(td, td, batch_size=wrong)
