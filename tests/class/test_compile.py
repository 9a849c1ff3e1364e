"""Compilation: every operation compiles in one graph, which new instances of the same shapes reuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tensordict_class import TensorClass, TypedTensorDict, from_dataclass


class Plain(TensorClass):
    x: torch.Tensor
    y: torch.Tensor


class Labelled(TensorClass):
    x: torch.Tensor
    label: str = "none"
    inner: Plain | None = None


class Cast(TensorClass, autocast=True):
    x: torch.Tensor
    n: int = 0
    label: str | None = None
    inner: Plain | None = None


class Kept(TensorClass, nocast=True):
    x: torch.Tensor
    n: Any = None


class Only(TensorClass, tensor_only=True):
    x: torch.Tensor


class Frozen(TensorClass, frozen=True):
    x: torch.Tensor


class Shadowing(TensorClass, shadow=True):
    x: torch.Tensor
    keys: torch.Tensor


class Prepared(TensorClass):
    x: torch.Tensor

    def __post_init__(self) -> None:
        self.x = self.x.float()


class Typed(TypedTensorDict):
    x: torch.Tensor


def plain() -> Plain:
    return Plain(torch.arange(3.0), torch.ones(3, 2), batch_size=[3])


def labelled() -> Labelled:
    return Labelled(torch.arange(3.0), "here", plain(), batch_size=[3])


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def compiled_once(function, *arguments_of_each_call):
    """The results of a compiled function, which was compiled once and in one graph."""
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        return [compiled(*arguments) for arguments in arguments_of_each_call]


OPERATIONS = {
    "add": lambda p: p + 1,
    "chain": lambda p: (p * p).sin(),
    "in place": lambda p: p.clone().add_(1),
    "compare": lambda p: p == p,
    "reduce": lambda p: p.sum(dim=0),
    "index": lambda p: p[0],
    "slice": lambda p: p[1:],
    "mask": lambda p: p[torch.tensor([2, 0])],
    "assign a row": lambda p: p.clone().__setitem__(0, p[1]),
    "reshape": lambda p: p.reshape(3, 1),
    "unsqueeze and squeeze": lambda p: p.unsqueeze(0).squeeze(0),
    "expand": lambda p: p.expand(2, 3),
    "permute": lambda p: p.unsqueeze(0).permute(1, 0),
    "unbind": lambda p: p.unbind(0)[1],
    "split": lambda p: p.split(2)[0],
    "gather": lambda p: p.gather(0, torch.tensor([1, 1])),
    "stack": lambda p: torch.stack([p, p]),
    "lazy stack": lambda p: type(p).lazy_stack([p, p])[1],
    "cat": lambda p: torch.cat([p, p]),
    "where": lambda p: torch.where(p.x > 0, p, p * 0),
    "zeros_like": lambda p: torch.zeros_like(p),
    "cast": lambda p: p.to(torch.float64),
    "clone": lambda p: p.clone(),
    "apply": lambda p: p.apply(lambda leaf: leaf * 2),
    "replace": lambda p: p.replace(x=p.x * 2),
    "select": lambda p: p.select("x"),
    "update": lambda p: p.clone().update({"x": p.x + 1}),
    "set": lambda p: p.clone().set("x", p.x + 1),
    "to a tensordict": lambda p: p.to_tensordict(),
    "through a tensordict": lambda p: type(p).from_tensordict(p.to_tensordict(), safe=False),
    "through a dictionary": lambda p: type(p).from_dict(p.to_dict(retain_none=False), batch_size=[3]),
}


@pytest.mark.parametrize("make", [plain, labelled])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_compiles_once_in_one_graph(name, make):
    function = OPERATIONS[name]
    inputs = [(make(),), (make() + 1,), (make() * 2,)]
    for result, (given,) in zip(compiled_once(function, *inputs), inputs, strict=True):
        expected = function(given)
        assert type(result) is type(expected)
        if expected is not None:
            assert result.batch_size == expected.batch_size and (result == expected).all()


@pytest.mark.parametrize("cls", [Plain, Labelled, Cast, Kept, Only, Frozen, Shadowing, Prepared, Typed])
def test_construction_reading_and_operations_compile_in_every_mode(cls):
    more = {name: torch.ones(3) for name in ("y", "keys") if name in cls.__annotations__}

    def run(x: torch.Tensor) -> Any:
        made = cls(x=x, **more, batch_size=[3])
        return made + made.x.sum()

    inputs = [(torch.ones(3),), (torch.zeros(3),)]
    for result, (x,) in zip(compiled_once(run, *inputs), inputs, strict=True):
        assert type(result) is cls and result.x.equal(x + x.sum())


@pytest.mark.parametrize("make", [plain, labelled, lambda: Cast(torch.ones(3)), lambda: Typed(x=torch.ones(3))])
def test_assignment_compiles_in_every_mode(make):
    def write(instance: Any, value: torch.Tensor) -> Any:
        instance = instance.clone()
        instance.x = value
        return instance.x + 1

    results = compiled_once(write, (make(), torch.zeros(3)), (make(), torch.ones(3)))
    assert [r.tolist() for r in results] == [[1.0] * 3, [2.0] * 3]


def test_annotations_that_stand_in_strings_are_resolved_while_compiling():
    class Late(TensorClass, autocast=True):
        x: torch.Tensor
        n: int = 0
        parts: list[int] | None = None
        inner: Plain | None = None

    def run(x: torch.Tensor) -> Late:
        return Late(x, n="3", parts=(1, 2), inner={"x": x, "y": x}, batch_size=[3])

    (late,) = compiled_once(run, (torch.ones(3),))
    assert late.n == 3 and late.parts == (1, 2) and type(late.inner) is Plain


def test_an_annotation_that_is_resolved_later_does_not_compile_again():
    class Fresh(TensorClass, autocast=True):
        x: torch.Tensor
        n: int = 0

    def run(fresh: Fresh, x: torch.Tensor) -> Fresh:
        fresh.x = x * 2
        return fresh + 1

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    one = Fresh.from_tensordict(Plain(torch.zeros(3), torch.zeros(3)).select("x").to_tensordict())
    compiled(one, torch.ones(3))
    other = Fresh(torch.zeros(3), n="5")
    other.n = 6
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled(one, torch.ones(3))


def test_methods_properties_and_mappings_of_the_class_are_compiled_with_it():
    class Scaled(TensorClass):
        x: torch.Tensor

        @property
        def length(self) -> torch.Tensor:
            return self.x.norm()

        def unit(self) -> Scaled:
            return self / self.length

    results = compiled_once(lambda s: s.unit().x, (Scaled(torch.ones(4)),), (Scaled(torch.full((4,), 2.0)),))
    assert all(r.allclose(torch.full((4,), 0.5)) for r in results)


def test_gradients_flow_through_compiled_instances():
    weight = torch.ones(3, requires_grad=True)
    loss = torch.compile(lambda w: (plain() * w.sum()).x.sum(), fullgraph=True, backend="eager")(weight)
    loss.backward()
    assert weight.grad.tolist() == [3.0] * 3


def test_vmap_of_a_function_of_instances_compiles():
    (result,) = compiled_once(torch.vmap(lambda p: p.x * p.y.sum()), (plain(),))
    assert result.tolist() == [0.0, 2.0, 4.0]


def test_the_counter_of_these_tests_notices_a_recompilation():
    with pytest.raises(torch._dynamo.exc.RecompileError):
        compiled_once(lambda one: one + 1, (plain(),), (plain()[0],))


def test_other_shapes_and_other_values_compile_again_and_are_right():
    compiled = torch.compile(lambda one: one + 1, fullgraph=True, backend="eager")
    for n, label in ((3, "a"), (4, "a"), (4, "b")):
        result = compiled(Labelled(torch.zeros(n), label, batch_size=[n]))
        assert result.batch_size == (n,) and result.label == label


def test_classes_of_dataclasses_compile():
    import dataclasses

    @dataclasses.dataclass
    class Point:
        x: torch.Tensor

    cls = from_dataclass(Point)
    (result,) = compiled_once(lambda x: cls(x, batch_size=[3])[0].x, (torch.ones(3),))
    assert result == 1


def test_properties_of_instances_are_assigned_and_state_dicts_are_loaded_in_a_graph():
    def change(one):
        one = one.clone()
        one.load_state_dict((one + 1).state_dict())
        one.batch_size = []
        return one

    result = torch.compile(change, fullgraph=True, backend="eager")(Labelled(torch.zeros(3), "a", batch_size=[3]))
    assert result.batch_size == () and result.x.eq(1).all() and result.label == "a"


def test_an_error_of_an_unknown_field_is_caught_in_the_trace():
    def assign(one):
        try:
            one.set("typo", one.x)
        except AttributeError:
            return one.x + 1
        return one.x

    compiled = torch.compile(assign, fullgraph=True, backend="eager")
    assert compiled(Labelled(torch.zeros(3), "a", batch_size=[3])).sum() == 3
