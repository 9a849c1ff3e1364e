"""Probabilistic modules and distributions behave as in the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import OURS, THEIRS, assert_same
from tests.interop.behaviours.test_modules import loc_scale, td_of, warned
from torch import distributions as D

Normal = D.Normal


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
def test_a_key_of_a_node_selects_the_components_below_it(log_prob: bool) -> None:
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


RELAXED = {
    "RelaxedOneHotCategorical": {"temperature": torch.tensor(0.5), "logits": torch.tensor([1.0, 2.0, 0.0])},
    "RelaxedBernoulli": {"temperature": torch.tensor(0.5), "logits": torch.tensor([1.0, 2.0, -1.0])},
    "LogisticNormal": {"loc": torch.tensor([0.0, 1.0]), "scale": torch.tensor([1.0, 0.5])},
}


@pytest.mark.parametrize("name", RELAXED)
def test_relaxed_distributions_have_a_deterministic_value(name: str) -> None:
    params = RELAXED[name]

    def call(lib: Any) -> Any:
        draw = lib.ProbabilisticTensorDictModule(list(params), ["x"], distribution_class=getattr(D, name))
        return draw(lib.TensorDict(params))["x"]

    assert_same(call)


def test_interaction_types_are_equal_to_their_names() -> None:
    assert_same(lambda lib: [one == one.value for one in lib.InteractionType] + [str(lib.InteractionType.MODE)])


@pytest.mark.parametrize("call", ["forward", "get_dist", "log_prob"])
def test_arguments_of_a_call_go_to_the_modules_that_are_not_probabilistic(call: str) -> None:
    def run(lib: Any) -> Any:
        scaled = lib.TensorDictModule(lambda x, by=1: (x * by, x.exp()), ["x"], ["loc", "scale"])
        made = getattr(lib.ProbabilisticTensorDictSequential(scaled, normal(lib)), call)(
            td_of(lib, x=torch.ones(3), s=torch.zeros(3)), by=3
        )
        return made.loc if call == "get_dist" else made

    assert_same(run)


def test_a_sequence_may_score_values_that_it_does_not_draw() -> None:
    def call(lib: Any) -> Any:
        return policy(lib)(td_of(lib), _requires_sample=False)

    assert_same(call)
