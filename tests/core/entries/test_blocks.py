"""Blocks over views and copies: ``with td.view(-1) as flat`` and its kind write back what the block wrote."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from tensordict_core import NonTensorData, TensorDict, lazy_stack


def dense():
    return TensorDict({"a": torch.arange(12.0).reshape(3, 1, 4), "n": {"x": torch.zeros(3, 1)}}, [3, 1])


def lazy():
    return lazy_stack([dense()[row] for row in range(3)])


def view_of_parent():
    return torch.stack([dense(), dense()])._get_sub_tensordict(0)


VIEWS = {
    "squeeze": lambda td: td.squeeze(),
    "squeeze(1)": lambda td: td.squeeze(1),
    "squeeze of nothing": lambda td: td.squeeze(0),
    "unsqueeze": lambda td: td.unsqueeze(1),
    "permute": lambda td: td.permute(1, 0),
    "transpose": lambda td: td.transpose(0, 1),
    "movedim": lambda td: td.movedim(0, 1),
    "view": lambda td: td.view(-1),
    "reshape": lambda td: td.reshape(3),
    "flatten": lambda td: td.flatten(0, 1),
    "unflatten": lambda td: td.unflatten(1, (1, 1)),
    "torch.squeeze": lambda td: torch.squeeze(td, 1),
    "torch.transpose": lambda td: torch.transpose(td, 0, 1),
}
COPIES = {
    "to a dtype": lambda td: td.to(torch.float64),
    "double": lambda td: td.double(),
    "type": lambda td: td.type(torch.float64),
    "cpu": lambda td: td.cpu(),
}
each_source = pytest.mark.parametrize("make", [dense, lazy, view_of_parent], ids=lambda make: make.__name__)
each_view = pytest.mark.parametrize("operation", VIEWS.values(), ids=VIEWS)
each_operation = pytest.mark.parametrize("operation", [*VIEWS.values(), *COPIES.values()], ids=[*VIEWS, *COPIES])


@each_source
@each_operation
def test_entries_that_a_block_adds_or_replaces_are_in_the_source(make, operation):
    td = make()
    expected = operation(make())
    with operation(td) as result:
        size = result.batch_size
        result["new"] = torch.arange(3).reshape(size)
        result["n", "x"] = torch.ones(size)
        result["deep", "er"] = torch.ones(*size, 2)
        result["word"] = "text"
    assert td["new"].tolist() == [[0], [1], [2]]
    assert (td["n", "x"] == 1).all() and td["n", "x"].dtype == torch.float32
    assert td["deep"].batch_size == (3, 1) and td["deep", "er"].shape == (3, 1, 2)
    assert td["word"] == ("text" if make is not lazy else [["text"]] * 3)
    assert (td["a"] == torch.arange(12.0).reshape(3, 1, 4)).all() and td["a"].dtype == torch.float32
    again = operation(td)
    assert again.batch_size == expected.batch_size
    assert (again["new"] == torch.arange(3).reshape(size)).all()


@each_source
@each_operation
def test_in_place_writes_of_a_block_are_in_the_source(make, operation):
    td = make()
    with operation(td) as result:
        result["a"].mul_(2) if make is not lazy else result.mul_(2)
    assert (td["a"] == torch.arange(12.0).reshape(3, 1, 4) * 2).all()
    assert td["a"].dtype == torch.float32


@each_operation
def test_entries_that_a_block_leaves_alone_stay_the_tensors_they_were(operation):
    td = dense()
    a, x = td["a"], td["n", "x"]
    with operation(td) as result:
        result["new"] = torch.zeros(result.batch_size)
    assert td["a"] is a and td["n", "x"] is x


def test_a_reshape_that_copies_writes_changes_of_the_copy_back():
    td = TensorDict({"a": torch.zeros(4, 3).T, "b": torch.zeros(3, 4)}, [3, 4])
    with td.reshape(-1) as flat:
        assert flat["a"].data_ptr() != td["a"].data_ptr()
        flat["a"][5] = 1
    assert td["a"].flatten().nonzero().tolist() == [[5]]


def test_writes_into_copies_that_torch_does_not_count_are_written_back():
    with torch.inference_mode():
        td = TensorDict({"x": torch.zeros(3)}, [3])
        with td.double() as wide:
            wide["x"].add_(1)
        assert (td["x"] == 1).all() and td["x"].dtype == torch.float32


def test_a_dtype_that_a_block_gives_a_new_entry_stays():
    td = TensorDict({"x": torch.zeros(3)}, [3])
    with td.to(torch.float64) as wide:
        wide["y"] = wide["x"] + 1
        wide["x"] = wide["x"] + 1
    assert td["y"].dtype == torch.float64
    assert td["x"].dtype == torch.float32 and (td["x"] == 1).all()


def test_a_block_over_another_device_leaves_entries_on_that_of_the_source():
    td = TensorDict({"x": torch.zeros(3)}, [3], device="cpu")
    with pytest.raises(NotImplementedError, match="meta"), td.to("meta") as elsewhere:
        elsewhere["y"] = torch.zeros(3, device="meta")
    assert "y" not in td


def test_blocks_nest_and_stop_where_the_result_is_the_source():
    td = dense()
    with td.squeeze(1) as inner, inner.unsqueeze(0) as outer:
        outer["new"] = torch.ones(1, 3)
    assert td["new"].shape == (3, 1)
    flat = td.view(-1)
    with flat.view(3) as same:
        assert same is flat
        same["only here"] = torch.zeros(3)
    assert "only here" not in td


def test_a_block_that_raises_writes_nothing():
    td = dense()
    with pytest.raises(ZeroDivisionError), td.view(-1) as flat:
        flat["new"] = torch.zeros(3)
        raise ZeroDivisionError
    assert "new" not in td
    with pytest.raises(ZeroDivisionError), td.flatten_keys(".") as flat:
        flat["new"] = torch.zeros(3, 1)
        raise ZeroDivisionError
    assert "new" not in td


def test_entries_that_a_block_deletes_stay_in_the_source():
    td = dense()
    with td.view(-1) as flat:
        del flat["a"]
    assert "a" in td


def test_names_come_back():
    td = TensorDict({"x": torch.zeros(3, 1, 2)}, [3, 1], names=["rows", "columns"])
    with td.transpose(0, 1) as turned:
        turned["node"] = TensorDict({"q": torch.zeros(1, 3, 5)}, [1, 3, 5])
    assert td["node"].batch_size == (3, 1, 5) and td["node"].names == ["rows", "columns", None]


def test_a_source_that_was_locked_during_the_block_is_an_error():
    td = dense()
    with pytest.raises(RuntimeError, match="locked"), td.view(-1) as flat:
        flat["new"] = torch.zeros(3)
        td.lock_()
    assert "new" not in td


def test_a_batch_size_that_the_block_changed_is_refused():
    td = dense()
    with pytest.raises(RuntimeError, match="keep the batch size"), td.view(-1) as flat:
        flat.batch_size = []
        flat["new"] = torch.zeros(())
    assert "new" not in td


def test_ragged_slices_get_their_part():
    td = lazy_stack([TensorDict({"x": torch.zeros(3)}), TensorDict({"x": torch.zeros(4)})])
    with td.unsqueeze(0) as more:
        more["y"] = torch.tensor([[1, 2]])
    assert td["y"].tolist() == [1, 2] and td[1]["y"] == 2


def ragged():
    return lazy_stack([TensorDict({"a": torch.full((2, width), 1.0), "b": torch.zeros(2)}, [2]) for width in (1, 2)])


def test_entries_beside_ragged_ones_are_written_back():
    td = ragged()
    held = [element["a"] for element in td]
    with td.view(-1) as flat:
        flat["index"] = torch.arange(4)
        flat["n", "x"] = torch.ones(4)
        flat["s"] = "text"
    assert td["index"].tolist() == [[0, 1], [2, 3]]
    assert td["n", "x"].shape == (2, 2)
    assert td[1]["s"] == ["text", "text"]
    assert all(element["a"] is tensor for element, tensor in zip(td, held, strict=True))


def test_entries_of_some_elements_are_written_back():
    td = lazy_stack([TensorDict({"a": torch.zeros(2), f"own{row}": torch.zeros(2)}, [2]) for row in range(2)])
    with td.view(-1) as flat:
        flat.update(flat + 1)
    assert [element[f"own{row}"].sum() for row, element in enumerate(td)] == [2, 2]
    assert td["a"].sum() == 4


def test_ragged_entries_that_the_block_changed_are_written_back():
    td = ragged()
    with td.view(-1) as flat:
        flat.rename_key_("a", "moved")
    assert [element["moved"].shape for element in td] == [(2, 1), (2, 2)]
    with td.view(-1) as flat:
        flat["a"] = torch.zeros(4, 3)
    assert td["a"].shape == (2, 2, 3)
    nested = TensorDict({"n": ragged()}, [2, 2])
    with nested.view(-1) as flat:
        flat["n"].rename_key_("a", "moved")
        flat["n", "b"] = torch.ones(4)
    assert [element["moved"].shape for element in nested["n"]] == [(2, 1), (2, 2)]
    assert nested["n", "b"].sum() == 4


def test_a_nested_lazy_stack_is_written_back():
    td = TensorDict({"stack": lazy()}, [3, 1])
    with td.transpose(0, 1) as turned:
        turned["stack", "n", "x"] = torch.ones(1, 3)
        turned["stack", "new"] = torch.arange(3).reshape(1, 3)
    assert (td["stack", "n", "x"] == 1).all()
    assert td["stack", "new"].tolist() == [[0], [1], [2]]


def test_non_tensor_values_are_written_back():
    td = dense()
    with td.view(-1) as flat:
        flat["value"] = NonTensorData({"any": "thing"}, [3])
    assert td.get("value").batch_size == (3, 1) and td["value"] == {"any": "thing"}


def test_flat_and_nested_names_of_one_entry_meet_with_an_error():
    td = TensorDict({"n": {"x": 0}})
    with pytest.raises(KeyError, match=r"\('n', 'x'\) and 'n\.x' would both become"), td.flatten_keys(".") as flat:
        flat["n", "x"] = 1
    assert td["n", "x"] == 0
    with td.flatten_keys(".") as flat:
        flat["n", "y"] = 2
    assert td["n", "y"] == 2
    td = TensorDict({"a.b": 0, "c": {"d": 1}})
    with td.unflatten_keys(".") as nested:
        nested["c", "d"] = torch.tensor(5)
        nested["a", "e"] = torch.tensor(6)
    assert sorted(td.keys(True, True), key=str) == [("c", "d"), "a.b", "a.e"]
    assert td["c", "d"] == 5


CHAINS = {
    "shapes": lambda td: td.view(-1).view(3, 1),
    "keys": lambda td: td.flatten_keys(".").unflatten_keys("."),
    "casts": lambda td: td.double().float(),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_results_do_not_keep_their_sources_alive(chain):
    td = dense()
    first = weakref.ref(td)
    td = chain(td)
    gc.collect()
    assert first() is None and td.batch_size == (3, 1)


def test_blocks_compile_to_one_graph():
    def function(td):
        with td.view(-1) as flat:
            flat["new"] = flat["x"] + 1
        with td.to(torch.float64) as wide:
            wide["x"] = wide["x"] * 2
        return td

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    got = compiled(TensorDict({"x": torch.ones(2, 3)}, [2, 3]))
    assert (got["new"] == 2).all() and got["new"].shape == (2, 3)
    assert (got["x"] == 2).all() and got["x"].dtype == torch.float32
