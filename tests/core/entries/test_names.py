"""Names of batch dimensions: every shape operation moves names with their dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict_core import NonTensorData, NonTensorStack, TensorDict, lazy_stack, stack

NAMES: dict[str, tuple[Callable[[Any], Any], list[str | None]]] = {
    "number": (lambda td: td[0], ["y", "z"]),
    "number behind": (lambda td: td[:, 0], ["x", "z"]),
    "slice": (lambda td: td[:, 1:], ["x", "y", "z"]),
    "new dimension": (lambda td: td[:, None], ["x", None, "y", "z"]),
    "ellipsis": (lambda td: td[..., 0], ["x", "y"]),
    "list": (lambda td: td[:, [0, 1]], ["x", "y", "z"]),
    "mask": (lambda td: td[torch.ones(2, 3, dtype=torch.bool)], [None, "z"]),
    "unflatten": (lambda td: td.unflatten(1, (3, 1)), ["x", "y", None, "z"]),
    "unflatten the last": (lambda td: td.unflatten(2, (2, 2)), ["x", "y", None, None]),
    "flatten": (lambda td: td.flatten(0, 1), [None, "z"]),
    "flatten the last": (lambda td: td.flatten(1, 2), ["x", None]),
    "flatten all": (lambda td: td.flatten(), [None]),
    "reshape": (lambda td: td.reshape(2, 12), ["x", None]),
    "reshape all": (lambda td: td.reshape(4, 6), [None, None]),
    "view": (lambda td: td.view(6, 4), [None, "z"]),
    "permute": (lambda td: td.permute(2, 0, 1), ["z", "x", "y"]),
    "transpose": (lambda td: td.transpose(0, 2), ["z", "y", "x"]),
    "movedim": (lambda td: td.movedim(0, -1), ["y", "z", "x"]),
    "swapaxes": (lambda td: td.swapaxes(0, 1), ["y", "x", "z"]),
    "unsqueeze": (lambda td: td.unsqueeze(1), ["x", None, "y", "z"]),
    "squeeze": (lambda td: td[:, :1].squeeze(1), ["x", "z"]),
    "squeeze all": (lambda td: td[:1, :1].squeeze(), ["z"]),
    "expand": (lambda td: td.expand(5, 2, 3, 4), [None, "x", "y", "z"]),
    "repeat": (lambda td: td.repeat(1, 2, 1), ["x", "y", "z"]),
    "repeat_interleave": (lambda td: td.repeat_interleave(2, dim=0), ["x", "y", "z"]),
    "flip": (lambda td: td.flip(0), ["x", "y", "z"]),
    "roll": (lambda td: td.roll(1, 0), ["x", "y", "z"]),
    "rot90": (lambda td: td.rot90(), ["y", "x", "z"]),
    "rot90 twice": (lambda td: td.rot90(2), ["x", "y", "z"]),
    "split": (lambda td: td.split(1, 1)[0], ["x", "y", "z"]),
    "chunk": (lambda td: td.chunk(2, 2)[1], ["x", "y", "z"]),
    "unbind": (lambda td: td.unbind(1)[0], ["x", "z"]),
    "stack": (lambda td: torch.stack([td, td], 1), ["x", None, "y", "z"]),
    "lazy stack": (lambda td: lazy_stack([td, td], 2), ["x", "y", None, "z"]),
    "cat": (lambda td: torch.cat([td, td], 1), ["x", "y", "z"]),
    "sum": (lambda td: td.sum(dim=1), ["x", "z"]),
    "sum keeping": (lambda td: td.sum(dim=1, keepdim=True), ["x", "y", "z"]),
    "max": (lambda td: td.max(dim=0)[0], ["y", "z"]),
    "all": (lambda td: td.all(dim=2), ["x", "y"]),
    "gather": (lambda td: td.gather(1, torch.zeros(2, 1, 4, dtype=torch.int64)), ["x", "y", "z"]),
    "pad": (lambda td: td.pad([0, 0, 1, 1, 0, 0]), ["x", "y", "z"]),
    "masked_select": (lambda td: td.masked_select(torch.ones(2, 3, dtype=torch.bool)), [None, "z"]),
    "pointwise": (lambda td: td + 1, ["x", "y", "z"]),
    "apply": (lambda td: td.apply(lambda x: x * 2), ["x", "y", "z"]),
    "cast": (lambda td: td.double(), ["x", "y", "z"]),
    "select": (lambda td: td.select("a"), ["x", "y", "z"]),
    "flatten keys": (lambda td: td.flatten_keys(), ["x", "y", "z"]),
    "view_at": (lambda td: td.view_at((slice(None), 0)), ["x", "z"]),
    "like": (lambda td: torch.zeros_like(td), ["x", "y", "z"]),
    "rename": (lambda td: td.rename(y="w"), ["x", "w", "z"]),
}


def _dense() -> TensorDict:
    nested = TensorDict({"b": torch.rand(2, 3, 4, 5)}, [2, 3, 4, 5])
    return TensorDict({"a": torch.rand(2, 3, 4), "n": nested}, [2, 3, 4], names=["x", "y", "z"])


def _lazy(dim: int) -> Any:
    td = lazy_stack(list(_dense().unbind(dim)), dim)
    td.names = ["x", "y", "z"]
    return td


@pytest.mark.parametrize("case", NAMES)
@pytest.mark.parametrize("kind", ["dense", 0, 1, 2])
def test_names_follow_their_dimensions(case: str, kind: Any) -> None:
    td = _dense() if kind == "dense" else _lazy(kind)
    function, expected = NAMES[case]
    result = function(td)
    assert result.names == expected
    nested = result.get("n", None)
    if nested is not None and nested.names != [None] * nested.batch_dims:
        assert nested.names[: len(expected)] == expected


def test_nested_tensordicts_have_the_names_of_their_parent_and_may_have_more() -> None:
    td = _dense()
    assert td["n"].names == ["x", "y", "z", None]
    td["n"].names = ["x", "y", "z", "w"]
    assert td.permute(2, 1, 0)["n"].names == ["z", "y", "x", "w"]
    assert td.flatten(0, 1)["n"].names == [None, "z", "w"]
    td.rename_(x="time")
    assert td["n"].names == ["time", "y", "z", "w"]


def _of_values(size: list[int], value: Any) -> Any:
    return [_of_values(size[1:], value) for _ in range(size[0])] if size else value()


@pytest.mark.parametrize("call", [call for call, _ in NAMES.values()], ids=list(NAMES))
def test_non_tensor_values_have_the_names_of_their_tensordict(call: Callable[[Any], Any]) -> None:
    numbers = iter(range(2 * 3 * 4))
    td = _dense()
    td["one"] = "text"
    td["each"] = _of_values([2, 3, 4], lambda: f"value {next(numbers)}")
    td["rows"] = NonTensorStack(*[NonTensorData(i, batch_size=[3, 4]) for i in range(2)])
    result = call(td)
    for key in ("one", "each", "rows"):
        if key in result.keys():  # noqa: SIM118 (a tensordict iterates over its rows)
            assert result.get(key).names[: result.ndim] == result.names, key


def test_the_result_has_the_names_of_the_first_operand() -> None:
    one, other = _dense(), _dense().rename(None)
    assert (one + other).names == ["x", "y", "z"]
    assert stack([one, one.clone()], 0).names == [None, "x", "y", "z"]


def test_bad_names_are_refused() -> None:
    td = _dense()
    with pytest.raises(
        RuntimeError, match=r"must equate the tensordict batch_dims attribute. Got .* for batch_dims 3; give one name"
    ):
        td.names = ["x", "y"]
    with pytest.raises(ValueError, match=r"names are non-unique.*rename one"):
        td.names = ["x", "x", "y"]


@pytest.mark.parametrize("empty_lazy", [False, True])
def test_values_of_new_tensordicts_have_their_names(empty_lazy: bool) -> None:
    td = TensorDict({"a": torch.ones(2, 3), "s": NonTensorData("text")}, [2, 3], names=["x", "y"])
    new = td.new_ones([4, 2, 3], empty_lazy=empty_lazy)
    assert new.get("s").names == new.names == [None, "x", "y"]


def test_an_entry_with_the_name_of_another_dimension_is_refused():
    td = TensorDict({}, [4, 1], names=["x", "y"])
    with pytest.raises(ValueError, match="dim name 'y' is that of a dimension of a nested tensordict"):
        td["m"] = TensorDict({}, [4, 1, 2], names=["x", None, "y"])
    assert list(td.keys()) == []
    td["m"] = TensorDict({}, [4, 1], names=["x", "y"])
    with pytest.raises(ValueError, match="dim name 'y'"):
        td.stack_tensors("m", out_key="n", dim=-2)
    assert list(td.keys()) == ["m"]


def test_an_update_takes_the_names_of_a_new_nested_tensordict_as_set_does():
    nested = TensorDict({"a": torch.zeros(3)}, [3], names=["x"])
    for td in (TensorDict({}, [3]).update({"n": nested}), TensorDict({}, [3]).update({"n": nested}, clone=True)):
        assert td.names == td["n"].names == ["x"]
    assert TensorDict({}, [3]).replace(n=nested).names == ["x"]
    deep = TensorDict({}, [3]).update({"m": {"n": nested}})
    assert deep.names == deep["m"].names == deep["m", "n"].names == ["x"]
    assert TensorDict({"n": {}}, [3]).update({"n": nested}).names == [None]
