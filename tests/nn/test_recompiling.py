"""Recompilation: later changes of keys and options change compiled calls."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from tensordict_core import TensorDict, assert_close
from tensordict_nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    WrapModule,
    as_tensordict_module,
)


class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 2.0))

    def forward(self, x, y=0.0, *, factor=1.0):
        return x * self.weight * factor + y

    def negative(self, x, y=0.0, *, factor=1.0):
        return -self(x, y, factor=factor)


def data():
    return TensorDict({"a": torch.ones(4, 2), "c": torch.full((4, 2), 5.0), "n": {"b": torch.full((4, 2), 3.0)}}, [4])


def assign(name, value):
    return lambda sequence: setattr(sequence[0], name, value)


def replaced(forward):
    return lambda td: forward(td).set("h", td["a"] * 100)


CHANGES = {
    "in_keys": assign("in_keys", ["c"]),
    "nested in_keys": assign("in_keys", [("n", "b")]),
    "an item of in_keys": lambda sequence: sequence[0].in_keys.__setitem__(0, "c"),
    "one more of in_keys": lambda sequence: sequence[0].in_keys.append("c"),
    "out_keys": assign("out_keys", ["a"]),
    "nested out_keys": assign("out_keys", [("m", "h")]),
    "an item of out_keys": lambda sequence: sequence[0].out_keys.__setitem__(0, "c"),
    "selected out_keys": lambda sequence: sequence[1].select_out_keys(),
    "selected out_keys of a sequence": lambda sequence: sequence.select_out_keys("h"),
    "selected out_keys of another module": lambda sequence: sequence[2].select_out_keys(),
    "inplace": lambda sequence: setattr(sequence[1], "inplace", False),
    "method": assign("method", "negative"),
    "method_kwargs": assign("method_kwargs", {"factor": 3.0}),
    "an item of method_kwargs": lambda sequence: sequence[0].method_kwargs.update(factor=3.0),
    "forward of a module": lambda sequence: setattr(sequence[0], "forward", replaced(sequence[0].forward)),
    "forward of a sequence": lambda sequence: setattr(sequence, "forward", lambda td: td.set("new", td["a"])),
    "forward of a layer": lambda sequence: setattr(sequence[0].module, "forward", lambda x: x * 7),
    "a layer": lambda sequence: setattr(sequence[0], "module", nn.Tanh()),
    "a module": lambda sequence: sequence.__setitem__(0, TensorDictModule(nn.Tanh(), ["c"], ["h"])),
    "a module less": lambda sequence: sequence.__delitem__(1),
    "a parameter": lambda sequence: setattr(sequence[0].module, "weight", nn.Parameter(torch.ones(2))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_compilation_is_seen(change):
    sequence = TensorDictSequential(
        TensorDictModule(Affine(), ["a"], ["h"]),
        TensorDictModule(torch.neg, ["c"], [("n", "d")]),
        WrapModule(lambda td: td.set("w", torch.zeros(4)), out_keys=["w"]),
    )
    torch._dynamo.reset()
    compiled = torch.compile(sequence, fullgraph=True, backend="eager")
    before = sequence(data())
    assert_close(compiled(data()), before)
    CHANGES[change](sequence)
    after = sequence(data())
    assert set(after.keys(True, True)) != set(before.keys(True, True)) or not torch.equal(after["h"], before["h"])
    assert_close(compiled(data()), after)


def test_strictness_that_is_set_after_compilation_is_seen():
    module = TensorDictModule(lambda x, y=None: x, ["a", "z"], ["b"])
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="eager")
    assert "b" in compiled(data())
    module.strict = True
    with pytest.raises(KeyError, match=r"needs the keys \['z'\]"):
        compiled(data())


def test_a_forward_that_is_removed_after_compilation_is_not_called():
    sequence = TensorDictSequential(TensorDictModule(torch.neg, ["a"], ["h"]))
    sequence[0].forward = replaced(sequence[0].forward)
    torch._dynamo.reset()
    compiled = torch.compile(sequence, fullgraph=True, backend="eager")
    assert (compiled(data())["h"] == 100).all()
    del sequence[0].forward
    assert (compiled(data())["h"] == -1).all()


def test_copies_do_not_share_their_keys():
    module = TensorDictModule(torch.neg, ["a"], ["b"])
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    compiled(data())
    twin = copy.deepcopy(module)
    twin.out_keys.append("other")
    twin.out_keys = ["d"]
    assert "d" in torch.compile(twin, fullgraph=True, backend="eager")(data())
    assert "b" in compiled(data()) and module.out_keys == ["b"]


def test_modules_are_made_and_changed_in_a_graph():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.module = TensorDictModule(torch.neg, ["a"], ["b"])

        @as_tensordict_module(in_keys=["a"], out_keys=["h"])
        def hidden(self, a):
            return self.linear(a)

        def forward(self, td):
            td = TensorDictModule(torch.exp, ["a"], [("n", "e")])(self.hidden(td))
            self.module.out_keys = ["f"]
            return self.module(td).select(*self.module.in_keys, *self.module.out_keys, "h", ("n", "e"))

    net = Net()
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    assert_close(compiled(data()), Net.forward(net, data()))
    assert net.module.out_keys == ["f"] and "f" in net.module(data())


def test_lists_of_keys_belong_to_their_module_until_others_are_set():
    module = TensorDictModule(lambda *x: sum(x), ["a"], ["b"])
    keys = module.in_keys
    for change in (
        lambda: keys.append("c"),
        lambda: keys.insert(0, "c"),
        lambda: keys.extend(["c"]),
        lambda: keys.pop(),
        lambda: keys.remove("c"),
        lambda: keys.reverse(),
        lambda: keys.sort(),
        lambda: keys.__iadd__(["c"]),
        lambda: keys.__imul__(2),
        lambda: keys.__delitem__(slice(1, None)),
    ):
        change()
        assert module.in_keys == keys == module._form.in_keys
        assert module(data())["b"].equal(sum(data()[key] for key in keys))
    assert copy.copy(keys) == keys and type(copy.deepcopy(keys)) is list
    module.in_keys = ["c"]
    keys.append("a")
    assert module.in_keys == ["c"]
    keys = module.in_keys
    keys.clear()
    assert module.in_keys == []


def test_a_sequence_that_draws_compiles_once():
    """The type of the sequence, which holds while it runs, leaves no trace that a guard sees."""
    scale = TensorDictModule(nn.Softplus(), in_keys=["loc"], out_keys=["scale"])
    draw = ProbabilisticTensorDictModule(
        in_keys=["loc", "scale"],
        out_keys=["action"],
        distribution_class=torch.distributions.Normal,
        default_interaction_type="mean",
        return_log_prob=True,
    )
    mean = TensorDictModule(nn.Linear(2, 2), in_keys=["x"], out_keys=["loc"])
    policy = ProbabilisticTensorDictSequential(mean, scale, draw)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(policy, fullgraph=True, backend=counter)
    for _ in range(3):
        td = compiled(TensorDict({"x": torch.ones(3, 2)}, [3]))
    assert torch.equal(td["action"], mean.module(torch.ones(3, 2)))
    assert counter.frame_count == 1
