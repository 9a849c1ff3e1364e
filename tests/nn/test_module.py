"""Modules on tensordicts: what they read, what they write, and what they say when something is wrong."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict, lazy_stack
from tensordict_nn import (
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    TensorDictSequential,
    WrapModule,
    as_tensordict_module,
    dispatch,
    set_skip_existing,
    skip_existing,
    symbolic_trace,
)


def data() -> TensorDict:
    return TensorDict({"a": torch.ones(4, 2), "n": {"b": torch.full((4, 2), 2.0)}}, [4])


def plus_one(in_key="a", out_key="b", **kwargs) -> TensorDictModule:
    return TensorDictModule(lambda x: x + 1, [in_key], [out_key], **kwargs)


# reading and writing -------------------------------------------------------------------------------------------------


def test_a_module_reads_its_inputs_and_writes_its_outputs():
    td = data()
    module = TensorDictModule(lambda a, b: (a + b, a - b), ["a", ("n", "b")], ["sum", ("out", "diff")])
    assert module(td) is td
    assert (td["sum"] == 3).all() and (td["out", "diff"] == -1).all() and td["out"].batch_size == (4,)


def test_keys_may_be_single():
    module = TensorDictModule(torch.neg, ("n", "b"), "out")
    assert module.in_keys == [("n", "b")] and module.out_keys == ["out"]
    assert (module(data())["out"] == -2).all()


def test_arguments_by_name_in_both_directions():
    by_argument = TensorDictModule(lambda x, *, y: x - y, {"x": "a", "y": ("n", "b")}, ["out"])
    by_key = TensorDictModule(lambda x, *, y: x - y, {"a": "x", ("n", "b"): "y"}, ["out"], out_to_in_map=False)
    for module in (by_argument, by_key):
        assert module.in_keys == ["a", ("n", "b")]
        assert (module(data())["out"] == -1).all()
    twice = TensorDictModule(lambda x, *, y: x - y, {"x": "a", "y": "a"}, ["out"])
    assert (twice(data())["out"] == 0).all()


@pytest.mark.parametrize(
    "returned",
    [
        lambda x: (x, x + 1),
        lambda x: [x, x + 1],
        lambda x: {"c": x + 1, "b": x, "other": x},
        lambda x: TensorDict({"c": x + 1, "b": x}),
    ],
)
def test_several_results_by_position_or_by_key(returned):
    td = TensorDictModule(returned, ["a"], ["b", "c"])(data())
    assert (td["b"] == 1).all() and (td["c"] == 2).all() and "other" not in td


def test_a_dictionary_that_lacks_the_keys_is_one_value():
    td = TensorDictModule(lambda x: {"x": x}, ["a"], ["b"])(data())
    assert (td["b", "x"] == 1).all()


def test_modules_that_are_empty_containers_are_called():
    assert (TensorDictModule(nn.Sequential(), ["a"], ["b"])(data())["b"] == 1).all()


def test_underscore_drops_a_result():
    assert sorted(TensorDictModule(lambda x: (x, x), ["a"], ["_", "c"])(data()).keys()) == ["a", "c", "n"]


def test_non_tensor_values_go_through():
    td = TensorDict({"text": "abc"})
    assert TensorDictModule(lambda s: s + "d", ["text"], ["out"])(td)["out"] == "abcd"
    assert TensorDictModule(len, ["text"], ["out"])(td)["out"] == 3


def test_nested_tensordicts_go_through():
    assert TensorDictModule(lambda n: n + 1, ["n"], ["out"])(data())["out", "b"].unique().item() == 3


def test_a_method_and_its_arguments():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((), 3.0))

        def times(self, x, *, factor):
            return x * factor * self.weight

    module = TensorDictModule(Net(), ["a"], ["b"], method="times", method_kwargs={"factor": 2})
    assert (module(data())["b"] == 6).all() and len(list(module.parameters())) == 1
    assert module.weight is module.module.weight


def test_attributes_of_the_module_are_found_and_others_are_not():
    module = TensorDictModule(nn.Linear(2, 3), ["a"], ["b"])
    assert module.out_features == 3
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018


def test_inplace_policies():
    td = data()
    new = plus_one(inplace=False)(td)
    assert new is not td and list(new.keys()) == ["b"] and new.batch_size == () and "b" not in td
    empty = plus_one(inplace="empty")(td)
    assert list(empty.keys()) == ["b"] and empty.batch_size == (4,) and "b" not in td
    assert plus_one()(td) is td
    out = TensorDict({}, [4])
    assert plus_one(inplace=False)(td, tensordict_out=out) is out and "b" in out
    with pytest.raises(ValueError, match="inplace is True, False or 'empty', got 'nowhere'"):
        plus_one(inplace="nowhere")


def test_get_kwargs_reach_get():
    seen = []

    class Recording(TensorDict):
        def get(self, key, default=None, **kwargs):
            seen.append(kwargs)
            return super().get(key, default)

    plus_one(get_kwargs={"as_list": True})(Recording({"a": torch.zeros(1)}))
    assert seen == [{"as_list": True}]


def test_hooks_run():
    calls = []
    module = plus_one()
    module.register_forward_pre_hook(lambda m, args: calls.append("before"))
    module.register_forward_hook(lambda m, args, out: calls.append(type(out).__name__))
    module(data())
    assert calls == ["before", "TensorDict"]


def test_hooks_of_inner_modules_run_in_order():
    calls = []
    linear = nn.Linear(2, 2)
    first, second = TensorDictModule(linear, ["a"], ["h"]), TensorDictModule(nn.Tanh(), ["h"], ["b"])
    module = TensorDictSequential(first, second)
    expected = module(data())["b"]
    linear.register_forward_hook(lambda m, args, out: calls.append("linear") or out * 0)
    linear.register_full_backward_hook(lambda m, grads, outs: calls.append("gradient"))
    second.register_forward_pre_hook(lambda m, args: calls.append("before tanh"))
    module.register_forward_hook(lambda m, args, out: calls.append("all"))
    out = module(TensorDict({"a": torch.ones(4, 2, requires_grad=True)}))
    assert calls == ["linear", "before tanh", "all"] and expected.any() and not out["b"].any()
    out["b"].sum().backward()
    assert calls[-1] == "gradient"


def test_hooks_for_all_modules_see_every_module():
    module = TensorDictSequential(TensorDictModule(nn.Tanh(), ["a"], ["h"]), plus_one("h", "b"))
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append(type(m).__name__))
    module(data())
    handle.remove()
    module(data())
    assert seen == ["Tanh", "TensorDictModule", "TensorDictModule", "TensorDictSequential"]


def test_who_replaces_the_call_of_all_modules_sees_every_module(monkeypatch):
    call, seen = nn.Module.__call__, []
    module = TensorDictSequential(TensorDictModule(nn.Tanh(), ["a"], ["b"]))
    monkeypatch.setattr(
        nn.Module, "__call__", lambda self, *args, **kwargs: (seen.append(type(self).__name__), call(self, *args))[1]
    )
    module(data())
    assert seen == ["TensorDictSequential", "TensorDictModule", "Tanh"]


def test_modules_compiled_on_their_own_run_compiled():
    module = TensorDictSequential(TensorDictModule(nn.Linear(2, 2), ["a"], ["b"]))
    module[0].module._compiled_call_impl = lambda x: x * 0  # what `nn.Module.compile` sets
    assert not module(data())["b"].any()


def test_a_forward_of_the_instance_is_used():
    module = TensorDictSequential(TensorDictModule(nn.Linear(2, 2), ["a"], ["b"]))
    module[0].forward = lambda td: td.set("b", torch.zeros(4))
    assert not module(data())["b"].any()
    module.forward = lambda td: "mine"
    assert module(data()) == "mine"


def test_modules_are_copied_and_pickled():
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(2, 3), ["a"], ["h"]), TensorDictModule(nn.Tanh(), ["h"], ["b"])
    )
    module.select_out_keys("b")
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(twin(data())["b"], module(data())["b"])
        assert "h" not in twin(data()) and twin.reset_out_keys().out_keys == ["h", "b"]
    assert "h" not in module(data())


# errors --------------------------------------------------------------------------------------------------------------


def test_missing_inputs_name_the_module_the_key_and_the_keys_there():
    module = TensorDictModule(nn.Linear(2, 3), ["obs"], ["b"])
    with pytest.raises(KeyError, match=r"Linear needs the keys \['obs'\].*with keys \['obz', 'y'\].*mean 'obz'"):
        module(TensorDict({"obz": torch.zeros(2), "y": 1}))


def test_without_strict_a_module_may_do_without_an_input():
    function = lambda a, z=None: a if z is None else z  # noqa: E731
    assert "o" in TensorDictModule(function, ["a", "z"], ["o"])(data())
    with pytest.raises(KeyError, match=r"needs the keys \['z'\]"):
        TensorDictModule(function, ["a", "z"], ["o"], strict=True)(data())


def test_an_error_in_the_module_is_its_own_with_a_note():
    with pytest.raises(RuntimeError) as error:
        TensorDictModule(nn.Linear(7, 3), ["a"], ["b"])(data())
    assert "while calling Linear with in_keys ['a']" in error.value.__notes__


def test_counts_of_results_must_match():
    with pytest.raises(RuntimeError, match=r"returned 2 values for the 1 out_keys \['b'\]"):
        TensorDictModule(lambda x: (x, x), ["a"], ["b"])(data())
    with pytest.raises(RuntimeError, match="returned 1 values for the 2 out_keys"):
        TensorDictModule(lambda x: x, ["a"], ["b", "c"])(data())
    with pytest.raises(RuntimeError, match="returned 0 values"):
        TensorDictModule(lambda x: None, ["a"], ["b"])(data())


def test_what_is_not_callable_is_refused():
    with pytest.raises(ValueError, match="wraps a callable, got int"):
        TensorDictModule(3, ["a"], ["b"])
    with pytest.raises(ValueError, match="wraps a callable, got int"):
        TensorDictSequential(3)


# tensors instead of tensordicts --------------------------------------------------------------------------------------


def test_modules_take_tensors_by_position_and_by_name():
    module = TensorDictModule(lambda a, b: (a + b, a - b), ["a", ("n", "b")], ["sum", "diff"])
    for result in (module(torch.ones(2), torch.ones(2)), module(a=torch.ones(2), n_b=torch.ones(2))):
        assert isinstance(result, tuple) and result[0].tolist() == [2, 2] and result[1].tolist() == [0, 0]
    assert plus_one()(torch.zeros(2)).tolist() == [1, 1]
    assert plus_one()(tensordict=data())["b"].shape == (4, 2)
    with pytest.raises(RuntimeError, match="'a' is given by position and by name"):
        plus_one()(torch.ones(2), a=torch.ones(2))
    with pytest.raises(ValueError, match="one positional argument for each"):
        plus_one()(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match="one positional argument for each"):
        plus_one()(data(), torch.ones(2))


def test_other_arguments_reach_the_module():
    module = TensorDictModule(lambda a, factor=1: a * factor, ["a"], ["b"])
    assert (module(data(), factor=3)["b"] == 3).all() and module(torch.ones(1), factor=2).item() == 2


def test_dispatch_with_keys_of_its_own():
    class Module(nn.Module):
        @dispatch(separator="__", source=[("n", "b"), "a"], dest=["c"])
        def forward(self, tensordict):
            assert tensordict.batch_size == (2,)
            return tensordict.set("c", tensordict["n", "b"] + tensordict["a"])

    assert Module()(n__b=torch.ones(2), a=torch.ones(2, 1)).shape == (2, 2)

    @dispatch(source=["a"], dest=["b"])
    def function(tensordict):
        return tensordict.set("b", tensordict["a"] + 1)

    assert function(torch.zeros(1)).item() == 1 and function(data())["b"].shape == (4, 2)
    with pytest.raises(RuntimeError, match="first argument"):

        @dispatch
        def wrong(self, td):
            return td


def test_functions_and_methods_become_modules():
    @as_tensordict_module(in_keys=["a"], out_keys=["b"])
    def function(a):
        """Adds one."""
        return a + 1

    class Owner:
        offset = 5

        @as_tensordict_module(in_keys="a", out_keys="b")
        def method(self, a):
            return a + self.offset

    assert (
        function.__doc__ == "Adds one." and (function(data())["b"] == 2).all() and function(torch.zeros(1)).item() == 1
    )
    assert (Owner().method(data())["b"] == 6).all() and Owner().method(a=torch.zeros(1)).item() == 5
    assert TensorDictSequential(function).out_keys == ["b"]


# output keys ---------------------------------------------------------------------------------------------------------


def test_selected_outputs_are_kept_and_others_dropped():
    module = TensorDictModule(lambda x: (x, x, x), ["a"], ["b", ("m", "c"), "d"])
    assert module.select_out_keys("b") is module
    assert module.out_keys == ["b"] and module.out_keys_source == ["b", ("m", "c"), "d"]
    assert sorted(module(data()).keys()) == ["a", "b", "n"]
    assert isinstance(module(torch.ones(2)), torch.Tensor)
    module.select_out_keys("d")
    assert sorted(module(data()).keys()) == ["a", "d", "n"]
    module.reset_out_keys()
    assert sorted(module(data()).keys()) == ["a", "b", "d", "m", "n"]
    with pytest.raises(ValueError, match=r"among the out_keys \['b', \('m', 'c'\), 'd'\].*got \['z'\]"):
        module.select_out_keys("z")


def test_selection_works_for_any_forward():
    class Module(TensorDictModuleBase):
        in_keys, out_keys = ["a"], ["b", "c"]

        def forward(self, tensordict):
            return tensordict.update({"b": tensordict["a"], "c": tensordict["a"]})

    module = Module().select_out_keys("c")
    assert sorted(module(data()).keys()) == ["a", "c", "n"] and Module.out_keys == ["b", "c"]


# sequences -----------------------------------------------------------------------------------------------------------


def chain(**kwargs) -> TensorDictSequential:
    return TensorDictSequential(
        plus_one("a", "h"), plus_one("h", "b"), TensorDictModule(torch.mul, ["h", "c"], ["d"]), **kwargs
    )


def test_keys_of_a_sequence():
    sequence = chain()
    assert sequence.in_keys == ["a", "c"] and sequence.out_keys == ["h", "b", "d"] and len(sequence) == 3
    td = data().set("c", torch.full((4, 2), 5.0))
    assert sequence(td) is td and (td["b"] == 3).all() and (td["d"] == 10).all()
    h, b, d = sequence(torch.zeros(1), torch.ones(1))
    assert (h.item(), b.item(), d.item()) == (1, 2, 1)


def test_functions_of_tensordicts_join_in():
    sequence = TensorDictSequential(
        plus_one(), lambda td: td.reshape(-1), WrapModule(lambda td: td[:2], out_keys=["z"])
    )
    assert sequence.out_keys == ["b", "z"] and sequence(data()).batch_size == (2,)
    into = WrapModule(lambda td: TensorDict({"new": td["a"]}), inplace=True)
    td = data()
    assert into(td) is td and "new" in td


def test_parts_by_position_name_and_slice():
    sequence = chain(partial_tolerant=True)
    assert sequence[0] is next(iter(sequence)) and sequence[-1] is list(sequence)[2]
    assert isinstance(sequence[:2], TensorDictSequential) and sequence[:2].out_keys == ["h", "b"]
    assert sequence[:2].partial_tolerant
    named = TensorDictSequential({"first": plus_one("a", "h"), "second": plus_one("h", "b")})
    assert named["first"] is named[0] and named[1:].in_keys == ["h"]
    assert [name for name, _ in named.named_children()] == ["module"]
    named["third"] = plus_one("b", "z")
    assert named.out_keys == ["h", "b", "z"]
    named[0] = plus_one("y", "h")
    assert named.in_keys == ["y"]
    del named["first"]
    assert named.in_keys == ["h"] and len(named) == 2
    with pytest.raises(KeyError, match="no module 'nobody'"):
        named["nobody"]
    del sequence[0]
    assert sequence.in_keys == ["h", "c"]


def test_subsequences():
    sequence = chain()
    assert sequence.select_subsequence(out_keys=["b"]).out_keys == ["h", "b"]
    assert sequence.select_subsequence(in_keys=["a"]).out_keys == ["h", "b"]
    assert sequence.select_subsequence(in_keys=["h", "c"]).out_keys == ["b", "d"]
    assert sequence.select_subsequence(out_keys=["b"])[0] is sequence[0]
    for kwargs in ({"in_keys": ["z"]}, {"out_keys": ["z"]}):
        with pytest.raises(ValueError, match="no module runs"):
            sequence.select_subsequence(**kwargs)


def test_subsequences_of_nested_sequences():
    sequence = TensorDictSequential(
        TensorDictSequential(plus_one("a", "b"), plus_one("b", "c")),
        TensorDictSequential(plus_one("b", "d"), plus_one("d", "e")),
    )
    part = sequence.select_subsequence(in_keys=["b", "d"], out_keys=["e"])
    assert len(part) == 1 and part[0].out_keys == ["d", "e"]


def test_partially_tolerant_sequences_pass_over_what_cannot_run():
    with pytest.raises(KeyError, match="'c'"):
        chain()(data())
    td = chain(partial_tolerant=True)(data())
    assert "b" in td and "d" not in td
    with_c = data().set("c", torch.ones(4, 2))
    stacked = lazy_stack([data(), with_c], 0)
    out = chain(partial_tolerant=True)(stacked)
    assert "d" in out.tensordicts[1] and "d" not in out.tensordicts[0] and "b" in out.tensordicts[0]


def test_inplace_policies_of_a_sequence():
    for inplace, same, keys, size in [
        (None, True, {"a", "n", "h", "b"}, (4,)),
        (True, True, {"a", "n", "h", "b"}, (4,)),
        (False, False, {"h", "b"}, ()),
        ("empty", False, {"h", "b"}, (4,)),
    ]:
        td = data()
        out = TensorDictSequential(plus_one("a", "h"), plus_one("h", "b"), inplace=inplace)(td)
        assert (out is td) is same and set(out.keys()) == keys and out.batch_size == size
        assert ("b" in td) is same
    td = data()
    inner = TensorDictSequential(plus_one("a", "h", inplace=False), plus_one("h", "b", inplace=False), inplace=True)
    assert inner(td) is td and "b" in td and "h" not in td


def test_selected_keys_of_a_sequence():
    sequence = TensorDictSequential(plus_one("a", "h"), plus_one("h", "b"), selected_out_keys=["b"])
    assert sequence.out_keys == ["b"] and "h" not in sequence(data())
    assert sequence(torch.zeros(1)).item() == 2


def test_parameters_of_a_sequence_go_through_to_module():
    sequence = TensorDictSequential(
        TensorDictModule(nn.Linear(2, 3), ["a"], ["h"]), TensorDictModule(nn.Linear(3, 1), ["h"], ["b"])
    )
    params = TensorDict.from_module(sequence)
    assert set(params.keys(True, True)) >= {("module", "0", "module", "weight")}
    with (params * 0).to_module(sequence):
        assert (sequence(data())["b"] == 0).all()


# wrapping, skipping, resetting ---------------------------------------------------------------------------------------


def test_wrappers_behave_like_what_they_wrap():
    class TimesTen(TensorDictModuleWrapper):
        def forward(self, tensordict):
            return self.td_module(tensordict).update({"b": tensordict["b"] * 10})

    inner = TensorDictModule(nn.Linear(2, 3), ["a"], ["b"])
    wrapper = TimesTen(inner)
    assert wrapper.in_keys == ["a"] and wrapper.out_features == 3
    torch.testing.assert_close(wrapper(data())["b"], inner(data())["b"] * 10)
    assert TensorDictModuleWrapper(inner)(torch.ones(2)).shape == (3,)


def test_modules_are_skipped_where_their_outputs_exist():
    module, td = plus_one(), data().set("b", torch.zeros(4, 2))
    assert skip_existing() is False
    with set_skip_existing():
        assert skip_existing() is True and (module(td)["b"] == 0).all()
        with set_skip_existing(False):
            assert (module(td.copy())["b"] == 2).all()
        with set_skip_existing(["other"]):
            assert (module(td.copy())["b"] == 2).all()
        assert (plus_one("a", "a")(td.copy())["a"] == 2).all()
        assert TensorDictSequential(module)(td) is td
    assert (module(td)["b"] == 2).all()
    with pytest.raises(RuntimeError, match="None is for decorators"), set_skip_existing(None):
        pass


def test_skipping_may_be_for_one_thread():
    import threading

    seen = []
    with set_skip_existing(thread_local=True), set_skip_existing(["a"]):
        thread = threading.Thread(target=lambda: seen.append(skip_existing()))
        thread.start()
        thread.join()
        seen.append(skip_existing())
    assert seen == [False, ["a"]] and skip_existing() is False


def test_skipping_as_a_decorator():
    class Module(TensorDictModuleBase):
        in_keys, out_keys = [], ["out"]
        mode = None

        @set_skip_existing(None)
        def forward(self, tensordict):
            return tensordict.set("out", torch.ones(()))

    td = TensorDict({"out": torch.zeros(())})
    with set_skip_existing():
        assert Module()(td)["out"] == 0
    assert Module()(td)["out"] == 1


def test_parameters_are_reset_inside_and_outside():
    module = TensorDictModule(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), ["a"], ["b"])
    before = (
        module[0].weight.detach().clone()
        if hasattr(module, "__getitem__")
        else module.module[0].weight.detach().clone()
    )
    module.reset_parameters_recursive()
    assert not before.equal(module.module[0].weight)
    inside = module.module[0].weight.detach().clone()
    params = TensorDict.from_module(module).data.clone().zero_()
    reset = module.reset_parameters_recursive(params)
    assert reset["module", "0", "weight"].requires_grad and (params["module", "0", "weight"] != 0).any()
    assert inside.equal(module.module[0].weight)
    with pytest.warns(UserWarning, match="no sub-module with reset_parameters"):
        plus_one().reset_parameters_recursive()
    with pytest.raises(RuntimeError, match="batch size"):
        module.reset_parameters_recursive(params.expand(2))


# tracing -------------------------------------------------------------------------------------------------------------


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
