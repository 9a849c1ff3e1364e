"""Who gets an error has what was there before: nothing is added, replaced or written halfway."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict


def entries():
    return TensorDict({"a": torch.zeros(2, 3), "n": {"b": torch.zeros(2)}}, [2])


def stack():
    return LazyStackedTensorDict(*entries().unbind(0))


def unchanged(td):
    return set(td.keys(True)) == {"a", "n", ("n", "b")} and not td["a"].any() and not td["n", "b"].any()


@pytest.mark.parametrize("make", [entries, stack])
def test_a_nested_key_whose_value_is_refused_leaves_no_node_on_its_way(make):
    td = make()
    for key in (("new", "x"), ("n", "new", "x"), ("new", "deep", "x")):
        with pytest.raises(RuntimeError, match="batch size"):
            td.set(key, torch.ones(5))
    assert unchanged(td)


@pytest.mark.parametrize("make", [entries, stack])
def test_results_in_place_that_do_not_fit_write_nothing(make):
    td = make()
    with pytest.raises(RuntimeError, match="'b'"):
        td.named_apply(
            lambda key, leaf: leaf[..., None] if key[-1] == "b" else leaf + 1, inplace=True, nested_keys=True
        )
    assert unchanged(td)


def test_a_lazy_stack_is_extended_by_all_or_none():
    td = stack()
    with pytest.raises(ValueError, match="Batch sizes"):
        td.extend([td[0], TensorDict({}, [5])])
    assert len(td.tensordicts) == 2 and td.batch_size == (2,)


def test_an_entry_is_set_in_place_in_all_elements_or_in_none():
    td = LazyStackedTensorDict(TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.zeros(3)}))
    with pytest.raises(RuntimeError, match="'a'"):
        td.set("a", torch.ones(2, 2), inplace=True)
    assert not td[0]["a"].any()


def test_an_update_to_another_batch_size_looks_at_all_values_first():
    td = entries()
    with pytest.raises(RuntimeError, match="batch size"):
        td.update(TensorDict({"a": torch.ones(4), "n": {}}, [4]), update_batch_size=True, a=torch.ones(2))
    assert td.batch_size == (2,) and unchanged(td)


def test_a_block_stores_all_that_it_added_or_nothing():
    td = entries()
    with pytest.raises(KeyError, match="'a'"), td.flatten_keys(".") as flat:
        flat["n.b"] = torch.ones(2)
        flat["a.x"] = torch.ones(2)
    assert unchanged(td)


@pytest.mark.parametrize("index", [0, torch.tensor([0, 1])], ids=["view", "copy"])
@pytest.mark.parametrize("leaf", [torch.zeros(2), torch.nn.Parameter(torch.zeros(2))], ids=["tensor", "parameter"])
@pytest.mark.parametrize(
    "value", [1.0, torch.tensor(1.0), TensorDict({"a": torch.ones(3), "z": 1.0})], ids=["number", "tensor", "tree"]
)
def test_an_indexed_write_into_a_leaf_of_autograd_writes_nothing(index, leaf, value):
    td = entries().set("z", leaf.requires_grad_())
    value = value.expand(2) if isinstance(value, TensorDict) and isinstance(index, torch.Tensor) else value
    with pytest.raises(RuntimeError, match="'z'"):
        td[index] = value
    assert not td["a"].any() and not td["n", "b"].any() and not td["z"].any()


def test_apply_in_place_writes_results_into_containers_whose_reads_copy():
    td = stack()
    td.apply_(lambda leaf: leaf.add_(1))
    assert td["a"].all() and td["n", "b"].all()
