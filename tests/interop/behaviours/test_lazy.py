"""Lazy stacks as programs use them, each call run on the reference and on these packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import Row, assert_same

MASK = torch.tensor([[True, False], [False, True]])


def stack(lib: Any, dim: int = 0, count: int = 2, **kwargs: Any) -> Any:
    return lib.lazy_stack(
        [
            lib.TensorDict({"a": torch.arange(2.0) + i, "n": {"b": torch.ones(2, 3) * i}}, [2], **kwargs)
            for i in range(count)
        ],
        dim,
    )


def ragged(lib: Any, dim: int = 0) -> Any:
    return lib.lazy_stack([lib.TensorDict({"x": torch.ones(2, 3 + i)}, [2]) for i in range(2)], dim)


def kind(td: Any) -> Any:
    return type(td).__name__, td


def update_more_elements(lib: Any) -> Any:
    td = stack(lib)
    td.update(stack(lib, count=3), update_batch_size=True)
    return kind(td)


def update_dense_node(lib: Any) -> Any:
    td = lib.TensorDict({"n": {"x": torch.ones(2, 1), "y": torch.ones(2)}, "k": torch.ones(2)}, [2])
    source = lib.lazy_stack([lib.TensorDict({"n": {"x": torch.ones(2)}}), lib.TensorDict({"n": {"x": torch.ones(3)}})])
    td.update(source)
    return type(td["n"]).__name__, sorted(td.keys()), td["n"][1]["x"], td["k"]


def deleted(lib: Any) -> Any:
    td = lib.lazy_stack(
        [lib.TensorDict({"x": torch.ones(1)}), lib.TensorDict({"x": torch.ones(1), "y": torch.ones(1)})]
    )
    del td["y"]
    return [sorted(one.keys()) for one in td.tensordicts]


def deleted_missing(lib: Any) -> Any:
    td = stack(lib)
    del td["missing"]


def contains(lib: Any) -> Any:
    td = stack(lib)
    return td.tensordicts[0] in td, td.tensordicts[0].clone() in td


def listed(lib: Any) -> Any:
    td = lib.lazy_stack([lib.TensorDict({}), lib.TensorDict({})])
    with lib.set_list_to_stack(True):
        td["b"] = [torch.ones(2), torch.ones(1)]
    return td.get("b", as_padded_tensor=True), td[1]["b"]


def names_of_node(lib: Any) -> Any:
    td = lib.lazy_stack([lib.TensorDict({"n": lib.TensorDict({}, [2, 3], names=["x", "d"])}, [2]) for _ in range(2)])
    td.names = ["c", "d"]
    return td.names


def consolidated(tmp_path: Any) -> Row:
    counter = iter(range(100))
    return lambda lib: stack(lib).consolidate(filename=tmp_path / f"{next(counter)}.bin").device


def maybe_dense(lib: Any) -> Any:
    x, y = torch.ones(2), torch.zeros(1)
    td = lib.LazyStackedTensorDict.maybe_dense_stack(
        [lib.TensorDict({"a": x, "b": {"c": y}}), lib.TensorDict({"a": x, "b": {"d": y}})]
    )
    return type(td).__name__, type(td.get("b")).__name__, sorted(td.keys())


def different_names(make: str) -> Row:
    def run(lib: Any) -> Any:
        a = lib.TensorDict({"x": torch.ones(2, 3)}, [2, 3], names=["p", "q"])
        b = lib.TensorDict({"x": torch.ones(2, 3)}, [2, 3], names=["p", "r"])
        return getattr(lib, make)([a, b], 0) if hasattr(lib, make) else getattr(torch, make)([a, b], 0)

    return run


def other_names(lib: Any) -> Any:
    a = lib.TensorDict({"x": torch.ones(2)}, [2], names=["p"])
    b = lib.TensorDict({"x": torch.ones(2)}, [2])
    return torch.stack([a, b]).names, torch.stack([b, a]).names


def cat_names(lib: Any) -> Any:
    a = lib.TensorDict({"x": torch.ones(2)}, [2], names=["p"])
    b = lib.TensorDict({"x": torch.ones(2)}, [2], names=["q"])
    return torch.cat([a, b]).names


ROWS: dict[str, Row] = {
    "get_nestedtensor along stack_dim 1": lambda lib: ragged(lib, 1).get_nestedtensor("x"),
    "get as nested tensor along stack_dim 0": lambda lib: ragged(lib).get("x", as_nested_tensor=True),
    "get as nested tensor along stack_dim 1": lambda lib: ragged(lib, 1).get("x", as_nested_tensor=True),
    "get of ragged entries": lambda lib: ragged(lib).get("x"),
    "to of a batch size without the stack dim": lambda lib: stack(lib).to(batch_size=[]),
    "cat of a lazy and a dense one along 0": lambda lib: kind(torch.cat([stack(lib), stack(lib).densify()], 0)),
    "cat of a lazy and a dense one along 1": lambda lib: kind(torch.cat([stack(lib), stack(lib).densify()], 1)),
    "cat of a dense and a lazy one along 0": lambda lib: kind(torch.cat([stack(lib).densify(), stack(lib)], 0)),
    "cat of a ragged and a dense one": lambda lib: [
        one["x"].shape
        for one in torch.cat([ragged(lib), lib.TensorDict({"x": torch.ones(1, 2, 9)}, [1, 2])], 0).tensordicts
    ],
    "reshape": lambda lib: kind(stack(lib).reshape(-1)),
    "reshape to split": lambda lib: kind(stack(lib, count=4).reshape(2, 2, 2)),
    "flatten": lambda lib: kind(stack(lib).flatten(0, 1)),
    "view of -1": lambda lib: kind(stack(lib).view(-1)),
    "repeat": lambda lib: kind(stack(lib).repeat(2, 1)),
    "repeat along others": lambda lib: kind(stack(lib).repeat(1, 2)),
    "repeat_interleave": lambda lib: kind(stack(lib).repeat_interleave(2, 0)),
    "repeat_interleave along 1": lambda lib: kind(stack(lib).repeat_interleave(2, 1)),
    "where": lambda lib: kind(stack(lib).where(MASK, stack(lib) + 1)),
    "where of a number": lambda lib: kind(stack(lib).where(MASK, 0.0)),
    "where of a dense one": lambda lib: kind(stack(lib).where(MASK, stack(lib).densify())),
    "dense where a lazy one": lambda lib: kind(stack(lib).densify().where(MASK, stack(lib))),
    "state_dict": lambda lib: list(stack(lib).state_dict().keys()),
    "update of another number of elements": update_more_elements,
    "update of a dense node by a ragged one": update_dense_node,
    "del of an entry of some elements": deleted,
    "del of a missing entry": deleted_missing,
    "in is identity": contains,
    "a list of tensors is one for each element": listed,
    "names that a nested node has": names_of_node,
    "an empty stack": lambda lib: lib.LazyStackedTensorDict(stack_dim=1, batch_size=[1, 2], device="cpu").batch_size,
    "an empty stack along 0": lambda lib: lib.LazyStackedTensorDict(stack_dim=0, batch_size=[1, 2]).batch_size,
    "maybe_dense_stack of nodes with other keys": maybe_dense,
    "stack of different names": different_names("stack"),
    "lazy_stack of different names": different_names("lazy_stack"),
    "stack of a name and none": other_names,
    "cat of different names": cat_names,
    "assert_close of stacks along other dims": lambda lib: lib.assert_close(
        stack(lib).densify().to_lazystack(1), stack(lib).densify().to_lazystack(0)
    ),
    "assert_close of a lazy and a dense one": lambda lib: lib.assert_close(stack(lib), stack(lib).densify()),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_lazy_stack_has_the_results_of_the_reference(row: Row) -> None:
    assert_same(row)


def test_a_consolidated_lazy_stack_is_on_the_cpu(tmp_path: Any) -> None:
    assert_same(consolidated(tmp_path))


@pytest.mark.parametrize("second", [{"a": 1}, {"b": 1}, {"a": 1, "b": {}}, {"a": 1, "s": "x"}, {"a": 1, "b": {"c": 1}}])
def test_whether_elements_have_keys_of_their_own(second: dict[str, Any]) -> None:
    assert_same(
        lambda lib: (
            lib.LazyStackedTensorDict(lib.TensorDict({"a": 1}), lib.TensorDict(second), stack_dim=0)._has_exclusive_keys
        )
    )
