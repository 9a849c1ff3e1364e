"""Exceptions that programs catch: of the types that the reference raises, with the phrases that programs match."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import OURS, THEIRS, Row, assert_same, outcome


def td3(lib: Any) -> Any:
    return lib.TensorDict({"a": torch.ones(3, 4), "n": {"b": torch.zeros(3)}}, [3])


def deleted(key: Any) -> Row:
    def run(lib: Any) -> Any:
        td = td3(lib)
        del td[key]

    return run


def printed(lib: Any) -> Any:
    options = lib.set_printoptions(sort_keys=len)
    options.set()
    options.__exit__(None, None, None)


def left(lib: Any) -> Any:
    td = lib.TensorDict({"bbb": torch.ones(1), "a": torch.ones(1)})
    before = repr(td)
    options = lib.set_printoptions(sort_keys="alphabetical")
    options.set()
    options.__exit__(None, None, None)
    return repr(td) == before


ROWS: dict[str, Row] = {
    "a key through a leaf": lambda lib: td3(lib)["a", "b"],
    "get through a leaf": lambda lib: td3(lib).get(("a", "b")),
    "get through a leaf with a default": lambda lib: td3(lib).get(("a", "b"), 5),
    "del through a leaf": deleted(("a", "b")),
    "del of a missing key": deleted("missing"),
    "del of a missing nested key": deleted(("n", "missing")),
    "pop of a missing key": lambda lib: td3(lib).pop("missing"),
    "pop of a missing nested key": lambda lib: td3(lib).pop(("n", "missing")),
    "pop through a leaf": lambda lib: td3(lib).pop(("a", "b")),
    "a missing key": lambda lib: td3(lib)["missing"],
    "a missing nested key": lambda lib: td3(lib)["n", "missing"],
    "get of a missing key": lambda lib: td3(lib).get("missing"),
    "set through a leaf": lambda lib: td3(lib).set(("a", "b"), torch.ones(3)),
    "set_ of another shape": lambda lib: td3(lib).set_("a", torch.ones(3, 5)),
    "set_ of a missing key": lambda lib: td3(lib).set_("missing", torch.ones(3)),
    "set in place of another shape": lambda lib: td3(lib).set("a", torch.ones(3, 5), inplace=True),
    "update in place of another shape": lambda lib: td3(lib).update({"a": torch.ones(3, 5)}, inplace=True),
    "update_ of another shape": lambda lib: td3(lib).update_({"a": torch.ones(3, 5)}),
    "update_ of a missing key": lambda lib: td3(lib).update_({"missing": torch.ones(3)}),
    "apply_ of another shape": lambda lib: td3(lib).apply_(lambda x: torch.ones(3, 7)),
    "set of another batch size": lambda lib: td3(lib).set("c", torch.ones(4)),
    "the constructor of another batch size": lambda lib: lib.TensorDict({"c": torch.ones(4)}, [3]),
    "set of a locked one": lambda lib: td3(lib).lock_().set("c", torch.ones(3)),
    "del of a locked one": lambda lib: td3(lib).lock_().del_("a"),
    "a key that is an integer": lambda lib: td3(lib).set(1, torch.ones(3)),
    "get of a key that is an integer": lambda lib: td3(lib).get(1),
    "a batch size that does not fit": lambda lib: setattr(td3(lib), "batch_size", [4]),
    "unravel_key of a slice": lambda lib: lib.unravel_key((0, slice(3))),
    "unravel_key of an integer": lambda lib: lib.unravel_key(0),
    "unravel_key": lambda lib: lib.unravel_key((("a", "b"), "c")),
    "unravel_key of one": lambda lib: lib.unravel_key(("a",)),
    "unravel_key of none": lambda lib: lib.unravel_key(()),
    "unravel_key_list of a string": lambda lib: lib.unravel_key_list("a"),
    "unravel_key_list": lambda lib: lib.unravel_key_list(["a", ("b", ("c",))]),
    "printoptions that are set": printed,
    "printoptions that are left": left,
    "is_tensorclass of NonTensorData": lambda lib: lib.is_tensorclass(lib.NonTensorData),
    "is_tensorclass of an instance": lambda lib: lib.is_tensorclass(lib.NonTensorData("x")),
    "is_tensorclass of a tensordict": lambda lib: lib.is_tensorclass(td3(lib)),
    "rename_key_ of a missing key": lambda lib: td3(lib).rename_key_("missing", "b"),
    "rename_key_ to a key that is there": lambda lib: td3(lib).rename_key_("a", "n", safe=True),
    "select of a missing key": lambda lib: td3(lib).select("missing"),
    "exclude of a missing key": lambda lib: td3(lib).exclude("missing"),
    "a sum of other keys": lambda lib: td3(lib) + lib.TensorDict({"z": torch.ones(3)}, [3]),
    "view of another size": lambda lib: td3(lib).view(2, 2),
    "expand of another size": lambda lib: td3(lib).expand(4),
    "stack of nothing": lambda lib: torch.stack([]),
    "lazy_stack of nothing": lambda lib: lib.lazy_stack([]),
    "stack of different sizes": lambda lib: torch.stack([td3(lib), td3(lib)[:2]]),
    "cat of different keys": lambda lib: torch.cat([td3(lib), td3(lib).exclude("a")]),
    "bool": lambda lib: bool(td3(lib)),
    "a mask of another size": lambda lib: td3(lib)[torch.ones(2, dtype=torch.bool)],
    "to_module of no module": lambda lib: td3(lib).to_module(3),
    "where of other keys": lambda lib: td3(lib).where(
        torch.ones(3, dtype=torch.bool), lib.TensorDict({"z": torch.ones(3)}, [3])
    ),
    "flatten_keys of a collision": lambda lib: lib.TensorDict(
        {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}
    ).flatten_keys("."),
    "unflatten_keys of a collision": lambda lib: lib.TensorDict(
        {"a.b": torch.ones(1), "a": torch.ones(1)}
    ).unflatten_keys("."),
    "load_memmap of a missing folder": lambda lib: lib.TensorDict.load_memmap("/nowhere/at/all"),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_an_exception_is_of_the_type_of_the_reference(row: Row) -> None:
    assert_same(row)


def exclusive(lib: Any) -> Any:
    return torch.stack([lib.TensorDict({"a": torch.ones(1)}), lib.TensorDict({"b": torch.ones(1)})])


def incompatible(lib: Any) -> Any:
    return torch.stack([lib.TensorDict({"a": torch.ones(1)}), lib.TensorDict({"a": torch.ones(2)})])


def ragged(lib: Any) -> Any:
    return lib.lazy_stack([lib.TensorDict({"a": torch.ones(1)}), lib.TensorDict({"a": torch.ones(2)})]).get("a")


PHRASES = {
    "The sets of keys in the tensordicts to stack are exclusive": exclusive,
    "The shapes of the tensors to stack is incompatible": incompatible,
    "Failed to stack tensors within a tensordict": ragged,
}


@pytest.mark.parametrize(("phrase", "row"), PHRASES.items(), ids=PHRASES)
def test_an_error_carries_the_phrase_that_clients_match(phrase: str, row: Row) -> None:
    assert phrase in str(outcome(row, OURS))
    assert phrase in str(outcome(row, THEIRS))
