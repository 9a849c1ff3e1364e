"""Views: an index of a persistent tensordict reads when it is used and writes into the file, wherever it is held."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("h5py", reason="h5py is an extra")
pytest.importorskip("zarr", reason="zarr is an extra")

from tensordict_core import LazyStackedTensorDict, SubTensorDict, TensorDict
from tensordict_store import PersistentTensorDict
from tensordict_store.hdf5.group import H5Array


def plain() -> TensorDict:
    return TensorDict({"x": torch.arange(1.0, 13).view(4, 3), "n": {"y": torch.arange(1, 5)}}, [4])


@pytest.fixture(params=["h5", "zarr"])
def stored(request: pytest.FixtureRequest, tmp_path) -> Any:
    return PersistentTensorDict.from_dict(plain(), tmp_path / "data", backend=request.param)


INDICES = [1, slice(1, 3), torch.tensor([3, 0]), torch.arange(4) % 2 == 0, (None, slice(1, 3)), ...]
CHANGES: dict[str, Callable[[Any], Any]] = {
    "zero_": lambda td: td.zero_(),
    "fill_": lambda td: td.fill_("x", 7.0),
    "fill_nested": lambda td: td.fill_("n", 7),
    "mul_": lambda td: td.mul_(2),
    "clamp": lambda td: td.clamp_(max=3) if hasattr(td, "clamp_") else td.mul_(3),
    "apply_": lambda td: td.apply_(lambda leaf: leaf + 1),
    "set_": lambda td: td.set_("x", torch.zeros_like(td["x"])),
    "setitem": lambda td: td.__setitem__("x", torch.zeros_like(td["x"])),
    "nested": lambda td: td["n"].zero_(),
    "update_": lambda td: td.update_({"n": {"y": torch.zeros_like(td["n", "y"])}}),
    "masked_fill_": lambda td: td.masked_fill_(torch.ones(td.shape, dtype=torch.bool), 0),
    "new": lambda td: td.set("new", torch.ones(td.shape)),
}


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_view_reaches_the_file(stored, index, change):
    expected = plain()
    change(expected.view_at(index))
    view = stored[index]
    assert isinstance(view, SubTensorDict)
    change(view)
    assert (stored.to_tensordict() == expected).all()
    assert (view.to_tensordict() == expected[index]).all()


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "nested": lambda td: TensorDict({"held": td, "z": torch.ones(4)}, [4]),
    "lazy": lambda td: LazyStackedTensorDict(td, td.clone(), stack_dim=0),
    "lazy of views": lambda td: LazyStackedTensorDict(td[0], td[1], stack_dim=0),
    "row of nested": lambda td: TensorDict({"held": td}, [4])[1],
    "row of lazy": lambda td: LazyStackedTensorDict(td, td.clone(), stack_dim=0)[:, 1],
    "view of nested": lambda td: TensorDict({"held": td}, [4]).view_at(1),
    "view of lazy": lambda td: LazyStackedTensorDict(td, td.clone(), stack_dim=0).view_at(0),
    "view of a view": lambda td: td[1:][0],
}


@pytest.mark.parametrize("name", ["zero_", "mul_", "apply_", "masked_fill_", "update_"])
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_change_of_any_view_reaches_the_file(stored, hold, name):
    change = CHANGES[name] if name != "update_" else lambda td: td.update_(td.to_tensordict().mul_(5))
    reference = plain()
    change(hold(reference))
    change(hold(stored))
    assert (stored.to_tensordict() == reference).all()
    assert not (reference == plain()).all()


def test_a_view_reads_only_the_used_rows(stored):
    view = stored[1]
    stored.set_("x", torch.zeros(4, 3))
    assert view["x"].tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(IndexError, match="out of bounds"):
        stored[4]


def test_an_operation_reads_each_entry_once(tmp_path, monkeypatch):
    td = plain().to_h5(tmp_path / "data.h5")
    reads: Counter[str] = Counter()
    read = H5Array.read

    def count(self, selection):
        reads[self.dataset.name] += 1
        return read(self, selection)

    monkeypatch.setattr(H5Array, "read", count)
    for operation in (lambda: td + 1, lambda: td[1:3] * 2, lambda: td.zero_(), lambda: td.apply(torch.neg)):
        reads.clear()
        operation()
        assert reads == {"/x": 1, "/n/y": 1}
    td.close()


@pytest.mark.parametrize("hold", [lambda td: td, lambda td: td[:], HOLDERS["nested"]])
def test_writes_to_batches_of_a_data_loader_reach_the_file(stored, hold):
    held = hold(stored)
    for batch in DataLoader(held, batch_size=3, collate_fn=lambda rows: rows):
        batch.get("held", batch).fill_("x", 7.0)
    assert stored["x"].eq(7).all()


def test_copies_of_rows_are_plain(stored):
    for rows in (
        pickle.loads(pickle.dumps(stored.__getitems__([2, 1]))),
        pickle.loads(pickle.dumps(stored[[2, 1]])),
        stored[[2, 1]].clone(),
        torch.index_select(stored, 0, torch.tensor([2, 1])),
    ):
        assert type(rows) is TensorDict and type(rows.get("n")) is TensorDict
        assert rows["n", "y"].tolist() == [3, 2]
    chosen = stored.masked_select(torch.tensor([True, False, False, True])).zero_()
    assert chosen["x"].sum() == 0 and (stored == plain()).all()


def test_another_device_is_where_reads_go(stored):
    moved = stored.to("meta")
    assert type(moved) is PersistentTensorDict and moved["x"].device.type == "meta" == moved.device.type
    assert stored.device is None and stored.to("cpu").to("cpu").device == torch.device("cpu")
    stored.to("cpu").set_("x", torch.zeros(4, 3))
    assert stored["x"].sum() == 0
    assert type(stored.to(torch.float64)) is TensorDict
    assert stored.lock_().to("cpu").is_locked


@pytest.mark.parametrize("method", ["memmap_", "share_memory_"])
@pytest.mark.parametrize("hold", [lambda td: td, lambda td: td[0], HOLDERS["nested"], HOLDERS["lazy"]])
def test_entries_do_not_move_to_other_memory_in_place(stored, hold, method):
    with pytest.raises(RuntimeError, match=rf"Cannot call {method} on a|a sub-tensordict values"):
        getattr(hold(stored), method)()
    assert not stored.is_locked and (stored == plain()).all()


@pytest.mark.parametrize("form", ["h5", "zarr"])
def test_an_entry_without_dimensions_is_read_and_written(form, tmp_path):
    td = getattr(TensorDict({"x": torch.tensor(3.0), "y": torch.zeros(2)}), f"to_{form}")(tmp_path / "one")
    assert td["x"] == 3 and td.to_tensordict()["x"] == 3
    td.set_("x", torch.tensor(5.0))
    assert td["x"] == 5 and td["y"].tolist() == [0, 0]
    td.zero_()
    td.close()
    again = getattr(TensorDict, f"from_{form}")(tmp_path / "one")
    assert again["x"] == 0 and again["x"].shape == ()
    again.close()


def test_popped_entries_can_still_be_read(stored):
    taken = stored.pop("n")
    assert taken["y"].tolist() == [1, 2, 3, 4] and list(stored.keys()) == ["x"]
    holder = TensorDict({"held": stored}, [4])
    assert holder.pop("held").zero_() is not stored and stored["x"].sum() == 78
    assert stored.popitem()[1].shape == (4, 3) and stored.is_empty()
    assert stored.detach_() is stored


def test_a_mapped_copy_is_locked(stored, tmp_path):
    pytest.importorskip("tensordict_memmap", reason="tensordict-memmap is not installed")
    assert stored.memmap(tmp_path / "new").is_locked and stored.memmap().is_locked


def test_an_index_of_an_entry_may_select_in_its_own_dimensions(stored):
    assert stored.get_at("x", (..., 0)).tolist() == [1.0, 4.0, 7.0, 10.0]
    stored.set_at_("x", 0.0, (..., slice(1, 3)))
    stored.set_at_(("n", "y"), 9, 2)
    assert stored["x"].tolist() == [[1.0, 0, 0], [4.0, 0, 0], [7.0, 0, 0], [10.0, 0, 0]]
    assert stored["n", "y"].tolist() == [1, 2, 9, 4]
    assert stored.set_at_("x", 5.0, (1, 2)).get_at("x", (1, 2)) == 5


def test_a_dictionary_takes_the_batch_size_of_its_shapes(tmp_path):
    td = PersistentTensorDict.from_dict({"a": torch.zeros(3, 2), "b": {"c": torch.zeros(3)}}, tmp_path / "data.h5")
    assert td.batch_size == td["b"].batch_size == (3,) and td.mode == "r+"
    td.close()


@pytest.mark.parametrize("kind", [RuntimeError, OSError, ValueError, io.UnsupportedOperation])
def test_a_write_to_a_file_opened_for_reading_is_an_io_error(stored, tmp_path, kind):
    stored.close()
    backend = "h5" if (tmp_path / "data").is_file() else "zarr"
    td = PersistentTensorDict(filename=tmp_path / "data", backend=backend)
    assert td.mode == "r"
    with pytest.raises(kind, match="open for reading only"):
        td[0].zero_()
    with pytest.raises(kind, match="open for reading only"):
        td["new"] = torch.zeros(4)
    td.close()


@pytest.mark.parametrize("backend", ["h5", "zarr"])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_a_view_is_stored_in_another_file(stored, index, backend, tmp_path):
    expected = plain()[index]
    for source in (stored[index], plain().view_at(index)):
        copy = PersistentTensorDict.from_dict(source, tmp_path / "copy", backend=backend)
        assert copy.batch_size == expected.batch_size
        assert (copy.to_tensordict() == expected).all()
        assert copy["x"].shape == expected["x"].shape
        copy.close()
    with_view = PersistentTensorDict(
        filename=tmp_path / "holder", batch_size=expected.batch_size, backend=backend, mode="w"
    )
    with_view["part"] = stored[index]
    assert (with_view["part"].to_tensordict() == expected).all()
    assert with_view["part", "n", "y"].shape == expected["n", "y"].shape


PIECES: dict[str, Callable[[Any], Any]] = {
    "split": lambda td: td.split(3),
    "split_sizes": lambda td: td.split([1, 3]),
    "chunk": lambda td: td.chunk(2),
    "tensor_split": lambda td: td.tensor_split(3),
    "tensor_split_out_of_order": lambda td: td.tensor_split([3, 1]),
    "narrow": lambda td: [td.narrow(0, 1, 2)],
    "torch.split": lambda td: torch.split(td, 2),
}


@pytest.mark.parametrize("cut", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("of", [lambda td: td, lambda td: td[:]], ids=["file", "view"])
def test_pieces_are_copies(stored, cut, of):
    expected = plain()
    for piece, part in zip(cut(of(stored)), cut(of(expected)), strict=True):
        assert type(piece) is TensorDict
        assert (piece == part).all()
        piece["x"] = piece["x"] * 0 - 1
        piece["new"] = torch.ones(piece.shape)
        piece["n"].zero_()
    assert (stored.to_tensordict() == expected).all()
    locked = [piece.is_locked for piece in cut(expected.lock_())]
    assert [piece.is_locked for piece in cut(of(stored.lock_()))] == locked


def test_entries_that_are_separated_stay_in_the_file(stored):
    for td in (stored, stored.lock_()):
        assert td.separates("x", ("n", "y")).keys(True, True) == {"x", ("n", "y")}
        assert td.keys(True, True) == {"x", ("n", "y")}
    with pytest.raises(KeyError, match="typo"):
        stored.separates("typo")


@pytest.mark.parametrize("index", [0, -1, ..., torch.tensor(1)], ids=str)
def test_a_row_of_selected_rows(stored, index):
    rows = torch.tensor([3, 0, 1])
    expected = plain()
    assert (stored[rows][index].to_tensordict() == expected[rows][index]).all()
    assert stored[rows][index]["n", "y"].equal(expected[rows][index]["n", "y"])
    stored[rows][index] = expected[2]
    assert stored[rows][index]["n", "y"].eq(3).all()
