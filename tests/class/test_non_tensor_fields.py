"""Non-tensor fields: the rules of docs/tensorclasses.md for their values in operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_class import TensorClass
from tensordict_core import MetaData, NonTensorData, NonTensorStack, TensorDict, lazy_stack, pad_sequence


class Sample(TensorClass):
    x: torch.Tensor
    label: Any = None
    extra: Any = None


class Holder(TensorClass):
    sample: Sample


def one(label: Any = "cat", n: int = 3) -> Sample:
    return Sample(torch.arange(float(n)), label, batch_size=[n])


def rows(labels: str = "abc") -> Sample:
    return one(list(labels), len(labels))


@pytest.mark.parametrize(
    "operation",
    [
        lambda s: s + 1,
        lambda s: 1 - s,
        lambda s: s.sin(),
        lambda s: s.apply(lambda leaf: leaf * 2),
        lambda s: s.to(torch.float64),
        lambda s: s.clone(),
        lambda s: s.detach(),
        lambda s: torch.zeros_like(s),
        lambda s: torch.vmap(lambda one: one + 1)(s),
    ],
)
def test_operations_on_leaves_leave_values_alone(operation):
    assert operation(one()).label == "cat" and operation(rows()).label == ["a", "b", "c"]


def test_results_take_the_values_of_the_first_operand():
    assert (one("cat") + one("dog")).label == "cat" and (one("dog") * one("cat")).label == "dog"


def test_one_value_applies_to_every_position_of_any_shape():
    sample = one("cat", 4)
    shaped = (sample[0], sample[1:], sample.reshape(2, 2), sample.repeat(2))
    for result in (*shaped, sample.sum(dim=0), *sample.unbind(0), *sample.split(3)):
        assert result.label == "cat"
    assert sample.unsqueeze(0).label == [["cat"] * 4] and sample.expand(3, 4).label == [["cat"] * 4] * 3


def test_values_of_positions_move_with_the_positions():
    sample = rows("abcd")
    assert sample[2].label == "c" and sample[1:3].label == ["b", "c"]
    assert sample[torch.tensor([3, 0])].label == ["d", "a"] and sample[sample.x > 1].label == ["c", "d"]
    assert sample.reshape(2, 2).label == [["a", "b"], ["c", "d"]]
    assert sample.gather(0, torch.tensor([2, 0])).label == ["c", "a"]
    assert sample.repeat(2).label == list("abcdabcd") and sample.flip(0).label == list("dcba")
    assert [part.label for part in sample.split(2)] == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("combine", [torch.stack, torch.cat, lambda both: lazy_stack(both)])
def test_values_are_stored_by_position_whether_they_are_equal_or_not(combine):
    same = combine([one("cat"), one("cat")])
    assert same.label == ("cat" if combine is torch.cat else [["cat"] * 3] * 2)
    both = combine([one("cat"), one("dog")])
    flat = both.label if both.ndim == 1 else [label for row in both.label for label in row]
    assert flat == ["cat"] * 3 + ["dog"] * 3
    assert both[0].label in ("cat", ["cat"] * 3)


def test_a_condition_chooses_between_values():
    chosen = torch.where(torch.tensor([True, False, True]), one("cat"), one("dog"))
    assert chosen.label == ["cat", "dog", "cat"]
    assert torch.where(torch.tensor([True, False, True]), one("cat"), one("cat")).label == "cat"


def test_a_row_is_written_with_its_value():
    sample = one("cat")
    sample[0] = one("cat")[1]
    assert sample.label == "cat"
    sample[0] = one("dog")[1]
    assert sample.label == ["dog", "cat", "cat"]
    sample[1:] = TensorDict({"x": torch.zeros(2), "label": "cow"}, [2])
    assert sample.label == ["dog", "cow", "cow"]


def test_padding_has_no_value():
    assert pad_sequence([one("a", 2), one("a", 3)]).label == [["a", "a", None], ["a", "a", "a"]]


def test_metadata_belong_to_the_whole_instance():
    labs = [one(MetaData("lab")) for _ in range(2)]
    assert torch.stack(labs).label == torch.stack(labs)[0].label == "lab"


def test_lists_of_the_length_of_the_batch_are_a_value_for_each_row():
    assert rows()[1].label == "b" and one(NonTensorStack("a", "b", "c"))[1].label == "b"
    with pytest.raises(RuntimeError, match="not of the shape"):
        one(["a", "b"])
    assert one(NonTensorData(["a", "b"], batch_size=[3]))[1].label == ["a", "b"]
    for whole in ({"a": 1}, (1, 2), len, b"raw"):
        assert one(whole)[0].label == whole


def test_a_field_that_is_set_in_some_only_cannot_be_stacked_densely():
    other = one().replace(extra=torch.zeros(3))
    for combine in (torch.stack, torch.cat):
        with pytest.raises((RuntimeError, KeyError), match="extra"):
            combine([one(), other])
    lazy = lazy_stack([one(), other])
    assert lazy.extra is None and lazy[0].extra is None and lazy[1].extra is not None


def test_lazy_stacks_of_instances_of_several_shapes_hold_nested_instances():
    lazy = lazy_stack([Holder(Sample(torch.zeros(n), label)) for n, label in ((2, "a"), (3, "b"))])
    assert type(lazy.sample) is Sample and lazy.sample.label == ["a", "b"]
    assert (lazy + 1)[1].sample.x.tolist() == [1.0, 1.0, 1.0] and lazy.sample[0].x.shape == (2,)
    with pytest.raises(RuntimeError, match="do not stack"):
        _ = lazy.sample.x


def test_vmap_maps_over_lazy_stacks_of_instances():
    lazy = lazy_stack([one("a"), one("b")])
    mapped = torch.vmap(lambda sample: sample * 2)(lazy)
    assert type(mapped) is Sample and mapped.x.tolist() == [[0.0, 2.0, 4.0]] * 2
    assert torch.vmap(lambda sample: sample.x.sum())(lazy).tolist() == [3.0, 3.0]


def test_a_nested_value_that_is_none_is_an_entry():
    class Tree(TensorClass):
        x: torch.Tensor
        z: TensorDict

    def make():
        return Tree(x=torch.zeros(2), z=TensorDict({"m": None, "s": "text"}, [2]), batch_size=[2])

    tree = make()
    assert tree.setdefault(("z", "m"), "other") is None and tree.setdefault(("z", "new"), "other") == "other"
    assert tree.pop(("z", "m")) is None and make().pop(("z", "m"), "other") is None
    assert ("z", "m") not in tree and tree.pop(("z", "m"), "other") == "other"
    with pytest.raises(KeyError, match="not found"):
        tree.pop(("z", "m"))
