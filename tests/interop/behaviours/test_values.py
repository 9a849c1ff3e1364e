"""Non-tensor data beside the reference: a test for each behaviour that programs rely on."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from side_by_side import OURS, THEIRS, assert_same

pytestmark = pytest.mark.filterwarnings("ignore")


def values(lib: Any, *data: Any, **options: Any) -> Any:
    return lib.NonTensorStack(*data, **options)


def is_subscripted(lib: Any) -> Any:
    kind = lib.MetaData[str]
    return [
        isinstance(kind("x"), lib.MetaData),
        kind.__name__,
        lib.MetaData[int](3).data,
        lib.TensorDict({"m": kind("x")})["m"],
        isinstance(lib.MetaData(3), kind),
        issubclass(kind, lib.MetaData),
        lib.MetaData[str] is kind,
    ]


def pad_in_place(lib: Any) -> Any:
    return lib.pad(lib.NonTensorData("a", batch_size=[2]), [1, 1], inplace=True)


def data_setter(lib: Any) -> Any:
    td = lib.TensorDict({"v": lib.NonTensorData(1)})
    td.get("v").data = 4
    return td["v"]


def auto_size(lib: Any) -> Any:
    td = lib.TensorDict({"q": ["a", "b", "c"], "x": torch.zeros(3, 2)})
    td.auto_batch_size_(batch_dims=1)
    return [td[0]["q"], list(td.batch_size)]


def written_row(lib: Any) -> Any:
    td = lib.TensorDict({"v": lib.NonTensorData(0, batch_size=[10])}, [10]).share_memory_()
    td[1::2] = lib.TensorDict({"v": lib.NonTensorData(1, batch_size=[5])}, [5])
    return td


ROWS = {
    "metadata of a type": is_subscripted,
    "metadata of another type": lambda lib: lib.MetaData[str](3),
    "data of a type": lambda lib: lib.NonTensorData[str],
    "is_tensorclass of the type": lambda lib: lib.is_tensorclass(lib.NonTensorData),
    "pad of a stack": lambda lib: lib.pad(values(lib, "a", "b"), [1, 1]).tolist(),
    "pad in place": pad_in_place,
    "empty list": lambda lib: lib.TensorDict({"k": []})["k"],
    "contiguous": lambda lib: (lambda s: s.contiguous() is s)(values(lib, "a", "b")),
    "update of a stack": lambda lib: values(lib, "a", "b").update(values(lib, "c", "d")).tolist(),
    "update_ of a stack": lambda lib: values(lib, "a", "b").update_(values(lib, "c", "d")).tolist(),
    "update of a stack in place": lambda lib: (
        values(lib, "a", "b").update(values(lib, "c", "d"), inplace=True).tolist()
    ),
    "update of a stack by one": lambda lib: values(lib, 0, 1).update(lib.NonTensorData(5, batch_size=[2])).tolist(),
    "update of one": lambda lib: lib.NonTensorData(0).update(lib.NonTensorData(1)).data,
    "update_ of one": lambda lib: lib.NonTensorData(0).update_(lib.NonTensorData(1)).data,
    "update of one by a stack": lambda lib: lib.NonTensorData(1).update(values(lib, 1, 2)),
    "update of a locked stack": lambda lib: values(lib, 1, 2).lock_().update(values(lib, 3, 4)),
    "setter": data_setter,
    "from_dict": lambda lib: lib.TensorDict.from_dict(
        {"q": ["a", "b", "c"], "x": torch.zeros(3, 2)}, auto_batch_size=True, batch_dims=1
    )[0]["q"],
    "from_dict of a list alone": lambda lib: list(
        lib.TensorDict.from_dict({"q": ["a", "b", "c"]}, auto_batch_size=True).batch_size
    ),
    "auto_batch_size_": auto_size,
    "stack of equal values": lambda lib: torch.stack([lib.TensorDict(s="x"), lib.TensorDict(s="x")])["s"],
    "lazy stack of equal values": lambda lib: lib.lazy_stack([lib.TensorDict(s="x"), lib.TensorDict(s="x")])["s"],
    "unsqueeze": lambda lib: lib.TensorDict(foo=lib.NonTensorData(3)).unsqueeze(0)["foo"],
    "expand": lambda lib: lib.TensorDict({"s": "s"}, batch_size=[2]).expand(3, 2)["s"],
    "xor": lambda lib: (lib.TensorDict(b=lib.NonTensorData(True)) ^ lib.TensorDict(b=lib.NonTensorData(True)))["b"],
    "or": lambda lib: (lib.TensorDict(b=lib.NonTensorData(True)) | lib.TensorDict(b=lib.NonTensorData(True)))["b"],
    "equality with a tensor": lambda lib: (lib.TensorDict(i=lib.NonTensorData(3)) == lib.TensorDict(i=3)).all(),
    "from_list": lambda lib: (lambda s: [list(s.shape), s[0, 1].data])(
        lib.NonTensorStack.from_list([["a", "b"], ["c", "d"]])
    ),
    "from_list of data": lambda lib: lib.NonTensorStack.from_list([lib.NonTensorData(x) for x in "ab"]).tolist(),
    "stack of lists": lambda lib: (lambda s: [list(s.batch_size), s.tolist()])(values(lib, ["a", "b"], ["c"])),
    "batch size of a stack": lambda lib: list(values(lib, "a", "b", batch_size=(2,)).batch_size),
    "shared row": written_row,
    "pop": lambda lib: type(lib.TensorDict(v=lib.NonTensorData("a")).pop("v")),
    "pop of a stack": lambda lib: type(lib.TensorDict({"v": ["a", "b"]}, [2]).pop("v")),
    "get data": lambda lib: lib.NonTensorData("s").get("data"),
    "lazy stack of data": lambda lib: type(lib.lazy_stack([lib.NonTensorData("e", batch_size=(4,))] * 3)[0]),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_values_behave_as_in_the_reference(row: Any) -> None:
    assert_same(row)


# processes -----------------------------------------------------------------------------------------------------------


def _write(td: Any, value: Any) -> None:
    td.update_(value)


SHARED = {
    "shared": lambda lib, path: lib.TensorDict(v=lib.NonTensorData("a")).share_memory_(),
    "shared with a tensor": lambda lib, path: lib.TensorDict(
        v=lib.NonTensorData("a"), x=torch.zeros(2)
    ).share_memory_(),
    "mapped": lambda lib, path: lib.TensorDict(v=lib.NonTensorData("a"), x=torch.zeros(2)).memmap_(),
    "saved": lambda lib, path: lib.TensorDict(v=lib.NonTensorData("a")).memmap_(path, share_non_tensor=True),
}


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_shared_values_say_so(make: Any, tmp_path: Path) -> None:
    def state(lib: Any) -> Any:
        td = make(lib, tmp_path / lib.TensorDict.__module__)
        shared = td.is_shared() if len(td.keys()) == 1 else None  # a mapped tensor of these packages is shared too
        return [shared, td.is_memmap(), td.is_locked, td.get("v").is_shared(), td.get("v").is_memmap()]

    assert_same(state)


@pytest.mark.parametrize("name", ["shared", "shared with a tensor", "saved"])
def test_a_child_process_writes_shared_values(name: str, tmp_path: Path) -> None:
    for lib in (OURS, THEIRS):
        td = SHARED[name](lib, tmp_path / lib.TensorDict.__module__)
        new = lib.TensorDict(v=lib.NonTensorData("else"))
        process = multiprocessing.get_context("fork").Process(target=_write, args=(td, new))
        process.start()
        process.join()
        assert process.exitcode == 0 and td["v"] == "else"


# strided nested tensors ----------------------------------------------------------------------------------------------


def strided(lib: Any) -> Any:
    rows = torch.nested.nested_tensor([torch.ones(2), torch.arange(3.0), torch.zeros(1)])
    return lib.TensorDict({"a": rows, "x": torch.zeros(3, 2)}, [3])


STRIDED = {
    "made": lambda td: td,
    "row": lambda td: td[0],
    "last row": lambda td: td[-1],
    "rows": lambda td: list(td.unbind(0)),
    "cat": lambda td: torch.cat([td, td]),
    "clone": lambda td: td.clone(),
    "apply": lambda td: td.apply(lambda x: x + 1),
    "cast": lambda td: td.to(torch.float64),
    "set": lambda td: td.set("b", td["a"]),
    "update": lambda td: td.update({"a": td["a"]}),
    "zero_": lambda td: td.zero_(),
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "auto_batch_size_": lambda td: list(td.auto_batch_size_().batch_size),
    "shape": lambda td: list(td.get_item_shape("a")),
    "padded": lambda td: list(td.to_padded_tensor()["a"].shape),
    "saved": lambda td: td.memmap()[0],
}


@pytest.mark.parametrize("function", STRIDED.values(), ids=STRIDED)
def test_strided_nested_tensors_are_entries(function: Any) -> None:
    assert_same(lambda lib: function(strided(lib)))


@pytest.mark.parametrize("values", [["a", "a"], ["a", "b"], [3, 3], [None, None], [{"k": 1}, {"k": 1}]])
def test_the_data_of_a_stack_is_the_value_that_all_positions_share(values: list[Any]) -> None:
    assert_same(lambda lib: lib.NonTensorStack(*values).data)
    assert_same(lambda lib: hasattr(lib.NonTensorStack(*values), "data"))


def test_the_data_of_stacked_values_of_a_batch() -> None:
    assert_same(lambda lib: torch.stack([lib.NonTensorData("a", batch_size=[2])] * 3).data)
