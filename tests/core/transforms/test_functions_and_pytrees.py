"""``torch.func``, pytrees and ``torch.export`` take tensordicts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    assert_close,
    lazy_stack,
)
from tensordict_core.extension import register_wrapper


@pytest.fixture
def td() -> TensorDict:
    torch.manual_seed(0)
    nested = TensorDict({"c": torch.rand(2, 3, 4)}, [2, 3, 4])
    return TensorDict({"a": torch.rand(2, 3, 5), "b": nested, "s": "text", "e": {}}, [2, 3], names=["x", "y"])


# torch.func ----------------------------------------------------------------------------------------------------------


# torch itself uses what it deprecates where it looks for forward derivatives
forward = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


@pytest.mark.parametrize("in_dim", [0, None])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_writes_of_a_mapped_function_do_not_reach_its_arguments(in_dim: int | None, chunk_size: int | None) -> None:
    td = TensorDict(a=torch.arange(5.0), nested=TensorDict(b=torch.ones(5), batch_size=[5]), batch_size=[5])

    def write(td: TensorDict, x: torch.Tensor) -> torch.Tensor:
        td["a"] = td["a"] + x
        td["nested", "new"] = td["nested", "b"] * x
        result: torch.Tensor = td["a"] + td["nested", "new"]
        return result

    x = torch.arange(5.0)
    result = torch.vmap(write, (in_dim, 0), chunk_size=chunk_size)(td, x)
    expected = td["a"] + 2 * (x if in_dim == 0 else x[:, None])
    assert (result == expected).all()
    assert set(td.keys(True)) == {"a", "nested", ("nested", "b")} and (td["a"] == torch.arange(5.0)).all()


@forward
def test_gradients_have_the_structure_of_their_input() -> None:
    p = TensorDict({"w": torch.rand(3, 2), "n": {"b": torch.rand(3)}})
    grads = torch.func.grad(lambda q: q["w"].sum() + 2 * q["n", "b"].sum())(p)
    assert grads["w"].eq(1).all() and grads["n", "b"].eq(2).all()
    grads, value = torch.func.grad_and_value(lambda q: (q["w"] ** 2).sum())(p)
    torch.testing.assert_close(grads["w"], 2 * p["w"])
    torch.testing.assert_close(value, (p["w"] ** 2).sum())
    out, pull = torch.func.vjp(lambda q: q * 2, p)
    assert out["w"].equal(p["w"] * 2) and pull(p)[0]["n", "b"].equal(p["n", "b"] * 2)
    out, tangent = torch.func.jvp(lambda q: q * q, (p,), (torch.ones_like(p),))
    torch.testing.assert_close(tangent["w"], 2 * p["w"])


@forward
@pytest.mark.parametrize("jacobian", [torch.func.jacrev, torch.func.jacfwd])
def test_jacobians_hold_a_tensordict_per_entry(jacobian: Any) -> None:
    p = TensorDict({"w": torch.rand(3, 2), "b": torch.rand(3)})
    rows = jacobian(lambda q: q["w"].sum(0))(p)
    assert rows["w"].shape == (2, 3, 2) and rows["b"].shape == (2, 3) and rows.batch_size == torch.Size([])
    table = jacobian(lambda q: q * 2)(p)
    assert table["w", "w"].shape == (3, 2, 3, 2) and table["b", "w"].eq(0).all()


@forward
@pytest.mark.parametrize("names", [None, ["p", "q"]])
def test_derivatives_of_a_tensordict_with_batch_dimensions(names: Any) -> None:
    td = TensorDict({"a": torch.rand(2, 3, 2), "n": {"b": torch.rand(2, 3)}, "s": "text"}, [2, 3], names=names)
    plain = {"a": td["a"], "b": td["n", "b"]}
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        rows = jacobian(lambda q: q["a"].sum(-1) * q["n", "b"])(td)
        expected = jacobian(lambda q: q["a"].sum(-1) * q["b"])(plain)
        torch.testing.assert_close(rows["a"], expected["a"])
        torch.testing.assert_close(rows["n", "b"], expected["b"])
        table = jacobian(lambda q: q * 2)(td)
        assert table["a", "n", "b"].shape == (2, 3, 2, 2, 3) and table["a", "a"].sum() == 24
    second = torch.func.hessian(lambda q: (q["a"] ** 2).sum())(td)
    assert second["a", "a"].sum() == 24 and second["n", "b"].sum(reduce=True) == 0


@forward
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_a_lazy_stack(dim: int) -> None:
    td = TensorDict({"a": torch.rand(2, 3, 2), "n": {"b": torch.rand(2, 3)}}, [2, 3])
    lazy = lazy_stack([element.clone() for element in td.unbind(dim)], dim)
    grads, value = torch.func.grad_and_value(lambda q: (q["a"] ** 2).sum() + 3 * q["n", "b"].sum())(lazy)
    assert isinstance(grads, LazyStackedTensorDict) and grads.stack_dim == dim and grads.batch_size == td.batch_size
    assert grads["a"].equal(2 * td["a"]) and grads["n", "b"].eq(3).all() and value > 0
    _, pull = torch.func.vjp(lambda q: q * 2, lazy)
    assert pull(lazy)[0]["a"].equal(2 * td["a"])
    _, tangent = torch.func.jvp(lambda q: q * q, (lazy,), (torch.ones_like(lazy),))
    assert tangent["a"].equal(2 * td["a"])
    twice = torch.func.grad(lambda q: torch.func.grad(lambda p: (p["a"] ** 3).sum())(q)["a"].sum())(lazy)
    torch.testing.assert_close(twice["a"], 6 * td["a"])
    for at in (0, 1):
        each = torch.vmap(torch.func.grad(lambda q: (q["a"] ** 2).sum()), in_dims=at)(lazy)
        assert each["a"].equal(2 * td["a"].movedim(at, 0))


@forward
def test_gradients_of_elements_of_several_shapes() -> None:
    lazy = lazy_stack([TensorDict({"a": torch.full((n,), 3.0)}) for n in (1, 2)])
    grads = torch.func.grad(lambda q: sum((element["a"] ** 2).sum() for element in q.tensordicts))(lazy)
    assert [element["a"].tolist() for element in grads.tensordicts] == [[6.0], [6.0, 6.0]]


def test_gradients_per_example() -> None:
    p, x = TensorDict({"w": torch.rand(3)}), torch.rand(7, 3)
    grads = torch.vmap(torch.func.grad(lambda q, row: (q["w"] * row).sum()), in_dims=(None, 0))(p, x)
    assert grads.batch_size == torch.Size([7]) and grads["w"].equal(x)
    data = TensorDict({"x": x}, [7])
    grads = torch.vmap(torch.func.grad(lambda q, one: (q["w"] * one["x"]).sum()), in_dims=(None, 0))(p, data)
    assert grads["w"].equal(x)


# pytrees -------------------------------------------------------------------------------------------------------------


def test_a_tensordict_is_a_pytree_of_its_entries(td: TensorDict) -> None:
    leaves, spec = pytree.tree_flatten(td)
    assert len(leaves) == 2 and leaves[0] is td["a"]
    back = pytree.tree_unflatten(leaves, spec)
    assert_close(back, td)
    assert back.names == td.names and back["b"].batch_size == td["b"].batch_size
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(td)[0]]
    assert paths == ["['a']", "['b']['c']"]
    mapped = pytree.tree_map(lambda x, y: x - y, td, td)
    assert mapped["b", "c"].eq(0).all() and mapped["s"] == "text"


def test_a_batch_size_follows_the_leaves(td: TensorDict) -> None:
    halves = pytree.tree_map(lambda x: x[:1], td)
    assert halves.batch_size == torch.Size([1, 3]) and halves["b"].batch_size == torch.Size([1, 3, 4])
    assert halves.get("s").batch_size == torch.Size([1, 3]) and halves.names == td.names
    rows = pytree.tree_map(lambda x: x[0], td)
    assert rows.names == [None]
    shapes = pytree.tree_map(lambda x: x.sum(), td)
    assert shapes.batch_size == torch.Size([])


def test_specs_are_equal_where_trees_can_be_exchanged(td: TensorDict) -> None:
    spec = pytree.tree_structure(td)
    assert spec == pytree.tree_structure(td[:1]) and spec != pytree.tree_structure(td.exclude("a"))
    assert spec != pytree.tree_structure(td.clone().set("s", "other"))
    assert spec == pytree.tree_structure(td.clone().rename_("p", "q")) == pytree.tree_structure(td.flatten(0, 1))
    assert spec != pytree.tree_structure(td.to("meta"))


def test_other_containers_are_pytrees_too() -> None:
    lazy = lazy_stack([TensorDict({"a": torch.ones(3)}, [3]) for _ in range(2)], 1)
    doubled = pytree.tree_map(lambda x: x * 2, lazy)
    assert isinstance(doubled, LazyStackedTensorDict) and doubled.stack_dim == 1 and doubled["a"].eq(2).all()
    ragged = lazy_stack([TensorDict({"a": torch.ones(n), str(n): torch.ones(1)}) for n in (1, 2)])
    doubled = pytree.tree_map(lambda x: x * 2, ragged)
    assert doubled[1]["a"].tolist() == [2.0, 2.0] and doubled[1]["2"].item() == 2.0
    value = NonTensorData({"any": "thing"})
    assert pytree.tree_leaves(value) == [] and pytree.tree_map(lambda x: x, value).data == {"any": "thing"}
    values = NonTensorStack("a", "b")
    assert pytree.tree_map(lambda x: x, values).tolist() == ["a", "b"]
    table = TensorDict({"u": UnbatchedTensor(torch.ones(2))}, [3])
    assert pytree.tree_map(lambda x: x * 2, table)["u"].tolist() == [2.0, 2.0]
    parent = TensorDict({"a": torch.arange(3)}, [3])
    assert pytree.tree_map(lambda x: x + 1, parent.view_at(1) if hasattr(parent, "view_at") else parent[1])["a"] == 2


class Box:
    """What a satellite may wrap around a tensordict."""

    def __init__(self, td: TensorDict, label: str) -> None:
        self.td, self.label = td, label


register_wrapper(Box, "tests.Box", lambda box: (box.td, box.label), Box)


def test_a_wrapper_follows_its_tensordict(td: TensorDict) -> None:
    box = torch.vmap(lambda one: Box(one.td + 1, one.label))(Box(td, "label"))
    assert type(box) is Box and box.label == "label" and box.td.batch_size == td.batch_size
    assert box.td["a"].equal(td["a"] + 1)


def test_paths_of_a_wrapper_are_keys_of_its_tensordict(td: TensorDict) -> None:
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path([Box(td, "label")])[0]]
    assert paths == ["[0]['a']", "[0]['b']['c']"]


# torch.export --------------------------------------------------------------------------------------------------------


class Doubled(torch.nn.Module):
    def forward(self, td: TensorDict) -> TensorDict:
        return td.select("a").set("sum", td["a"].sum(-1)) * 2


def test_exported_programs_take_and_give_tensordicts(td: TensorDict) -> None:
    program = torch.export.export(Doubled(), (td,))
    result = program.module()(td)
    assert result.batch_size == td.batch_size and result["sum"].equal(td["a"].sum(-1) * 2)


def test_specs_are_saved_with_exported_programs(td: TensorDict) -> None:
    lazy = lazy_stack([TensorDict({"a": torch.ones(3)}, [3]) for _ in range(2)], 1)
    for tree in (td, lazy, TensorDict({"v": NonTensorStack("p", "q"), "u": UnbatchedTensor(torch.ones(5))}, [2])):
        leaves, spec = pytree.tree_flatten(tree)
        again = pytree.treespec_loads(pytree.treespec_dumps(spec))
        assert again == spec
        assert_close(pytree.tree_unflatten(leaves, again), tree)


def test_exported_programs_are_saved_and_loaded(
    td: TensorDict, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(Doubled(), (td,)), path)
    result = torch.export.load(path).module()(td)
    assert result.batch_size == td.batch_size and result["sum"].equal(td["a"].sum(-1) * 2)
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not warned, "nothing in the file needs trust"


def test_exported_programs_have_dynamic_batch_sizes() -> None:
    td = TensorDict({"a": torch.rand(4, 3)}, [4])
    dim = torch.export.Dim("n", min=2, max=64)
    program = torch.export.export(Doubled(), (td,), dynamic_shapes=([{0: dim}],))
    other = TensorDict({"a": torch.rand(9, 3)}, [9])
    result = program.module()(other)
    assert result.batch_size == torch.Size([9]) and result["a"].equal(other["a"] * 2)
