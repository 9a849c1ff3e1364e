"""Tensordicts of zeros from a schema, and NumPy structured arrays as tensordicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensordict_core import TensorDict, from_any, from_dict, from_struct_array

SCHEMA = {"o": ([4], torch.float32), ("n", "done"): ([], torch.bool), "m": {"x": ((2, 2), torch.int64)}}


@pytest.mark.parametrize("storage", [None, "shared"])
def test_a_schema_gives_zeros_of_the_batch_size_and_the_feature_shapes(storage):
    td = TensorDict.from_schema(SCHEMA, batch_size=[8], storage=storage)
    assert td.batch_size == (8,) and td.is_locked == (storage is not None) and td.is_shared() == (storage is not None)
    shapes = {key: (tuple(leaf.shape), leaf.dtype) for key, leaf in td.items(True, True)}
    assert shapes == {
        "o": ((8, 4), torch.float32),
        ("n", "done"): ((8,), torch.bool),
        ("m", "x"): ((8, 2, 2), torch.int64),
    }
    assert not any(leaf.any() for leaf in td.values(True, True))
    td["o"][0] = 1  # entries are not expanded
    assert td["o"].sum() == 4


def test_an_empty_schema_is_refused():
    with pytest.raises(ValueError, match="storage='tape' is unknown"):
        TensorDict.from_schema(SCHEMA, storage="tape")
    with pytest.raises(ValueError, match="give a shape and a dtype"):
        TensorDict.from_schema({"o": 3})
    with pytest.raises(TypeError, match="give one of torch"):
        TensorDict.from_schema({"o": ([1], float)})


def test_a_structured_array_and_its_tensordict_share_memory():
    array = np.zeros((2, 3), dtype=[("x", "f4"), ("y", "i8", (2,)), ("n", [("z", "f8")]), ("s", "U3")])
    array["s"] = "abc"
    td = from_struct_array(array)
    assert td.batch_size == (2, 3) and td["n"].batch_size == (2, 3) and td[0, 1]["s"] == "abc"
    td["x"][0, 0] = 5
    assert array["x"][0, 0] == 5
    assert (td.to_struct_array()[["x", "y", "n"]] == array[["x", "y", "n"]]).all()


def test_options_set_the_batch_size_of_a_structured_array():
    array = np.zeros((2, 3), dtype=[("x", "f4"), ("y", "i4", (2,))])
    assert from_struct_array(array, batch_size=[2]).batch_size == (2,)
    assert from_struct_array(array, auto_batch_size=True, batch_dims=1).batch_size == (2,)
    with pytest.raises(TypeError, match="both set the batch size"):
        from_struct_array(array, auto_batch_size=True, batch_size=[2])
    with pytest.raises(TypeError, match="structured array"):
        from_struct_array(np.zeros(3))


def test_a_structured_array_of_another_byte_order_is_converted():
    array = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", ">i4"), ("b", "<f8")])
    td = TensorDict.from_struct_array(array)
    assert td["a"].dtype is torch.int32 and td["a"].tolist() == [1, 3] and td["b"].tolist() == [2.5, 4.5]


@pytest.mark.parametrize("align", [False, True])
def test_a_structured_array_is_a_nested_tensordict_as_an_entry(align):
    array = np.zeros(3, np.dtype([("x", "f4"), ("n", [("y", "i8", (2,))]), ("s", "U3")], align=align))
    array["s"] = ["a", "b", "c"]
    built = [TensorDict({"t": array}), TensorDict({"t": array}, [3]), from_any({"t": array}), from_dict({"t": array})]
    built.append(TensorDict(batch_size=[3]).set("t", array))
    for td in built:
        assert td["t"].batch_size == (3,) and td["t", "n", "y"].shape == (3, 2) and td["t"][1]["s"] == "b"
    array["x"] = 1.0
    for td in built:
        assert td.set_("t", array)["t", "x"].tolist() == [1.0] * 3
