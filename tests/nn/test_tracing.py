"""Modules under torch.fx, torch.compile and torch.export."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import (
    TensorDictModule,
    TensorDictSequential,
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


def test_what_cannot_be_traced_is_named():
    with pytest.raises(TypeError, match="got WrapModule"):
        symbolic_trace(TensorDictSequential(lambda td: td))
    with pytest.raises(KeyError, match=r"needs the keys \['a'\]"):
        symbolic_trace(plus_one())(TensorDict({}))


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
