"""`map` on memory-mapped tensordicts: workers open the files by name and write results into them."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_core import TensorDict

ROWS = 10_000


class Pickling(Executor):
    """Runs each call at once, on arguments that were pickled as for another machine, and counts their bytes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        data = pickle.dumps((fn, args, kwargs))
        self.sizes.append(len(data))
        fn, args, kwargs = pickle.loads(data)
        future: Future[Any] = Future()
        future.set_result(pickle.loads(pickle.dumps(fn(*args, **kwargs))))
        return future


def double(td: TensorDict) -> TensorDict:
    return TensorDict({"y": td["x"] * 2}, td.batch_size)


def write(td: TensorDict) -> None:
    td["x"].zero_()


@pytest.fixture
def saved(tmp_path: Path) -> TensorDict:
    return TensorDict({"x": torch.rand(ROWS, 8)}, [ROWS]).memmap(tmp_path / "rows")


def test_a_chunk_is_sent_as_a_reference(saved: TensorDict) -> None:
    pool = Pickling()
    result = saved.map(double, num_chunks=4, pool=pool)
    assert result["y"].equal(saved["x"] * 2)
    assert len(pool.sizes) == 4 and max(pool.sizes) < 10_000, "a chunk has 80,000 bytes"
    plain = Pickling()
    saved.clone().map(double, num_chunks=4, pool=plain)
    assert min(plain.sizes) > 80_000 - 1


def test_spawned_workers_write_into_the_files(saved: TensorDict, tmp_path: Path) -> None:
    saved.map(write, num_chunks=2, num_workers=2, mp_start_method="fork")
    assert not TensorDict.load_memmap(tmp_path / "rows")["x"].any()


def test_out_on_disk_takes_the_results(saved: TensorDict, tmp_path: Path) -> None:
    out = TensorDict({"y": torch.zeros(ROWS, 8)}, [ROWS]).memmap(tmp_path / "out")
    saved.map(double, num_chunks=4, num_workers=2, mp_start_method="fork", out=out)
    assert TensorDict.load_memmap(tmp_path / "out")["y"].equal(saved["x"] * 2)
    pool = Pickling()
    out["y"].zero_()
    saved.map(double, num_chunks=4, pool=pool, out=out)
    assert out["y"].equal(saved["x"] * 2)
