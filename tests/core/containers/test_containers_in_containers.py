"""Containers within containers: lazy stacks, views and dense tensordicts in each other behave as one dense tree."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from tensordict_core import LazyStackedTensorDict, TensorDict, assert_close, set_printoptions

OPERATIONS = {
    "unflatten": lambda td: td.unflatten(0, [1, -1]),
    "expand": lambda td: td.unsqueeze(0).expand(4, *td.batch_size),
    "permute": lambda td: td.permute(1, 0),
    "unsqueeze": lambda td: td.unsqueeze(-1),
    "squeeze": lambda td: td.unsqueeze(1).squeeze(1),
    "reshape": lambda td: td.reshape(-1),
    "view": lambda td: td.view(-1),
    "roll": lambda td: td.roll(1, 0),
    "repeat": lambda td: td.repeat(2, 1),
    "gather": lambda td: td.gather(0, torch.tensor([[1, 0, 1]])),
    "index": lambda td: td[:, torch.tensor([2, 0])],
}


def rows(*shape):
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize("own", [1, 2])
def test_a_nested_stack_along_any_dimension_is_reshaped_as_a_dense_node(operation, dim, own):
    node = TensorDict({"a": rows(2, 3, own, 2, 5), "deep": {"b": rows(2, 3, own, 2)}}, [2, 3, own, 2])
    stack = LazyStackedTensorDict(*node.unbind(dim), stack_dim=dim)
    expected = operation(TensorDict({"n": node}, [2, 3], names=["x", "y"]))
    result = operation(TensorDict({"n": stack}, [2, 3], names=["x", "y"]))
    assert result["n"].batch_size == expected["n"].batch_size and result["n"].names == expected["n"].names
    assert_close(result.to_tensordict(), expected)


def test_a_stack_of_dense_and_lazy_elements_is_not_ragged():
    dense = TensorDict({"a": rows(2, 5)}, [2])
    mixed = LazyStackedTensorDict(dense, LazyStackedTensorDict(*dense.unbind(0)), dense.unsqueeze(0).view_at(0))
    assert mixed.get_item_shape("a") == (3, 2, 5)
    assert torch.equal(mixed.densify()["a"], rows(2, 5).expand(3, 2, 5))
    gathered = mixed.gather(0, torch.zeros(3, 2, dtype=torch.int64))
    gathered.zero_()
    assert torch.equal(dense["a"], rows(2, 5))


@pytest.mark.parametrize(
    "copy", [lambda td: td.roll(1, 0), lambda td: td.repeat(2, 2), lambda td: td.gather(0, torch.tensor([[0, 0]]))]
)
def test_operations_that_copy_copy_the_rows_of_ragged_stacks_too(copy):
    ragged = LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(2, n)}, [2]) for n in (1, 2)))
    result = copy(ragged)
    result[0, 0]["a"].fill_(1.0)
    assert sum(float(row["a"].sum()) > 0 for part in result.unbind(0) for row in part.unbind(0)) == 1
    assert all(not part["a"].any() for part in ragged.unbind(0))


@pytest.mark.parametrize(
    "part", [lambda td: td[:0], lambda td: td[torch.tensor([], dtype=torch.int64)], lambda td: td.split([0, 2])[0]]
)
def test_nothing_of_a_stack_keeps_the_name_of_its_stack_dim(part):
    stack = LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)), stack_dim_name="time")
    assert part(stack).names == ["time", None]


WRITES = {
    "set_": lambda view: view.set_("a", torch.ones(2)),
    "set_ of a nested key": lambda view: view.set_(("n", "b"), torch.ones(2)),
    "update_": lambda view: view.update_({"a": torch.ones(2), "n": {"b": torch.ones(2)}}),
    "update in place": lambda view: view.update({"a": torch.ones(2)}, inplace=True),
    "set in place": lambda view: view.set("a", torch.ones(2), inplace=True),
    "set_at_": lambda view: view.set_at_("a", torch.ones(2), ...),
    "set_at_ of a nested key": lambda view: view.set_at_(("n", "b"), torch.ones(2), ...),
    "fill_": lambda view: view.fill_("a", 1.0),
    "fill_ of a nested key": lambda view: view.fill_(("n", "b"), 1.0),
    "add_": lambda view: view.add_(1.0),
    "apply_": lambda view: view.apply_(lambda leaf: leaf.add_(1.0)),
    "copy_": lambda view: view.copy_(view + 1),
    "an index": lambda view: view.__setitem__(slice(None), 1.0),
    "what select gives": lambda view: view.select("a").fill_("a", 1.0),
    "what exclude gives": lambda view: view.exclude("n").fill_("a", 1.0),
    "a view of it": lambda view: view.view_at(slice(None)).set_("a", torch.ones(2)),
}


def _dense():
    return TensorDict({"a": torch.zeros(3, 2), "n": {"b": torch.zeros(3, 2)}}, [3, 2])


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("dim", [0, 1])
def test_writes_into_a_view_of_a_lazy_stack_reach_its_elements(write, dim):
    dense = _dense()
    parent = LazyStackedTensorDict(*dense.unbind(dim), stack_dim=dim)
    write(parent.view_at(1))
    assert float(dense.sum(reduce=True)) in (2.0, 4.0) and float(dense[1].sum(reduce=True)) in (2.0, 4.0)


@pytest.mark.parametrize("write", [write for name, write in WRITES.items() if "gives" not in name])
def test_writes_into_a_view_of_a_masked_view_reach_the_parent(write):
    parent = _dense()
    write(parent.view_at(torch.tensor([False, True, True])).view_at(0))
    assert float(parent.sum(reduce=True)) in (2.0, 4.0) and float(parent[1].sum(reduce=True)) in (2.0, 4.0)


def test_views_of_lazy_stacks_are_padded_and_selected_from():
    parent = LazyStackedTensorDict(*_dense().unbind(1), stack_dim=1)
    view = parent.view_at(slice(0, 2))
    assert view.pad([1, 0, 0, 0]).batch_size == (3, 2)
    assert view.where(torch.ones(2, 2, dtype=torch.bool), view + 1)["a"].sum() == 0


def test_the_names_of_a_view_are_those_of_its_nodes():
    view = _dense().view_at(0)
    view.names = ["x"]
    assert view["n"].names == ["x"] and view.clone()["n"].names == ["x"]


def test_an_indexed_write_into_views_in_a_lazy_stack_is_checked_by_the_shapes_of_their_parts():
    dense = TensorDict({"a": torch.zeros(3, 2, 5), "n": {"b": torch.zeros(3, 2)}}, [3, 2])
    stack = LazyStackedTensorDict(dense.view_at((slice(None), 0)), dense.view_at((slice(None), 1)))
    stack[:] = TensorDict({"a": torch.ones(2, 3, 5)}, [2, 3])
    assert (dense["a"] == 1).all()
    with pytest.raises(RuntimeError, match="'a'"):
        stack[:] = TensorDict({"n": {"b": torch.ones(2, 3)}, "a": torch.ones(2, 3, 7)}, [2, 3])
    assert not dense["n", "b"].any()


def test_an_indexed_write_that_would_add_a_key_to_a_locked_view_writes_nothing():
    parent = _dense().lock_()
    with pytest.raises(RuntimeError, match="'new'"):
        parent.view_at(0)[0] = TensorDict({"a": torch.tensor(1.0), "new": torch.tensor(1.0)})
    assert not parent["a"].any()


def test_a_pytree_keeps_the_names_and_the_hook_of_a_lazy_stack():
    parts = [TensorDict({"a": torch.zeros(3, n)}, [3], names=["row"]) for n in (1, 1, 2)]
    for stack in (LazyStackedTensorDict(*parts, stack_dim=1), LazyStackedTensorDict(*parts[:2], stack_dim=1)):
        stack.names = ["row", "time"]
        stack.hook_in = torch.Tensor.float
        again = pytree.tree_map(lambda leaf: leaf + 1, TensorDict({"n": stack}))["n"]
        assert again.names == ["row", "time"] and again.hook_in is torch.Tensor.float


def test_a_block_over_flat_keys_writes_back_in_place_changes_of_nested_stacks():
    stack = LazyStackedTensorDict(TensorDict({"b": torch.zeros(3)}), TensorDict({"b": torch.zeros(3)}))
    for td, key in ((TensorDict({"n": stack, "a": torch.zeros(2)}, [2]), "n.b"), (stack.view_at(0), "b")):
        with td.flatten_keys() as flat:
            flat.get(key).add_(1.0)
    assert stack["b"].tolist() == [[2.0] * 3, [1.0] * 3]


@pytest.mark.parametrize("add", [lambda td: pytree.tree_map(lambda leaf: leaf + 1, td), torch.vmap(lambda td: td + 1)])
def test_pytrees_and_vmap_take_stacks_whose_nested_entries_are_ragged(add):
    stack = LazyStackedTensorDict(*(TensorDict({"n": {"a": torch.zeros(2, n)}}, [2]) for n in (1, 3)), stack_dim=1)
    for result in (add(stack), add(TensorDict({"deep": stack}, [2]))["deep"]):
        assert result.batch_size == (2, 2) and result["n"].batch_size == (2, 2)
        assert [part["n", "a"].tolist() for part in result.unbind(1)] == [[[1.0]] * 2, [[1.0] * 3] * 2]


def ragged(first, second):
    return LazyStackedTensorDict(TensorDict({"x": first}), TensorDict({"x": second}))


DIFFERENT = {
    "sizes": ((torch.zeros(3), torch.zeros(4)), "x: f32[-1]"),
    "ranks": ((torch.zeros(3), torch.zeros(4, 2)), "x: ragged"),
    "kinds": (({"y": torch.zeros(1)}, torch.zeros(3)), "mixed(Tensor, TensorDict)"),
    "values": (("text", torch.zeros(3)), "mixed(NonTensorData, Tensor)"),
    "a value and a node": (("text", {"y": torch.zeros(1)}), "mixed(NonTensorData, TensorDict)"),
    "batch sizes": ((TensorDict({"y": torch.zeros(2)}, [2]), TensorDict({"y": torch.zeros(2)})), "mixed(TensorDict)"),
}


@pytest.mark.parametrize(("entries", "shown"), DIFFERENT.values(), ids=DIFFERENT)
def test_entries_that_do_not_stack_are_found_selected_and_shown_at_every_level(entries, shown):
    inner = ragged(*entries)
    outer = LazyStackedTensorDict(TensorDict({"w": inner}), TensorDict({"w": inner.clone()}))
    assert "x" in inner and ("w", "x") in outer and ("w", "x") in outer[0] and ("w", "q") not in outer
    assert set(outer.select(("w", "x")).keys(True)) == set(outer.keys(True))
    with set_printoptions(compact=True):
        assert shown in repr(inner if "mixed" in shown else outer)


@pytest.mark.parametrize("way", ["as_nested_tensor", "as_padded_tensor"])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_key_that_some_elements_have_as_a_node_is_not_read_as_one_tensor(way, turn):
    inner = ragged(*({"y": torch.zeros(1)}, torch.zeros(3))[::turn])
    with pytest.raises(RuntimeError, match="'x' is a tensor in some elements"):
        inner.get("x", **{way: True})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_hold_lazy_elements_that_stack_and_no_ragged_ones():
    inner = [ragged(torch.ones(n), torch.zeros(n)) for n in (3, 4)]
    read = LazyStackedTensorDict(*inner).get("x", as_nested_tensor=True, layout=torch.strided)
    assert [part.shape for part in read.unbind()] == [(2, 3), (2, 4)] and read[0].sum() == 3
    for refused in (lambda td: td.densify(), lambda td: td.get("x", as_nested_tensor=True)):
        with pytest.raises(RuntimeError, match=r"key 'x': their shapes are \[\[3\], \[4\]\]"):
            refused(LazyStackedTensorDict(*[ragged(torch.zeros(3), torch.zeros(4))] * 2))


@pytest.mark.parametrize(
    "operation",
    [
        lambda td: td.repeat(1, 2),
        lambda td: td.tile(2),
        lambda td: td.repeat_interleave(2, 0),
        lambda td: td.repeat_interleave(torch.tensor([1, 2, 0]), 1),
    ],
)
@pytest.mark.parametrize("dim", [0, 1])
def test_repetition_keeps_the_lazy_stack_of_a_nested_stack(operation, dim):
    node = TensorDict({"a": rows(2, 3, 4)}, [2, 3])
    stack = LazyStackedTensorDict(*node.unbind(dim), stack_dim=dim)
    result = operation(TensorDict({"n": stack}, [2, 3]))["n"]
    assert type(result) is LazyStackedTensorDict and result.stack_dim == dim
    assert_close(result.to_tensordict(), operation(node))


@pytest.mark.parametrize("outer", [0, 1])
@pytest.mark.parametrize("inner", [0, 1])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_the_softmax_of_a_lazy_stack_of_lazy_stacks_is_one_too(outer, inner, dim):
    elements = [TensorDict({"a": torch.rand(2, 3), "s": "text"}, [2]) for _ in range(6)]
    lazy = LazyStackedTensorDict(
        *(LazyStackedTensorDict(*elements[i : i + 3], stack_dim=inner) for i in (0, 3)), stack_dim=outer
    )
    lazy.names = ["x", "y", "z"]
    result = lazy.softmax(dim, torch.float64)
    assert result.names == lazy.names and result.stack_dim == outer
    assert [type(part) for part in result.tensordicts] == [LazyStackedTensorDict] * 2
    assert [part.stack_dim for part in result.tensordicts] == [inner] * 2
    axis = dim % 3
    torch.testing.assert_close(result["a"], torch.softmax(lazy["a"], axis, torch.float64))
    assert result[0, 0, 0]["s"] == "text"


def test_the_softmax_over_lazy_stacks_of_entries_of_several_shapes_is_along_the_stack_dim():
    ragged = LazyStackedTensorDict(TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.zeros(3)}))
    result = LazyStackedTensorDict(ragged, ragged.clone()).softmax(0)
    assert [element["a"].tolist() for element in result.tensordicts[1].tensordicts] == [[0.5] * 2, [0.5] * 3]
