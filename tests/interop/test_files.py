"""Files that one library writes, the other opens: the same keys, shapes, dtypes, values, batch sizes and names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tensordict as reference
import tensordict_class
import tensordict_core


def point(decorator: Callable[[type], type]) -> type:
    """The same class under the same name, once of either library."""

    class Point:
        place: torch.Tensor
        label: str

    Point.__qualname__ = "Point"
    return decorator(Point)


OURS = SimpleNamespace(
    name="ours",
    TensorDict=tensordict_core.TensorDict,
    NonTensorData=tensordict_core.NonTensorData,
    NonTensorStack=tensordict_core.NonTensorStack,
    lazy_stack=tensordict_core.lazy_stack,
    Point=point(tensordict_class.tensorclass),
)
THEIRS = SimpleNamespace(
    name="theirs",
    TensorDict=reference.TensorDict,
    NonTensorData=reference.NonTensorData,
    NonTensorStack=reference.NonTensorStack,
    lazy_stack=reference.lazy_stack,
    Point=point(reference.tensorclass),
)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
VALUES = ["text", "", 1, -2.5, True, None, [1, "two", None], {"a": [1, 2]}]


def nested(lib: SimpleNamespace) -> Any:
    inner = lib.TensorDict({"c": torch.arange(24).reshape(4, 3, 2), "deep": {"d": torch.ones(4)}}, [4])
    return lib.TensorDict({"a": torch.arange(4.0), "b": inner}, [4])


def named(lib: SimpleNamespace) -> Any:
    return lib.TensorDict({"a": torch.arange(6.0).reshape(2, 3)}, [2, 3], names=["time", None])


def longer_batches_inside(lib: SimpleNamespace) -> Any:
    return lib.TensorDict({"b": lib.TensorDict({"c": torch.arange(24).reshape(4, 3, 2)}, [4, 3])}, [4])


def every_dtype(lib: SimpleNamespace) -> Any:
    return lib.TensorDict({str(d).split(".")[1]: torch.arange(4).to(d) for d in (*FLOATS, *INTEGERS)}, [4])


def zero_size_and_zero_dim(lib: SimpleNamespace) -> Any:
    leaves = {"none": torch.zeros(0), "no columns": torch.zeros(3, 0, dtype=torch.int32), "scalar": torch.tensor(7)}
    return lib.TensorDict(leaves | {"empty": lib.TensorDict({}, [])}, [])


def unusual_keys(lib: SimpleNamespace) -> Any:
    return lib.TensorDict({"a/b": torch.ones(1), "c.d": torch.zeros(1), "ünï ☃": {"%2F": torch.arange(3)}}, [])


def strided(lib: SimpleNamespace) -> Any:
    return lib.TensorDict({"t": torch.arange(12).reshape(3, 4).T, "e": torch.arange(4).reshape(4, 1).expand(4, 3)}, [4])


def lazy(lib: SimpleNamespace) -> Any:
    rows = [lib.TensorDict({"a": torch.full((2, i + 1), i), "b": {"c": torch.arange(2)}}, [2]) for i in range(3)]
    return lib.lazy_stack(rows, 1)


def lazy_inside(lib: SimpleNamespace) -> Any:
    rows = lib.lazy_stack([lib.TensorDict({"x": torch.ones(i + 1)}, []) for i in range(3)], 0)
    return lib.TensorDict({"rows": rows, "a": torch.zeros(3)}, [3])


def tensorclass(lib: SimpleNamespace) -> Any:
    return lib.Point(place=torch.arange(6.0).reshape(3, 2), label="here", batch_size=[3])


def tensorclass_inside(lib: SimpleNamespace) -> Any:
    return lib.TensorDict({"point": tensorclass(lib), "a": torch.ones(3)}, [3])


def non_tensors(lib: SimpleNamespace) -> Any:
    return lib.TensorDict({f"value {i}": lib.NonTensorData(value) for i, value in enumerate(VALUES)}, [])


def non_tensors_of_a_batch(lib: SimpleNamespace) -> Any:
    stacked = lib.NonTensorStack(*[lib.NonTensorData(value) for value in ("x", "y", "z")])
    return lib.TensorDict({"s": stacked, "one": lib.NonTensorData("same", batch_size=[3]), "a": torch.ones(3)}, [3])


CONTENTS = [
    nested,
    named,
    longer_batches_inside,
    every_dtype,
    zero_size_and_zero_dim,
    unusual_keys,
    strided,
    lazy,
    lazy_inside,
    tensorclass,
    tensorclass_inside,
    non_tensors,
    non_tensors_of_a_batch,
]


def described(value: Any) -> Any:
    """What a container holds, in plain Python: equal descriptions are equal contents, whichever library holds them."""
    if type(value).__name__.startswith("NonTensor"):
        return value.tolist() if type(value).__name__ == "NonTensorStack" else value.data
    if type(value).__name__ == "LazyStackedTensorDict":
        return "lazy", value.stack_dim, [described(row) for row in value.unbind(value.stack_dim)]
    if isinstance(value, torch.Tensor):
        plain = value.as_subclass(torch.Tensor)
        return plain.dtype, plain.shape, plain.tolist()
    entries = value.to_tensordict(retain_none=True) if type(value).__name__ == "Point" else value
    held = {key: described(entries.get(key)) for key in sorted(entries.keys())}
    return type(value).__name__, value.batch_size, list(value.names), held


@pytest.mark.parametrize("content", CONTENTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("writer", "reader"), [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours", "theirs"])
def test_what_one_library_saves_the_other_loads(content, writer, reader, tmp_path):
    written = content(writer)
    written.memmap(tmp_path / "saved")
    loaded = reader.TensorDict.load_memmap(tmp_path / "saved")
    assert type(loaded).__name__ == type(content(reader)).__name__
    assert described(loaded) == described(written)


@pytest.mark.parametrize(
    "content", [nested, zero_size_and_zero_dim, lazy, tensorclass_inside], ids=lambda f: f.__name__
)
def test_what_both_libraries_save_is_the_same_files(content, tmp_path):
    """But for our manifest, which the reference does not know and does not mind."""
    for lib in (OURS, THEIRS):
        content(lib).memmap(tmp_path / lib.name)

    def leaves(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.memmap"))}

    assert leaves(tmp_path / "ours") == leaves(tmp_path / "theirs")


@pytest.mark.parametrize(("writer", "reader"), [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours", "theirs"])
def test_one_library_sees_what_the_other_writes_into_a_mapped_file(writer, reader, tmp_path):
    written = nested(writer).memmap(tmp_path / "saved")
    loaded = reader.TensorDict.load_memmap(tmp_path / "saved")
    written["b", "c"][1] = -5
    assert (loaded["b", "c"][1] == -5).all()


def test_both_live_in_one_process_and_exchange_dictionaries():
    td = nested(THEIRS)
    assert described(tensordict_core.TensorDict.from_dict(td.to_dict(), batch_size=[4])) == described(td)
