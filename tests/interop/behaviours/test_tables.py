"""Packing, grouping and tables: the same calls on the reference and on these packages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from side_by_side import assert_same

pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
pd = pytest.importorskip("pandas", reason="pandas is an extra")


def _td(lib):
    nested = lib.TensorDict({"s": torch.arange(90.0).view(5, 2, 3, 3)}, [5, 2])
    return lib.TensorDict({"v": torch.ones(5, 3), "p": torch.arange(5.0), "n": nested}, [5])


def _layout(layout):
    return layout.keys, layout.shapes, layout.dim, layout.nested, layout.device, layout.offsets, layout.numel


PACKS = {
    "columns": lambda lib: _td(lib).pack()[0],
    "columns first": lambda lib: _td(lib).pack(0)[0],
    "layout": lambda lib: _layout(_td(lib).pack()[1]),
    "layout of another dim": lambda lib: _layout(_td(lib).pack(0)[1]),
    "unpacked": lambda lib: _td(lib).pack()[1].unpack(_td(lib).pack()[0][:2]),
    "given layout": lambda lib: _td(lib).pack(
        layout=lib.PackLayout(keys=("p", "v", ("n", "s")), shapes=((), (3,), (2, 3, 3)))
    )[0],
    "layouts compare": lambda lib: _td(lib).pack()[1] == _td(lib).pack(1)[1],
    "no leaves": lambda lib: lib.TensorDict({}, [2]).pack()[0],
    "no batch": lambda lib: lib.TensorDict({"a": torch.ones(3)}, []).pack()[0],
    "dim out of range": lambda lib: _td(lib).pack(2),
    "non-tensor data": lambda lib: lib.TensorDict({"a": "x"}, [2]).pack(),
    "several dtypes": lambda lib: lib.TensorDict({"a": torch.ones(2), "b": torch.arange(2)}, [2]).pack(),
    "missing leaf": lambda lib: _td(lib).exclude("p").pack(layout=_td(lib).pack()[1]),
    "other shape": lambda lib: _td(lib).set("p", torch.zeros(5, 2)).pack(layout=_td(lib).pack()[1]),
    "other dim": lambda lib: _td(lib).pack(0, layout=_td(lib).pack()[1]),
    "too few columns": lambda lib: _td(lib).pack()[1].unpack(torch.zeros(2, 3)),
}
GROUPS = {
    "numbers": lambda lib: lib.group_by(lib.TensorDict({"u": torch.tensor([2, 0, 2]), "r": torch.arange(3)}, [3]), "u"),
    "rows": lambda lib: lib.group_by(lib.TensorDict({"u": torch.tensor([[2, 1], [0, 1], [2, 1]])}, [3]), "u"),
    "strings": lambda lib: lib.group_by(lib.TensorDict({"u": ["b", "a", "b"], "r": torch.arange(3)}, [3]), "u")[0],
    "no rows": lambda lib: lib.group_by(lib.TensorDict({"u": torch.zeros(0)}, [0]), "u"),
    "no batch": lambda lib: lib.group_by(lib.TensorDict({"u": torch.tensor(1)}, []), "u"),
    "missing": lambda lib: lib.group_by(lib.TensorDict({"u": torch.tensor([1])}, [1]), "z"),
    "a tensordict": lambda lib: lib.group_by(lib.TensorDict({"u": {"a": torch.tensor([1])}}, [1]), "u"),
    "values that cannot be sorted": lambda lib: lib.group_by(lib.TensorDict({"u": ["a", 1]}, [2]), "u"),
}
TABLE = {"x": [1.0, 2.0], "b": [True, False], "l": [[1], [2, 3]], "s": ["a", "b"], "n": [{"y": 1}, {"y": 2}]}
NULLS = {"x": [1, None], "f": [None, 1.5], "b": [None, True], "n": [{"y": 1}, None]}
ARROW = {
    "columns": lambda lib: lib.from_arrow(pa.table(TABLE)),
    "device": lambda lib: lib.from_arrow(pa.table({"x": [1.0]}), device="cpu"),
    "fixed lists": lambda lib: lib.from_arrow(pa.table({"v": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))})),
    "no rows": lambda lib: lib.from_arrow(pa.table({"x": pa.array([], pa.float32())})),
    "nulls": lambda lib: lib.from_arrow(pa.table(NULLS)),
    "nulls filled": lambda lib: lib.from_arrow(pa.table(NULLS), nulls="fill").exclude("f"),
    "nulls masked": lambda lib: lib.from_arrow(pa.table(NULLS), nulls="mask", mask_key="m")["m"],
    "unknown nulls": lambda lib: lib.from_arrow(pa.table(TABLE), nulls="x"),
    "useless mask_key": lambda lib: lib.from_arrow(pa.table(TABLE), mask_key="m"),
    "a table": lambda lib: lib.to_arrow(
        lib.TensorDict({"x": torch.ones(2), "n": {"y": torch.arange(2)}}, [2])
    ).to_pydict(),
    "two batch dims": lambda lib: lib.to_arrow(lib.TensorDict({"x": torch.ones(2, 3)}, [2, 3])),
    "a dtype that Arrow lacks": lambda lib: lib.to_arrow(
        lib.TensorDict({"x": torch.ones(2, dtype=torch.bfloat16)}, [2])
    ),
}
FRAME = {"i": [1, 2], "f": [1.5, 2.0], "b": [True, False], "o.p": [3, 4]}


def _read(lib, data, **options):
    return lib.TensorDict.from_pandas(pd.DataFrame(data), **options)


FRAMES = {
    "columns": lambda lib: _read(lib, FRAME),
    "separator": lambda lib: _read(lib, FRAME, separator="."),
    "dtype": lambda lib: _read(lib, FRAME, dtype=torch.float32),
    "batch size": lambda lib: _read(lib, FRAME, batch_size=[]),
    "wrong batch size": lambda lib: _read(lib, FRAME, batch_size=[4]),
    "two batch sizes": lambda lib: lib.TensorDict.from_pandas(
        pd.DataFrame(FRAME), batch_size=[2], auto_batch_size=True
    ),
    "null integers": lambda lib: _read(lib, {"a": pd.array([1, None], dtype="Int64")})["a"].isnan(),
    "categories": lambda lib: _read(lib, {"a": pd.Categorical(["x", "y", "x"])}),
    "dates": lambda lib: _read(lib, {"a": pd.to_datetime(["2020-01-01"])}),
    "names of columns": lambda lib: list(_read(lib, [[1, 2]]).keys()),
    "a frame": lambda lib: _td(lib).select("p").to_pandas().to_dict("list"),
    "nested without separator": lambda lib: lib.TensorDict({"n": {"a": torch.ones(2)}}, [2]).to_pandas(),
    "nested with separator": lambda lib: (
        lib.TensorDict({"n": {"a": torch.ones(2)}}, [2]).to_pandas(separator=".").to_dict("list")
    ),
    "two dimensions": lambda lib: lib.TensorDict({"a": torch.ones(2, 3)}, [2]).to_pandas(),
}
ARRAY = np.zeros((2, 3), dtype=[("x", "f4"), ("y", "i4", (2,))])
ARRAYS = {
    "fields": lambda lib: lib.from_struct_array(ARRAY),
    "batch size": lambda lib: lib.from_struct_array(ARRAY, batch_size=[2]),
    "batch dims": lambda lib: lib.from_struct_array(ARRAY, auto_batch_size=True, batch_dims=1),
    "two batch sizes": lambda lib: lib.from_struct_array(ARRAY, auto_batch_size=True, batch_size=[2]),
    "an array": lambda lib: lib.from_struct_array(ARRAY).to_struct_array().tolist(),
}


@pytest.mark.parametrize("call", PACKS.values(), ids=PACKS)
def test_packing_is_the_same(call):
    assert_same(call)


@pytest.mark.parametrize("call", GROUPS.values(), ids=GROUPS)
def test_grouping_is_the_same(call):
    assert_same(call)


@pytest.mark.parametrize("call", ARROW.values(), ids=ARROW)
def test_arrow_is_the_same(call):
    assert_same(call)


@pytest.mark.parametrize("call", FRAMES.values(), ids=FRAMES)
def test_frames_are_the_same(call):
    assert_same(call)


@pytest.mark.parametrize("call", ARRAYS.values(), ids=ARRAYS)
def test_structured_arrays_are_the_same(call):
    assert_same(call)
