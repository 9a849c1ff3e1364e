"""Modules, sequences, probabilistic modules and tracing behave as in the reference."""

from __future__ import annotations

import importlib
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from side_by_side import OURS, THEIRS, assert_same
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


def normal(lib: Any, key: str = "s", **options: Any) -> Any:
    return lib.ProbabilisticTensorDictModule(["loc", "scale"], [key], distribution_class=Normal, **options)


def policy(lib: Any, *more: Any, **options: Any) -> Any:
    return lib.ProbabilisticTensorDictSequential(loc_scale(lib), normal(lib), *more, **options)


def two_steps(lib: Any, **options: Any) -> Any:
    second = lib.ProbabilisticTensorDictModule({"loc": "loc2", "scale": "scale2"}, ["s2"], distribution_class=Normal)
    between = lib.TensorDictModule(lambda s: (s, s.exp()), ["s"], ["loc2", "scale2"])
    return policy(lib, between, second, **options)


def without_distribution(lib: Any, **options: Any) -> Any:
    add = [lib.TensorDictModule(lambda x: x + 1, [a], [b]) for a, b in ("xy", "yz")]
    return lib.ProbabilisticTensorDictSequential(*add, **options)


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


def test_a_module_without_output_stands_in_a_sequence() -> None:
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
def test_a_class_is_no_module(kind: Any) -> None:
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
def test_results_go_where_inplace_says(inplace: Any) -> None:
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


# dispatch


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
def test_sequences_write_where_inplace_says(inplace: Any) -> None:
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


# probabilistic modules


def test_bases_of_a_subclass_may_take_fewer_arguments() -> None:
    class Safe(OURS.TensorDictSequential):
        def __init__(self, *modules: Any, partial_tolerant: bool = False) -> None:
            super().__init__(*modules, partial_tolerant=partial_tolerant)

    class SafePolicy(OURS.ProbabilisticTensorDictSequential, Safe):
        pass

    assert "s" in SafePolicy(loc_scale(OURS), normal(OURS), partial_tolerant=True)(td_of(OURS))


@pytest.mark.parametrize("selected", [None, ["z"]])
def test_a_sequence_without_a_distribution_runs(selected: Any) -> None:
    assert_same(lambda lib: without_distribution(lib, selected_out_keys=selected)(td_of(lib)))


@pytest.mark.parametrize("name", ["get_dist", "log_prob", "get_dist_params", "build_dist_from_params"])
def test_a_sequence_without_a_distribution_has_none(name: str) -> None:
    assert_same(lambda lib: getattr(without_distribution(lib), name)(td_of(lib)))


@pytest.mark.parametrize(
    "name", ["log_prob_keys", "dist_params_keys", "dist_sample_keys", "default_interaction_type", "det_part"]
)
def test_the_keys_of_a_sequence_are_those_of_its_distributions(name: str) -> None:
    assert_same(lambda lib: getattr(without_distribution(lib), name))
    if name != "det_part":
        assert_same(lambda lib: str(getattr(two_steps(lib), name)))


@pytest.mark.parametrize("name", ["get_dist", "get_dist_params", "log_prob"])
@pytest.mark.parametrize("given", [(), ("s",), ("s", "s2")], ids=str)
@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("kind", ["one", "composite of one", "two", "last of two", "not last"])
def test_distributions_leave_their_parameters_in_the_tensordict(
    name: str, given: tuple[str, ...], with_out: bool, kind: str
) -> None:
    if given and (kind == "last of two" or name == "get_dist_params"):
        pytest.skip("the reference draws values again that are there, see differences.md")

    def call(lib: Any) -> Any:
        sequence = {
            "one": lambda: policy(lib),
            "composite of one": lambda: policy(lib, return_composite=True),
            "two": lambda: two_steps(lib),
            "last of two": lambda: two_steps(lib, return_composite=False),
            "not last": lambda: policy(lib, lib.TensorDictModule(lambda s: s + 1, ["s"], ["z"])),
        }[kind]()
        td, out = td_of(lib, **{key: torch.ones(3) for key in given}), lib.TensorDict({}, [3])
        made = getattr(sequence, name)(td, **({"tensordict_out": out} if with_out else {}))
        keys = sorted(made.keys()) if hasattr(made, "keys") else None
        return type(made).__name__, keys, made is td, made is out, td, out

    assert_same(call)


def test_several_samples_in_the_middle_of_a_sequence() -> None:
    def call(lib: Any) -> Any:
        sequence = lib.ProbabilisticTensorDictSequential(
            loc_scale(lib),
            normal(lib, num_samples=2, return_log_prob=True),
            lib.TensorDictModule(lambda s: s + 1, ["s"], ["z"]),
        )
        td = td_of(lib)
        dist = sequence.get_dist(td)
        made = sequence(td)
        return type(dist).__name__, dist.batch_shape, td, made.batch_size, sequence.log_prob(made)

    assert_same(call)


@pytest.mark.parametrize("composite", [None, False, True])
def test_a_sequence_runs_under_its_own_interaction_type(composite: Any) -> None:
    def call(lib: Any) -> Any:
        seen: list[str] = []

        def look(x: Any) -> Any:
            seen.append(str(lib.interaction_type()))
            return x, x + 1

        first = lib.TensorDictModule(look, ["x"], ["loc", "scale"])
        sequence = lib.ProbabilisticTensorDictSequential(
            first, normal(lib, default_interaction_type="random"), return_composite=composite
        )
        sequence(td_of(lib))
        sequence.get_dist(td_of(lib))
        with lib.set_interaction_type("mode"):
            sequence(td_of(lib))
        return seen, str(lib.interaction_type())

    assert_same(call)


def test_arguments_of_a_distribution_may_be_parameters() -> None:
    def call(lib: Any) -> Any:
        options = lib.TensorDictParams(lib.TensorDict({"scale": 1.0, "validate_args": lib.NonTensorData(False)}))
        module = lib.ProbabilisticTensorDictModule(
            ["loc"], ["x"], distribution_class=Normal, distribution_kwargs=options
        )
        return module(lib.TensorDict({"loc": torch.zeros(2)}, [2])), [name for name, _ in module.named_parameters()]

    assert_same(call)


@pytest.mark.parametrize("log_prob", [False, True])
def test_a_key_of_a_node_stands_for_the_components_below_it(log_prob: bool) -> None:
    def call(lib: Any) -> Any:
        module = lib.ProbabilisticTensorDictModule(
            in_keys=["params"],
            out_keys=["action"],
            distribution_class=lib.CompositeDistribution,
            distribution_kwargs={"distribution_map": {("action", "one"): Normal}},
            return_log_prob=log_prob,
        )
        params = {"action": {"one": {"loc": torch.zeros(2), "scale": torch.ones(2)}}}
        return module(lib.TensorDict({"params": params}, [2])), module.out_keys

    assert_same(call)


@pytest.mark.parametrize("generator", [1.5, [], 3, "seed", ("a", "b"), None])
def test_a_generator_is_checked_early(generator: Any) -> None:
    assert_same(lambda lib: lib.ProbabilisticTensorDictModule(["a"], ["x"], generator=generator).in_keys)


_PROBS = torch.tensor([[0.3, 0.9, 0.1], [0.2, 0.2, 0.7]])
_KINDS: dict[str, Any] = {
    "logistic": lambda: D.LogisticNormal(_PROBS, _PROBS),
    "relaxed bernoulli": lambda: D.RelaxedBernoulli(torch.tensor(0.5), probs=_PROBS),
    "relaxed one-hot": lambda: D.RelaxedOneHotCategorical(torch.tensor(0.5), probs=_PROBS),
    "transformed": lambda: D.TransformedDistribution(Normal(_PROBS, _PROBS), D.TanhTransform()),
    "categorical": lambda: D.Categorical(_PROBS),
    "beta": lambda: D.Beta(_PROBS + 1, _PROBS + 2),
    "independent": lambda: D.Independent(Normal(_PROBS, _PROBS), 1),
    "mixture": lambda: D.MixtureSameFamily(D.Categorical(torch.ones(2, 3)), Normal(_PROBS, _PROBS)),
}


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("how", ["deterministic", "mode", "median"])
def test_each_interaction_type_gives_its_value(kind: str, how: str) -> None:
    def call(lib: Any) -> Any:
        module = lib.ProbabilisticTensorDictModule(["a"], ["x"], distribution_class=lambda a: _KINDS[kind]())
        with lib.set_interaction_type(how):
            return module(lib.TensorDict({"a": torch.zeros(2)}, [2]))["x"]

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
        class Layer(lib.TensorDictModuleBase):  # type: ignore[misc, name-defined]
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


@pytest.mark.parametrize("present", [[], ["loc"]])
def test_missing_parameters_of_a_distribution(present: list[str]) -> None:
    assert_same(lambda lib: normal(lib)(lib.TensorDict({key: torch.zeros(3) for key in present}, [3])))


def test_a_probabilistic_sequence_without_modules() -> None:
    assert_same(lambda lib: lib.ProbabilisticTensorDictSequential())


def test_an_integer_is_not_assigned_to_a_position_of_a_sequence() -> None:
    assert_same(lambda lib: policy(lib).__setitem__(0, 3))


def composite(lib: Any) -> Any:
    params = lib.TensorDict({"a": {"loc": torch.zeros(3), "scale": torch.ones(3)}}, [3])
    return lib.CompositeDistribution(params, distribution_map={"a": Normal})


@pytest.mark.parametrize("aggregate", [True, False])
@pytest.mark.parametrize("include_sum", [True, False, None])
def test_the_entropy_of_a_composite_with_its_sum(aggregate: bool, include_sum: bool | None) -> None:
    def call(lib: Any) -> Any:
        with lib.set_composite_lp_aggregate(aggregate):
            return composite(lib).entropy(include_sum=include_sum)

    assert_same(call)


def test_the_former_option_of_the_entropy_of_a_composite_warns() -> None:
    for lib in (OURS, THEIRS):
        assert warned(lambda lib=lib: composite(lib).entropy(aggregate_probabilities=True)) == ["DeprecationWarning"]


def test_a_composite_refuses_a_tensor_as_sample() -> None:
    assert_same(lambda lib: composite(lib).log_prob(torch.zeros(3)))


@pytest.mark.parametrize("mode", [None, 1, "yes", False])
def test_whether_a_composite_aggregates_is_a_bool(mode: Any) -> None:
    def call(lib: Any) -> Any:
        with lib.set_composite_lp_aggregate(mode):
            return lib.composite_lp_aggregate()

    assert_same(call)


def test_a_delta_takes_another_value() -> None:
    def call(lib: Any) -> Any:
        delta = lib.Delta(torch.zeros(2))
        delta.update(torch.ones(2))
        return delta.mode, delta.log_prob(torch.ones(2))

    assert_same(call)


@pytest.mark.parametrize("layer", [nn.Linear, nn.LSTM, nn.GRU])
def test_a_key_without_parameter_is_refused(layer: Any) -> None:
    assert_same(lambda lib: lib.TensorDict({"typo": torch.zeros(2)}).to_module(layer(2, 2)))
