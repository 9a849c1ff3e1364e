"""Modules, sequences, probabilistic modules and tracing behave as in the reference."""

from __future__ import annotations

import importlib
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from side_by_side import OURS, assert_same
from torch import distributions as D
from torch import nn

Normal = D.Normal


def warned(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [one.category.__name__ for one in caught]


def td_of(lib: Any, **entries: Any) -> Any:
    return lib.TensorDict({"x": torch.zeros(3), **entries}, [3])


def loc_scale(lib: Any) -> Any:
    return lib.TensorDictModule(lambda x: (x, x.exp()), ["x"], ["loc", "scale"])


# modules


def test_a_list_selects_no_output_key() -> None:
    assert_same(lambda lib: lib.TensorDictModule(lambda x: (x, x), ["a"], ["c", "d"]).select_out_keys(["d"]))


@pytest.mark.parametrize(("in_keys", "out_keys"), [([], []), (["x"], ["y"]), (["x"], ["_"])])
def test_a_module_may_return_nothing_only_without_output_keys(in_keys: Any, out_keys: Any) -> None:
    def call(lib: Any) -> Any:
        td = td_of(lib)
        made = lib.TensorDictModule(lambda *args: None, in_keys, out_keys)(td)
        return made is td, made

    assert_same(call)


def test_a_module_without_output_works_in_a_sequence() -> None:
    def call(lib: Any) -> Any:
        nothing = lib.TensorDictModule(lambda: None, [], [])
        return lib.TensorDictSequential(nothing, loc_scale(lib))(td_of(lib))

    assert_same(call)


@pytest.mark.parametrize("reset", [False, True])
def test_a_wrapper_selects_output_keys_of_its_own(reset: bool) -> None:
    def call(lib: Any) -> Any:
        inner = lib.TensorDictModule(lambda a: (a, a + 1, a + 2), ["x"], ["c", "d", "e"])
        wrapper = lib.TensorDictModuleWrapper(inner)
        same = wrapper.select_out_keys("d") is wrapper
        if reset:
            same = same and wrapper.reset_out_keys() is wrapper
        return same, wrapper(td_of(lib)), wrapper.out_keys, inner.out_keys, wrapper(torch.ones(2))

    assert_same(call)


@pytest.mark.parametrize("keys", [None, 123, [123], [None], (), [["a"]], {"a"}, {"b": 1}, "a", ("a", "b"), [("a",)]])
def test_input_keys_are_strings_and_tuples(keys: Any) -> None:
    assert_same(lambda lib: lib.TensorDictModule(abs, keys, ["b"]).in_keys)


@pytest.mark.parametrize("keys", [None, 123, [123], [None], (), [["a"]], {"a"}, {}, {"b": 1}, "a", ("a", "b")])
def test_output_keys_are_strings_and_tuples(keys: Any) -> None:
    assert_same(lambda lib: lib.TensorDictModule(abs, ["a"], keys).out_keys)


@pytest.mark.parametrize("kind", [nn.Linear, int])
def test_a_class_is_not_a_module(kind: Any) -> None:
    assert_same(lambda lib: lib.TensorDictModule(kind, ["a"], ["b"]))


def test_keys_in_class_bodies_are_unravelled() -> None:
    def call(lib: Any) -> Any:
        class Module(lib.TensorDictModuleBase):
            in_keys = [("b",), ("c", ("d",))]  # noqa: RUF012 (the spelling of users)
            out_keys = ["e", ("f",)]  # noqa: RUF012 (the spelling of users)

        return Module().in_keys, Module().out_keys

    assert_same(call)


@pytest.mark.parametrize("options", [{"out_to_in_map": False}, {"out_to_in_map": True}, {}])
def test_an_option_without_effect_warns(options: dict[str, Any]) -> None:
    assert_same(lambda lib: warned(lambda: lib.TensorDictModule(abs, ["x"], ["y"], **options)))


def test_an_input_key_of_a_dropped_value_warns() -> None:
    assert_same(lambda lib: warned(lambda: lib.TensorDictModule(abs, ["_"], ["y"])))


@pytest.mark.parametrize("inplace", [None, True, False, "empty", 0])
def test_inplace_decides_where_results_are_written(inplace: Any) -> None:
    def call(lib: Any) -> Any:
        td = td_of(lib)
        made = lib.TensorDictModule(lambda x: x + 1, ["x"], ["y"], inplace=inplace)(td)
        return made is td, made, td

    assert_same(call)


def test_lambdas_are_pickled() -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is an extra")

    def call(lib: Any) -> Any:
        module = lib.TensorDictModule(lambda x: x + 1, ["x"], ["y"])
        return pickle.loads(pickle.dumps(module))(x=torch.zeros(1))

    assert_same(call)


@pytest.mark.parametrize("keys", [[("a", 1)], [()]])
def test_tuples_of_other_objects_than_strings_are_not_keys(keys: Any) -> None:
    assert_same(lambda lib: lib.TensorDictModule(abs, keys, ["y"]))
    assert_same(lambda lib: lib.TensorDictModule(abs, ["x"], keys))


@pytest.mark.parametrize("error", [RuntimeError, ZeroDivisionError, AttributeError, TypeError])
@pytest.mark.parametrize("in_keys", [["x", "z"], {"a": "x", "b": "z"}])
def test_errors_of_a_function_that_lacks_an_input_keep_their_type(error: Any, in_keys: Any) -> None:
    def fail(a: Any, b: Any) -> Any:
        raise error("cause")

    assert_same(lambda lib: lib.TensorDictModule(fail, in_keys, ["y"])(td_of(lib)))


def test_keyword_arguments_that_lack_an_input_raise_the_error_of_the_function() -> None:
    assert_same(lambda lib: lib.TensorDictModule(lambda a, b: a + b, {"a": "x", "b": "z"}, ["y"])(td_of(lib)))


def test_arguments_of_the_module_win_over_those_of_the_call() -> None:
    def call(lib: Any) -> Any:
        module = lib.TensorDictModule(lambda x, by=1: x + by, ["x"], ["y"], method_kwargs={"by": 2})
        return module(td_of(lib), by=5)

    assert_same(call)


@pytest.mark.parametrize("where", ["first", "last"])
def test_sequences_take_modules_in_any_place(where: str) -> None:
    def call(lib: Any) -> Any:
        sequence = lib.TensorDictSequential(lib.TensorDictModule(lambda x: x + 1, ["x"], ["y"]))
        more = lib.TensorDictModule(lambda x: x * 2, ["x"], ["x"])
        sequence.insert(0, more) if where == "first" else sequence.append(more)
        return len(sequence), sequence(td_of(lib, x=torch.ones(3)))

    assert_same(call)


@pytest.mark.parametrize("nested", [False, True])
def test_sequences_pass_no_arguments_on(nested: bool) -> None:
    def call(lib: Any) -> Any:
        sequence = lib.TensorDictSequential(lib.TensorDictModule(lambda x, by=1: x * by, ["x"], ["y"]))
        return (lib.TensorDictSequential(sequence) if nested else sequence)(td_of(lib), by=2)

    assert_same(call)


# dispatch


@pytest.mark.parametrize("strict", [False, True])
def test_none_is_an_argument(strict: bool) -> None:
    def call(lib: Any) -> Any:
        module = lib.TensorDictModule(lambda x, y: x if y is None else x + y, ["x", "y"], ["z"], strict=strict)
        return module(torch.ones(2), None), module(x=torch.ones(2), y=None)

    assert_same(call)


@pytest.mark.parametrize("more", [(5,), (5, 6), ()])
def test_arguments_behind_the_inputs_stay_arguments(more: tuple[int, ...]) -> None:
    def call(lib: Any) -> Any:
        class Module(nn.Module):
            in_keys, out_keys = ["a", "b"], ["c"]

            @lib.dispatch
            def forward(self, tensordict: Any, *others: int, scale: int = 1) -> Any:
                return tensordict.set("c", tensordict["a"] + tensordict["b"] * scale + sum(others))

        return Module()(torch.ones(2), torch.ones(2), *more, scale=3)

    assert_same(call)


@pytest.mark.parametrize("name", ["TensorDictModule", "TensorDictSequential"])
def test_modules_take_no_other_positional_arguments(name: str) -> None:
    def call(lib: Any) -> Any:
        module = lib.TensorDictModule(abs, ["a"], ["b"])
        module = module if name == "TensorDictModule" else lib.TensorDictSequential(module)
        return module(torch.ones(2), torch.ones(2))

    assert_same(call)


# sequences


def test_output_keys_stand_where_they_are_written_last() -> None:
    def call(lib: Any) -> Any:
        module = lib.TensorDictModule
        steps = [module(lambda x: (x, x + 1), ["x"], ["a", "b"]), module(lambda b: (b + 2, b + 3), ["b"], ["b", "a"])]
        dropped = lib.TensorDictSequential(module(lambda x: (x, x), ["x"], ["a", "_"]), module(abs, ["a"], ["_"]))
        sequence = lib.TensorDictSequential(*steps)
        return sequence.out_keys, sequence(x=torch.zeros(1)), dropped.out_keys

    assert_same(call)


@pytest.mark.parametrize("selected", [None, ["z"]])
def test_results_for_another_tensordict_leave_the_inputs_alone(selected: Any) -> None:
    def call(lib: Any) -> Any:
        steps = [lib.TensorDictModule(lambda x: x + 1, [a], [b]) for a, b in ("xy", "yz")]
        td, out = td_of(lib), lib.TensorDict({}, [3])
        made = lib.TensorDictSequential(*steps, selected_out_keys=selected)(td, tensordict_out=out)
        return made is out, td, out

    assert_same(call)


@pytest.mark.parametrize("inplace", [None, True, False, "empty"])
def test_inplace_decides_where_sequences_write(inplace: Any) -> None:
    def call(lib: Any) -> Any:
        td = td_of(lib)
        made = lib.TensorDictSequential(loc_scale(lib), inplace=inplace)(td)
        return made is td, made, td

    assert_same(call)


def test_a_traced_module_writes_into_another_tensordict() -> None:
    def call(lib: Any) -> Any:
        trace = lib.symbolic_trace if lib is OURS else importlib.import_module("tensordict.prototype").symbolic_trace
        module = lib.TensorDictSequential(lib.TensorDictModule(lambda x: x * 2, ["x"], ["y"]))
        td, out = td_of(lib), lib.TensorDict({}, [3])
        made = trace(module)(td, tensordict_out=out)
        return made is out, td, out

    assert_same(call)


# ensembles


def test_an_ensemble_resets_a_module_that_cannot_be_copied() -> None:
    def call(lib: Any) -> Any:
        class Layer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(2))
                self.resets = 0

            def reset_parameters(self) -> None:
                self.resets += 1
                nn.init.constant_(self.weight, self.resets)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.weight

            def __deepcopy__(self, memo: Any) -> Any:
                raise RuntimeError("cannot be copied")

        ensemble = lib.EnsembleModule(lib.TensorDictModule(Layer(), ["x"], ["y"]), 3)
        return ensemble(lib.TensorDict({"x": torch.ones(2)}))

    assert_same(call)


def test_an_ensemble_loads_the_state_of_the_reference() -> None:
    from tensordict.nn import EnsembleModule, TensorDictModule

    theirs = EnsembleModule(TensorDictModule(nn.Linear(2, 3), ["x"], ["y"]), 3)
    ours = OURS.EnsembleModule(OURS.TensorDictModule(nn.Linear(2, 3), ["x"], ["y"]), 3)
    ours.load_state_dict(theirs.state_dict())
    assert ours.params_td["module", "weight"].equal(theirs.params_td["module", "weight"])


def test_an_ensemble_takes_tensors() -> None:
    def call(lib: Any) -> Any:
        torch.manual_seed(0)
        return lib.EnsembleModule(lib.TensorDictModule(nn.Linear(2, 3), ["x"], ["y"]), 3)(torch.ones(4, 2))

    assert_same(call)


# what modules print and refuse


@pytest.mark.parametrize("children", [True, False])
def test_a_module_prints_its_children_and_keys(children: bool) -> None:
    def call(lib: Any) -> Any:
        class Layer(lib.TensorDictModuleBase):
            in_keys, out_keys = ["x"], ["y"]

            def __init__(self) -> None:
                super().__init__()
                if children:
                    self.linear = nn.Sequential(nn.Linear(2, 3), nn.ReLU())

        return repr(Layer()), repr(lib.TensorDictModuleWrapper(Layer()))

    assert_same(call)


def test_a_selection_does_not_bring_keys_back() -> None:
    assert_same(
        lambda lib: (
            lib.TensorDictModule(lambda x: (x, x), ["x"], ["y", "z"])
            .select_out_keys("y")
            .reset_out_keys()
            .select_out_keys("z")
            .out_keys
        )
    )
    assert_same(
        lambda lib: (
            lib.TensorDictModule(lambda x: (x, x), ["x"], ["y", "z"]).select_out_keys("y").select_out_keys("z").out_keys
        )
    )


def test_skipping_decorates_functions_of_a_tensordict() -> None:
    def call(lib: Any) -> Any:
        @lib.set_skip_existing(True)
        def forward(self: Any, td: Any) -> Any:
            return td

    assert_same(call)


@pytest.mark.parametrize("layer", [nn.Linear, nn.LSTM, nn.GRU])
def test_a_key_without_parameter_is_refused(layer: Any) -> None:
    assert_same(lambda lib: lib.TensorDict({"typo": torch.zeros(2)}).to_module(layer(2, 2)))
