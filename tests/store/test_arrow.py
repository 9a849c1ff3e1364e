"""Arrow tables to tensordicts and back."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import TensorDict, UnbatchedTensor, lazy_stack
from tensordict_store import from_arrow, to_arrow

NUMBERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_views_of_the_table(name):
    array = np.arange(6).astype(name)
    table = pa.table({"x": pa.array(array)})
    td = from_arrow(table, copy=False)
    assert td["x"].dtype == getattr(torch, name) and td["x"].tolist() == array.tolist()
    assert td["x"].data_ptr() == table["x"].chunk(0).buffers()[1].address
    assert to_arrow(td)["x"].chunk(0).buffers()[1].address == td["x"].data_ptr()


def test_memory_that_arrow_marks_as_immutable_is_copied(tmp_path):
    path = str(tmp_path / "rows.arrow")
    table = pa.table({"x": [1.0, 2.0]})
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    mapped = pa.ipc.open_file(pa.memory_map(path)).read_all()
    from_arrow(mapped)["x"].zero_()  # a write to the mapping would end the process
    assert mapped["x"].to_pylist() == [1.0, 2.0]


def test_every_kind_of_column_has_its_entry():
    fixed = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))
    table = pa.table(
        {
            "flag": [True, False],
            "ids": pa.array([[1], [2, 3]]),
            "point": fixed,
            "image": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3)),
            "n": pa.array([{"y": 1, "z": {"w": 2.0}}, {"y": 3, "z": {"w": 4.0}}]),
            "name": ["a", "b"],
            "kind": pa.array(["u", "v"]).dictionary_encode(),
            "day": pa.array([datetime.date(2020, 1, 1)] * 2),
        }
    )
    td = from_arrow(table)
    assert td.batch_size == (2,) and td["n", "z"].batch_size == (2,)
    assert td["flag"].tolist() == [True, False] and [row.tolist() for row in td["ids"].unbind()] == [[1], [2, 3]]
    assert td["point"].tolist() == [[1.0, 2.0], [3.0, 4.0]] and td["image"].shape == (2, 2, 3)
    assert td["n", "y"].tolist() == [1, 3] and td["n", "z", "w"].tolist() == [2.0, 4.0]
    assert td["name"] == ["a", "b"] and td["kind"] == ["u", "v"] and td[1]["day"] == datetime.date(2020, 1, 1)


def test_slices_and_chunks_are_read_at_their_place():
    table = pa.table({"l": [[1], [2, 3], []], "f": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))})
    part = from_arrow(table[1:])
    assert [row.tolist() for row in part["l"].unbind()] == [[2, 3], []] and part["f"].tolist() == [[3, 4], [5, 6]]
    both = from_arrow(pa.concat_tables([table, table[:1]]))
    assert both["f"].tolist() == [[1, 2], [3, 4], [5, 6], [1, 2]]
    assert from_arrow(table[:0]).batch_size == (0,)


NULLS = {
    "x": pa.array([1, None]),
    "f": pa.array([None, 1.5]),
    "h": pa.array([None, np.float16(1)], pa.float16()),
    "b": pa.array([None, True]),
    "l": pa.array([None, [1]]),
    "v": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    "s": pa.array(["a", None]),
    "n": pa.array([{"y": 1}, None]),
}


@pytest.mark.parametrize("name", NULLS)
def test_a_null_value_is_refused_by_default(name):
    with pytest.raises(ValueError, match="null value"):
        from_arrow(pa.table({name: NULLS[name]}))


def test_null_values_are_filled_and_masked():
    td = from_arrow(pa.table(NULLS), nulls="mask", mask_key=("m", "given"))
    assert td["x"].tolist() == [1, 0] and td["f"].isnan().tolist() == [True, False] and td["h"][0].isnan()
    assert td["b"].tolist() == [False, True] and [row.tolist() for row in td["l"].unbind()] == [[], [1]]
    assert td["v"].tolist() == [[1, 2], [0, 0]] and td["s"] == ["a", None] and td["n", "y"].tolist() == [1, 0]
    masks = td["m", "given"]
    assert masks["x"].tolist() == [True, False] and masks["n", "y"].tolist() == [True, False]
    assert set(masks.keys()) == set(NULLS)
    filled = from_arrow(pa.table(NULLS), nulls="fill")
    assert "m" not in filled and filled["x"].tolist() == [1, 0]


def test_a_null_inside_of_a_row_needs_fill():
    table = pa.table({"l": [[1, None]]})
    for nulls in ("raise", "mask"):
        with pytest.raises(ValueError, match="inside of its rows"):
            from_arrow(table, nulls=nulls)
    assert from_arrow(table, nulls="fill")["l"].unbind()[0].tolist() == [1, 0]


def test_frames_streams_and_batches_are_tables_too():
    pl, pd = (
        pytest.importorskip("polars", reason="polars is not installed"),
        pytest.importorskip("pandas", reason="pandas is an extra"),
    )
    assert from_arrow(pl.DataFrame({"a": [1, 2], "s": ["x", "y"]}))["s"] == ["x", "y"]
    assert from_arrow(pd.DataFrame({"a": [1, 2]}))["a"].tolist() == [1, 2]
    table = pa.table({"a": [1, 2]})
    for source in (table.to_reader(), table.to_batches()[0]):
        assert from_arrow(source)["a"].tolist() == [1, 2]


def test_a_tensordict_is_the_same_after_a_round_trip():
    td = TensorDict(
        {
            "x": torch.randn(4, 2, 3),
            "flags": torch.tensor([[True, False]] * 4),
            "n": {"y": torch.arange(4), "empty": {}},
            "name": list("abcd"),
            "ragged": torch.nested.nested_tensor([torch.ones(n) for n in range(4)], layout=torch.jagged),
        },
        [4],
    )
    again = from_arrow(to_arrow(td))
    assert torch.equal(again["x"], td["x"]) and torch.equal(again["flags"], td["flags"])
    assert torch.equal(again["n", "y"], td["n", "y"]) and again["n", "empty"].batch_size == (4,)
    assert again["name"] == list("abcd")
    pairs = zip(again["ragged"].unbind(), td["ragged"].unbind(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


@given(
    rows=st.integers(0, 5),
    shape=st.lists(st.integers(1, 3), max_size=3),
    dtype=st.sampled_from([torch.int16, torch.float64, torch.bool, torch.uint8]),
)
def test_any_tensor_is_restored_bit_by_bit(rows, shape, dtype):
    leaf = torch.randint(0, 2, (rows, *shape)).to(dtype)
    again = from_arrow(to_arrow(TensorDict({"a": {"b": leaf}}, [rows])))["a", "b"]
    assert again.dtype == dtype and torch.equal(again, leaf)


def test_ragged_entries_of_lazy_stacks_become_lists():
    stack = lazy_stack([TensorDict({"x": torch.zeros(n)}) for n in (1, 2)])
    assert to_arrow(stack)["x"].to_pylist() == [[0.0], [0.0, 0.0]]


def test_entries_without_a_column_are_refused_with_their_key():
    def table(**entries):
        return to_arrow(TensorDict({"n": entries}, [2]))

    with pytest.raises(TypeError, match=r"\('n', 'a'\) has the dtype torch.bfloat16"):
        table(a=torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="complex"):
        table(a=torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="without elements in a row"):
        table(a=torch.zeros(2, 0))
    with pytest.raises(TypeError, match="that Arrow cannot hold"):
        table(a=["x", 1])
    with pytest.raises(TypeError, match="UnbatchedTensor"):
        table(a=UnbatchedTensor(torch.zeros(3)))
    with pytest.raises(ValueError, match="one dimension of rows"):
        to_arrow(TensorDict({}, [2, 3]))


def test_options_that_mean_nothing_are_refused():
    table = pa.table({"a": [1]})
    with pytest.raises(ValueError, match="nulls='x' is unknown"):
        from_arrow(table, nulls="x")
    with pytest.raises(ValueError, match="mask_key"):
        from_arrow(table, mask_key="m")
    with pytest.raises(ValueError, match="occurs twice"):
        from_arrow(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))


def test_a_dataset_of_hugging_face_is_a_table_with_its_selected_rows():
    datasets = pytest.importorskip("datasets", reason="datasets of Hugging Face are not installed")
    pictures = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    features = {"picture": datasets.Array2D((2, 3), "uint8"), "label": datasets.ClassLabel(names=["no", "yes"])}
    dataset = datasets.Dataset.from_dict(
        {"picture": pictures, "label": [0, 1, 0, 1]}, features=datasets.Features(features)
    )
    td = from_arrow(dataset.select([3, 1]).with_format("torch"))
    assert td["picture"].tolist() == pictures[[3, 1]].tolist() and td["picture"].dtype is torch.uint8
    assert td["label"].tolist() == [1, 1] and td.batch_size == (2,)
    again = datasets.Dataset(to_arrow(td.select("label")))  # (datasets know lists, and no tensors of Arrow)
    assert again[0]["label"] == 1 and from_arrow(again)["label"].tolist() == [1, 1]


class Lists(pa.ExtensionType):
    """Rows of a shape, stored as lists in lists."""

    shape = (2, 3)

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.list_(pa.int16())), "tests.lists")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def test_lists_of_an_extension_type_with_a_shape_are_one_tensor():
    rows = np.arange(18, dtype=np.int16).reshape(3, 2, 3)
    column = pa.ExtensionArray.from_storage(Lists(), pa.array(rows.tolist(), Lists().storage_type))
    td = from_arrow(pa.table({"a": column}).slice(1))
    assert td["a"].dtype is torch.int16 and td["a"].tolist() == rows[1:].tolist()
    lies = pa.ExtensionArray.from_storage(Lists(), pa.array([[[1, 2], [3]]], Lists().storage_type))
    with pytest.raises(
        ValueError, match=r"'a',\) has 3 values of int16, which are no 1 rows of numbers of the shape \[2, 3\]"
    ):
        from_arrow(pa.table({"a": lies}))
