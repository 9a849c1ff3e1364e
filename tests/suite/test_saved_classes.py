"""Saved tensorclasses load back as their class: nested, in lazy stacks and under registered names."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from tensordict_class import tensorclass
from tensordict_core import TensorDict, lazy_stack
from tensordict_core.extension import register_type
from tensordict_memmap import MemoryMappedTensor


@tensorclass
class Point:
    place: torch.Tensor
    label: str
    inner: Point | None = None


@tensorclass
class Renamed:
    x: torch.Tensor


register_type(Renamed, name="tests:Renamed")


def point(n, **fields):
    return Point(place=torch.full((2, 3), n), label=f"p{n}", batch_size=[2], **fields)


def test_a_tensorclass_loads_back_nested_and_as_the_root(tmp_path):
    whole = point(1, inner=point(2))
    TensorDict({"p": whole}, [2]).memmap(tmp_path / "td")
    whole.memmap(tmp_path / "p")
    for again in (
        TensorDict.load_memmap(tmp_path / "td")["p"],
        TensorDict.load_memmap(tmp_path / "p"),
        Point.load(tmp_path / "p"),
    ):
        assert type(again) is Point and type(again.inner) is Point
        assert again.label == "p1" and again.inner.label == "p2" and again.batch_size == (2,)
        assert isinstance(again.inner.place, MemoryMappedTensor) and again.inner.place.tolist() == [[2] * 3] * 2


def test_a_tensorclass_is_mapped_in_place(tmp_path):
    td = TensorDict({"p": point(1, inner=point(2))}, [2])
    kept = td["p"]
    td.memmap_(tmp_path)
    assert td.is_memmap() and kept.is_memmap() and isinstance(kept.inner.place, MemoryMappedTensor)
    kept.inner.place.fill_(9)
    assert TensorDict.load_memmap(tmp_path)["p"].inner.place.sum() == 54


def test_twins_without_a_folder_keep_their_class():
    shared = point(1).memmap()
    assert type(shared) is Point and shared.is_memmap() and shared.label == "p1"
    empty = point(1).memmap_like()
    assert type(empty) is Point and empty.place.sum() == 0 and empty.label == "p1"


def test_lazy_stacks_of_a_tensorclass_load_back(tmp_path):
    stack = lazy_stack([point(1), point(2)])
    TensorDict({"s": stack}).memmap(tmp_path)
    again = TensorDict.load_memmap(tmp_path)["s"]
    assert type(again) is type(stack) and again.batch_size == (2, 2)
    assert [one.label for one in again.unbind(0)] == ["p1", "p2"]


def test_a_registered_name_finds_a_class_that_moved(tmp_path):
    TensorDict({"r": Renamed(x=torch.ones(2), batch_size=[])}).save(tmp_path)
    (tmp_path / "r" / "meta.json").write_text(json.dumps({"_type": "<class 'its.old.Place'>"}))
    assert type(TensorDict.load_memmap(tmp_path)["r"]) is Renamed


def test_the_caller_can_give_an_unregistered_class(tmp_path):
    point(1).save(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({"_type": "<class 'its.old.Place'>"}))
    assert type(Point.load_memmap(tmp_path)) is Point
    with pytest.warns(UserWarning, match=r"its\.old\.Place"):
        assert type(TensorDict.load_memmap(tmp_path)) is TensorDict


def test_a_tensorclass_loads_from_a_plain_save_of_its_fields(tmp_path):
    TensorDict({"place": torch.zeros(2, 3), "label": "plain", "inner": None}, [2]).save(tmp_path)
    again = Point.load_memmap(tmp_path)
    assert type(again) is Point and again.label == "plain" and again.batch_size == (2,)


def test_fields_beside_the_type_in_older_files_are_read(tmp_path):
    point(1).save(tmp_path / "p")

    shutil.rmtree(tmp_path / "p" / "_tensordict" / "label")
    content = json.loads((tmp_path / "p" / "_tensordict" / "meta.json").read_text())
    del content["label"]
    (tmp_path / "p" / "_tensordict" / "meta.json").write_text(json.dumps(content))
    about = json.loads((tmp_path / "p" / "meta.json").read_text())
    (tmp_path / "p" / "meta.json").write_text(json.dumps(about | {"label": "older"}))
    assert TensorDict.load_memmap(tmp_path / "p").label == "older"


def test_new_entries_of_a_mapped_tensorclass_are_its_fields(tmp_path):
    one = TensorDict({"p": point(1)}, [2]).memmap(tmp_path)["p"]
    with pytest.raises(RuntimeError, match="exists"):
        one.make_memmap("place", torch.Size([2]))
