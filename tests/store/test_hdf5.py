"""HDF5 files: modes, layouts, rows, values, other processes, and files that are damaged or replaced."""

from __future__ import annotations

import enum
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("h5py", reason="h5py is an extra")

import h5py

from tensordict_core import NonTensorData, NonTensorStack, TensorDict
from tensordict_core.extension import register_type
from tensordict_store import PersistentTensorDict


def sample(n: int = 10) -> TensorDict:
    nested = {"y": torch.arange(n), "flag": torch.arange(n) % 2 == 0}
    return TensorDict({"x": torch.arange(4.0 * n).view(n, 4), "n": nested, "name": "run"}, [n], names=["time"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    sample().to_h5(tmp_path / "data.h5").close()
    return tmp_path / "data.h5"


def test_a_file_keeps_order_batch_size_names_and_values(path):
    td = TensorDict.from_h5(path)
    assert list(td.keys()) == ["x", "n", "name"] and td.batch_size == (10,) and td.names == ["time"]
    assert (td == sample()).all() and td["name"] == "run"
    td.close()


def test_a_file_of_another_program_has_the_batch_size_that_its_shapes_share(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(6, dtype=">f4").reshape(3, 2)
        file.create_group("n")["y"] = np.arange(3)
    for given, size in (({}, (3,)), ({"auto_batch_size": False}, ()), ({"batch_size": []}, ())):
        td = TensorDict.from_h5(tmp_path / "other.h5", **given)
        assert td.batch_size == size and td["x"].dtype is torch.float32
        td.close()
    td = PersistentTensorDict(filename=tmp_path / "other.h5")
    assert td.batch_size == ()
    td.close()
    td = TensorDict.from_h5(tmp_path / "other.h5", auto_batch_size=True)
    assert td.batch_size == (3,) and td["n"].batch_size == (3,) and td[1]["x"].tolist() == [2, 3]
    td.close()
    with pytest.raises(ValueError, match=r"'x' has shape \[3, 2\].*batch size \[4\]"):
        TensorDict.from_h5(tmp_path / "other.h5", batch_size=[4])


def test_dtypes_that_hdf5_lacks_keep_their_bits(tmp_path):
    plain = TensorDict(
        {"b": torch.randn(3).bfloat16(), "h": torch.randn(3).half(), "c": torch.randn(3, dtype=torch.cfloat)}
    )
    stored = plain.to_h5(tmp_path / "data.h5")
    assert all(
        stored[key].dtype is plain[key].dtype and torch.equal(stored[key], plain[key]) for key in ("b", "h", "c")
    )
    stored.close()


def test_chunks_are_rows_and_scalars_have_none(tmp_path):
    td = TensorDict({"x": torch.zeros(100, 8), "s": torch.zeros(())}).to_h5(
        tmp_path / "data.h5", chunks=10, compression="gzip", shuffle=True
    )
    assert td.file["x"].chunks == (10, 8) and td.file["x"].compression == "gzip" and td.file["s"].chunks is None
    assert td.kwargs == {"chunks": 10, "compression": "gzip", "shuffle": True}
    td["new"] = torch.zeros(50, 2)
    assert td.file["new"].chunks == (10, 2)
    td.close()


def test_modes_determine_which_writes_are_allowed(path, tmp_path):
    td = TensorDict.from_h5(path)
    before = path.read_bytes()
    for change in (
        lambda: td.set("z", torch.zeros(10)),
        lambda: td.set_("x", torch.zeros(10, 4)),
        lambda: td.__setitem__(0, td[1]),
        lambda: td.del_("x"),
        lambda: td.update_({"name": "other"}),
        lambda: td.get("name").update_(NonTensorData("other")),
    ):
        with pytest.raises(RuntimeError, match=r"reading only.*mode='r\+'"):
            change()
    td.close()
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="mode='q'"):
        PersistentTensorDict(filename=path, mode="q")
    with pytest.raises(FileNotFoundError):
        TensorDict.from_h5(tmp_path / "none.h5")
    with pytest.raises(TypeError, match="Either group or filename"):
        PersistentTensorDict(batch_size=[3])
    with pytest.raises(ValueError, match="backend='csv'"):
        PersistentTensorDict(filename=path, backend="csv")


def test_a_closed_file_is_an_error_that_names_it(path):
    td = TensorDict.from_h5(path)
    td.close()
    with pytest.raises(RuntimeError, match="closed; open it again"):
        td["x"]


def test_a_group_of_an_open_file_is_a_tensordict(path):
    with h5py.File(path, "r+") as file:
        td = PersistentTensorDict(group=file["n"], batch_size=[10])
        td["y"] = torch.zeros(10, dtype=torch.int64)
        assert not file["n/y"][:].any()


def test_rows_are_appended_to_a_file_that_may_grow(tmp_path):
    td = sample().to_h5(tmp_path / "data.h5", maxshape=True)
    td.append(sample(3))
    assert td.batch_size == (13,) and td["n"].batch_size == (13,) and td["x"][10:].tolist() == sample(3)["x"].tolist()
    with pytest.raises(KeyError, match=r"'n.flag'"):
        td.append(TensorDict({"x": torch.zeros(1, 4), "n": {"y": torch.zeros(1)}, "name": "run"}, [1]))
    with pytest.raises(RuntimeError, match="'x' with dtype"):
        td.append(sample(1).apply(lambda leaf: leaf.double()))
    td.close()
    fixed = sample().to_h5(tmp_path / "fixed.h5")
    with pytest.raises(RuntimeError, match="maxshape=True"):
        fixed.append(sample(3))
    assert (fixed == sample()).all()
    fixed.close()


@pytest.mark.parametrize("value", [b"abc", b"\xff\0", b""], ids=str)
@pytest.mark.parametrize("backend", ["h5", "zarr"])
def test_bytes_are_stored_as_they_are(tmp_path, backend, value):
    pytest.importorskip("zarr" if backend == "zarr" else "h5py", reason="an extra")
    td = TensorDict({"s": NonTensorData(value), "n": {"a": torch.ones(2)}})
    stored = getattr(td, f"to_{backend}")(tmp_path / "file")
    assert stored["s"] == value
    assert getattr(TensorDict, f"from_{backend}")(tmp_path / "file")["s"] == value


VALUES = [(3, 4), torch.Size([3, 4]), {1: (2, "a")}, {1, 2}, torch.float32, np.float32(1.5), [("a", None)], "a\0b"]


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("backend", ["h5", "zarr"])
def test_values_that_json_lacks_are_stored_with_their_types(tmp_path, backend, value):
    pytest.importorskip("zarr" if backend == "zarr" else "h5py", reason="an extra")
    stack = NonTensorStack.from_list([value, "other"])
    td = TensorDict({"s": NonTensorData(value, batch_size=[2]), "l": stack}, [2])
    stored = getattr(td, f"to_{backend}")(tmp_path / "file")
    for again in stored, getattr(TensorDict, f"from_{backend}")(tmp_path / "file"):
        assert again["s"] == value and type(again["s"]) is type(value)
        assert again["l"] == [value, "other"] and type(again["l"][0]) is type(value)


def test_an_enum_is_restored_by_its_registered_name_and_the_error_says_so_without_it(tmp_path):
    class Colour(enum.Enum):
        RED = 1

    register_type(Colour, name="colour")
    td = TensorDict({"s": NonTensorData(Colour.RED)})
    stored = td.to_h5(tmp_path / "data.h5")
    assert stored["s"] is Colour.RED
    stored.close()
    path = tmp_path / "data.h5"
    path.write_bytes(path.read_bytes().replace(b"colour", b"absent"))  # as where its module is not imported
    with pytest.raises(ValueError, match=r"'s' cannot be restored: .*'absent'; import the module"):
        TensorDict.from_h5(tmp_path / "data.h5")["s"]


def test_a_value_without_a_json_form_is_refused_unless_pickles_are_allowed(tmp_path):
    td = TensorDict({"x": torch.zeros(2), "o": NonTensorData(range(3), batch_size=[2])}, [2])
    with pytest.raises(TypeError, match=r"'o'.*allow_pickle=True"):
        td.to_h5(tmp_path / "data.h5")
    assert list(tmp_path.iterdir()) == []
    td.to_h5(tmp_path / "data.h5", allow_pickle=True).close()
    stored = TensorDict.from_h5(tmp_path / "data.h5")
    with pytest.raises(ValueError, match="'o' is a pickle"):
        stored["o"]
    assert stored["x"].tolist() == [0, 0]
    stored.close()
    stored = TensorDict.from_h5(tmp_path / "data.h5", allow_pickle=True)
    assert stored["o"] == range(3)
    stored.close()


def test_names_that_hdf5_reserves_are_refused(path):
    td = TensorDict.from_h5(path, mode="r+")
    for key in ("a/b", "."):
        with pytest.raises(KeyError, match="cannot be a name"):
            td[key] = torch.zeros(10)
    td.close()


class _Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, td: Any) -> None:
        self.td = td

    def __len__(self) -> int:
        return len(self.td)

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.td[i]["x"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_dataloader_read_rows(path, method):
    td = TensorDict.from_h5(path)
    loader = torch.utils.data.DataLoader(
        _Rows(td), batch_size=5, num_workers=2, multiprocessing_context=method, shuffle=False
    )
    assert torch.equal(torch.cat(list(loader)), sample()["x"])
    td.close()


def test_a_forked_process_may_read_and_not_write(tmp_path):
    td = sample().to_h5(tmp_path / "data.h5")
    td["x"] = torch.ones(10, 4)
    child = os.fork()
    if not child:
        try:
            assert td["x"].sum() == 40
            td["x"] = torch.zeros(10, 4)
        except RuntimeError as error:
            os._exit(7 if "forked" in str(error) else 1)
        except BaseException:
            os._exit(2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    td["x"] = torch.zeros(10, 4)
    td.close()
    again = TensorDict.from_h5(tmp_path / "data.h5")
    assert not again["x"].any()
    again.close()


def test_a_pickle_opens_the_file_again(path):
    td = TensorDict.from_h5(path).lock_()
    other = pickle.loads(pickle.dumps(td))
    td.close()
    assert other.is_locked and (other == sample()).all()
    other.close()


def test_a_file_is_saved_in_blocks_of_rows(tmp_path, monkeypatch):
    from tensordict_store.persistent import writing

    monkeypatch.setattr(writing, "_BLOCK", 64)
    one = sample().to_h5(tmp_path / "one.h5")
    other = one.to_h5(tmp_path / "other.h5", chunks=3)
    assert (other == sample()).all()
    one.close()
    other.close()


def test_a_file_is_mapped_in_blocks_of_rows(path, tmp_path, monkeypatch):
    pytest.importorskip("tensordict_memmap", reason="tensordict-memmap is not installed")
    from tensordict_store.persistent import writing

    monkeypatch.setattr(writing, "_BLOCK", 64)
    td = TensorDict.from_h5(path)
    mapped = td.memmap(tmp_path / "mapped")
    assert mapped.is_memmap() and (mapped == sample()).all() and mapped["name"] == "run" and mapped.names == ["time"]
    assert (TensorDict.load_memmap(tmp_path / "mapped") == sample()).all()
    td.close()


@pytest.mark.parametrize("storage", ["h5", "zarr"])
def test_a_schema_makes_a_file_of_zeros(storage, tmp_path):
    pytest.importorskip({"h5": "h5py"}.get(storage, storage), reason="the storage is an extra")
    schema = {"a": ([3], torch.float32), ("n", "d"): ([], torch.bool)}
    td = TensorDict.from_schema(schema, batch_size=[5], storage=storage, filename=tmp_path / "zeros", chunks=2)
    assert isinstance(td, PersistentTensorDict) and td["a"].shape == (5, 3) and not td["n", "d"].any()
    td.close()
    with pytest.raises(TypeError, match="pass filename="):
        TensorDict.from_schema(schema, batch_size=[5], storage=storage)


# faults ---------------------------------------------------------------------------------------------------------------


def test_a_file_that_fails_to_be_written_leaves_the_earlier_one(path):
    before = path.read_bytes()
    with pytest.raises(TypeError, match="layout"):
        TensorDict({"x": torch.zeros(3), "s": torch.eye(3).to_sparse()}).to_h5(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_a_killed_writer_leaves_the_earlier_file(path):
    code = (
        "import os, sys, torch\nfrom tensordict_core import TensorDict\n"
        "from tensordict_store.hdf5.group import H5Array\n"
        "def die(self, box, value):\n    os.kill(os.getpid(), 9)\n"
        "H5Array.write = die\nTensorDict({'x': torch.ones(3)}).to_h5(sys.argv[1])"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], check=False, capture_output=True)
    assert ran.returncode == -9, ran.stderr
    td = TensorDict.from_h5(path)
    assert (td == sample()).all()
    td.close()


@pytest.mark.parametrize("size", [0, 10, 500])
def test_a_truncated_file_is_reported_as_damaged(path, size):
    whole = path.read_bytes()
    path.write_bytes(whole[: size or len(whole) - 100])
    with pytest.raises(OSError, match=r"data\.h5.*(restore it from a copy|no HDF5 file)"):
        TensorDict.from_h5(path)


def test_a_file_that_is_truncated_while_it_is_open_is_an_error(tmp_path):
    TensorDict({"x": torch.zeros(1000, 100)}, [1000]).to_h5(tmp_path / "data.h5").close()
    td = TensorDict.from_h5(tmp_path / "data.h5")
    os.truncate(tmp_path / "data.h5", 100_000)
    with pytest.raises(OSError, match="truncated after it was opened"):
        td[900:]["x"]
    assert td[:10]["x"].shape == (10, 100)
    td.close()


def test_a_file_that_another_process_writes_is_an_error_that_names_the_remedy(path):
    code = "import sys, h5py; file = h5py.File(sys.argv[1], 'r+', locking=True); print('open', flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=-1, stdout=-1)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"open\n"
        with pytest.raises(OSError, match=r"another process has it open.*locking=False"):
            PersistentTensorDict(filename=path, mode="r+")
    finally:
        holder.kill()
        holder.communicate()


def test_locking_is_an_option_of_the_class(path, monkeypatch):
    monkeypatch.setattr(PersistentTensorDict, "LOCKING", False)
    one, other = PersistentTensorDict(filename=path, mode="r+"), TensorDict.from_h5(path)
    one["x"] = torch.zeros(10, 4)
    assert not other["x"].any()  # one process has one copy of the file
    one.close()
    other.close()


def test_a_damaged_value_is_an_error_and_the_other_entries_stay(path):
    with h5py.File(path, "r+") as file:
        del file["name"]
        file["name"] = "{"
        file["name"].attrs["__tensordict_non_tensor__"] = '{"encoding": "json"}'
        file["x"].attrs["__tensordict_dtype__"] = "float3"
    td = TensorDict.from_h5(path)
    with pytest.raises(ValueError, match="'name' is damaged"):
        td["name"]
    assert td["n", "y"].tolist() == list(range(10))
    td.close()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root to make a small file system")
def test_a_full_disk_is_an_error_and_the_earlier_file_stays(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        sample().to_h5(small / "data.h5").close()
        with pytest.raises(OSError, match="could not be written and is unchanged"):
            TensorDict({"x": torch.zeros(1 << 20)}).to_h5(small / "data.h5")
        assert [one.name for one in small.iterdir()] == ["data.h5"]
        td = TensorDict.from_h5(small / "data.h5")
        assert (td == sample()).all()
        td.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("layout", [{}, {"chunks": 4}], ids=["contiguous", "chunks"])
def test_a_dataset_replaced_through_h5py_is_the_one_that_is_written(tmp_path, layout):
    td = TensorDict({"x": torch.zeros(10), "y": torch.zeros(10), "in": {"z": torch.zeros(10)}}, [10]).to_h5(
        tmp_path / "x.h5", **layout
    )
    td[2:4] = TensorDict({"x": torch.ones(2), "y": torch.ones(2), "in": {"z": torch.ones(2)}}, [2])
    del td.file["x"]
    td.file["x"] = torch.arange(10, dtype=torch.int64).numpy()
    td.file.move("y", "w")
    del td.file["in/z"]
    td.file["in/z"] = torch.full((10, 2), 5.0).numpy()
    td[8:] = TensorDict({"x": torch.full((2,), -1), "w": torch.full((2,), 7.0), "in": {"z": torch.zeros(2, 2)}}, [2])
    assert td["x"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, -1, -1]
    assert td["w"].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 7, 7]
    assert td["in", "z"].shape == (10, 2) and td["in", "z"][7:, 0].tolist() == [5, 0, 0]
    assert set(td.keys()) == {"x", "w", "in"}
    td.close()
    with pytest.raises(RuntimeError, match="is closed"):
        td["w"]


@pytest.mark.parametrize("name", ["a b", "caf\u00e9", "..", "x" * 300])
def test_unusual_names_are_stored_and_replaced(tmp_path, name):
    td = TensorDict({}, [3]).to_h5(tmp_path / "x.h5")
    for value in (torch.zeros(3), torch.ones(3, 2), torch.full((3,), 2, dtype=torch.bfloat16)):
        td[name] = value
        assert td[name].equal(value) and list(td.keys()) == [name]
    td.close()
    assert TensorDict.from_h5(tmp_path / "x.h5")[name].tolist() == [2.0] * 3


def test_new_files_equal_those_of_h5py(tmp_path):
    values = {"f": torch.rand(4, 3), "b": torch.tensor([True, False]), "s": torch.tensor(2.5), "c": torch.ones(2) * 1j}
    TensorDict(values).to_h5(tmp_path / "ours.h5").close()
    with h5py.File(tmp_path / "plain.h5", "w") as plain, h5py.File(tmp_path / "ours.h5") as file:
        for key, value in values.items():
            expected = plain.create_dataset(key, data=value.numpy())
            assert file[key].id.get_type().equal(expected.id.get_type())
            assert file[key].chunks is None and file[key].shape == expected.shape
            assert (file[key][()] == expected[()]).all()


def test_a_plain_copy_of_a_file_reads_it_once_and_shares_nothing(path):
    td = TensorDict.from_h5(path)
    copy, other = td.to_tensordict(), td.to_tensordict()
    for key in copy.keys(True, True):
        if isinstance(copy[key], torch.Tensor):
            copy[key].zero_()
    assert (td.to_tensordict() == other).all()
    td.close()


@pytest.mark.parametrize("backend", ["h5", "zarr"])
def test_a_container_names_its_backend(backend, tmp_path):
    pytest.importorskip({"h5": "h5py"}.get(backend, backend), reason="the storage is an extra")
    td = PersistentTensorDict.from_dict({"n": {"a": torch.zeros(2)}}, tmp_path / "data", backend=backend)
    assert td.backend == td["n"].backend == backend
