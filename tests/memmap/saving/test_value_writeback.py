"""Values that are not tensors, changed in place in a saved tensordict: the files change too, wholly or not at all."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap import load_memmap, memmap, memmap_


def saved(path, **options):
    td = TensorDict({"one": NonTensorData(0, batch_size=[2]), "n": {"s": ["a", "b"]}, "t": torch.zeros(2)}, [2])
    return memmap_(td, path, **options)


CHANGES = {
    "one": (lambda td: td.update_({"one": NonTensorData(1, batch_size=[2])}), 1, ["a", "b"]),
    "pickled": (lambda td: td.update_({"one": NonTensorData({1, 2}, batch_size=[2])}), {1, 2}, ["a", "b"]),
    "stack": (lambda td: td.update_({"n": {"s": NonTensorStack("p", "q")}}), 0, ["p", "q"]),
    "set_": (lambda td: td.set_(("n", "s"), NonTensorStack("p", "q")), 0, ["p", "q"]),
    "set_at_": (lambda td: td.set_at_(("n", "s"), NonTensorData("z"), 1), 0, ["a", "z"]),
    "becomes a stack": (lambda td: td.update_({"one": NonTensorStack(3, 4)}), [3, 4], ["a", "b"]),
    "a row": (lambda td: td.__setitem__(0, TensorDict({"one": NonTensorData(5), "n": {"s": "z"}})), [5, 0], ["z", "b"]),
}


@pytest.mark.filterwarnings("ignore:key .* is pickled")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("loaded", [False, True], ids=["saved", "loaded"])
def test_in_place_changes_reach_the_files(tmp_path, change, loaded):
    td = saved(tmp_path / "td")
    if loaded:
        td = load_memmap(tmp_path / "td")
    function, one, stack = CHANGES[change]
    for _ in range(2):
        function(td)
        again = load_memmap(tmp_path / "td", allow_pickle=True)
        assert again["one"] == td["one"] == one and again["n", "s"] == td["n", "s"] == stack
        load_memmap(tmp_path / "td", allow_pickle=True, verify="size")


@pytest.mark.parametrize("options", [{"mode": "r"}, {"mode": "c"}], ids=str)
def test_where_files_are_mapped_to_be_read_values_stay_in_this_process(tmp_path, options):
    saved(tmp_path / "td")
    td = load_memmap(tmp_path / "td", **options)
    td.update_({"one": NonTensorData(1, batch_size=[2])})
    assert td["one"] == 1 and load_memmap(tmp_path / "td")["one"] == 0


def test_checksums_stay_right(tmp_path):
    td = saved(tmp_path / "td", checksum=True)
    td.update_({"one": NonTensorData(1, batch_size=[2])})
    assert td["one"] == 1 and load_memmap(tmp_path / "td", verify="full")["one"] == 0


def test_files_that_replaced_those_of_the_save_are_not_changed(tmp_path):
    td = saved(tmp_path / "td")
    memmap(TensorDict({"one": NonTensorData("other", batch_size=[2])}, [2]), tmp_path / "td")
    with pytest.raises(RuntimeError, match="replaced or removed since"):
        td.update_({"t": torch.ones(2), "one": NonTensorData(1, batch_size=[2])})
    assert td["one"] == 0 and not td["t"].any() and load_memmap(tmp_path / "td")["one"] == "other"


def test_a_value_that_cannot_be_saved_is_not_taken(tmp_path):
    td = saved(tmp_path / "td")
    with pytest.raises(TypeError, match="pickled"):
        td.update_({"one": NonTensorData(lambda: 0, batch_size=[2])})
    assert td["one"] == load_memmap(tmp_path / "td")["one"] == 0


def test_copies_are_not_tied_to_the_files(tmp_path):
    td = saved(tmp_path / "td")
    for copy in (td.clone(), td[:1], td + 1):
        copy.unlock_()
        copy.update_({"n": {"s": NonTensorData("z")}})
    assert load_memmap(tmp_path / "td")["n", "s"] == ["a", "b"]


@pytest.mark.parametrize("name", ["one.safetensors", "one.tdz"])
def test_values_in_one_file_refuse_changes_that_it_would_not_see(tmp_path, name):
    td = TensorDict({"a": torch.zeros(3), "n": {"s": "old"}})
    mapped = td.memmap(tmp_path / name)
    opened = TensorDict.load_memmap(tmp_path / name, mode="r+")
    for one in (mapped, opened):
        with pytest.raises(RuntimeError, match="one file"):
            one.update_({"a": torch.ones(3), "n": {"s": "new"}})
        assert one["n", "s"] == "old" and not one["a"].any()
    copy = opened.clone().update_({"n": {"s": "new"}})
    private = TensorDict.load_memmap(tmp_path / name).update_({"a": torch.ones(3), "n": {"s": "new"}})
    assert copy["n", "s"] == private["n", "s"] == "new"
    assert TensorDict.load_memmap(tmp_path / name)["n", "s"] == "old"


@pytest.mark.parametrize("rows", [slice(0, 2), torch.tensor([0, 1])], ids=["slice", "rows"])
def test_rows_with_a_value_that_is_refused_change_no_tensor(tmp_path, rows):
    td = TensorDict({"a": torch.zeros(4), "s": "old"}, [4])
    mapped = td.memmap(tmp_path / "one.safetensors")
    with pytest.raises(RuntimeError, match="one file"):
        mapped[rows] = TensorDict({"a": torch.ones(2), "s": "new"}, [2])
    assert mapped["s"] == "old" and not mapped["a"].any()
