"""Batch sizes, names, locks, devices and classes of tensordicts, on the reference and on these packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import Row, assert_same


def td3(lib: Any, **kwargs: Any) -> Any:
    return lib.TensorDict({"a": torch.ones(3, 4), "n": {"b": torch.zeros(3)}}, [3], **kwargs)


def named(lib: Any, mine: Any = None) -> Any:
    td = lib.TensorDict({}, [3], names=mine)
    td["a"] = lib.TensorDict({}, [3, 4], names=["x", "y"])
    return td.names, td["a"].names


def names_set(lib: Any) -> Any:
    td = lib.TensorDict({}, [3, 4])
    td.names = ["a"]


SUBCLASS_CALLS = {
    "empty": lambda td: td.empty(),
    "select": lambda td: td.select("a"),
    "exclude": lambda td: td.exclude("a"),
    "split_keys": lambda td: td.split_keys(["a"])[0],
    "split_keys, the rest": lambda td: td.split_keys(["a"])[1],
    "flatten_keys": lambda td: td.flatten_keys("."),
    "unflatten_keys": lambda td: td.flatten_keys(".").unflatten_keys("."),
    "from_dict": lambda td: type(td).from_dict({"a": torch.ones(1)}),
    "add": lambda td: td + 1,
    "clone": lambda td: td.clone(),
    "clone(False)": lambda td: td.clone(False),
    "copy": lambda td: td.copy(),
    "index": lambda td: td[0],
    "stack": lambda td: torch.stack([td, td]),
    "cat": lambda td: torch.cat([td, td]),
    "view": lambda td: td.view(-1),
    "reshape": lambda td: td.reshape(-1),
    "to float": lambda td: td.double(),
    "apply": lambda td: td.apply(lambda x: x),
    "apply with another batch size": lambda td: td.apply(lambda x: x, batch_size=[]),
    "to_tensordict": lambda td: td.to_tensordict(),
    "sum": lambda td: td.sum(),
    "mean": lambda td: td.mean(0),
    "memmap": lambda td: td.memmap(),
    "memmap_like": lambda td: td.memmap_like(),
    "share_memory_": lambda td: td.share_memory_(),
    "detach": lambda td: td.detach(),
    "expand": lambda td: td.expand(2, 3),
    "unbind": lambda td: td.unbind(0)[0],
    "split": lambda td: td.split(1)[0],
    "gather": lambda td: td.gather(0, torch.tensor([0])),
    "replace": lambda td: td.replace(a=torch.ones(3)),
    "new_zeros": lambda td: td.new_zeros(3),
    "zeros_like": lambda td: torch.zeros_like(td),
    "squeeze": lambda td: td.squeeze(),
    "permute": lambda td: td.permute(0),
    "consolidate": lambda td: td.consolidate(),
    "where": lambda td: td.where(torch.ones(3, dtype=torch.bool), 0),
    "fromkeys": lambda td: type(td).fromkeys(["a"]),
    "stack, class method": lambda td: type(td).stack([td, td]),
    "nested": lambda td: td["n"],
    "filter_non_tensor_data": lambda td: td.filter_non_tensor_data(),
}


def subclass(call: Any) -> Row:
    def run(lib: Any) -> Any:
        class Sub(lib.TensorDict):
            pass

        return type(call(Sub({"a": torch.ones(3), "n": {"b": torch.ones(3)}}, [3]))).__name__

    return run


@pytest.mark.parametrize("call", SUBCLASS_CALLS.values(), ids=SUBCLASS_CALLS)
def test_a_subclass_of_TensorDict_gives_the_class_that_the_reference_gives(call: Any) -> None:
    assert_same(subclass(call))


ROWS: dict[str, Row] = {
    "names that are too few": names_set,
    "names of the constructor that are too few": lambda lib: lib.TensorDict({}, [3, 4], names=["a"]),
    "rename that is too short": lambda lib: lib.TensorDict({}, [3, 4]).rename("p"),
    "an unnamed tensordict takes the names of a nested one": named,
    "the constructor takes the names of a nested one": lambda lib: (
        lib.TensorDict({"a": lib.TensorDict({}, [3, 4], names=["x", "y"])}, [3]).names
    ),
    "other names of a nested one": lambda lib: named(lib, ["z"]),
    "other names in the constructor": lambda lib: (
        lib.TensorDict({"a": lib.TensorDict({}, [3, 4], names=["x", "y"])}, [3], names=["z"]).names
    ),
    "the same names": lambda lib: named(lib, ["x"]),
    "transpose out of range": lambda lib: td3(lib).transpose(-5, -6),
    "transpose out of range, positive": lambda lib: td3(lib).transpose(0, 5),
    "swapaxes out of range": lambda lib: td3(lib).swapaxes(0, 7),
    "fliplr of one dim": lambda lib: td3(lib).fliplr(),
    "rot90 of one dim": lambda lib: td3(lib).rot90(),
    "flipud of no dim": lambda lib: lib.TensorDict({"a": torch.ones(2)}).flipud(),
    "flip out of range": lambda lib: td3(lib).flip(3),
    "squeeze out of range": lambda lib: td3(lib).squeeze(3),
    "unsqueeze out of range": lambda lib: td3(lib).unsqueeze(4),
    "permute out of range": lambda lib: td3(lib).permute(3),
    "stack out of range": lambda lib: torch.stack([td3(lib)], 4),
    "cat out of range": lambda lib: torch.cat([td3(lib)], 4),
    "unbind out of range": lambda lib: td3(lib).unbind(4),
    "split out of range": lambda lib: td3(lib).split(1, 4),
    "chunk out of range": lambda lib: td3(lib).chunk(1, 4),
    "gather out of range": lambda lib: td3(lib).gather(4, torch.tensor([0])),
    "flatten out of range": lambda lib: td3(lib).flatten(0, 4),
    "unflatten out of range": lambda lib: td3(lib).unflatten(4, [1, 3]),
    "roll out of range": lambda lib: td3(lib).roll(1, 4),
    "repeat_interleave out of range": lambda lib: td3(lib).repeat_interleave(2, dim=4),
    "sum out of range": lambda lib: td3(lib).sum(4),
    "index of too many": lambda lib: td3(lib)[0, 0],
    "index out of range": lambda lib: td3(lib)[5],
    "index without batch dims": lambda lib: lib.TensorDict({"a": torch.ones(2)})[0],
    "length without batch dims": lambda lib: len(lib.TensorDict({"a": torch.ones(2)})),
    "iteration without batch dims": lambda lib: list(lib.TensorDict({"a": torch.ones(2)})),
    "a shared row is locked": lambda lib: td3(lib).share_memory_()[0].is_locked,
    "a mapped row is locked": lambda lib: td3(lib).memmap_()[0].is_locked,
    "a locked row": lambda lib: td3(lib).lock_()[0].is_locked,
    "unbound shared rows are locked": lambda lib: [row.is_locked for row in td3(lib).share_memory_().unbind(0)],
    "unbound mapped rows are locked": lambda lib: [row.is_locked for row in td3(lib).memmap_().unbind(0)],
    "a new key in a shared row": lambda lib: td3(lib).share_memory_()[0].set("new", 1),
    "a negative batch size": lambda lib: lib.TensorDict({}, batch_size=[2, -1]).batch_size,
    "a ragged batch size": lambda lib: (
        lib.TensorDict(
            {"n": torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(3, 6)])}, batch_size=[2, 3, -1]
        ).batch_size
    ),
    "assert_close of other batch sizes": lambda lib: lib.assert_close(
        td3(lib), td3(lib).auto_batch_size_(batch_dims=0)
    ),
    "assert_close of a named tuple": lambda lib: lib.assert_close(
        lib.TensorDict.from_namedtuple(td3(lib).to_namedtuple()), td3(lib)
    ),
    "assert_close of arrays": lambda lib: lib.assert_close(lib.TensorDict(td3(lib).numpy()), td3(lib)),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_metadata_are_those_of_the_reference(row: Row) -> None:
    assert_same(row)
