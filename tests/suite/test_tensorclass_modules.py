"""Modules from a tensorclass to a tensorclass, and the same modules on tensordicts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensordict import TensorClass, TensorDict, tensorclass
from tensordict.nn import TensorClassModuleBase, TensorClassModuleWrapper, TensorDictModule, TensorDictSequential


@tensorclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor
    scale: torch.Tensor | None = None


class Inner(TensorClass):
    c: torch.Tensor


class Result(TensorClass):
    s: torch.Tensor
    inner: Inner


class Add(TensorClassModuleBase[Pair, Result]):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Pair) -> Result:
        s = self.linear(x.a + x.b) * (1 if x.scale is None else x.scale)
        return Result(s=s, inner=Inner(c=x.a, batch_size=x.batch_size), batch_size=x.batch_size)


class AddMore(Add):
    pass


def pair() -> Pair:
    return Pair(a=torch.ones(4, 3), b=torch.ones(4, 3), batch_size=[4])


def test_modules_take_and_return_tensorclasses():
    result = Add()(pair())
    assert isinstance(result, Result) and result.s.shape == (4, 2) and result.inner.c.shape == (4, 3)


@pytest.mark.parametrize("kind", [Add, AddMore])
def test_types_and_keys_are_those_of_the_subscript(kind):
    assert (kind.input_type, kind.output_type) == (Pair, Result)
    module = kind().as_td_module()
    assert isinstance(module, TensorClassModuleWrapper)
    assert (module.in_keys, module.out_keys) == (["a", "b", "scale"], ["s", ("inner", "c")])


def test_the_same_module_on_tensordicts_tensorclasses_and_tensors():
    module = Add()
    wrapped, expected = module.as_td_module(), module(pair())
    td = TensorDict({"a": torch.ones(4, 3), "b": torch.ones(4, 3), "other": torch.zeros(4)}, [4])
    result = wrapped(td)
    assert type(result) is TensorDict and sorted(result.keys()) == ["inner", "s"] and result.batch_size == (4,)
    assert result["s"].equal(expected.s) and wrapped(pair())["s"].equal(expected.s)
    s, c = wrapped(a=torch.ones(4, 3), b=torch.ones(4, 3))
    assert s.equal(expected.s) and c.equal(torch.ones(4, 3))
    s, _ = wrapped(torch.ones(4, 3), torch.ones(4, 3), torch.tensor(2.0))
    torch.testing.assert_close(s, expected.s * 2)


def test_they_join_sequences_and_have_their_parameters():
    module = Add()
    sequence = TensorDictSequential(module.as_td_module(), TensorDictModule(lambda s: -s, ["s"], ["t"]))
    td = sequence(TensorDict({"a": torch.ones(4, 3), "b": torch.ones(4, 3)}, [4]))
    assert td["t"].equal(-module(pair()).s)
    assert len(list(sequence.parameters())) == 2


@pytest.mark.parametrize("scale", [None, torch.tensor(2.0)])
def test_both_compile_in_one_graph_without_recompilation(scale):
    module = Add()
    wrapped = module.as_td_module()
    td = TensorDict({"a": torch.ones(4, 3), "b": torch.ones(4, 3)} | ({} if scale is None else {"scale": scale}))
    given = Pair(a=torch.ones(4, 3), b=torch.ones(4, 3), scale=scale)
    for callee, argument in ((module, given), (wrapped, td)):
        torch._dynamo.reset()
        compiled = torch.compile(callee, fullgraph=True, backend="eager")
        for i in range(3):
            argument = argument + i
            with torch._dynamo.config.patch(error_on_recompile=i > 0):
                result, expected = compiled(argument), callee(argument)
            assert type(result) is type(expected)
            assert result.get("s").equal(expected.get("s"))
            assert result.get(("inner", "c")).equal(expected.get(("inner", "c")))


def test_missing_fields_are_named():
    with pytest.raises(KeyError, match=r"Add needs the keys \['b', 'scale'\]"):
        Add().as_td_module()(TensorDict({"a": torch.ones(4, 3)}, [4]))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # the module's own error stays
        Add().as_td_module()(TensorDict({k: torch.ones(4, 5) for k in ("a", "b", "scale")}, [4]))


def test_both_types_have_to_be_tensorclasses():
    class Plain(TensorClassModuleBase[torch.Tensor, torch.Tensor]):
        def forward(self, x):
            return x * 2

    assert Plain()(torch.ones(1)) == 2
    with pytest.raises(ValueError, match="no input and output type"):
        Plain().as_td_module()
    with pytest.raises(TypeError, match="abstract"):
        TensorClassModuleBase()
