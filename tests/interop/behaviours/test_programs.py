"""Behaviours that the tests of clients rely on: locks of parts, whole elements of lazy stacks, phrases of messages."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from side_by_side import OURS, THEIRS, assert_same, catchable, outcome

Call = Callable[[Any], Any]


def td(library: Any) -> Any:
    return library.TensorDict({"a": torch.arange(12.0).view(4, 3), "n": {"b": torch.zeros(4)}}, [4])


def rows(library: Any) -> Any:
    return library.TensorDict({"a": torch.zeros(4, 3, 2)}, [4, 3])


def with_new_key(part: Any) -> Any:
    return part.set("new", torch.ones(part.batch_size))


@pytest.mark.parametrize("place", ["memmap_", "share_memory_"])
@pytest.mark.parametrize("index", [slice(1, 3), 0, [0, 1]], ids=["slice", "row", "list"])
def test_parts_of_mapped_and_shared_tensordicts_are_locked_as_in_the_reference(place: str, index: Any) -> None:
    assert_same(lambda library: getattr(td(library), place)()[index].is_locked)


def test_a_slice_of_a_mapped_tensordict_takes_new_keys() -> None:
    assert_same(lambda library: sorted(with_new_key(td(library).memmap_()[1:3]).keys()))


def test_a_consolidated_tensordict_is_unlocked_after_its_pickle() -> None:
    assert_same(lambda library: pickle.loads(pickle.dumps(td(library).consolidate())).is_locked)


def ragged(library: Any, more: int, value: float) -> Any:
    elements = [library.TensorDict({"o": torch.full((3, i + more, 2), value)}, []) for i in range(3)]
    return library.lazy_stack(elements)


@pytest.mark.parametrize("pad", [None, 0])
@pytest.mark.parametrize("more", [1, 2])
def test_where_takes_whole_elements_of_a_lazy_stack_whose_shapes_differ(pad: int | None, more: int) -> None:
    mask = torch.tensor([True, False, True])

    def chosen(library: Any) -> Any:
        mine = ragged(library, more, 0.0)
        result = mine.where(mask, ragged(library, 3 - more, 1.0), out=mine, pad=pad)
        return [element["o"] for element in result.tensordicts]

    assert_same(chosen)


def test_values_that_an_instance_has_not_set_are_left_out_of_an_update_in_place() -> None:
    def updated(library: Any) -> Any:
        @library.tensorclass
        class Sample:
            label: str
            data: torch.Tensor

        shared = library.TensorDict({"s": Sample("0", torch.zeros(2), batch_size=[2])}, [2]).select(("s", "data"))
        shared.update_(library.TensorDict({"s": Sample("1", torch.ones(2), batch_size=[2])}, [2]))
        return shared["s"].data if isinstance(shared["s"].data, torch.Tensor) else shared["s"].get("data")

    assert_same(updated)


def test_cpu_with_an_index_is_a_device_to_move_from() -> None:
    assert_same(lambda library: str(td(library).to("cpu:0").to("cpu").device))


@pytest.mark.parametrize("kind", ["dense", "lazy"])
def test_the_empty_tuple_is_not_a_key(kind: str) -> None:
    assert_same(lambda library: () in (td(library) if kind == "dense" else library.lazy_stack([td(library)] * 2)))


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_the_stack_dim_of_values(dim: int) -> None:
    assert_same(lambda library: library.NonTensorStack("a", "b", stack_dim=dim))


PHRASES: list[tuple[Call, str]] = [
    (lambda library: td(library).set("z", torch.zeros(5)), "batch dimension mismatch"),
    (lambda library: td(library)["z"], 'key "z" not found in TensorDict with keys'),
    (lambda library: td(library).lock_().set("z", torch.zeros(4)), "Cannot modify locked TensorDict"),
    (lambda library: setattr(td(library), "batch_size", [5]), "incompatible with the batch-size"),
    (lambda library: td(library).view(7), "invalid shape"),
]


@pytest.mark.parametrize(("call", "phrase"), PHRASES, ids=[phrase for _, phrase in PHRASES])
def test_messages_contain_the_phrases_that_programs_match(call: Call, phrase: str) -> None:
    theirs, ours = outcome(call, THEIRS), outcome(call, OURS)
    assert isinstance(theirs, Exception)
    assert isinstance(ours, catchable(theirs))
    assert re.search(re.escape(phrase), str(theirs))
    assert re.search(re.escape(phrase), str(ours))
