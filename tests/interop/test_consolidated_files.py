"""Consolidated files that ours and the reference write, and the other opens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tensordict as reference
import tensordict_class
import tensordict_core


def point(decorator: Any) -> Any:
    class Point:
        place: torch.Tensor
        label: str

    Point.__qualname__ = "ConsolidatedPoint"
    return decorator(Point)


def library(module: Any, tensorclass: Any) -> SimpleNamespace:
    return SimpleNamespace(
        td=module.TensorDict,
        lazy=module.LazyStackedTensorDict,
        NonTensorData=module.NonTensorData,
        NonTensorStack=module.NonTensorStack,
        Point=point(tensorclass),
    )


OURS = library(tensordict_core, tensordict_class.tensorclass)
THEIRS = library(reference, reference.tensorclass)


def values(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([values(2, 3), values(4, 3)], layout=torch.jagged)


TREES = {
    "nested": lambda lib: lib.td(
        {"a": values(4, 2), "b": lib.td({"c": values(4, 3, 2).bfloat16()}, [4, 3])}, [4], names=["t"]
    ),
    "sizes": lambda lib: lib.td(
        {"n": torch.tensor([1, 2, 3], dtype=torch.int8), "z": values(0), "d": values(3).double(), "s": torch.tensor(1)}
    ),
    "values": lambda lib: lib.td(
        {"s": "x", "n": lib.NonTensorData({"x": [1, None]}, batch_size=[2]), "q": lib.NonTensorStack("a", "b")}, [2]
    ),
    "class": lambda lib: lib.td({"p": lib.Point(place=values(3), label="x", batch_size=[3])}),
    "lazy": lambda lib: lib.td({"l": lib.lazy(lib.td({"a": values(2)}), lib.td({"a": values(3)}))}, [2]),
    "jagged": lambda lib: lib.td({"j": jagged(), "t": jagged().transpose(1, 2), "a": values(2)}, [2]),
    "nothing": lambda lib: lib.td({}, [3]),
    "keys": lambda lib: lib.td({"a.b": values(1), "leaves": values(2), "ünï ☃": values(1)}),
}


def assert_same(one: Any, two: Any) -> None:
    assert (
        type(one).__name__ == type(two).__name__
        and one.batch_size == two.batch_size
        and list(one.names) == list(two.names)
    )
    assert set(one.keys()) == set(two.keys())
    for key in one.keys():  # noqa: SIM118 (iterating a tensordict gives its rows)
        if isinstance(one, OURS.lazy | THEIRS.lazy):
            for a, b in zip(one.tensordicts, two.tensordicts, strict=True):
                assert_same(a, b)
            return
        first, second = one.get(key), two.get(key)
        if isinstance(first, torch.Tensor) and first.is_nested:
            assert first._ragged_idx == second._ragged_idx
            assert all(torch.equal(a, b) for a, b in zip(first.unbind(), second.unbind(), strict=True))
        elif isinstance(first, torch.Tensor):
            assert first.dtype == second.dtype and torch.equal(first, second)
        elif "NonTensor" in type(first).__name__ or not hasattr(first, "batch_size"):
            plain = [x.tolist() if hasattr(x, "tolist") else x for x in (first, second)]
            assert plain[0] == plain[1]
        else:
            assert_same(first, second)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize(("writer", "reader"), [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours", "theirs"])
def test_what_one_writes_the_other_opens(tmp_path: Path, name: str, writer: Any, reader: Any) -> None:
    TREES[name](writer).consolidate(tmp_path / "x")
    assert_same(TREES[name](reader), reader.td.from_consolidated(tmp_path / "x"))


def test_exact_values_of_ours_do_not_disturb_the_reference(tmp_path: Path) -> None:
    # complex numbers of 16 bytes behind a single one: ours aligns them, which torch asks for
    wide = {"n": torch.tensor([1], dtype=torch.int8), "w": values(3).to(torch.complex128)}
    OURS.td({**wide, "a": values(3), "t": OURS.NonTensorData((1, b"x"))}).consolidate(tmp_path / "x")
    td = THEIRS.td.from_consolidated(tmp_path / "x")
    assert torch.equal(td["a"], values(3)) and torch.equal(td["w"], wide["w"]) and "t" in td
    td = OURS.td.from_consolidated(tmp_path / "x")
    assert td["t"] == (1, b"x")


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(("writer", "reader"), [(OURS, THEIRS), (THEIRS, OURS), (OURS, OURS)])
def test_a_consolidated_file_keeps_the_device(writer, reader, device, tmp_path):
    td = writer.td({"a": values(3), "n": writer.td({"b": values(3)}, [3], device=device)}, [3], device=device)
    td.consolidate(tmp_path / "x")
    opened = reader.td.from_consolidated(tmp_path / "x")
    assert opened.device == td.device and opened["n"].device == td.device
    writer.lazy(td, td).consolidate(tmp_path / "y")
    assert reader.td.from_consolidated(tmp_path / "y").device == td.device
