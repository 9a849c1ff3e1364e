"""``apply`` with functions of torch that are known to keep shapes, whose results are taken without a look."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tensordict_core import TensorDict, assert_close
from tensordict_core._rebuild import SHAPE_KEEPING

KNOWN = sorted(SHAPE_KEEPING, key=repr)


def tree(lock: bool = False) -> TensorDict:
    leaf = torch.tensor([[0.25, 0.5], [0.5, 0.75], [0.1, 0.2]])
    return TensorDict({"a": leaf, "b": {"c": leaf[:, 0]}, "empty": {}}, [3], names=["time"], lock=lock)


def test_there_are_such_functions() -> None:
    assert torch.sin in SHAPE_KEEPING
    assert torch.Tensor.sin in SHAPE_KEEPING


@pytest.mark.parametrize("function", KNOWN, ids=[f"{function!r}"[:40] for function in KNOWN])
def test_a_known_function_gives_what_an_unknown_one_does(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    known, unknown = tree().apply(function), tree().apply(lambda leaf: function(leaf))
    assert_close(known, unknown)
    assert known.names == unknown.names == ["time"]
    assert list(known.keys(True)) == list(unknown.keys(True))


def test_results_are_locked_where_that_is_asked_for() -> None:
    assert not tree(lock=True).apply(torch.sin).is_locked
    assert tree(lock=True).apply(torch.sin, propagate_lock=True).is_locked


def test_functions_that_cannot_be_looked_up_are_called() -> None:
    class Doubled:
        __hash__ = None  # type: ignore[assignment]  # what is tested

        def __call__(self, leaf: torch.Tensor) -> torch.Tensor:
            return 2 * leaf

    assert_close(tree().apply(Doubled()), 2 * tree())
