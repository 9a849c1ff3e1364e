"""Mapped tensordicts and saves as programs use them, on the reference and on these packages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from side_by_side import OURS, THEIRS, Row, assert_same


def td4(lib: Any, **kwargs: Any) -> Any:
    return lib.TensorDict({"a": torch.arange(4.0), "n": {"b": torch.ones(4, 2)}}, [4], **kwargs)


VIEWS = {
    "view": lambda td: td.view(2, 2),
    "unsqueeze": lambda td: td.unsqueeze(0),
    "squeeze": lambda td: td.unsqueeze(0).squeeze(0),
    "split": lambda td: td.split(2)[0],
    "chunk": lambda td: td.chunk(2)[0],
    "unbind": lambda td: td.unbind(0)[0],
    "a row": lambda td: td[0],
    "a slice": lambda td: td[:2],
    "permute": lambda td: td.permute(0),
    "transpose": lambda td: td.view(2, 2).transpose(0, 1),
    "a nested node": lambda td: td["n"],
    "a clone": lambda td: td.clone(),
    "a mask": lambda td: td[torch.tensor([True, False, True, True])],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_of_mapped_tensordicts_are_mapped(view: Any) -> None:
    assert_same(lambda lib: view(td4(lib).memmap_()).is_memmap())


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_of_shared_tensordicts_are_shared(view: Any) -> None:
    assert_same(lambda lib: view(td4(lib).share_memory_()).is_shared())


def params(lib: Any) -> Any:
    return lib.TensorDictParams(lib.TensorDict({"a": torch.ones(3)}))


def unlocked(lib: Any) -> Any:
    td = td4(lib).memmap_()
    return td.is_shared(), td.get("a").is_shared()


ROWS: dict[str, Row] = {
    "params that are mapped are a tensordict": lambda lib: type(params(lib).memmap()).__name__,
    "a mapped one is not shared": unlocked,
    "a memory-mapped tensor is not shared": lambda lib: lib.MemoryMappedTensor.from_tensor(torch.ones(3)).is_shared(),
    "an unlocked mapped one": lambda lib: td4(lib).memmap_().unlock_().is_locked,
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_mapped_tensordicts_are_those_of_the_reference(row: Row) -> None:
    assert_same(row)


def in_folder(tmp_path: Path, function: Any) -> Row:
    counter = iter(range(100))
    return lambda lib: function(lib, tmp_path / str(next(counter)))


def subpath(sub: Any) -> Any:
    def run(lib: Any, path: Path) -> Any:
        td = lib.lazy_stack([lib.TensorDict({"sub": {"x": torch.ones(2) * i}}) for i in range(2)])
        td.memmap(path)
        return lib.TensorDict.load_memmap(path, subpath=sub).to_dict()

    return run


def nested_subpath(sub: Any) -> Any:
    def run(lib: Any, path: Path) -> Any:
        lib.TensorDict({"m": {"sub": {"x": torch.ones(2)}}}).memmap(path)
        return lib.TensorDict.load_memmap(path, subpath=sub).to_dict()

    return run


def linked(lib: Any, path: Path) -> Any:
    elsewhere = path.with_suffix(".elsewhere")
    elsewhere.mkdir()
    path.mkdir()
    os.symlink(elsewhere, path / "n")
    td4(lib).memmap(path)


def linked_writes(lib: Any, path: Path) -> Any:
    elsewhere = path.with_suffix(".elsewhere")
    try:
        linked(lib, path)
    except Exception:
        return sorted(os.listdir(elsewhere))
    return None


CALLS = {
    "subpath of a lazy stack by slashes": subpath("1/sub"),
    "subpath of a lazy stack by a tuple": subpath(("1", "sub")),
    "subpath of an element": subpath("1"),
    "subpath of nested ones by slashes": nested_subpath("m/sub"),
    "a nested folder that is a link": linked,
    "a nested folder that is a link stays empty": linked_writes,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_saves_are_those_of_the_reference(call: Any, tmp_path: Path) -> None:
    assert_same(in_folder(tmp_path, call))


def metadata(lib: Any) -> Any:
    return lib.TensorDict({"m": lib.MetaData({"lab": 1}), "a": torch.ones(2)}, [2])


def test_metadata_are_metadata_again(tmp_path: Path) -> None:
    def loaded(lib: Any) -> Any:
        folder = tmp_path / lib.TensorDict.__module__
        saved = metadata(lib).memmap(folder)
        again = lib.TensorDict.load_memmap(folder)
        return (
            type(saved.get("m")).__name__,
            type(again.get("m")).__name__,
            again["m"],
            (folder / "m/meta.json").read_text(),
        )

    assert_same(loaded)


@pytest.mark.parametrize(("writer", "reader"), [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours", "theirs"])
def test_either_library_reads_metadata_of_the_other(writer: Any, reader: Any, tmp_path: Path) -> None:
    metadata(writer).memmap(tmp_path)
    again = reader.TensorDict.load_memmap(tmp_path)
    assert isinstance(again.get("m"), reader.MetaData) and again["m"] == {"lab": 1}


@pytest.mark.parametrize("name", ["memmap", "memmap_", "memmap_like"])
def test_the_path_of_a_tensordict_that_is_mapped_without_a_folder_is_none(name: str) -> None:
    # replay buffers of torchrl ask for it before they load
    def call(lib: Any) -> Any:
        mapped = getattr(lib.TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3)}}, [3]), name)()
        return mapped.saved_path, mapped["n"].saved_path, mapped[0].saved_path

    assert_same(call)
