"""HDF5 files, zarr stores and entries on a Redis server of either implementation open in the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from redis_process import WHY_NOT, Server, executable

import tensordict as reference
import tensordict_core as ours

pytest.importorskip("tensordict_store", reason="tensordict-store is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32, torch.complex64]


def entries() -> dict[str, object]:
    tensors = {str(dtype)[6:]: torch.arange(6).view(3, 2).to(dtype) for dtype in DTYPES}
    return {**tensors, "n": {"y": torch.arange(3), "deep": {"z": torch.ones(3, 1)}}, "s": "text"}


VALUES = {
    "number": 5,
    "share": 2.5,
    "flag": True,
    "words": ["a", "b", "c"],
    "numbers": [1, 2, 3],
    "flags": [True, False, True],
}


def with_values(module):
    """A tensordict with a value of each type, for all rows or for each row."""
    td = module.TensorDict({"x": torch.zeros(3)}, [3])
    for key, value in VALUES.items():
        each = isinstance(value, list)
        td[key] = module.NonTensorStack(*value) if each else module.NonTensorData(value, batch_size=[3])
    return td


def assert_equal(got, expected) -> None:
    assert set(got.keys(True, True)) >= set(expected.exclude("s").keys(True, True))
    for key in expected.exclude("s").keys(True, True):
        assert torch.equal(got[key], expected[key]) and got[key].dtype is expected[key].dtype


@pytest.mark.parametrize("form", ["h5", "zarr"])
@pytest.mark.parametrize("chunks", [{}, {"chunks": (2, 2)}], ids=["default", "chunks"])
def test_a_file_of_ours_opens_in_the_reference(form, chunks, tmp_path):
    td = ours.TensorDict(entries(), [3])
    getattr(td, f"to_{form}")(tmp_path / "ours", **chunks).close()
    opened = getattr(reference.TensorDict, f"from_{form}")(str(tmp_path / "ours"), batch_size=[3])
    assert_equal(opened, td)
    assert opened["s"] in ("text", b"text")
    assert opened["n", "deep"].batch_size == (3,)
    opened.close()


@pytest.mark.parametrize("form", ["h5", "zarr"])
def test_a_file_of_the_reference_opens_in_ours(form, tmp_path):
    td = reference.TensorDict(entries(), [3])
    td["words"] = reference.NonTensorStack("a", "b", "c")
    getattr(td, f"to_{form}")(str(tmp_path / "theirs")).close()
    opened = getattr(ours.TensorDict, f"from_{form}")(tmp_path / "theirs", batch_size=[3])
    assert_equal(opened, td)
    assert opened["s"] == "text" and opened["words"] == ["a", "b", "c"] and opened[1]["words"] == "b"
    opened.close()


@pytest.mark.parametrize("form", ["h5", "zarr"])
@pytest.mark.parametrize(("writer", "reader"), [(ours, reference), (reference, ours)], ids=["ours", "theirs"])
def test_numbers_and_values_for_each_row_are_read_by_the_other(form, writer, reader, tmp_path):
    getattr(with_values(writer), f"to_{form}")(str(tmp_path / "one")).close()
    opened = getattr(reader.TensorDict, f"from_{form}")(str(tmp_path / "one"), batch_size=[3])
    got = {key: opened.get(key).tolist() if isinstance(VALUES[key], list) else opened[key] for key in VALUES}
    assert got == VALUES
    assert opened.get("numbers").batch_size == (3,) and isinstance(opened.get("numbers"), reader.NonTensorStack)
    opened.close()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = executable()
    if program is None:
        pytest.skip(WHY_NOT)
    server = Server(program, tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.port
    server.stop()


def test_what_the_reference_stored_on_a_server_opens_in_ours(port):
    from tensordict_store import TensorDictStore

    td = reference.TensorDict(entries(), [3])
    td["words"] = reference.NonTensorStack("a", "b", "c")
    store = td.to_store(port=port)
    [name] = [text for text in repr(store).split("'") if text.count("-") == 4]
    opened = TensorDictStore.from_store(port=port, td_id=name)
    assert opened.batch_size == (3,) and opened["s"] == "text" and opened["words"] == ["a", "b", "c"]
    assert_equal(opened.to_local(), td)


def test_what_ours_stored_on_a_server_opens_in_the_reference(port):
    td = ours.TensorDict(entries(), [3])
    store = td.to_store(port=port)
    opened = reference.TensorDictStore.from_store(port=port, td_id=store.td_id)
    assert opened.batch_size == (3,) and opened["s"] == "text"
    assert_equal(opened, td)


def test_percent_signs_in_keys_on_a_server_are_read_by_the_other(port):
    from tensordict_store import TensorDictStore

    store = ours.TensorDict({"50%": torch.ones(3)}, [3]).to_store(port=port)
    assert list(reference.TensorDictStore.from_store(port=port, td_id=store.td_id).keys()) == ["50%"]
    theirs = reference.TensorDict({"50%": torch.ones(3)}, [3]).to_store(port=port)
    [name] = [text for text in repr(theirs).split("'") if text.count("-") == 4]
    assert list(TensorDictStore.from_store(port=port, td_id=name).keys()) == ["50%"]


def test_stacks_on_a_server_open_in_the_other(port):
    from tensordict_store import LazyStackedTensorDictStore

    def stack(module):
        parts = [module.TensorDict({"x": torch.full((n,), n), "n": {"y": torch.ones(2) * n}}) for n in (2, 5)]
        return module.lazy_stack(parts)

    mine = stack(ours).to_store(port=port)
    theirs = reference.LazyStackedTensorDictStore.from_store(port=port, td_id=mine.td_id)
    assert [theirs[i]["x"].tolist() for i in range(2)] == [[2, 2], [5] * 5] and theirs["n", "y"].shape == (2, 2)
    store = stack(reference).to_store(port=port)
    [name] = [text for text in repr(store).split("'") if text.count("-") == 4]
    opened = LazyStackedTensorDictStore.from_store(port=port, td_id=name)
    assert [opened[i]["x"].tolist() for i in range(2)] == [[2, 2], [5] * 5] and opened["n", "y"].shape == (2, 2)
