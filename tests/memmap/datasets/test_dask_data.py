"""Dask: datasets as sources and sinks of bags and arrays, on threads and on a local cluster."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tensordict_core import NonTensorData, TensorDict, lazy_stack
from tensordict_memmap import MemmapDataset

pytest.importorskip("dask.array", reason="Dask's arrays are not installed")
pytest.importorskip("dask.bag", reason="Dask's bags are not installed")

import dask
import dask.array
import dask.bag

from tensordict_memmap.data_engines.dask import read_array, read_bag, write_arrays, write_bag
from tensordict_memmap.dataset.parts import Parts


@pytest.fixture(params=["threads", pytest.param("cluster", marks=pytest.mark.long)], autouse=True)
def scheduler(request):
    if request.param == "threads":
        with dask.config.set(scheduler="threads", num_workers=2):
            yield
        return
    distributed = pytest.importorskip("distributed", reason="Dask's engine is not installed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        yield


def row(number):
    return TensorDict(
        {"x": torch.full((3,), float(number)), "deep": {"n": torch.tensor(number)}, "s": NonTensorData("w" * number)}
    )


@pytest.fixture
def dataset(tmp_path):
    with MemmapDataset.create(tmp_path / "data", row(0), ragged=["s"]) as made:
        made.extend(lazy_stack([row(number) for number in range(25)]))
    return MemmapDataset.open(tmp_path / "data")


def test_rows_are_a_bag(dataset):
    bag = read_bag(dataset, partition_rows=7)
    assert bag.npartitions == 4
    assert bag.map(lambda one: (int(one["deep", "n"]), one["s"])).compute() == [(n, "w" * n) for n in range(25)]
    assert read_bag(dataset.path).count().compute() == 25


def test_a_bag_is_written_in_one_commit(dataset, tmp_path):
    odd = read_bag(dataset, partition_rows=4).filter(lambda one: int(one["deep", "n"]) % 2 == 1)
    written = write_bag(odd, tmp_path / "odd", like=row(0), ragged=["s"])
    assert written["deep", "n"].tolist() == list(range(1, 25, 2)) and written["s"] == ["w" * n for n in range(1, 25, 2)]
    again = write_bag(odd, tmp_path / "odd", append=True)
    assert len(again) == 24 and again[-1]["s"] == "w" * 23
    assert sorted(os.listdir(tmp_path)) == ["data", "odd"]


def test_a_bag_of_tensors_needs_no_example(tmp_path):
    bag = dask.bag.from_sequence(range(10), npartitions=3).map(lambda n: TensorDict({"n": torch.tensor(n)}))
    assert write_bag(bag, tmp_path / "numbers")["n"].tolist() == list(range(10))


def test_a_column_is_an_array(dataset):
    array = read_array(dataset, "x", chunk_rows=10)
    assert array.shape == (25, 3) and array.chunks[0] == (10, 10, 5) and array.dtype == np.float32
    assert array.sum().compute() == 900 and array[3:20:5, 1].compute().tolist() == [3, 8, 13, 18]
    assert read_array(dataset, ("deep", "n")).max().compute() == 24
    with pytest.raises(ValueError, match="column 's' is ragged"):
        read_array(dataset, "s")
    with pytest.raises(KeyError, match="no column 'y'"):
        read_array(dataset, "y")


def test_arrays_are_written_in_one_commit(dataset, tmp_path):
    array = read_array(dataset, "x", chunk_rows=10)
    written = write_arrays({"double": array * 2, "deep.sum": array.sum(1)}, tmp_path / "arrays")
    assert (written["double"] == dataset[:]["x"] * 2).all() and (written["deep", "sum"] == dataset[:]["x"].sum(1)).all()
    assert len(write_arrays({"double": array, "deep.sum": array[:, 0]}, tmp_path / "arrays", append=True)) == 50
    with pytest.raises(ValueError, match="have the same number, which is known"):
        write_arrays({"a": array, "b": array[:3]}, tmp_path / "other")
    with pytest.raises(ValueError, match=r"columns are \['x'\] where the dataset has"):
        write_arrays({"x": array}, tmp_path / "arrays", append=True)
    with pytest.raises(ValueError, match="have the same number, which is known"):
        write_arrays({"a": array[array[:, 0] > 3]}, tmp_path / "other")


def test_a_computation_that_fails_writes_nothing(dataset, tmp_path):
    def fails(one):
        if int(one["deep", "n"]) == 20:
            raise ZeroDivisionError("at row 20")
        return one

    bag = read_bag(dataset, partition_rows=5).map(fails)
    with pytest.raises(ZeroDivisionError, match="at row 20"):
        write_bag(bag, tmp_path / "new", like=row(0), ragged=["s"])
    with pytest.raises(ZeroDivisionError):
        write_bag(bag, dataset.path, append=True)
    deadline = time.monotonic() + 20
    while os.listdir(tmp_path) != ["data"]:  # a task that is still at work may make the folder again, and removes it
        assert time.monotonic() < deadline, os.listdir(tmp_path)
        time.sleep(0.001)
    assert dataset.refresh() == 25


def test_an_existing_folder_and_a_url_are_refused(dataset, tmp_path):
    bag = read_bag(dataset)
    with pytest.raises(FileExistsError, match="append=True"):
        write_bag(bag, dataset.path)
    with pytest.raises(FileNotFoundError):
        write_bag(bag, tmp_path / "absent", append=True)
    with pytest.raises(ValueError, match="is remote"):
        write_bag(bag, "memory://bag")


def test_remote_rows_are_a_bag(dataset):
    pytest.importorskip("fsspec", reason="URLs need fsspec")
    url = dataset.path.parent / "uploaded"
    with MemmapDataset.open(dataset.path, "r+") as writer:
        writer.upload(f"memory://{url}")
    with dask.config.set(scheduler="threads"):
        remote = MemmapDataset.open(f"memory://{url}")
        assert read_bag(remote, partition_rows=10).map(lambda one: one["s"]).compute() == dataset["s"]
        assert read_array(remote, "x").sum().compute() == 900


def test_a_part_that_is_created_while_all_are_removed_does_not_stay(tmp_path, monkeypatch):
    parts, first = Parts(tmp_path / "new", like=row(0), ragged=["s"]), lazy_stack([row(0), row(1)])
    parts.begin()
    create = MemmapDataset.create

    def create_late(*args, **kwargs):
        parts.remove()
        return create(*args, **kwargs)

    monkeypatch.setattr(MemmapDataset, "create", create_late)
    with pytest.raises(FileNotFoundError, match="another task failed"):
        parts.write([first])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_part_whose_rows_are_added_while_all_are_removed_does_not_stay(fails, tmp_path, monkeypatch):
    parts, first = Parts(tmp_path / "new", like=row(0), ragged=["s"]), lazy_stack([row(0), row(1)])
    parts.begin()
    close = MemmapDataset.close

    def close_late(dataset):
        close(dataset)
        parts.remove()
        Path(parts.folder).mkdir()  # as a commit does that was at work
        if fails:
            raise OSError("the commit failed")

    monkeypatch.setattr(MemmapDataset, "close", close_late)
    with contextlib.suppress(OSError):
        parts.write([first])
    assert os.listdir(tmp_path) == []
