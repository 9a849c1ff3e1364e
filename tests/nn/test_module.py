"""Modules on tensordicts: inputs, outputs and errors."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import (
    EnsembleModule,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    TensorDictSequential,
)


def data() -> TensorDict:
    return TensorDict({"a": torch.ones(4, 2), "n": {"b": torch.full((4, 2), 2.0)}}, [4])


def plus_one(in_key="a", out_key="b", **kwargs) -> TensorDictModule:
    return TensorDictModule(lambda x: x + 1, [in_key], [out_key], **kwargs)


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
        module.nothing  # noqa: B018  # reading is what fails


def test_inplace_policies():
    td = data()
    new = plus_one(inplace=False)(td)
    assert new is not td and list(new.keys()) == ["b"] and new.batch_size == () and "b" not in td
    empty = plus_one(inplace="empty")(td)
    assert list(empty.keys()) == ["b"] and empty.batch_size == (4,) and "b" not in td
    assert plus_one()(td) is td
    out = TensorDict({}, [4])
    assert plus_one(inplace=False)(td, tensordict_out=out) is out and "b" in out
    with pytest.raises(ValueError, match="inplace='nowhere' is not one of True, False or 'empty'"):
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


def test_a_replaced_call_of_nn_module_sees_every_module(monkeypatch):
    call, seen = nn.Module.__call__, []
    module = TensorDictSequential(TensorDictModule(nn.Tanh(), ["a"], ["b"]))
    monkeypatch.setattr(
        nn.Module, "__call__", lambda self, *args, **kwargs: (seen.append(type(self).__name__), call(self, *args))[1]
    )
    module(data())
    assert seen == ["TensorDictSequential", "TensorDictModule", "Tanh"]


def test_modules_compiled_by_their_compile_run_compiled():
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


def test_missing_inputs_name_the_module_the_key_and_the_keys_there():
    module = TensorDictModule(nn.Linear(2, 3), ["obs"], ["b"])
    with pytest.raises(KeyError, match=r"Linear needs the keys \['obs'\].*with keys \['obz', 'y'\].*mean 'obz'"):
        module(TensorDict({"obz": torch.zeros(2), "y": 1}))


def test_without_strict_a_module_may_do_without_an_input():
    function = lambda a, z=None: a if z is None else z  # noqa: E731  # short
    assert "o" in TensorDictModule(function, ["a", "z"], ["o"])(data())
    with pytest.raises(KeyError, match=r"needs the keys \['z'\]"):
        TensorDictModule(function, ["a", "z"], ["o"], strict=True)(data())


def test_an_error_in_the_module_keeps_its_type_and_gets_a_note():
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


def test_modules_that_are_not_callable_are_refused():
    with pytest.raises(ValueError, match="int is not callable"):
        TensorDictModule(3, ["a"], ["b"])
    with pytest.raises(ValueError, match="int is not callable"):
        TensorDictSequential(3)


def test_selected_outputs_are_kept_and_others_dropped():
    module = TensorDictModule(lambda x: (x, x, x), ["a"], ["b", ("m", "c"), "d"])
    assert module.select_out_keys("b") is module
    assert module.out_keys == ["b"] and module.out_keys_source == ["b", ("m", "c"), "d"]
    assert sorted(module(data()).keys()) == ["a", "b", "n"]
    assert isinstance(module(torch.ones(2)), torch.Tensor)
    with pytest.raises(ValueError, match=r"keys \['d'\].*must be in out_keys \['b'\].*reset_out_keys"):
        module.select_out_keys("d")
    module.reset_out_keys().select_out_keys("d")
    assert sorted(module(data()).keys()) == ["a", "d", "n"]
    module.reset_out_keys()
    assert sorted(module(data()).keys()) == ["a", "b", "d", "m", "n"]
    with pytest.raises(ValueError, match=r"keys \['z'\].*must be in out_keys \['b', \('m', 'c'\), 'd'\]"):
        module.select_out_keys("z")


def test_selection_works_for_any_forward():
    class Module(TensorDictModuleBase):
        in_keys, out_keys = ["a"], ["b", "c"]

        def forward(self, tensordict):
            return tensordict.update({"b": tensordict["a"], "c": tensordict["a"]})

    module = Module().select_out_keys("c")
    assert sorted(module(data()).keys()) == ["a", "c", "n"] and Module.out_keys == ["b", "c"]


def test_wrappers_behave_like_the_wrapped_module():
    class TimesTen(TensorDictModuleWrapper):
        def forward(self, tensordict):
            return self.td_module(tensordict).update({"b": tensordict["b"] * 10})

    inner = TensorDictModule(nn.Linear(2, 3), ["a"], ["b"])
    wrapper = TimesTen(inner)
    assert wrapper.in_keys == ["a"] and wrapper.out_features == 3
    torch.testing.assert_close(wrapper(data())["b"], inner(data())["b"] * 10)
    assert TensorDictModuleWrapper(inner)(torch.ones(2)).shape == (3,)


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


def test_a_tuple_among_the_outputs_is_a_nested_tensordict():
    module = TensorDictModule(torch.nn.LSTM(2, 3), in_keys=["x"], out_keys=["y", "state"])
    td = module(TensorDict({"x": torch.ones(4, 2)}))
    assert set(td["state"].keys()) == {"0", "1"} and td["state", "0"].shape == (1, 3)


def test_a_module_has_the_name_of_its_class_until_it_gets_another_one():
    module = TensorDictModule(nn.Linear(4, 2), ["a"], ["b"])
    assert module.__name__ == type(module).__name__ == "TensorDictModule"
    module.__name__ = "policy"
    assert module.__name__ == "policy" and TensorDictModule.__name__ == "TensorDictModule"


def test_vmapped_forward_of_an_ensemble_takes_the_parameters():
    ensemble = EnsembleModule(TensorDictModule(nn.Linear(4, 2), ["a"], ["b"]), num_copies=3)
    td = TensorDict({"a": torch.ones(5, 4)}, [5])
    assert ensemble.vmapped_forward(td, ensemble.params_td)["b"].equal(ensemble(td)["b"])
    assert ensemble.vmapped_forward(td, ensemble.params_td.data * 0)["b"].eq(0).all()
