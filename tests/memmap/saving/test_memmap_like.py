"""`memmap_like`: files of zeros for a structure, or the folder that an earlier call created for it."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict


def test_memmap_like_makes_room_for_expanded_entries_without_copying(tmp_path):
    row = TensorDict({"image": torch.ones(3, 8, 8), "label": 1, "name": "n"})
    data = row.expand(100_000).memmap_like(tmp_path)
    assert data.batch_size == (100_000,) and data["image"].shape == (100_000, 3, 8, 8)
    assert (tmp_path / "image.memmap").stat().st_size == 100_000 * 3 * 8 * 8 * 4
    assert (tmp_path / "image.memmap").stat().st_blocks * 512 < 1 << 20
    assert data["name"][0] == "n" and data[7]["name"] == "n"
    data[7] = row
    again = TensorDict.load_memmap(tmp_path)
    assert again[7]["image"].sum() == 192 and again[8]["image"].sum() == 0


def test_memmap_like_gives_each_entry_its_own_file_even_where_the_source_shares_memory(tmp_path):
    zero = torch.zeros(4)
    data = TensorDict({"now": zero, "next": zero}, [4]).memmap_like(tmp_path)
    data["now"][0] = 1
    assert data["next"].sum() == 0


def _like(**more):
    return TensorDict({"a": torch.ones(2, 3), "n": {"b": torch.ones(2)}, "s": "text", **more}, [2])


def test_memmap_like_finds_the_buffer_that_an_earlier_call_created(tmp_path):
    _like().memmap_like(tmp_path)["a"].fill_(3)
    again = _like(s="other").memmap_like(tmp_path)
    assert again["a"].sum() == 18 and again["n", "b"].sum() == 0
    assert again.is_locked and again.is_memmap() and TensorDict.load_memmap(tmp_path)["s"] == "other"
    again["n", "b"][1] = 5
    assert TensorDict.load_memmap(tmp_path)["n", "b"].tolist() == [0, 5]


@pytest.mark.filterwarnings("ignore:.*is pickled")
def test_memmap_like_finds_a_buffer_with_values_that_were_pickled(tmp_path):
    td = TensorDict({"a": torch.ones(2), "f": NonTensorData(print, [2])}, [2])
    td.memmap(tmp_path)
    again = td.memmap_like(tmp_path, reserve=True)
    assert again["a"].sum() == 2 and again["f"] is print


def test_memmap_like_finds_the_buffers_of_a_ragged_stack(tmp_path):
    stack = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n), "s": "t"}) for n in (1, 2)))
    stack.memmap(tmp_path)
    again = stack.memmap_like(tmp_path, return_early=True).result(timeout=60)
    assert again[1]["a"].tolist() == [1, 1] and again[0]["s"] == "t" and again.is_locked


@pytest.mark.parametrize(
    "like",
    [
        _like(c=torch.ones(2)),
        _like(a=torch.ones(2, 2)),
        _like(a=torch.ones(2, 3, dtype=torch.float64)),
    ],
    ids=["other keys", "other shape", "other dtype"],
)
def test_memmap_like_replaces_a_save_of_another_structure(tmp_path, like):
    _like().memmap(tmp_path)
    made = like.memmap_like(tmp_path)
    assert all(leaf.sum() == 0 for leaf in made.values(True, True))
