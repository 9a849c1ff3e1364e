"""Archives that ours and the reference write, and the other opens."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import tensordict as reference
import tensordict_core
import tensordict_memmap


def tree(lib: Any) -> Any:
    inner = {"c": torch.rand(3, 2, generator=torch.Generator().manual_seed(0)).bfloat16(), "s": "text"}
    return lib.TensorDict(
        {"a": torch.arange(12).reshape(4, 3).T, "b": inner, "none": torch.zeros(3, 0)}, [3], names=["t"]
    )


def assert_same(one: Any, two: Any) -> None:
    assert one.batch_size == two.batch_size and list(one.names) == list(two.names)
    for key in ("a", ("b", "c"), "none"):
        assert one[key].dtype == two[key].dtype and torch.equal(torch.as_tensor(one[key]), torch.as_tensor(two[key]))
    assert one["b", "s"] == two["b", "s"] == "text"


@pytest.mark.parametrize("compression", [None, "deflate", "lzma"])
@pytest.mark.parametrize(("writer", "reader"), [(tensordict_core, reference), (reference, tensordict_core)])
def test_what_one_writes_the_other_opens(tmp_path: Path, writer: Any, reader: Any, compression: str | None) -> None:
    tree(writer).save(tmp_path / "x.tdz", compression=compression)
    assert_same(tree(reader), reader.TensorDict.load_memmap(tmp_path / "x.tdz"))


@pytest.mark.parametrize(("first", "second"), [(tensordict_memmap, reference), (reference, tensordict_memmap)])
def test_what_one_packs_the_other_unpacks(tmp_path: Path, first: Any, second: Any) -> None:
    tree(tensordict_core).memmap(tmp_path / "folder")
    first.pack_memmap(tmp_path / "folder", tmp_path / "x.tdz")
    assert tensordict_memmap.is_memmap_archive(tmp_path / "x.tdz") and reference.is_memmap_archive(tmp_path / "x.tdz")
    second.unpack_memmap(tmp_path / "x.tdz", tmp_path / "again")
    for lib in (tensordict_core, reference):
        assert_same(tree(lib), lib.TensorDict.load_memmap(tmp_path / "again"))


def test_checksums_are_refreshed_in_an_archive_of_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "x.tdz"
    tree(reference).save(path)
    tensordict_core.TensorDict.load_memmap(path, mode="r+")["a"].zero_()
    assert zipfile.ZipFile(path).testzip() == "a.memmap"
    tensordict_memmap.refresh_archive_checksums(path)
    assert zipfile.ZipFile(path).testzip() is None and not reference.TensorDict.load_memmap(path)["a"].any()
