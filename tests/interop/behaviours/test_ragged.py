"""Jagged and strided nested tensors as leaves, on the reference and on these packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import OURS, THEIRS, Row, assert_same, outcome


def parts() -> list[torch.Tensor]:
    return [torch.arange(2.0), torch.arange(3.0) + 10, torch.arange(1.0) + 20]


def jagged(lib: Any) -> Any:
    nested = torch.nested.nested_tensor(parts(), layout=torch.jagged)
    return lib.TensorDict({"j": nested, "x": torch.arange(3)}, [3])


def strided(lib: Any) -> Any:
    return lib.TensorDict({"j": torch.nested.nested_tensor(parts()), "x": torch.arange(3)}, [3])


def padded(lib: Any) -> Any:
    nested = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(3, 6)])
    return lib.TensorDict({"n": nested}, batch_size=[2]).to_padded_tensor()


def round_trip(tmp_path: Any) -> Row:
    counter = iter(range(100))

    def run(lib: Any) -> Any:
        path = tmp_path / f"{next(counter)}.bin"
        td = jagged(lib)
        td.consolidate(filename=path)
        return lib.assert_close(lib.TensorDict.from_consolidated(path), td)

    return run


CALLS = {
    "chunk": lambda td: td.chunk(2),
    "split": lambda td: td.split(2),
    "split of sizes": lambda td: td.split([1, 2]),
    "a slice": lambda td: td[:2],
    "a slice of one": lambda td: td[:1],
    "a step": lambda td: td[::2],
    "a mask": lambda td: td[torch.tensor([True, False, True])],
    "a list": lambda td: td[[0, 2]],
    "a tensor": lambda td: td[torch.tensor([2, 0])],
    "cat": lambda td: torch.cat([td, td]),
    "a row": lambda td: td[1],
    "unbind": lambda td: td.unbind(0),
    "clone": lambda td: td.clone(),
    "addition": lambda td: td + 1,
    "product": lambda td: td * 2,
    "double": lambda td: td.double(),
    "detach": lambda td: td.detach(),
    "zeros_like": lambda td: torch.zeros_like(td),
    "iteration": lambda td: list(td),
    "length": len,
    "select": lambda td: td.select("j"),
    "to_dict": lambda td: td.to_dict(),
    "apply": lambda td: td.apply(lambda x: x + 1),
    "is_empty": lambda td: td.is_empty(),
}


@pytest.mark.parametrize("make", [jagged, strided])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nested_tensors_are_leaves(make: Any, call: Any) -> None:
    theirs = outcome(lambda lib: call(make(lib)), THEIRS)
    if isinstance(theirs, RuntimeError):  # torch has no such operation, and the reference does without it
        assert not isinstance(outcome(lambda lib: call(make(lib)), OURS), TypeError)
    else:
        assert_same(lambda lib: call(make(lib)))


def test_the_bytes_of_jagged_tensors_include_their_offsets() -> None:
    assert_same(lambda lib: jagged(lib).bytes())


def test_consolidated_jagged_tensors_are_close(tmp_path: Any) -> None:
    assert_same(round_trip(tmp_path))


def test_a_strided_nested_tensor_of_two_dims_is_padded() -> None:
    assert_same(padded)
