"""Instances in lazy stacks and other containers keep their class and fields."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tensordict_class import TensorClass, tensorclass
from tensordict_core import LazyStackedTensorDict, TensorDict, assert_close, dense_stack_tds, lazy_stack


@tensorclass
class Point:
    x: torch.Tensor
    y: torch.Tensor | None = None


def points():
    return lazy_stack([Point(torch.ones(3, 4) * i, batch_size=[3]) for i in range(2)])


REDUCTIONS = {
    "sum": lambda td: td.sum(0),
    "mean": lambda td: td.mean(1),
    "amax": lambda td: td.amax(0),
    "norm": lambda td: td.norm(),
    "pad": lambda td: td.pad([0, 1, 0, 0]),
    "where": lambda td: td.where(torch.ones(2, 3, dtype=torch.bool), td.clone()),
    "new_zeros": lambda td: td.new_zeros(4),
    "flatten in place": lambda td: td.flatten(inplace=True),
    "dense_stack_tds": dense_stack_tds,
}


@pytest.mark.parametrize("operation", REDUCTIONS.values(), ids=REDUCTIONS)
def test_a_lazy_stack_of_instances_keeps_its_class(operation):
    assert isinstance(operation(points()), Point)


def test_a_lazy_stack_of_instances_keeps_the_name_of_its_stack_dim():
    td = LazyStackedTensorDict(*points().unbind(0), stack_dim_name="time")
    assert td[:1].names == td.split([1, 1])[0].names == ["time", None]
    assert td.unsqueeze(1).names == ["time", None, None]


def test_lazy_stacks_of_instances_are_compared():
    assert assert_close(points(), points())
    with pytest.raises(AssertionError, match="x"):
        assert_close(points(), points() + 1)


def test_an_indexed_write_with_an_unknown_field_writes_nothing():
    td = TensorDict({"x": torch.zeros(3), "point": Point(torch.zeros(3), batch_size=[3])}, [3])
    with pytest.raises(ValueError, match="'typo'"):
        td[0] = TensorDict({"x": torch.ones(()), "point": {"x": torch.ones(()), "typo": torch.ones(())}})
    assert not td["x"].any()
    mixed = LazyStackedTensorDict(TensorDict({"x": torch.zeros(())}), Point(torch.zeros(())))
    with pytest.raises(ValueError, match="'typo'"):
        mixed[:] = TensorDict({"x": torch.ones(2), "typo": torch.ones(2)}, [2])
    assert not mixed["x"].any() and "typo" not in mixed[0]


def test_an_indexed_write_into_nested_stacks_of_instances_is_checked_by_their_shapes():
    instance = TensorDict({"n": points()}, [2, 3])
    td = LazyStackedTensorDict(instance, TensorDict({"n": points().to_tensordict()}, [2, 3]))
    for index in (..., (slice(None), 1), (slice(None), torch.tensor([1]))):
        td[index] = td[index] + 5
    assert td["n", "x"][:, 0].unique().tolist() == [5.0] and td["n", "x"][:, 1].unique().tolist() == [16.0]


def test_a_pytree_keeps_the_classes_of_elements():
    stack = LazyStackedTensorDict(Point(torch.zeros(3), batch_size=[3]), TensorDict({"x": torch.zeros(3)}, [3]))
    again = pytree.tree_map(lambda leaf: leaf + 1, stack)
    assert [type(element) for element in again.tensordicts] == [Point, TensorDict]
    assert torch.equal(again["x"], torch.ones(2, 3))


@pytest.mark.parametrize("stack_dim", [0, 1])
@pytest.mark.parametrize(
    "operation",
    [lambda td: td.flatten(), lambda td: td.repeat(2, 1), lambda td: td.repeat_interleave(2, 0)],
    ids=["flatten", "repeat", "repeat_interleave"],
)
def test_rearranged_rows_of_a_stack_of_instances_are_instances(operation, stack_dim):
    elements = [Point(torch.rand(3, 4), batch_size=[3]) for _ in range(2)]
    stack = LazyStackedTensorDict(*elements, stack_dim=stack_dim)
    found, plain = operation(stack), operation(stack.densify())
    assert isinstance(found[0], Point)
    assert found.batch_size == plain.batch_size and torch.equal(found.get("x"), plain.get("x"))


def test_repeated_rows_of_a_stack_of_instances_are_copies():
    elements = [Point(torch.ones(3, 4), batch_size=[3]) for _ in range(2)]
    stack = LazyStackedTensorDict(*elements)
    for found in (stack.repeat(2, 1), stack.repeat_interleave(2, 0)):
        found.apply_(torch.zeros_like)
    assert all(element.x.all() for element in elements)


def test_renaming_keys_keeps_the_class_of_stacked_instances():
    class Flat(TensorClass):
        x: torch.Tensor

    stack = LazyStackedTensorDict(*[Flat(torch.ones(2), batch_size=[2])] * 2)
    for result in (stack.flatten_keys("."), stack.unflatten_keys(".")):
        assert type(result) is Flat and result.batch_size == (2, 2) and result.x.shape == (2, 2)


@tensorclass
class Episode:
    obs: torch.Tensor
    info: TensorDict


def episodes(seed: int = 0) -> Any:
    """A lazy stack of instances whose entries have other shapes."""
    return lazy_stack(
        [
            Episode(
                obs=torch.arange(2.0 * n).reshape(2, n) + seed,
                info=TensorDict({"r": torch.full((2, n, 1), 1.0 + seed)}, [2]),
                batch_size=[2],
            )
            for n in (2, 3)
        ]
    )


ON_EPISODES = {
    "where": lambda x, y: x.where(torch.tensor([[True, False], [False, True]]), y),
    "where number": lambda x, y: x.where(torch.tensor([[True, False], [False, True]]), 7.0),
    "update": lambda x, y: x.update(y),
    "update of a tensordict": lambda x, y: x.update(lazy_stack([td.to_tensordict() for td in y.unbind(0)])),
    "update_": lambda x, y: x.update_(y),
    "copy_": lambda x, y: x.copy_(y),
    "softmax": lambda x, y: x.softmax(1),
    "repeat_interleave": lambda x, y: x.repeat_interleave(2, dim=1),
    "broadcast": lambda x, y: x * torch.tensor([1.0, 2.0], dtype=torch.float64),
}


@pytest.mark.parametrize("name", ON_EPISODES)
def test_operations_on_a_stack_of_instances_of_other_shapes(name):
    def plain(stack):
        return lazy_stack([TensorDict(obs=one.obs.clone(), info=one.info.clone(), batch_size=[2]) for one in stack])

    result = ON_EPISODES[name](episodes(), episodes(5))
    expected = ON_EPISODES[name](plain(episodes()), plain(episodes(5)))
    assert type(result) is Episode and result.batch_size == expected.batch_size
    for one, other in zip(result.unbind(0), expected.unbind(0), strict=True):
        torch.testing.assert_close(one.obs, other["obs"], rtol=0, atol=0)
        torch.testing.assert_close(one.info["r"], other["info", "r"], rtol=0, atol=0)


def test_an_update_of_a_stack_of_instances_refuses_keys_that_are_not_fields():
    stack, before = episodes(), episodes()
    source = lazy_stack([TensorDict({"obs": torch.zeros(2, n), "typo": torch.zeros(2)}, [2]) for n in (2, 3)])
    with pytest.raises((KeyError, ValueError), match="typo"):
        stack.update(source)
    for one, other in zip(stack.unbind(0), before.unbind(0), strict=True):
        assert torch.equal(one.obs, other.obs)


def test_operands_broadcast_over_the_stack_dim_of_instances():
    stack = lazy_stack([Episode(obs=torch.ones(3), info=TensorDict({}, [3]), batch_size=[3]) for _ in range(2)], 1)
    other = TensorDict({"obs": torch.full((3, 1), 2.0, dtype=torch.float64), "info": {}}, [3, 1])
    for result in (stack - other, stack.maximum(other), stack * other[0].squeeze(-1).expand(2)):
        assert type(result) is Episode and result.batch_size == (3, 2) and result.obs.dtype is torch.float64


def test_a_field_of_some_instances_of_a_nested_stack_is_split_off_and_not_overwritten():
    def nested() -> TensorDict:
        return TensorDict({"p": lazy_stack([Point(torch.ones(2), torch.zeros(1)), Point(torch.ones(2))])}, [2])

    part, rest = nested().split_keys([("p", "y")], default=None)
    assert part["p"][0].get("y").tolist() == [0] and [one.y for one in rest["p"]] == [None, None]
    td = nested()
    with pytest.raises(KeyError, match="already present"):
        td.rename_key_(("p", "x"), ("p", "y"), safe=True)
    assert td["p"][0].x.tolist() == [1, 1] and td["p"][0].y.tolist() == [0]


def test_the_state_of_a_stack_of_instances_of_other_shapes_is_that_of_its_elements():
    state = episodes(5).state_dict()
    assert {"__stack_dim", "0.obs", "1.obs", "1.info.r"} <= set(state)
    loaded = episodes()
    loaded.load_state_dict(state)
    for one, other in zip(loaded.unbind(0), episodes(5).unbind(0), strict=True):
        assert type(one) is Episode and torch.equal(one.obs, other.obs) and torch.equal(one.info["r"], other.info["r"])


def test_the_batch_size_of_a_stack_of_instances_is_fixed():
    stack = points()
    with pytest.raises(RuntimeError, match="new batch size"):
        stack.batch_size = [2]
    assert stack.batch_size == (2, 3)
