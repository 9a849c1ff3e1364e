"""Modules under torch.fx, torch.compile and torch.export."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

import tensordict_nn
from tensordict_core import TensorDict, assert_close
from tensordict_nn import (
    AddStateIndependentNormalScale,
    CompositeDistribution,
    Delta,
    EnsembleModule,
    InteractionType,
    NormalParamExtractor,
    OneHotCategorical,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorClassModuleBase,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    TensorDictParams,
    TensorDictSequential,
    TruncatedNormal,
    WrapModule,
    as_tensordict_module,
    biased_softplus,
    dispatch,
    interaction_type,
    set_interaction_type,
    symbolic_trace,
)


def data() -> TensorDict:
    return TensorDict({"a": torch.ones(4, 2), "n": {"b": torch.full((4, 2), 2.0)}}, [4])


def plus_one(in_key="a", out_key="b", **kwargs) -> TensorDictModule:
    return TensorDictModule(lambda x: x + 1, [in_key], [out_key], **kwargs)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.scale = nn.Parameter(torch.full((), 0.5))

    def forward(self, x, offset=1.0):
        y = self.inner(x) * self.scale + offset
        return y, x + y


def test_traced_modules_are_one_graph_on_tensors():
    module = TensorDictSequential(
        TensorDictModule(Residual(), ["a"], [("m", "y"), "z"]),
        TensorDictSequential(TensorDictModule(nn.Linear(2, 3), {"input": "z"}, ["w"]), plus_one("w", "v")),
    )
    graph = symbolic_trace(module)
    td, expected = data(), module(data())
    out = graph(td)
    assert out is td and graph.out_keys == module.out_keys and graph.in_keys == ["a"]
    for key in module.out_keys:
        torch.testing.assert_close(out[key], expected[key])
    assert len(list(graph.parameters())) == len(list(module.parameters()))
    assert not any("tensordict" in str(node.target) for node in graph.graph.nodes)
    graph(data())["v"].sum().backward()
    assert module[0].module.scale.grad is not None
    torch.testing.assert_close(graph(torch.ones(2))[2], module(torch.ones(2))[2])


def test_modules_that_cannot_be_traced_are_named():
    with pytest.raises(TypeError, match="WrapModule cannot be traced"):
        symbolic_trace(TensorDictSequential(lambda td: td))
    with pytest.raises(KeyError, match=r"needs the keys \['a'\]"):
        symbolic_trace(plus_one())(TensorDict({}))


def test_parameters_are_made_in_a_graph():
    model = nn.Linear(2, 3)

    def call(x):
        params = TensorDict.from_module(model, as_module=True)
        held = TensorDictParams(TensorDict(x=x), no_convert=True)
        return params["weight"].sum() + held["x"].sum(), len(list(params.parameters())), len(list(held.buffers()))

    torch._dynamo.reset()
    total, parameters, buffers = torch.compile(call, fullgraph=True, backend="eager")(torch.ones(3))
    torch.testing.assert_close(total, model.weight.sum() + 3)
    assert (parameters, buffers) == (2, 1)


def test_compiled_in_one_graph_without_recompiling():
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(2, 3), ["a"], ["h"]),
        TensorDictModule(lambda h: (h, h + 1), ["h"], [("n", "c"), "b"]),
    )

    def call(a):
        return module(TensorDict({"a": a}, [4]))["b"]

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    a = torch.ones(4, 2)
    torch.testing.assert_close(compiled(a), call(a))
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.testing.assert_close(compiled(a + 1), call(a + 1))
    whole = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(data())["b"], module(data())["b"])


def test_exported_with_tensors():
    class Exported(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = TensorDictModule(nn.Linear(2, 3), ["a"], ["b"])

        def forward(self, a):
            return self.module(a)

    program = torch.export.export(Exported(), (torch.ones(4, 2),))
    module = Exported()
    module.load_state_dict(program.state_dict)
    torch.testing.assert_close(program.module()(torch.ones(4, 2)), module(torch.ones(4, 2)))


@pytest.mark.parametrize("strict", [True, False])
def test_exported_with_tensors_by_name(strict):
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(2, 3), ["a"], [("n", "h")]), TensorDictModule(nn.Tanh(), [("n", "h")], ["b"])
    )
    program = torch.export.export(module, (), {"a": torch.ones(4, 2)}, strict=strict)
    hidden, out = program.module()(a=torch.full((4, 2), 2.0))
    torch.testing.assert_close((hidden, out), module(a=torch.full((4, 2), 2.0)))
    assert set(program.state_dict) == set(module.state_dict())


def test_an_exported_module_takes_other_batch_sizes_is_saved_and_loaded(tmp_path):
    class Exported(nn.Module):
        def __init__(self):
            super().__init__()
            self.modules_ = TensorDictSequential(
                TensorDictModule(nn.Linear(2, 3), ["a"], ["h"]), TensorDictModule(nn.Tanh(), ["h"], ["b"])
            )

        def forward(self, a):
            return self.modules_(TensorDict({"a": a}))["b"]

    module = Exported()
    program = torch.export.export(module, (torch.ones(4, 2),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.export.save(program, tmp_path / "module.pt2")
    loaded = torch.export.load(tmp_path / "module.pt2").module()
    torch.testing.assert_close(loaded(torch.ones(7, 2)), module(torch.ones(7, 2)))


class AddOne(TensorDictModuleBase):
    in_keys: ClassVar = ["a"]
    out_keys: ClassVar = ["b"]

    @dispatch
    def forward(self, tensordict):
        return tensordict.set("b", tensordict["a"] + 1)


class Twice(TensorDictModuleWrapper):
    def forward(self, tensordict):
        return self.td_module(self.td_module(tensordict))


@as_tensordict_module(in_keys=["a"], out_keys=["b"])
def decorated(a):
    return a + 1


def linear(in_key="a", out_key="b", **kwargs):
    return TensorDictModule(nn.Linear(2, 2), [in_key], [out_key], **kwargs)


def drawn(cls=torch.distributions.Normal, **kwargs):
    # torch.export cannot follow checks of values; torch.compile turns them off for the whole process
    kwargs.setdefault("distribution_kwargs", {"validate_args": False})
    return ProbabilisticTensorDictModule(
        ["loc", "scale"], ["b"], distribution_class=cls, return_log_prob=True, **kwargs
    )


def normal(*modules):
    extractor = TensorDictModule(NormalParamExtractor(), ["h"], ["loc", "scale"])
    return ProbabilisticTensorDictSequential(linear("a", "h"), extractor, *modules)


def composite():
    params = TensorDictModule(
        lambda a: (a, a.exp(), a), ["a"], [("params", "x", "loc"), ("params", "x", "scale"), ("params", "y", "logits")]
    )
    maps = {"x": torch.distributions.Normal, "y": torch.distributions.Categorical}
    last = ProbabilisticTensorDictModule(
        ["params"], ["x", "y"], distribution_class=CompositeDistribution, distribution_kwargs={"distribution_map": maps}
    )
    return ProbabilisticTensorDictSequential(params, last)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.params = TensorDictParams({"w": torch.ones(2), "deep": {"b": torch.zeros(2)}})

    def forward(self, td):
        return td.set("b", td["a"] * self.params["w"] + self.params["deep", "b"])


class Pair(TensorDict):
    """Stands for a tensorclass: a container with fields."""

    a: torch.Tensor
    n: torch.Tensor

    @classmethod
    def from_tensordict(cls, tensordict):
        return cls(tensordict)


class Sum(TensorDict):
    b: torch.Tensor


class Add(TensorClassModuleBase[Pair, Sum]):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return Sum({"b": self.linear(x["a"]) + x["n", "b"]}, batch_size=x.batch_size)


MODULES = {
    "module": linear,
    "nested keys": lambda: linear(("n", "b"), ("out", "deep")),
    "arguments by name": lambda: TensorDictModule(torch.add, {"input": "a", "other": ("n", "b")}, ["b"]),
    "a new tensordict": lambda: linear(inplace=False),
    "an empty tensordict": lambda: linear(inplace="empty"),
    "strict": lambda: linear(strict=True),
    "a method": lambda: TensorDictModule(nn.Linear(2, 2), ["a"], ["b"], method="forward"),
    "several results": lambda: TensorDictModule(lambda a: (a, a + 1), ["a"], ["_", "b"]),
    "selected keys": lambda: TensorDictModule(lambda a: (a, a + 1), ["a"], ["b", "c"]).select_out_keys("c"),
    "sequence": lambda: TensorDictSequential(linear("a", "h"), linear("h", ("n", "b")), linear(("n", "b"), "c")),
    "nested sequence": lambda: TensorDictSequential(TensorDictSequential(linear("a", "h")), linear("h", "b")),
    "named sequence": lambda: TensorDictSequential({"one": linear("a", "h"), "two": linear("h", "b")}),
    "tolerant sequence": lambda: TensorDictSequential(linear("a", "b"), linear("z", "c"), partial_tolerant=True),
    "sequence into a new one": lambda: TensorDictSequential(linear("a", "h"), linear("h", "b"), inplace=False),
    "wrapper": lambda: Twice(linear("a", "a")),
    "function of a tensordict": lambda: WrapModule(lambda td: td.set("b", td["a"] + 1)),
    "own forward": AddOne,
    "decorated": lambda: decorated,
    "ensemble": lambda: EnsembleModule(linear(), 3),
    "graph": lambda: symbolic_trace(TensorDictSequential(linear("a", "h"), linear("h", "b"))),
    "probabilistic": lambda: TensorDictSequential(
        TensorDictModule(lambda a: (a, a.exp()), ["a"], ["loc", "scale"]), drawn()
    ),
    "policy": lambda: normal(drawn()),
    "truncated policy": lambda: normal(drawn(TruncatedNormal, distribution_kwargs={"a": -1.0, "b": 1.0})),
    "one-hot policy": lambda: ProbabilisticTensorDictSequential(
        linear("a", "logits"),
        ProbabilisticTensorDictModule(
            ["logits"], ["b"], distribution_class=OneHotCategorical, default_interaction_type="mode"
        ),
    ),
    "delta policy": lambda: ProbabilisticTensorDictSequential(
        linear("a", "param"), ProbabilisticTensorDictModule(["param"], ["b"], distribution_class=Delta)
    ),
    "composite": composite,
    "scale of its own": lambda: TensorDictModule(AddStateIndependentNormalScale(2), ["a"], ["loc", "scale"]),
    "activation": lambda: TensorDictModule(biased_softplus(1.0), ["a"], ["b"]),
    "parameters": Scaled,
    "fields": Add,
    "fields of tensordicts": lambda: Add().as_td_module(),
}
# Public modules and distributions that none of these has, each with its reason.
ELSEWHERE = {"CudaGraphModule": "it replays what it recorded and runs no code that could be traced: test_cudagraph.py"}


def parts(module):
    """The modules within a module, and the distributions that they make."""
    inner = [module._module] if module is decorated else [module]
    found = [part for one in inner for part in one.modules()]
    kinds = [part.distribution_class for part in found if isinstance(part, ProbabilisticTensorDictModule)]
    return [type(part) for part in found] + kinds


def test_every_public_module_is_compiled_below():
    public = {name: getattr(tensordict_nn, name) for name in tensordict_nn.__all__}
    kinds = {
        name: kind
        for name, kind in public.items()
        if isinstance(kind, type)
        and (issubclass(kind, nn.Module | torch.distributions.Distribution) or name.endswith("Module"))
    }
    tried = [part for make in MODULES.values() for part in parts(make())]
    missing = {name for name, kind in kinds.items() if not any(issubclass(part, kind) for part in tried)}
    assert missing == set(ELSEWHERE) and len(kinds) > 15


@pytest.mark.parametrize("name", MODULES)
def test_every_module_compiles_in_one_graph_without_recompilation(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for i in range(3):
        td = data() * (i + 1)
        expected = module(td.copy())
        with torch._dynamo.config.patch(error_on_recompile=i > 0):
            assert_close(compiled(td.copy()), expected)


@pytest.mark.parametrize("name", ["policy", "truncated policy", "one-hot policy", "composite"])
def test_samples_are_drawn_in_the_graph(name):
    module = MODULES[name]()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    with set_interaction_type("random"):
        torch.manual_seed(1)
        expected = module(data())
        for i in range(2):
            torch.manual_seed(1)
            with torch._dynamo.config.patch(error_on_recompile=i > 0):
                assert_close(compiled(data()), expected)


@pytest.fixture
def unchecked_values():
    """Distributions look at no values, which a program that is exported cannot branch on."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    yield
    torch.distributions.Distribution.set_default_validate_args(before)


# "fields" returns a class that is no pytree; a real tensorclass is one
@pytest.mark.parametrize("name", [name for name in MODULES if name != "fields"])
@pytest.mark.usefixtures("unchecked_values")
def test_every_module_is_exported_on_tensordicts(name):
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = MODULES[name]() if name != "decorated" else None

        def forward(self, td):
            return (self.module or decorated)(td.copy())

    program = Program()
    exported = torch.export.export(program, (data(),))
    td = data() + 1
    assert_close(exported.module()(td), program(td))


class Hidden(nn.Module):
    """Reads and writes at three levels."""

    def __init__(self):
        super().__init__()
        self.module = TensorDictSequential(
            TensorDictModule(nn.Linear(2, 3), ["a"], [("n", "h")]),
            TensorDictModule(lambda h, b, c: (h + b[..., :1]) * c[..., None], [("n", "h"), *DEEP[1:]], ["out"]),
        )

    def forward(self, td):
        return self.module(td.copy())


DEEP = ["a", ("n", "b"), ("n", "deep", "c")]


def deep(rows, batch_size, **values):
    n = {"b": torch.rand(rows, 2), "deep": {"c": torch.rand(rows)}}
    return TensorDict({"a": torch.rand(rows, 2), "n": n, **values}, [rows][:batch_size])


def of_each_tensor(td, rows):
    shapes = torch.export.ShapesCollection()
    for key in DEEP:
        shapes[td[key]] = {0: rows}
    return shapes


SHAPES = {
    "a list of all leaves": lambda td, rows: ([{0: rows}] * 3,),
    "a list under the name of the argument": lambda td, rows: {"td": [{0: rows}] * 3},
    "each tensor": of_each_tensor,
}


@pytest.mark.parametrize("batch_dims", [0, 1])
@pytest.mark.parametrize("shapes", SHAPES)
def test_an_exported_module_takes_nested_tensordicts_of_other_batch_sizes(shapes, batch_dims, tmp_path):
    module, td = Hidden(), deep(4, batch_dims)
    shapes = SHAPES[shapes](td, torch.export.Dim("rows", max=64))
    torch.export.save(torch.export.export(module, (td,), dynamic_shapes=shapes), tmp_path / "module.pt2")
    program = torch.export.load(tmp_path / "module.pt2").module()
    program.load_state_dict(module.state_dict())
    for rows in (7, 2, 64):
        td = deep(rows, batch_dims)
        out = program(td)
        assert out.batch_size == (rows,)[:batch_dims] == out["n", "deep"].batch_size
        assert_close(out, module(td))
    with pytest.raises(AssertionError, match="size"):  # above the bound
        program(deep(65, batch_dims))


def test_an_exported_module_with_non_tensor_values_takes_other_batch_sizes():
    module, td = Hidden(), deep(4, 1, text="abc")
    program = torch.export.export(module, (td,), dynamic_shapes=of_each_tensor(td, torch.export.Dim("rows")))
    td = deep(7, 1, text="abc")
    out = program.module()(td)
    assert_close(out, module(td))
    assert out["text"] == "abc"


def test_a_sequence_is_exported_as_it_is_and_takes_tensors_of_other_batch_sizes():
    sequence = TensorDictSequential(
        linear("a", ("n", "h")), TensorDictModule(torch.add, [("n", "h"), ("n", "b")], ["out"])
    )
    rows = {0: torch.export.Dim("rows")}
    td = deep(7, 1)
    example = deep(4, 1)["a"], deep(4, 1)["n", "b"]
    by_position = torch.export.export(sequence, example, dynamic_shapes=(rows, rows))
    expected = by_position.module()(td["a"], td["n", "b"])
    by_tensordict = torch.export.export(sequence, (deep(4, 1),), dynamic_shapes=([rows] * 3,)).module()(td.copy())
    for result in (by_tensordict, sequence(td)):
        torch.testing.assert_close((result["n", "h"], result["out"]), expected)


@pytest.mark.parametrize(
    "name", ["module", "nested keys", "arguments by name", "several results", "sequence", "nested sequence", "strict"]
)
def test_modules_become_graphs(name):
    module = MODULES[name]()
    graph = symbolic_trace(module)
    expected = module(data())
    assert_close(graph(data()), expected)
    assert (graph.in_keys, graph.out_keys) == (module.in_keys, [key for key in module.out_keys if key != "_"])


@pytest.mark.parametrize("thread_local", [False, True])
def test_blocks_of_settings_are_compiled_in_one_graph(thread_local):
    @torch.compile(fullgraph=True, backend="eager")
    def seen(x):
        with set_interaction_type("mode", thread_local=thread_local):
            return x + (interaction_type() is InteractionType.MODE)

    for _ in range(2):
        assert seen(torch.zeros(1)).item() == 1 and interaction_type() is None
    with set_interaction_type("random", thread_local=True):
        assert seen(torch.zeros(1)).item() == 1 and interaction_type() is InteractionType.RANDOM


def test_parameters_are_listed_in_compiled_code():
    params = TensorDictParams(TensorDict({"a": torch.ones(2), "n": {"b": torch.zeros(3)}}))

    def total(x):
        return x + sum(one.sum() for one in params.parameters()), [name for name, _ in params.named_parameters()]

    value, names = torch.compile(total, backend="eager", fullgraph=True)(torch.zeros(()))
    assert value == 2 and names == ["a", "n.b"]
