"""Indices: what each store reads and writes at an index is what a tensordict in memory has there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tensordict_core import TensorDict


def sample() -> TensorDict:
    nested = {"y": torch.arange(10), "flag": torch.arange(10) % 2 == 0, "dotted.key": torch.ones(10)}
    return TensorDict({"x": torch.arange(40.0).view(10, 4), "n": nested, "name": "run"}, [10], names=["time"])


class Store(NamedTuple):
    """How a tensordict is stored, and how the stored one is opened again."""

    put: Callable[[TensorDict], Any]
    again: Callable[[Any], Any]


def in_a_file(form: str, path: Path, options: dict[str, Any]) -> Store:
    def again(stored: Any) -> Any:
        stored.close()
        return getattr(TensorDict, f"from_{form}")(path)  # files that nobody writes are read in another way

    return Store(lambda td: getattr(td, f"to_{form}")(path, **options), again)


def on_a_server(port: int, scripts: bool) -> Store:
    from tensordict_store import TensorDictStore

    def put(td: TensorDict) -> Any:
        stored = td.to_store(port=port)
        stored._tree.connection._scripts = scripts
        return stored

    return Store(put, lambda stored: TensorDictStore.from_store(td_id=stored.td_id, port=port))


STORES = [
    *[("h5py", "h5", options) for options in ({}, {"chunks": 3}, {"compression": "gzip"}, {"chunks": (4, 2)})],
    *[("zarr", "zarr", options) for options in ({}, {"chunks": 3}, {"chunks": 2, "shards": 4}, {"chunks": (4, 2)})],
    ("redis", "scripts", True),
    ("redis", "no scripts", False),
]

INDICES = {
    "int": 3,
    "negative": -1,
    "slice": slice(3, 5),
    "step": slice(1, 9, 3),
    "empty": slice(4, 4),
    "rows": torch.tensor([7, 0, 7, -1]),
    "list": [9, 2],
    "mask": torch.arange(10) % 3 == 0,
    "none": None,
    "new": (None, slice(2, 4)),
    "bool": True,
}


@pytest.fixture(params=STORES, ids=lambda store: f"{store[1]} {store[2] or ''}".strip())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    library, form, options = request.param
    pytest.importorskip(library, reason=f"{library} is an extra")
    if library == "redis":
        return on_a_server(request.getfixturevalue("redis_port"), options)
    return in_a_file(form, tmp_path / "data", options)


@pytest.mark.parametrize("name", INDICES)
def test_an_index_reads_and_writes_its_rows(store, name):
    index, plain = INDICES[name], sample()
    stored = store.put(plain)
    assert (stored[index] == plain[index]).all() and stored[index].batch_size == plain[index].batch_size
    new = plain[index].exclude("name").apply(lambda leaf: leaf.clone().fill_(1))
    stored[index] = new
    plain[index] = new
    assert (stored == plain).all()
    again = store.again(stored)
    assert (again[index] == plain[index]).all() and (again == plain).all()
    assert list(again.keys()) == ["x", "n", "name"] and again.names == ["time"] and again["name"] == "run"
    again.close()


def test_indices_of_several_dimensions_select_as_in_memory(store):
    plain = TensorDict({"x": torch.arange(60).view(3, 4, 5)}, [3, 4])
    stored = store.put(plain)
    mask = torch.arange(12).view(3, 4) % 5 == 0
    several = (torch.tensor([0, 2]), torch.tensor([3, 1]))
    for index in [(slice(None), 2), (1, slice(1, 3)), mask, several, (..., [3, 0])]:
        assert (stored[index] == plain[index]).all()
        stored[index] = plain[index] * 2
        plain[index] = plain[index] * 2
        assert (stored == plain).all()
    stored.close()
