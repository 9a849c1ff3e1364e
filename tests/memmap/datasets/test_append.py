"""Appending to any save: what can grow does, and what differs is refused before anything is written."""

from __future__ import annotations

import os
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap import (
    MemmapDataset,
    append_memmap,
    load_memmap,
    save,
)
from tensordict_memmap.storage.manifest import NAME


def test_rows_are_appended_to_any_save(path, rows, alike):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 5))
    append_memmap(path, rows(5, 5))
    append_memmap(path, rows(5, 6))
    assert alike(load_memmap(path), rows(0, 6)) and alike(load_memmap(path, subpath="deep"), rows(0, 6)["deep"])
    assert (path / "id.memmap").stat().st_size == 48  # no longer than its rows


def test_rows_go_to_their_keys_wherever_nested_ones_stand(path):
    def rows(start):
        number = torch.arange(start, start + 2)
        return TensorDict({"b": {"d": {"e": number}, "c": -number}, "a": number * 10}, [2])

    save(rows(0), path)
    append_memmap(path, TensorDict({"a": torch.tensor([20, 30]), **rows(2).exclude("a")}, [2]))
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.append(rows(4)[0])
    back = load_memmap(path)
    assert back["a"].tolist() == [0, 10, 20, 30, 40]
    assert back["b", "c"].tolist() == [0, -1, -2, -3, -4] and back["b", "d", "e"].tolist() == [0, 1, 2, 3, 4]


def test_an_entry_may_be_called_as_the_content_of_a_tensorclass_is(path):
    data = TensorDict({"_tensordict": NonTensorData("x", batch_size=[2]), "a": torch.zeros(2)}, [2])
    save(data, path)
    append_memmap(path, data)
    assert load_memmap(path).batch_size == (4,) and load_memmap(path)["_tensordict"] == "x"


@pytest.mark.parametrize("value", [float("nan"), np.arange(3), (1, [2]), [1, [2]]], ids=str)
def test_equal_values_may_be_appended_and_written_over(path, value):
    rows = TensorDict({"v": NonTensorData(value, batch_size=[3]), "a": torch.zeros(3)}, [3])
    save(rows, path)
    equal = pickle.loads(pickle.dumps(value))
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.extend(TensorDict({"v": NonTensorData(equal, batch_size=[2]), "a": torch.ones(2)}, [2]))
        dataset.extend(TensorDict({"v": NonTensorStack(*map(NonTensorData, (equal, equal))), "a": torch.ones(2)}, [2]))
        for _ in range(2):
            dataset[1:3] = TensorDict({"v": NonTensorData(equal, batch_size=[2]), "a": torch.ones(2)}, [2])
        dataset.extend(rows)
    back = load_memmap(path)
    assert back.get("v").batch_size == back.batch_size == (10,) and repr(back["v"]) == repr(value)
    assert back["a"].tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 0, 0]


def test_rows_of_a_dataset_share_their_non_tensor_values(path):
    rows = TensorDict({"v": NonTensorData("x", batch_size=[3]), "a": torch.zeros(3)}, [3])
    save(rows, path)
    with MemmapDataset.open(path, "r+") as dataset:
        with pytest.raises(RuntimeError, match="share one value"):
            dataset[:2] = TensorDict({"v": NonTensorData("y", batch_size=[2]), "a": torch.ones(2)}, [2])
        dataset.extend(rows)
        assert dataset["a"].tolist() == [0] * 6 and dataset["v"] == "x"


def test_rows_are_appended_to_a_save_without_rows(path, rows, alike):
    save(rows(0, 0), path)
    append_memmap(path, rows(0, 4))
    assert alike(load_memmap(path), rows(0, 4))


def test_a_dataset_is_appended_to_itself(path, rows):
    save(rows(0, 3), path)
    append_memmap(path, load_memmap(path))
    assert load_memmap(path)["id"].tolist() == [0, 1, 2, 0, 1, 2]


def test_tied_leaves_part_ways_when_they_grow(path):
    tied = torch.arange(3)
    save(TensorDict({"a": tied, "b": tied}, [3]), path)
    append_memmap(path, TensorDict({"a": torch.tensor([7]), "b": torch.tensor([8])}, [1]))
    found = load_memmap(path)
    assert found["a"].tolist() == [0, 1, 2, 7] and found["b"].tolist() == [0, 1, 2, 8]


def test_hard_links_of_a_file_keep_their_content(path, tmp_path, rows, alike):
    save(rows(0, 3), path)
    os.link(path / "id.memmap", tmp_path / "snapshot")
    append_memmap(path, rows(3, 4))
    assert (tmp_path / "snapshot").stat().st_size == 24
    assert alike(load_memmap(path), rows(0, 4))


def test_another_save_replaces_a_dataset_whole(path, rows):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 5))
    save(TensorDict({"z": torch.ones(2)}, [2]), path)
    assert sorted(found.name for found in path.iterdir()) == ["meta.json", NAME, "z.memmap"]
    assert list(load_memmap(path).keys()) == ["z"]


WRONG = {
    "keys": (lambda td: td.exclude("id"), "'deep', 'image', 'split'"),
    "more keys": (lambda td: td.set("more", torch.zeros(2)), "more"),
    "nested keys": (lambda td: td.set(("deep", "more"), torch.zeros(2)), "'deep'"),
    "dtype": (lambda td: td.set("id", td["id"].float()), "'id' is torch.float32"),
    "shape": (lambda td: td.set("image", torch.zeros(2, 4, 6).byte()), r"'image' is torch.uint8 \[2, 4, 6\]"),
    "value": (lambda td: td.set("split", "test"), "'split' is 'test'"),
    "values": (lambda td: td.set("split", NonTensorStack("train", "test")), "'split'"),
    "no tensor": (lambda td: td.set("id", "x"), "'id'"),
    "no node": (lambda td: td.set("deep", torch.zeros(2)), "'deep'"),
    "no rows": (lambda td: td[0], r"batch size \[\] where saved rows have \[n\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_rows_that_differ_are_refused_before_anything_is_written(path, name, rows, alike):
    save(rows(0, 3), path)
    change, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        append_memmap(path, change(rows(3, 5)))
    assert alike(load_memmap(path), rows(0, 3))


def test_equal_values_of_all_rows_are_one_value(path, rows):
    save(rows(0, 3), path)
    append_memmap(path, rows(3, 5).set("split", NonTensorStack("train", "train")))
    assert load_memmap(path)["split"] == "train" and load_memmap(path).get("split").batch_size == (5,)


@pytest.mark.filterwarnings("ignore:key 'f' is pickled")
def test_pickled_values_are_compared_where_that_is_allowed(path):
    held = TensorDict({"a": torch.arange(2), "f": NonTensorData(Fraction(1, 2), [2])}, [2])
    save(held, path)
    with pytest.raises(ValueError, match="allow_pickle=True"):
        append_memmap(path, held)
    append_memmap(path, held, allow_pickle=True)
    assert load_memmap(path, allow_pickle=True).batch_size == (4,)


CANNOT = {
    "no batch": (TensorDict({"a": torch.zeros(2)}, []), r"batch size \[\]"),
    "lazy": (LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(2)}, []) for _ in range(2))), "lazy"),
    "values": (TensorDict({"a": torch.zeros(2), "s": NonTensorStack("x", "y")}, [2]), "'s'"),
    "nested tensor": (
        TensorDict({"a": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)}, [2]),
        "'a'",
    ),
}


@pytest.mark.parametrize("name", CANNOT)
def test_saves_that_cannot_grow_are_refused_with_a_reason(path, name, rows):
    saved, message = CANNOT[name]
    save(saved, path)
    with pytest.raises(ValueError, match=message):
        append_memmap(path, rows(0, 1))


def test_appending_needs_a_save_and_rows(path, tmp_path, rows):
    with pytest.raises(ValueError, match="is not a saved folder"):
        append_memmap(path, rows(0, 1))
    (tmp_path / "bare").mkdir()
    with pytest.raises(FileNotFoundError, match=r"meta\.json"):
        append_memmap(tmp_path / "bare", rows(0, 1))
    save(rows(0, 1), path)
    with pytest.raises(TypeError, match="int"):
        append_memmap(path, 3)
    with pytest.raises(ValueError, match="open the whole"):
        append_memmap(path / "deep", rows(0, 1)["deep"])


def test_a_leaf_whose_file_is_missing_or_short_does_not_grow(path, rows):
    save(rows(0, 3), path)
    os.truncate(path / "id.memmap", 20)
    with pytest.raises(ValueError, match=r"20 bytes .* 'id' take 24"):
        append_memmap(path, rows(3, 4))
    os.unlink(path / "id.memmap")
    with pytest.raises(FileNotFoundError):
        append_memmap(path, rows(3, 4))


def test_rows_added_to_a_save_with_checksums_drop_those_that_they_make_wrong(path, rows, alike):
    save(rows(0, 3), path, checksum=True)
    append_memmap(path, rows(3, 5))
    assert alike(load_memmap(path), rows(0, 5))
    with pytest.raises(ValueError, match="has no checksum of"):
        load_memmap(path, verify="full")
