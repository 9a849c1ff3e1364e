"""Containers of other packages: over arrays in memory, and over a store whose reads copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, set_printoptions
from tensordict_core.containers.custom import CustomContainer
from tensordict_core.testing import ContainerSuite


class Store(CustomContainer):
    """A group of arrays behind a counter of the elements that are read and written, as a file or a server is."""

    _reads_copy = True

    def __init__(self, td: Any, counts: dict[str, int] | None = None) -> None:
        self._start(td._meta)
        self.counts: dict[str, int] = {"read": 0, "written": 0} if counts is None else counts
        self.arrays: dict[str, Any] = {}
        for key, value in td._items():
            self._set(key, value)

    def _keys(self):
        return self.arrays.keys()

    def _get(self, key):
        array = self.arrays.get(key)
        return self._read(key, None) if isinstance(array, np.ndarray) else array

    def _peek(self, key):
        array = self.arrays.get(key)
        if not isinstance(array, np.ndarray):
            return array
        return torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, device="meta")

    def _read(self, key, index):
        part = torch.from_numpy(self.arrays[key])[... if index is None else index.idx].clone()
        self.counts["read"] += part.numel()
        return part

    def _write(self, key, index, value):
        self.counts["written"] += value.numel()
        torch.from_numpy(self.arrays[key])[... if index is None else index.idx] = value

    def _set(self, key, value):
        if isinstance(value, torch.Tensor):
            self.arrays[key] = value.detach().clone().numpy()
        elif value._is_opaque:
            self.arrays[key] = value
        else:
            self.arrays[key] = Store(value, self.counts)

    def _del(self, key):
        del self.arrays[key]


class TestStore(ContainerSuite):
    copies_shallowly = False
    shares_slices = False

    def wrap(self, td):
        return Store(td)


def store(**options: Any) -> Store:
    td = TensorDict({"x": torch.arange(40.0).reshape(10, 4), "n": {"y": torch.zeros(10, 2)}, "s": "text"}, [10])
    return Store(td, **options)


@pytest.mark.parametrize("index", [slice(3, 5), torch.tensor([3, 4]), (slice(3, 5), ...)], ids=str)
def test_an_index_reads_its_rows_only(index):
    td = store()
    assert torch.equal(td[index]["x"], torch.arange(40.0).reshape(10, 4)[3:5])
    assert td.counts == {"read": 2 * 4 + 2 * 2, "written": 0}


def test_one_entry_is_read_at_an_index():
    td = store()
    assert td.get_at("x", 3).tolist() == [12.0, 13.0, 14.0, 15.0]
    assert td.get_at(("n", "y"), slice(0, 2)).shape == (2, 2)
    assert td.get_at("absent", 0) is None
    assert td.counts["read"] == 4 + 4


@pytest.mark.parametrize("index", [slice(3, 5), torch.tensor([3, 4])], ids=str)
def test_a_view_reads_and_writes_its_rows_only(index):
    td = store()
    view = td.view_at(index)
    assert view["x"].shape == (2, 4) and td.counts["read"] == 8
    assert view[1]["x"][0] == 16 and td.counts["read"] == 8 + 4
    view.set_("x", torch.full((2, 4), -1.0))
    view[0] = 0
    assert td.counts["written"] == 8 + 4 + 2
    assert td["x"][2:6, 0].tolist() == [8.0, 0.0, -1.0, 20.0]


def test_an_element_of_a_lazy_stack_reads_and_writes_its_rows_only():
    one, other = store(), store()
    stack = LazyStackedTensorDict(one, other)
    assert stack[0, 3:5]["x"].shape == (2, 4)
    stack[1, 2] = TensorDict({"x": torch.ones(4)})
    assert one.counts == {"read": 12, "written": 0} and other.counts == {"read": 0, "written": 4}


def test_shapes_dtypes_and_keys_are_known_without_a_read():
    td = store()
    view = td.view_at(torch.tensor([0, 2]))
    stack = LazyStackedTensorDict(td, store(counts=td.counts))
    assert td.get_item_shape("x") == (10, 4) and td.get_item_shape(("n", "y")) == (10, 2)
    assert view.get_item_shape("x") == (2, 4) and stack.get_item_shape(("n", "y")) == (2, 10, 2)
    assert td.entry_class("x") is torch.Tensor and td._peek("x").dtype is torch.float32
    assert "x" in td and ("n", "y") in td and ("n", "z") not in td and not td.is_empty()
    assert list(td.keys(True, True)) == ["x", ("n", "y")] and len(td) == 10
    assert "shape=torch.Size([10, 4]), device=cpu" in repr(td) and "shape=torch.Size([2, 4])" in repr(view)
    with set_printoptions(compact=True):
        assert "x: f32[4]" in repr(td) and "n: Store{y: f32[2]}" in repr(td) and "x: f32[4]" in repr(view)
    assert td.counts["read"] == 0


def test_writes_in_place_reach_the_store_and_read_nothing():
    td = store()
    td.set_("x", torch.ones(10, 4))
    td.update_({"x": torch.ones(10, 1), "n": {"y": torch.ones(10, 2)}, "s": "other"})
    td[3:5] = TensorDict({"x": torch.full((2, 4), 2.0)}, [2])
    td[torch.tensor([0, 9])] = 3
    td.set_at_(("n", "y"), 4.0, 1)
    td.update_at_({"x": torch.zeros(4)}, 2)
    assert td.counts["read"] == 0
    assert td["x"][:, 0].tolist() == [3.0, 1.0, 0.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 3.0]
    assert td["n", "y"][:3, 0].tolist() == [3.0, 4.0, 1.0] and td["s"] == "other"


def test_operations_in_place_reach_the_store():
    td = store()
    td.add_(1).mul_(2)
    td.apply_(lambda leaf: leaf.add_(1))
    assert td["x"][0].tolist() == [3.0, 5.0, 7.0, 9.0] and (td["n", "y"] == 3).all()
    td.zero_()
    assert not td["x"].any()


@pytest.mark.parametrize(
    "wrong",
    [{"n": {"y": torch.ones(10, 5)}}, {"z": torch.ones(10)}, {"n": torch.ones(10)}],
    ids=["shape", "missing", "kind"],
)
def test_a_write_that_does_not_fit_writes_nothing(wrong):
    td, value = store(), {"x": torch.ones(10, 4), **wrong}
    with pytest.raises((RuntimeError, KeyError)):
        td.update_(value)
    rows = TensorDict({"x": torch.ones(2, 4), "n": {"y": torch.ones(2, 5)}}, [2])
    with pytest.raises(RuntimeError):
        td[3:5] = rows
    assert td.counts == {"read": 0, "written": 0}


def test_a_new_key_of_an_indexed_write_has_zeros_elsewhere():
    td = store()
    td[2:4] = TensorDict({"new": torch.ones(2, 3)}, [2])
    assert td["new"].shape == (10, 3) and td["new"].sum() == 6


def test_a_container_without_write_raises_an_error_that_names_the_method():
    class ReadOnly(Store):
        _write = CustomContainer._write

    with pytest.raises(NotImplementedError, match="_write"):
        ReadOnly(TensorDict({"x": torch.zeros(2)}, [2])).set_("x", torch.ones(2))
