"""`map` on an engine of its own: an executor of Dask runs the chunks, in threads here or in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tensordict_core import TensorDict

distributed = pytest.importorskip("distributed", reason="Dask's engine is not installed")


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.long)], ids=["threads", "process"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": request.param, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def executor(client: Any) -> Iterator[Any]:
    with client.get_executor() as executor:
        yield executor


def rows(n: int = 10) -> TensorDict:
    return TensorDict({"a": torch.arange(n), "b": {"c": torch.rand(n, 2)}, "s": "text", "v": list("0123456789")}, [n])


def test_chunks_run_on_the_cluster_and_come_back_in_order(executor: Any) -> None:
    td = rows()
    result = td.map(lambda part: part * 2, chunksize=3, pool=executor)
    assert result["a"].equal(td["a"] * 2) and result["b", "c"].equal(td["b", "c"] * 2)
    assert result["v"] == td["v"] and result["s"] == "text"


def test_results_are_taken_one_by_one(executor: Any) -> None:
    sums = [part["a"].sum().item() for part in rows().map_iter(lambda part: part, chunksize=5, pool=executor)]
    assert sums == [10, 35]


def test_results_are_written_into_out(executor: Any) -> None:
    out = TensorDict({"n": torch.zeros(10, dtype=torch.int64)}, [10])
    rows().map(lambda part: TensorDict({"n": part["a"] + 1}, part.shape), chunksize=4, out=out, pool=executor)
    assert out["n"].equal(torch.arange(1, 11))


def test_an_error_on_the_cluster_names_its_chunk(executor: Any) -> None:
    def fail(part: TensorDict) -> TensorDict:
        if 5 in part["a"]:
            raise ValueError("five")
        return part

    with pytest.raises(ValueError, match="five") as caught:
        rows().map(fail, chunksize=2, pool=executor)
    assert any("while mapping" in note for note in caught.value.__notes__)


def test_the_executor_stays_open(executor: Any) -> None:
    rows().map(lambda part: part, chunksize=5, pool=executor)
    assert executor.submit(lambda: 3).result() == 3
