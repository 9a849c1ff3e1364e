"""Properties and methods of containers as test suites check them, each run on the reference and on these packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import Row, assert_same


def td(lib: Any, **kwargs: Any) -> Any:
    return lib.TensorDict({"a": torch.arange(6.0).reshape(3, 2), "n": {"b": torch.arange(3)}}, [3], **kwargs)


def stack(lib: Any, **kwargs: Any) -> Any:
    return lib.lazy_stack([td(lib, **kwargs), td(lib, **kwargs)])


def exclusive(lib: Any) -> Any:
    return lib.lazy_stack([lib.TensorDict(a=1.0, b=2.0), lib.TensorDict(a=1.0)])


def batch_size_of_a_stack(lib: Any) -> Any:
    made = stack(lib)
    made.batch_size = [2]


def batch_size_of_a_view(lib: Any) -> Any:
    made = td(lib)._get_sub_tensordict(slice(0, 2))
    made.batch_size = [2, 2]


def mapped_stack(lib: Any) -> Any:
    made = stack(lib)
    return made.memmap_().device, made.is_memmap(), made.tensordicts[0].device


def ancestors(lib: Any) -> Any:
    root = lib.TensorDict({"a": {"b": {"c": 1}}}).lock_()
    found = [ref() is node for ref, node in zip(root["a", "b"]._lock_parents_weakrefs, (root, root["a"]), strict=True)]
    node = root["a"]
    root.unlock_()
    return found, node._lock_parents_weakrefs


DEPTHS: dict[str, Any] = {
    "values": {"n": {"t": "text"}},
    "a value": {"a": "x"},
    "an empty node": {"n": {}},
    "empty nodes": {"n": {"m": {}}},
    "a deep value": {"n": {"m": {"t": "text"}}, "b": 1},
    "nothing": {},
}

CALLS: dict[str, Row] = {
    "saved path": lambda lib: td(lib).saved_path,
    "saved path, asked": lambda lib: hasattr(td(lib), "saved_path"),
    "device of addresses": lambda lib: (td(lib).data_ptr().device, stack(lib).data_ptr().device),
    "append of another device": lambda lib: stack(lib).append(td(lib, device="cpu")),
    "append to a device": lambda lib: stack(lib, device="cpu").append(td(lib)),
    "insert of another device": lambda lib: stack(lib).insert(0, td(lib, device="cpu")),
    "lazy stack of two devices": lambda lib: lib.lazy_stack([td(lib, device="cpu"), td(lib)]),
    "constructor of two devices": lambda lib: lib.LazyStackedTensorDict(td(lib, device="cpu"), td(lib)),
    "stack, the first with a device": lambda lib: torch.stack([td(lib, device="cpu"), td(lib)]).device,
    "stack, the second with a device": lambda lib: torch.stack([td(lib), td(lib, device="cpu")]).device,
    "exclusive keys, to_dict": lambda lib: exclusive(lib).to_dict(),
    "exclusive keys, numpy": lambda lib: exclusive(lib).numpy(),
    "exclusive keys, to_namedtuple": lambda lib: exclusive(lib).to_namedtuple(),
    "batch size of a stack": batch_size_of_a_stack,
    "batch size of a view": batch_size_of_a_view,
    "a stack, memory-mapped": mapped_stack,
    "ancestors that hold a lock": ancestors,
    "names below": lambda lib: (td(lib)._td_dim_names, td(lib, names=["t"])._td_dim_names, td(lib)._memmap_prefix),
    "locks below": lambda lib: (td(lib)._is_locked, td(lib).lock_()._is_locked, td(lib).lock_()["n"]._is_locked),
    "no process group": lambda lib: td(lib).send(1),
    "a sum of nothing in common": lambda lib: td(lib) + lib.TensorDict({}, [3]),
    "a stack of letters": lambda lib: lib.NonTensorStack.from_list("ab").tolist(),
    "a stack of a tuple": lambda lib: lib.NonTensorStack.from_list(("a", ["b"])[:1]).tolist(),
    "a function as a value": lambda lib: lib.NonTensorData(len)([1, 2]),
    "a value that is no function": lambda lib: lib.NonTensorData("a")(),
    "update from a number": lambda lib: td(lib).update(3),
    "replace by nothing": lambda lib: td(lib).replace(None),
    "replace by a number": lambda lib: td(lib).replace(3),
    "unflatten of a locked one": lambda lib: td(lib).lock_().unflatten_keys(inplace=True).is_locked,
    "letters as a batch size": lambda lib: lib.TensorDict({"a": 1}, "abc"),
    "an object as a batch size": lambda lib: lib.TensorDict({"a": 1}, object()),
    "fractions as a batch size": lambda lib: lib.TensorDict({"a": 1}, [1.5]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_containers_answer_alike(call):
    assert_same(call)


@pytest.mark.parametrize("entries", DEPTHS.values(), ids=DEPTHS.keys())
def test_depths_are_alike(entries):
    assert_same(lambda lib: (lib.TensorDict(entries).depth, lib.lazy_stack([lib.TensorDict(entries)]).depth))
