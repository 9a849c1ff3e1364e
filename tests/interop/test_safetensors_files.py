"""Safetensors files that ours, the reference and the format's own library write, and each of them opens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

import tensordict as reference
import tensordict_class
import tensordict_core
import tensordict_memmap

DTYPES = [
    *(
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ),
    *(
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ),
]


def point(decorator: Any) -> Any:
    class Point:
        place: torch.Tensor
        label: str

    Point.__qualname__ = "PackedPoint"
    return decorator(Point)


OURS = SimpleNamespace(
    td=tensordict_core.TensorDict,
    lazy=tensordict_core.LazyStackedTensorDict,
    NonTensorData=tensordict_core.NonTensorData,
    Unbatched=tensordict_core.UnbatchedTensor,
    Point=point(tensordict_class.tensorclass),
    write=tensordict_memmap.to_safetensors,
    read=tensordict_memmap.from_safetensors,
)
THEIRS = SimpleNamespace(
    td=reference.TensorDict,
    lazy=reference.LazyStackedTensorDict,
    NonTensorData=reference.NonTensorData,
    Unbatched=reference.UnbatchedTensor,
    Point=point(reference.tensorclass),
    write=reference.to_safetensors,
    read=reference.from_safetensors,
)


def values(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


TREES = {
    "nested": lambda lib: lib.td({"a": values(4, 2), "b": lib.td({"c": values(4, 3, 2)}, [4, 3]), "d": {}}, [4]),
    "told by names": lambda lib: lib.td({"b": {"z": values(2), "y": {"x": values(3)}}, "a": values(1)}),
    "names": lambda lib: lib.td({"a": values(2, 3)}, [2, 3], names=["time", None]),
    "dtypes": lambda lib: lib.td({str(dtype)[6:]: torch.arange(4).to(dtype) for dtype in DTYPES}, [4]),
    "sizes": lambda lib: lib.td({"none": values(0, 3), "one": torch.tensor(7)}),
    "strided": lambda lib: lib.td({"t": values(3, 4).T, "e": values(4, 1).expand(4, 3)}, [4]),
    "values": lambda lib: lib.td({"s": "text", "n": lib.NonTensorData({"x": [1, None, 2.5]}, batch_size=[2])}, [2]),
    "class": lambda lib: lib.td({"p": lib.Point(place=values(3), label="x", batch_size=[3])}),
    "class alone": lambda lib: lib.Point(place=values(3), label="x", batch_size=[3]),
    "lazy": lambda lib: lib.lazy(
        lib.td({"a": values(2), "b": {"c": values(3)}}), lib.td({"a": values(2) + 1, "b": {"c": values(3)}})
    ),
    "lazy in the middle": lambda lib: lib.lazy(*[lib.td({"a": values(5, 2) + i}, [5]) for i in range(3)], stack_dim=1),
    "unbatched": lambda lib: lib.td({"u": lib.Unbatched(values(7)), "a": values(2)}, [2]),
    "unusual keys": lambda lib: lib.td({"a/b": values(1), "ünï ☃": {'"\\': values(2)}}),
}


def assert_same(one: Any, two: Any) -> None:
    """Structure by the names that both libraries have, values by their bytes."""
    assert type(one).__name__ == type(two).__name__
    assert one.batch_size == two.batch_size and list(one.names) == list(two.names)
    assert set(one.keys()) == set(two.keys())
    for key in one.keys():  # noqa: SIM118 (iterating a tensordict gives its rows)
        first, second = one.get(key), two.get(key)
        if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
            assert first.dtype == second.dtype and first.shape == second.shape
            assert torch.equal(*(x.contiguous().reshape(-1).view(torch.uint8) for x in (first, second)))
        elif type(first).__name__ == "UnbatchedTensor":
            assert torch.equal(torch.as_tensor(one[key]), torch.as_tensor(two[key]))
        elif hasattr(first, "batch_size") and type(first).__name__ != "NonTensorData":
            assert_same(first, second)
        else:
            plain = [getattr(x, "data", x) if type(x).__name__ == "NonTensorData" else x for x in (first, second)]
            assert plain[0] == plain[1]


@pytest.mark.parametrize("name", TREES)
def test_the_reference_opens_what_ours_wrote(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.safetensors"
    OURS.write(TREES[name](OURS), path)
    assert_same(TREES[name](THEIRS), THEIRS.read(path))


@pytest.mark.parametrize("name", TREES)
def test_ours_opens_what_the_reference_wrote(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.safetensors"
    THEIRS.write(TREES[name](THEIRS), path)
    assert_same(TREES[name](OURS), OURS.read(path))


def test_the_library_of_the_format_opens_what_ours_wrote(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    td = OURS.td(
        {"model": {str(dtype)[6:]: torch.arange(6).to(dtype).reshape(3, 2) for dtype in DTYPES}, "none": values(0, 3)}
    )
    OURS.write(td, path)
    loaded = safetensors.torch.load_file(path)
    assert set(loaded) == {"none", *(f"model.{str(dtype)[6:]}" for dtype in DTYPES)}
    for dtype in DTYPES:
        mine, other = td["model", str(dtype)[6:]], loaded[f"model.{str(dtype)[6:]}"]
        assert other.dtype == dtype and torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt"


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_the_library_of_the_format_opens_what_it_has_no_place_for(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    weight = values(3)
    td = OURS.td(
        {
            "__metadata__": values(1),
            "a": {"b": values(2)},
            "a.b": values(3),
            "wide": torch.ones(3, dtype=torch.complex128),
            "narrow": torch.ones(3, dtype=torch.complex32),
            "scale": torch.ones(3).to(torch.float8_e8m0fnu),
            "ragged": torch.nested.nested_tensor([values(2), values(3)], layout=torch.jagged),
            "\ud800": values(1),
            "tied": weight,
            "again": weight,
        }
    )
    OURS.write(td, path)
    loaded = safetensors.torch.load_file(path)
    assert len(loaded) == 10 and loaded["a.b"].numel() + loaded["a.b~1"].numel() == 5


def test_ours_opens_what_the_library_of_the_format_wrote(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    state = {f"layers.{i}.{str(dtype)[6:]}": torch.arange(i).to(dtype) for i in range(4) for dtype in DTYPES}
    safetensors.torch.save_file(state, path, metadata={"format": "pt"})
    td = OURS.read(path)
    for name, tensor in state.items():
        mine = td[tuple(name.split("."))]
        assert mine.dtype == tensor.dtype and torch.equal(mine.view(torch.uint8), tensor.view(torch.uint8))
