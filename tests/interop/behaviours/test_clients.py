"""What programs of other people do with tensordicts, on the reference and on these packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import Row, assert_same


def popped(lib: Any) -> Any:
    td = lib.TensorDict({"s": lib.NonTensorData("x"), "t": torch.ones(2)})
    value = td.pop("s")
    return type(value).__name__, value.data, sorted(td.keys())


def popped_stack(lib: Any) -> Any:
    td = lib.TensorDict({"s": lib.NonTensorStack("x", "y"), "t": torch.ones(2)}, [2])
    value = td.pop("s")
    return type(value).__name__, value.tolist()


def popped_string(lib: Any) -> Any:
    return type(lib.TensorDict({"s": "x"}).pop("s")).__name__


def popped_default(lib: Any) -> Any:
    return lib.TensorDict({"s": "x"}).pop("z", None), lib.TensorDict({"s": "x"}).pop("z", "default")


ROWS: dict[str, Row] = {
    "pop of non-tensor data": popped,
    "pop of a stack of values": popped_stack,
    "pop of a string": popped_string,
    "pop with a default": popped_default,
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_programs_have_the_results_of_the_reference(row: Row) -> None:
    assert_same(row)
