"""Values that are not tensors, position by position: chosen by a mask and compared, against plain Python lists."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest
import torch

from tensordict_core import MetaData, NonTensorData, NonTensorStack, TensorDict, lazy_stack

SHAPES = [(), (3,), (1,), (0,), (2, 3), (2, 1, 2)]


def positions(size):
    return list(itertools.product(*map(range, size)))


def values(node):
    """The value at each position, read one by one."""
    return [node[at].data if at else node.data for at in positions(node.batch_size)]


def stack_of(size, word):
    flat = [f"{word}{at}" for at in positions(size)]
    if not size:
        return NonTensorData(flat[0])
    nested = flat
    for n in reversed(size[1:]):
        nested = [nested[i : i + n] for i in range(0, len(nested), n)]
    return NonTensorStack.from_list(nested, batch_size=size)


def mask_of(size, seed):
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)) < 0.5


def one(size, word):
    return NonTensorData(word, batch_size=size)


KINDS = {"one": one, "stack": stack_of}


@pytest.mark.parametrize(("size", "dims"), [(size, dims) for size in SHAPES for dims in range(len(size) + 1)])
@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", [*KINDS, "value"])
def test_where_chooses_as_a_list_comprehension_does(size, left, right, dims):
    mine = KINDS[left](size, "a")
    other = "b" if right == "value" else KINDS[right](size, "b")
    theirs = ["b"] * len(positions(size)) if right == "value" else values(other)
    for seed in range(3):
        mask = mask_of(size[:dims], seed)
        expected = [a if mask[at[:dims]] else b for at, a, b in zip(positions(size), values(mine), theirs, strict=True)]
        assert values(mine.where(mask, other)) == expected
        if right != "value":  # torch takes none but tensors and numbers
            assert values(torch.where(mask, mine, other)) == expected
        assert mine.where(mask, other, pad=0).batch_size == size
        if right == "value":
            assert values(mine.masked_fill(~mask, other)) == expected
        out = stack_of(size, "o")
        assert mine.where(mask, other, out=out) is out and values(out) == expected
    assert values(mine) == values(KINDS[left](size, "a"))


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        *((size, kind) for size in [(3,), (2, 3)] for kind in ["dense", "nested", "lazy", "ragged"]),
        ((2, 3), "lazy at 1"),
    ],
)
def test_where_of_tensordicts_chooses_among_their_values(size, kind):
    def make(word, number):
        td = TensorDict({"s": stack_of(size, word), "t": torch.full(size, number)}, size)
        if kind == "nested":
            return TensorDict({"n": td}, size)
        if kind.startswith("lazy"):
            return lazy_stack(list(td.unbind(int(kind == "lazy at 1"))), int(kind == "lazy at 1"))
        if kind == "ragged":
            parts = [part.set("r", torch.full((*size[1:], i + 1), number)) for i, part in enumerate(td.unbind(0))]
            return lazy_stack(parts, 0)
        return td

    def read(td):
        return values(td.get(("n", "s") if kind == "nested" else "s"))

    for seed in range(3):
        mask, a, b = mask_of(size, seed), make("a", 1), make("b", 2)
        flags = [bool(mask[at]) for at in positions(size)]
        expected = [x if flag else y for flag, x, y in zip(flags, read(a), read(b), strict=True)]
        for result in (a.where(mask, b), torch.where(mask, a, b), a.where(mask, b, out=make("o", 3))):
            assert read(result) == expected
        t = ("n", "t") if kind == "nested" else "t"
        assert a.where(mask, b)[t].reshape(-1).tolist() == [1 if flag else 2 for flag in flags]


def test_where_with_a_number_leaves_non_tensor_values():
    td = TensorDict({"s": ["a", "b"], "t": torch.ones(2)}, [2])
    assert td.where(torch.tensor([True, False]), 0)["s"] == ["a", "b"]
    assert td.masked_fill(torch.tensor([True, False]), 0)["s"] == ["a", "b"]


def test_a_side_that_lacks_a_value_takes_that_of_the_other():
    td, less = TensorDict({"s": "a", "t": torch.ones(2)}, [2]), TensorDict({"t": torch.zeros(2)}, [2])
    mask = torch.tensor([True, False])
    assert td.where(mask, less)["s"] == less.where(mask, td, pad=0)["s"] == "a"


def test_where_returns_lists_of_its_own():
    left = NonTensorStack("a", "b")
    result = left.where(torch.tensor([True, True]), "c")
    result[0] = NonTensorData("z")
    assert left.tolist() == ["a", "b"] and result.tolist() == ["z", "b"]


def test_one_value_stays_one_where_one_side_is_chosen_whole():
    a, b = MetaData("a", batch_size=[2]), MetaData("b", batch_size=[2])
    assert type(a.where(torch.tensor(False), b)) is type(a.where(torch.tensor([True, True]), b)) is MetaData


def test_where_refuses_invalid_conditions_and_operands():
    a, stack = NonTensorData("a", batch_size=[3]), NonTensorStack("x", "y", "z")
    mask = torch.tensor([True, False, True])
    with pytest.raises(TypeError, match="bool tensor"):
        a.where([True, False, True], "b")
    with pytest.raises(TypeError, match="bool tensor"):
        a.masked_fill(torch.ones(3), "b")
    with pytest.raises(TypeError, match="plain value, got Tensor"):
        a.where(mask, torch.zeros(3))
    with pytest.raises(TypeError, match="plain value, got TensorDict"):
        a.where(mask, TensorDict({}, [3]))
    with pytest.raises(RuntimeError, match="a mask lines up"):
        a.where(torch.tensor([True, False]), "b")
    with pytest.raises(RuntimeError, match="batch size"):
        a.where(mask, NonTensorStack("x", "y"))
    with pytest.raises(RuntimeError, match="batch size"):
        stack.where(mask, a, out=NonTensorStack("x", "y"))


def test_one_value_does_not_become_several_in_place():
    a, mask = NonTensorData("a", batch_size=[2]), torch.tensor([True, False])
    with pytest.raises(RuntimeError, match="one value for all positions"):
        a.where(mask, "b", out=a)
    with pytest.raises(RuntimeError, match="one value for all positions"):
        a.masked_fill_(mask, "b")
    assert a.data == "a" and a.masked_fill_(torch.tensor(True), "b").data == "b"
    assert NonTensorStack("x", "y").masked_fill_(mask, "b").tolist() == ["b", "y"]


ORDERS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
LOGIC = [operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("function", ORDERS + LOGIC, ids=lambda f: f.__name__)
def test_operators_compare_position_by_position(function):
    bools = function in LOGIC
    x, y = ([True, False, True], [True, True, False]) if bools else ([1, 5, 3], [4, 4, 3])
    expected = [function(a, b) for a, b in zip(x, y, strict=True)]
    for result in (
        function(NonTensorStack(*x), NonTensorStack(*y)),
        function(NonTensorStack(*x), NonTensorStack(*y).unsqueeze(0))[0],
    ):
        assert result.dtype is torch.bool and result.tolist() == expected
    assert function(NonTensorStack(*x), y[0]).tolist() == [function(a, y[0]) for a in x]
    assert function(y[0], NonTensorStack(*x)).tolist() == [function(y[0], a) for a in x]
    same = function(NonTensorData(x[0], batch_size=[2, 2]), NonTensorData(y[1], batch_size=[2, 2]))
    assert same.tolist() == [[function(x[0], y[1])] * 2] * 2


def test_operators_refuse_values_that_they_are_not_for():
    with pytest.raises(TypeError, match="no order of 1 and 'a'"):
        NonTensorData(1) < NonTensorData("a")  # noqa: B015  # for its error
    with pytest.raises(TypeError, match="combines bools, got 5"):
        NonTensorData(5) ^ NonTensorData(3)
    with pytest.raises(TypeError, match="plain value, got Tensor"):
        NonTensorStack(1, 2) < torch.zeros(2)  # noqa: B015  # for its error
    with pytest.raises(RuntimeError):
        NonTensorStack(1, 2) < NonTensorStack(1, 2, 3)  # noqa: B015  # for its error


def test_values_that_cannot_be_compared_are_different():
    class Odd:
        def __eq__(self, other):
            raise ValueError

        __hash__ = None

    odd = NonTensorData(Odd())
    assert odd != NonTensorData(Odd()) and bool(odd == odd)


@pytest.mark.parametrize("size", SHAPES, ids=str)
def test_one_value_becomes_one_for_each_position(size):
    data = NonTensorData("a", batch_size=size)
    stack = data.maybe_to_stack()
    assert stack.tolist() == data.tolist() and stack.batch_size == size and stack.maybe_to_stack() is stack
    assert isinstance(stack, NonTensorStack) == bool(size)


IN_PLACE = {
    "pad": lambda x: x.pad([1, 1], inplace=True),
    "reshape": lambda x: x.reshape((2, 2), inplace=True),
    "roll": lambda x: x.roll(1, 0, inplace=True),
    "repeat": lambda x: x.repeat(2, inplace=True),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=0, inplace=True),
    "gather": lambda x: x.gather(0, torch.tensor([3, 1]), inplace=True),
}
RESULTS = {
    "pad": [None, "a", "b", "c", "d", None],
    "reshape": [["a", "b"], ["c", "d"]],
    "roll": ["d", "a", "b", "c"],
    "repeat": ["a", "b", "c", "d"] * 2,
    "repeat_interleave": ["a", "a", "b", "b", "c", "c", "d", "d"],
    "gather": ["d", "b"],
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_stack_of_values_takes_the_result_of_an_operation_in_place(name):
    values = NonTensorStack("a", "b", "c", "d")
    assert IN_PLACE[name](values) is values and values.tolist() == RESULTS[name]
    assert values.batch_size == np.array(RESULTS[name], dtype=object).shape
    with pytest.raises(RuntimeError, match="locked"):
        IN_PLACE[name](NonTensorStack("a", "b", "c", "d").lock_())

    entry = NonTensorStack("a", "b", "c", "d")
    td = TensorDict({"s": entry, "a": torch.zeros(4)}, [4])
    assert IN_PLACE[name](td).get("s") is entry
    assert entry.tolist() == td["s"] == RESULTS[name] and entry.batch_size == td.batch_size


def test_one_value_takes_the_batch_size_of_an_operation_in_place():
    value = NonTensorData("a", batch_size=[4])
    assert value.repeat(2, inplace=True) is value and value.batch_size == (8,) and value.data == "a"
    assert value.reshape((2, 4), inplace=True).batch_size == (2, 4) and value.tolist() == [["a"] * 4] * 2


@pytest.mark.parametrize("make", [lambda: NonTensorData("x"), lambda: NonTensorStack("x", "x")])
def test_item_assignment_replaces_the_value_as_set_does(make):
    assigned, was_set = make(), make()
    assigned["data"] = "y"
    was_set.set("data", "y")
    assert assigned.tolist() == was_set.tolist() != make().tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.full(3, x),
        lambda x: np.array(["a", str(x)]),
        lambda x: torch.full((3,), x),
        lambda x: {"k": np.full(3, x)},
        lambda x: [torch.full((3,), x), "text"],
        lambda x: (1, {"n": [np.full(2, x)]}),
    ],
)
def test_arrays_and_containers_of_them_are_compared_by_their_elements(make):
    td, equal, other = (TensorDict({"v": NonTensorData(make(x), batch_size=[2])}, [2]) for x in (1, 1, 2))
    assert (td == equal).all() and not (td != equal).any() and not (td == other).any()
    assert type(torch.cat([td, equal]).get("v")) is NonTensorData
    assert type(torch.cat([td, other]).get("v")) is NonTensorStack
