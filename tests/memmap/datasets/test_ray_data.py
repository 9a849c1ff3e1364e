"""Ray: datasets as sources and sinks of Ray Data, and `map` on Ray's tasks, on a local cluster."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from tensordict_core import TensorDict, lazy_stack
from tensordict_memmap import MemmapDataset

pytest.importorskip("ray.data", reason="Ray is not installed")

import ray
import ray.data

from tensordict_memmap.data_engines.ray import MemmapDatasink, MemmapDatasource, RayExecutor

# Ray starts processes and takes ten seconds to do so; its clients leave sockets to the garbage collector.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:ray"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def row(number):
    return TensorDict(
        {
            "x": torch.full((3, 2), float(number)),
            "deep": {"n": torch.tensor(number)},
            "s": "w" * number,
            "t": torch.arange(number % 3),
        }
    )


@pytest.fixture
def dataset(tmp_path):
    with MemmapDataset.create(tmp_path / "data", row(0), ragged=["s", "t"]) as made:
        made.extend(lazy_stack([row(number) for number in range(30)]))
    return MemmapDataset.open(tmp_path / "data")


def test_rows_are_a_source(dataset):
    rows = ray.data.read_datasource(MemmapDatasource(dataset), override_num_blocks=3)
    assert rows.count() == 30 and set(rows.columns()) == {"x", "deep.n", "s", "t"}
    found = sorted(rows.take_all(), key=lambda one: one["deep.n"])
    assert [one["deep.n"] for one in found] == list(range(30)) and found[7]["s"] == "w" * 7
    assert found[5]["x"].shape == (3, 2) and (found[5]["x"] == 5).all() and found[5]["t"].tolist() == [0, 1]
    assert ray.data.read_datasource(MemmapDatasource(dataset.path)).sum("deep.n") == sum(range(30))


def test_results_are_a_sink(dataset, tmp_path):
    rows = ray.data.read_datasource(MemmapDatasource(dataset), override_num_blocks=3)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    rows.write_datasink(MemmapDatasink(tmp_path / "copy", like=row(0), ragged=["s", "t"]))
    copy = MemmapDataset.open(tmp_path / "copy")
    assert copy["deep", "n"].tolist() == list(range(30)) and copy["s"] == dataset["s"]
    assert torch.equal(copy["t"].values(), dataset["t"].values()) and (copy[:]["x"] == dataset[:]["x"]).all()
    rows.write_datasink(MemmapDatasink(tmp_path / "copy", append=True))
    assert copy.refresh() == 60
    assert sorted(os.listdir(tmp_path)) == ["copy", "data"]


def test_columns_are_taken_from_the_first_rows(tmp_path):
    rows = ray.data.range(100).map_batches(lambda batch: {"double": batch["id"] * 2, "s": batch["id"].astype(str)})
    rows.write_datasink(MemmapDatasink(tmp_path / "numbers"))
    written = MemmapDataset.open(tmp_path / "numbers")
    assert sorted(written["double"].tolist()) == list(range(0, 200, 2)) and set(written["s"]) == set(
        map(str, range(100))
    )


def test_a_job_that_fails_writes_nothing(tmp_path):
    def fails(batch):
        if 70 in batch["id"]:
            raise ZeroDivisionError("at row 70")
        return batch

    with pytest.raises(Exception, match="at row 70"):
        ray.data.range(100, override_num_blocks=5).map_batches(fails).write_datasink(MemmapDatasink(tmp_path / "new"))
    assert os.listdir(tmp_path) == []


def test_map_runs_on_the_cluster():
    td = TensorDict({"a": torch.arange(10), "b": {"c": torch.rand(10, 2)}, "s": "text"}, [10])
    result = td.map(lambda part: part * 2, chunksize=3, pool=RayExecutor())
    assert result["a"].equal(td["a"] * 2) and result["b", "c"].equal(td["b", "c"] * 2) and result["s"] == "text"
    out = TensorDict({"n": torch.zeros(10, dtype=torch.int64)}, [10])
    td.map(
        lambda part: TensorDict({"n": part["a"] + 1}, part.shape), chunksize=4, out=out, pool=RayExecutor(num_cpus=1)
    )
    assert out["n"].equal(torch.arange(1, 11))


def test_an_error_on_the_cluster_is_raised_here():
    def fail(part):
        raise ValueError("five")

    with pytest.raises(ValueError, match="five"):
        TensorDict({"a": torch.arange(4)}, [4]).map(fail, chunksize=2, pool=RayExecutor())


def test_a_mapped_tensordict_is_sent_as_a_reference(dataset):
    sums = dataset.tensordict.select("x").map_iter(lambda part: part["x"].sum(0), chunksize=10, pool=RayExecutor())
    assert np.isclose(sum(float(one.sum()) for one in sums), sum(range(30)) * 6)
