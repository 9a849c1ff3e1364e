"""Faults of stores and tables: full disks and servers, killed writers, files that end early, and values that lie."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("h5py", reason="h5py is an extra")
pytest.importorskip("zarr", reason="zarr is an extra")
pytest.importorskip("pyarrow", reason="pyarrow is an extra")

from tensordict_core import NonTensorStack, TensorDict
from tensordict_store import PersistentTensorDict
from tensordict_store.arrays.values import VALUE, Encoded

BACKENDS = ["h5", "zarr"]
TABLES = ["parquet", "csv", "json"]


def sample(n: int = 10) -> TensorDict:
    return TensorDict({"x": torch.arange(float(n)), "n": {"y": torch.arange(n)}}, [n])


def large() -> TensorDict:
    generator = torch.Generator().manual_seed(0)  # numbers that no codec makes small
    return TensorDict({"x": torch.rand(1 << 19, generator=generator)}, [1 << 19])


def reopened(path: Path, backend: str) -> Any:
    return PersistentTensorDict(filename=path, backend=backend)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_disk_leaves_the_earlier_store(small, backend):
    PersistentTensorDict.from_dict(sample(), small / "data", backend=backend).close()
    with pytest.raises(OSError, match="could not be written and is unchanged"):
        PersistentTensorDict.from_dict(large(), small / "data", backend=backend)
    assert [one.name for one in small.iterdir()] == ["data"]
    stored = reopened(small / "data", backend)
    assert (stored == sample()).all()
    stored.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [torch.rand(10, 1 << 17), {"deep": torch.rand(10, 1 << 17)}], ids=["leaf", "nested"])
def test_an_entry_that_does_not_fit_on_the_disk_is_not_there_in_part(small, backend, value):
    stored = PersistentTensorDict.from_dict(sample(), small / "data", backend=backend)
    with pytest.raises(OSError, match="No space left"):
        stored["new"] = value
    assert sorted(stored.keys()) == ["n", "x"] and (stored == sample()).all()
    stored["fits"] = torch.ones(10)
    stored.close()
    stored = reopened(small / "data", backend)
    assert sorted(stored.keys()) == ["fits", "n", "x"] and stored["x"].sum() == 45 and stored["n", "y"].sum() == 45
    stored.close()


def test_a_write_of_another_chunk_that_ends_after_the_error_brings_no_folder_back(tmp_path):
    loop = pytest.importorskip("zarr.core.sync", reason="zarr is an extra")._get_loop()
    stored = PersistentTensorDict.from_dict(sample(), tmp_path / "data", backend="zarr")
    writes = []

    async def late():
        await asyncio.sleep(0.2)
        (tmp_path / "data" / "new" / "c").mkdir(parents=True, exist_ok=True)

    with pytest.raises(OSError, match="No space left"), stored._group.undone_by_errors("new"):
        stored._group.group.create_array("new", shape=(10,), dtype="f4")
        writes.append(asyncio.run_coroutine_threadsafe(late(), loop))
        raise OSError("No space left on device")
    writes[0].result(5)
    assert sorted(stored.keys()) == ["n", "x"] and not (tmp_path / "data" / "new").exists()
    stored.close()


def test_an_entry_of_hdf5_that_was_to_be_replaced_stays(small):
    stored = sample().to_h5(small / "data.h5")
    for key in ("x", "n"):
        with pytest.raises(OSError, match="No space left"):
            stored[key] = torch.rand(10, 1 << 17)
    assert (stored == sample()).all()
    stored.close()
    stored = TensorDict.from_h5(small / "data.h5")
    assert (stored == sample()).all()
    stored.close()


def test_an_append_that_does_not_fit_on_the_disk_leaves_the_rows_before_it(small):
    def made(n: int) -> TensorDict:
        numbers = torch.rand(n, 2048, generator=torch.Generator().manual_seed(0))
        words = NonTensorStack(*map(str, range(n)))
        return TensorDict({"x": numbers, "n": {"y": torch.arange(n)}, "text": "run", "words": words}, [n])

    td = made(10)
    stored = td.to_zarr(small / "data", chunks=8)
    with pytest.raises(OSError, match="No space left"):
        stored.append(made(300))
    for read in (stored, TensorDict.from_zarr(small / "data")):
        assert read.batch_size == (10,) and (read == td).all() and read["words"] == [*map(str, range(10))]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mapped_copy_that_does_not_fit_on_the_disk_is_not_there(small, tmp_path, backend):
    pytest.importorskip("tensordict_memmap", reason="tensordict-memmap is not installed")
    stored = PersistentTensorDict.from_dict(large(), tmp_path / "large", backend=backend)
    with pytest.raises(OSError, match="No space left"):
        stored.memmap(small / "mapped")
    assert list(small.iterdir()) == []
    stored.close()


@pytest.mark.parametrize("form", TABLES)
def test_a_table_that_does_not_fit_on_the_disk_leaves_the_earlier_one(small, form):
    one = TensorDict({"x": torch.arange(10.0)}, [10])
    getattr(one, f"to_{form}")(small / "table")
    with pytest.raises(OSError, match="No space left"):
        getattr(large(), f"to_{form}")(small / "table")
    assert [one.name for one in small.iterdir()] == ["table"]
    assert (getattr(TensorDict, f"from_{form}")(small / "table") == one).all()


KILL = """
import os, sys, torch
from tensordict_core import NonTensorStack, TensorDict
path, form = sys.argv[1:]
replace = os.replace
def die(*arguments):
    os.kill(os.getpid(), 9)
os.replace = os.rename = die
getattr(TensorDict({'x': torch.ones(3)}, [3]), f'to_{form}')(path)
"""


@pytest.mark.parametrize("form", ["h5", "zarr", *TABLES])
def test_a_writer_that_is_killed_leaves_the_earlier_one(tmp_path, form):
    one = TensorDict({"x": torch.arange(3.0)}, [3])
    made = getattr(one, f"to_{form}")(tmp_path / "data")
    if form in BACKENDS:
        made.close()
    ran = subprocess.run([sys.executable, "-c", KILL, str(tmp_path / "data"), form], check=False, capture_output=True)
    assert ran.returncode == -9, ran.stderr
    read = getattr(TensorDict, f"from_{form}")(tmp_path / "data")
    assert (read == one).all()
    if form in BACKENDS:
        read.close()


@pytest.mark.parametrize("size", [0, 3, 100])
def test_a_parquet_file_that_ends_early_is_an_error(tmp_path, size):
    TensorDict({"x": torch.arange(1000.0)}, [1000]).to_parquet(tmp_path / "table")
    whole = (tmp_path / "table").read_bytes()
    (tmp_path / "table").write_bytes(whole[:size])
    with pytest.raises((OSError, ValueError), match=r"[Pp]arquet"):
        TensorDict.from_parquet(tmp_path / "table")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pickle_in_a_file_is_not_loaded_unasked(tmp_path, backend):
    class Touch:
        def __reduce__(self):
            return Path.touch, (tmp_path / "loaded",)

    stored = PersistentTensorDict.from_dict(sample(), tmp_path / "data", backend=backend)
    stored._group.put_value("evil", Encoded(pickle.dumps(Touch()), {VALUE: {"encoding": "pickle"}}))
    for read in (lambda: stored["evil"], lambda: stored[:3].to_tensordict(), stored.clone, lambda: stored[0]["evil"]):
        with pytest.raises(ValueError, match="is a pickle, which runs code"):
            read()
    assert not (tmp_path / "loaded").exists() and stored["x"].sum() == 45
    stored.close()


def test_a_wrong_shape_in_a_zarr_store_is_an_error_and_allocates_nothing(tmp_path):
    sample().to_zarr(tmp_path / "data").close()
    for name in ("x/zarr.json", "zarr.json"):
        text = (tmp_path / "data" / name).read_text()
        described = json.loads(text)
        entry = described if name != "zarr.json" else described["consolidated_metadata"]["metadata"]["x"]
        entry["shape"] = [1 << 60]
        described["attributes"].pop("__tensordict__", None)
        (tmp_path / "data" / name).write_text(json.dumps(described))
    stored = PersistentTensorDict(filename=tmp_path / "data", backend="zarr", validate_batch_size=False, batch_size=[])
    with pytest.raises((MemoryError, RuntimeError, ValueError, OSError)):
        stored["x"]
    assert stored["n", "y"].sum() == 45


def test_a_full_server_refuses_a_write_and_keeps_the_rest(redis_server):
    stored = sample().to_store(port=redis_server.port)
    stored.client.config_set("maxmemory", "2mb")
    with pytest.raises(Exception, match=r"(?i)maxmemory|memory"):
        stored["large"] = torch.rand(10, 1 << 17)
    assert sorted(stored.keys()) == ["n", "x"] and (stored == sample()).all()
    stored.client.config_set("maxmemory", "0")
    stored["large"] = torch.ones(10, 3)
    assert stored["large"].sum() == 30


def test_a_replaced_file_of_hdf5_keeps_its_mode_and_links(tmp_path):
    real, link = tmp_path / "real.h5", tmp_path / "link.h5"
    sample().to_h5(real).close()
    real.chmod(0o600)
    link.symlink_to(real)
    sample(3).to_h5(link).close()
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    stored = TensorDict.from_h5(real)
    assert stored.batch_size == (3,)
    stored.close()
    with pytest.raises(OSError, match=r"^the HDF5 file .* is not a regular file"):
        sample().to_h5(tmp_path)
    with pytest.raises(FileNotFoundError):
        sample().to_h5(tmp_path / "missing" / "data.h5")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["w-", "x"])
def test_modes_for_a_new_file_keep_an_existing_one(tmp_path, backend, mode):
    opened = {"filename": tmp_path / "data", "backend": backend, "mode": mode, "batch_size": [10]}
    with PersistentTensorDict(**opened) as made:
        made["x"] = torch.arange(10.0)
    with pytest.raises(FileExistsError):
        PersistentTensorDict(**opened)
    assert (reopened(tmp_path / "data", backend)["x"] == torch.arange(10.0)).all()


def test_an_unknown_backend_is_an_error_that_names_the_others(tmp_path):
    with pytest.raises(ValueError, match="backend='hdf5' is unknown; pass 'h5' or 'zarr'"):
        PersistentTensorDict.from_dict(sample(), tmp_path / "data", backend="hdf5")
    with pytest.raises(ValueError, match="backend='hdf5' is unknown"):
        reopened(tmp_path / "data", "hdf5")
