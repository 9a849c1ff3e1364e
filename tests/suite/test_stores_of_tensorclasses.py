"""Tensorclasses over files, zarr stores and servers pass the tests of every container; files keep their classes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from redis_process import WHY_NOT, Server, executable

from tensordict_class import TensorClass
from tensordict_core import TensorDict, lazy_stack
from tensordict_core.testing import ContainerSuite
from tensordict_store import LazyStackedTensorDictStore, PersistentTensorDict


class Record(TensorClass, tensor_only=True):
    """Has a field for every key that the suite uses; dictionaries become tensordicts, as the suite expects."""

    a: torch.Tensor = None
    count: torch.Tensor = None
    nested: torch.Tensor = None
    text: torch.Tensor = None
    words: torch.Tensor = None
    new: torch.Tensor = None
    deep: torch.Tensor = None
    dict: torch.Tensor = None
    list: torch.Tensor = None
    value: torch.Tensor = None
    number: torch.Tensor = None
    made: torch.Tensor = None
    own: torch.Tensor = None
    bad: torch.Tensor = None
    newer: torch.Tensor = None
    other: torch.Tensor = None


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory) -> Iterator[int]:
    program = executable()
    if program is None:
        pytest.skip(WHY_NOT)
    server = Server(program, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.port
    server.stop()


class Stored(ContainerSuite):
    copies_shallowly = False
    shares_slices = False
    pickles_entries = False
    compiles = False


class TestTensorClassOverHDF5(Stored):
    backend = "h5"

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder, self.numbers, self.opened = tmp_path, itertools.count(), []
        yield
        for stored in self.opened:
            stored.close()

    def wrap(self, td: TensorDict) -> Any:
        path = self.folder / f"{next(self.numbers)}.{self.backend}"
        self.opened.append(PersistentTensorDict.from_dict(td, path, backend=self.backend))
        return Record.from_tensordict(self.opened[-1])


class TestTensorClassOverZarr(TestTensorClassOverHDF5):
    backend = "zarr"


class TestTensorClassOverRedis(Stored):
    @pytest.fixture(autouse=True)
    def _server(self, redis_port):
        self.port = redis_port

    def wrap(self, td: TensorDict) -> Any:
        return Record.from_tensordict(td.to_store(port=self.port))


class TestTensorClassOverAStackOnRedis(TestTensorClassOverRedis):
    supports_batch_size = False

    def wrap(self, td: TensorDict) -> Any:
        stack = lazy_stack(list(td.unbind(0)))
        return Record.from_tensordict(LazyStackedTensorDictStore.from_lazy_stack(stack, port=self.port))


class Point(TensorClass):
    x: torch.Tensor
    inner: TensorDict


def sample() -> TensorDict:
    inner = TensorDict({"bits": torch.ones(3, dtype=torch.bfloat16), "text": "x"}, [3])
    return TensorDict({"point": Point(torch.ones(3, 2), inner, batch_size=[3]), "none": torch.zeros(3, 0)}, [3])


@pytest.mark.parametrize("backend", ["h5", "zarr"])
def test_a_tensorclass_in_a_file_is_read_indexed_mapped_and_written(tmp_path, backend):
    td = sample()
    stored = PersistentTensorDict.from_dict(td, tmp_path / "stored", backend=backend)
    for read in (stored, stored[1:], stored.clone(), stored[1:].clone(), stored.memmap(tmp_path / "mapped")):
        assert type(read["point"]) is Point and read["point"].inner["text"] == "x"
        assert (read.to_tensordict() == td[3 - len(read) :].to_tensordict()).all()
    stored[0]["point"].x.zero_()  # the entry of a view is read
    stored[1]["point"].zero_()
    stored[2] = td[2].clone().mul_(3)
    assert stored["point"].x.tolist() == [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]
    assert stored["point"].inner["bits"].tolist() == [1.0, 0.0, 3.0]
    stored.close()
