"""Values that are not tensors: their JSON forms give back the very value, and nothing is imported or run on the way."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core.extension import register_type
from tensordict_memmap.schema.nontensor import NoJsonForm, decode, dumps, encode, loads, plain


def through_json(value):
    return decode(loads(dumps(encode(value))))


def same(a, b):
    """Equal in value and type, NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) and same(a[x], b[y]) for x, y in zip(a, b, strict=True))
    return a == b


keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.frozensets(st.integers()),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys | st.tuples(keys), inner),
    max_leaves=12,
)


@given(values)
def test_every_value_of_plain_types_is_restored(value):
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "tuple"},
        {"$": "tuple", "items": [1]},
        {1, 2},
        bytearray(b"ab"),
        1 + 2j,
        2**200,
        "\ud800",
        Path("a") / "b",
        PurePosixPath("/x"),
        PureWindowsPath("c:\\x"),
        torch.bfloat16,
        torch.device("cuda:1"),
        torch.Size([1, 2]),
        np.float32(1.5),
        np.int8(-3),
        np.datetime64("2020-01-01"),
    ],
    ids=repr,
)
def test_other_registered_types_are_restored(value):
    again = through_json(value)
    assert type(again) is type(value)
    assert again == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.zeros((0, 2), dtype=np.float16),
        np.array(3 + 1j),
        np.array(["a", "bcd"]),
        np.array([(1, 2.0)], dtype=[("x", "<i4"), ("y", "<f8")]),
        np.arange(12, dtype=">i2")[::-2],
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_come_back_with_dtype_and_shape(array):
    again = through_json(array)
    assert again.dtype == array.dtype and again.shape == array.shape
    np.testing.assert_array_equal(again, array)


class Colour(enum.Enum):
    RED = ("r", 1)


class Loose(enum.Enum):
    ONE = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    tags: tuple[str, ...] = ()
    length: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        if self.x == 13:
            raise RuntimeError("__post_init__ ran again")


register_type(Colour)
register_type(Point, name="tests:Point")


def test_registered_enums_and_dataclasses_go_by_name():
    assert through_json([Colour.RED, Point(1, ("a",))]) == [Colour.RED, Point(1, ("a",))]
    assert encode(Point(1))["class"] == "tests:Point"


def test_reading_a_dataclass_runs_none_of_its_code():
    point = Point(1)
    object.__setattr__(point, "x", 13)
    assert through_json(point).x == 13


def test_types_that_are_not_registered_are_refused_with_a_remedy():
    with pytest.raises(NoJsonForm, match="register_type"):
        encode([Loose.ONE])


def test_a_class_that_is_unknown_when_reading_is_named():
    with pytest.raises(ValueError, match="nobody:Nothing"):
        decode({"$": "dataclass", "class": "nobody:Nothing", "fields": {}})


def test_a_name_of_something_else_is_refused():
    with pytest.raises(ValueError, match="is not an enum class"):
        decode({"$": "enum", "class": "tests:Point", "value": 1})
    with pytest.raises(ValueError, match="fields"):
        decode({"$": "dataclass", "class": "tests:Point", "fields": {"x": 1, "__class__": 2}})


@pytest.mark.parametrize(
    "value",
    [object(), np.array([object()]), lambda: 0, int, [torch.zeros(2)]],
    ids=["object", "array of objects", "function", "class", "list of tensors"],
)
def test_values_without_a_form_are_refused(value):
    with pytest.raises(NoJsonForm):
        encode(value)


def test_a_value_that_holds_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(NoJsonForm, match="holds itself"):
        encode(value)


@pytest.mark.parametrize(
    "form",
    [
        {"$": "unheard of"},
        {"$": ["tuple"]},
        {"$": "tuple"},
        {"$": "bytes", "base64": 3},
        {"$": "path", "kind": "os.system", "value": "x"},
        {"$": "array", "npy": ""},
        {"$": "dict", "items": [[[1], 2]]},
    ],
    ids=str,
)
def test_damaged_forms_are_a_value_error(form):
    with pytest.raises((ValueError, EOFError)):
        decode(form)


def test_an_array_of_objects_in_a_file_is_not_unpickled():
    import base64
    import io

    npy = io.BytesIO()
    np.save(npy, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        decode({"$": "array", "npy": base64.b64encode(npy.getvalue()).decode()})


def test_the_plain_form_is_readable_by_any_json_reader():
    value = {"a": (1, [None, 2.5])}
    assert json.loads(dumps(plain(value))) == {"a": [1, [None, 2.5]]}
    for other in [b"x", {1: 2}, {1, 2}]:
        with pytest.raises(NoJsonForm):
            plain(other)


def test_documents_that_are_not_json_raise_a_value_error():
    for document in [b"", b"{", b"\xff", b"[" * 100_000]:
        with pytest.raises(ValueError):
            loads(document)
