"""Probabilistic modules: samples, log-probabilities and their keys."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch
from torch import distributions as d
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import (
    CompositeDistribution,
    EnsembleModule,
    InteractionType,
    NormalParamExtractor,
    TensorDictModule,
    TensorDictParams,
    TensorDictSequential,
    interaction_type,
    set_composite_lp_aggregate,
    set_interaction_type,
    set_skip_existing,
)
from tensordict_nn import ProbabilisticTensorDictModule as Prob
from tensordict_nn import ProbabilisticTensorDictSequential as Seq


def params(n: int = 3) -> TensorDict:
    return TensorDict({"loc": torch.zeros(n), "scale": torch.ones(n)}, [n])


def normal(**kwargs) -> Prob:
    return Prob(["loc", "scale"], ["x"], **{"distribution_class": d.Normal, **kwargs})


# interaction types ---------------------------------------------------------------------------------------------------


def test_names_of_interaction_types():
    assert InteractionType("RANDOM") is InteractionType.from_str("Random") is InteractionType.RANDOM
    with pytest.raises(ValueError, match="nothing"):
        InteractionType("nothing")


@pytest.mark.parametrize(
    ("how", "distribution", "expected"),
    [
        ("mode", d.LogNormal, torch.exp(torch.tensor(-1.0))),
        ("mean", d.LogNormal, torch.exp(torch.tensor(0.5))),
        ("deterministic", d.LogNormal, torch.exp(torch.tensor(0.5))),
        ("deterministic", d.Normal, torch.tensor(0.0)),
    ],
)
def test_values_by_interaction_type(how, distribution, expected):
    module = normal(distribution_class=distribution)
    with set_interaction_type(how):
        torch.testing.assert_close(module(params())["x"], expected.expand(3))
    torch.testing.assert_close(
        normal(distribution_class=distribution, default_interaction_type=how)(params())["x"], expected.expand(3)
    )


def test_categories_have_a_mode_and_no_mean():
    module = Prob(["logits"], ["k"], distribution_class=d.Categorical)
    assert module(TensorDict({"logits": torch.tensor([0.0, 3.0, 1.0])}))["k"] == 1


def test_missing_properties_are_named_and_a_missing_mean_is_estimated():
    with pytest.raises(NotImplementedError, match=r"median is not implemented"), set_interaction_type("median"):
        normal()(params())

    def shifted(loc, scale):
        return d.TransformedDistribution(d.Normal(loc, scale), [d.AffineTransform(3.0, 1.0)])

    with set_interaction_type("mean"):
        mean = normal(distribution_class=shifted, n_empirical_estimate=20_000)(params())["x"]
    torch.testing.assert_close(mean, torch.full((3,), 3.0), atol=0.05, rtol=0)


def test_blocks_nest_and_decorate_and_may_be_for_one_thread():
    assert interaction_type() is None

    @set_interaction_type("mode")
    def inside():
        return interaction_type()

    seen = []
    with set_interaction_type("random"):
        assert inside() is InteractionType.MODE and interaction_type() is InteractionType.RANDOM
        with set_interaction_type("mean", thread_local=True):
            thread = threading.Thread(target=lambda: seen.append(interaction_type()))
            thread.start()
            thread.join()
            assert interaction_type() is InteractionType.MEAN and seen == [InteractionType.RANDOM]
    assert interaction_type() is None


def test_blocks_of_two_threads_that_overlap_leave_no_value_behind():
    begun, end = threading.Event(), threading.Event()

    def first():
        with set_interaction_type("mode"):
            begun.set()
            end.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(60)
    with set_interaction_type("random"):
        end.set()
        thread.join()
        assert interaction_type() is InteractionType.RANDOM
    assert interaction_type() is None


# one module ----------------------------------------------------------------------------------------------------------


def test_log_probabilities_of_samples():
    module = normal(return_log_prob=True, default_interaction_type="random")
    assert module.out_keys == ["x", "x_log_prob"] and module.log_prob_key == "x_log_prob"
    assert module.dist_params_keys == ["loc", "scale"] and module.dist_sample_keys == ["x"]
    td = module(params())
    torch.testing.assert_close(td["x_log_prob"], d.Normal(0.0, 1.0).log_prob(td["x"]))
    torch.testing.assert_close(module.log_prob(td), td["x_log_prob"])
    assert isinstance(module.get_dist(td), d.Normal)
    x, score = module(loc=torch.zeros(2), scale=torch.ones(2))
    torch.testing.assert_close(score, d.Normal(0.0, 1.0).log_prob(x))


def test_keys_of_log_probabilities():
    nested = Prob({"loc": "loc", "scale": "scale"}, [("a", "x")], distribution_class=d.Normal, return_log_prob=True)
    assert nested.out_keys == [("a", "x"), ("a", "x_log_prob")]
    assert normal(return_log_prob=True, log_prob_key="lp").out_keys == ["x", "lp"]
    with set_composite_lp_aggregate(True):
        assert normal(return_log_prob=True).out_keys == ["x", "sample_log_prob"]
        with pytest.raises(RuntimeError, match="one log-probability"):
            normal(log_prob_keys=["a"])
    with pytest.raises(ValueError, match="'x' is that of a value"):
        normal(return_log_prob=True, log_prob_key="x")


def test_parameters_by_name_nested_and_constant():
    module = Prob({"loc": ("n", "mu")}, ["x"], distribution_class=d.Normal, distribution_kwargs={"scale": 2.0})
    td = TensorDict({"n": {"mu": torch.ones(3)}})
    assert module.get_dist(td).stddev[0] == 2 and (module(td)["x"] == 1).all()
    by_last_level = Prob([("n", "loc")], ["x"], distribution_class=d.Normal, distribution_kwargs={"scale": 2.0})
    assert by_last_level(TensorDict({"n": {"loc": torch.ones(3)}}))["x"].tolist() == [1, 1, 1]
    moved = Prob(
        ["loc"], ["x"], distribution_class=d.Normal, distribution_kwargs=TensorDictParams({"scale": torch.ones(3)})
    )
    assert [name for name, _ in moved.named_parameters()] == ["distribution_kwargs.scale"]
    assert (moved(params())["x"] == 0).all()
    assert Prob(["p"], ["q"])(TensorDict({"p": torch.ones(2)}))["q"].tolist() == [1, 1]


def test_missing_parameters_are_named():
    with pytest.raises(KeyError, match=r"needs the keys \['scale'\]"):
        normal()(TensorDict({"loc": torch.zeros(3)}))
    with pytest.raises(ValueError) as error:
        normal(distribution_kwargs={"validate_args": True})(
            TensorDict({"loc": torch.zeros(3), "scale": -torch.ones(3)})
        )
    assert any("while making a Normal" in note for note in error.value.__notes__)


def test_several_values():
    module = normal(num_samples=4, default_interaction_type="random", return_log_prob=True)
    td = module(params())
    assert td.batch_size == (4, 3) and td["x"].shape == (4, 3) == td["x_log_prob"].shape and td["loc"].shape == (4, 3)
    assert len(td["x"].unique()) == 12
    with set_interaction_type("mean"):
        assert (module(params())["x"] == 0).all()


def test_generators_leave_the_global_one_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    draws = [normal(generator=7, default_interaction_type="random")(params())["x"] for _ in range(2)]
    assert torch.equal(*draws) and torch.equal(torch.rand(3), expected)
    module = normal(generator=torch.Generator().manual_seed(7), default_interaction_type="random")
    assert torch.equal(module(params())["x"], draws[0]) and not torch.equal(module(params())["x"], draws[0])
    seeded = normal(generator="seed", default_interaction_type="random")
    td = params().set("seed", torch.tensor([3, 3, 3]))
    first = seeded(td.copy())
    assert torch.equal(first["x"], seeded(td.copy())["x"]) and (first["seed"] != 3).all()
    assert not torch.equal(seeded(first.copy())["x"], first["x"]) and "x" in seeded(params())


def test_distributions_that_draw_and_score_at_once():
    class Both(d.Normal):
        def rsample_and_log_prob(self, shape):
            sample = self.rsample(shape)
            return sample, torch.full_like(sample, 42.0)

    module = normal(distribution_class=Both, return_log_prob=True, default_interaction_type="random")
    assert (module(params())["x_log_prob"] == 42).all()


def test_values_that_exist_are_kept_on_request():
    td = params().set("x", torch.full((3,), 9.0))
    with set_skip_existing():
        assert (normal()(td)["x"] == 9).all()
    assert (normal()(td)["x"] == 0).all()


def composite_module(**kwargs) -> Prob:
    return Prob(
        ["params"], distribution_class=CompositeDistribution,
        distribution_kwargs={"distribution_map": {"x": d.Normal, ("n", "k"): d.Categorical}}, **kwargs,
    )  # fmt: skip  # shorter than one a line


def composite_params() -> TensorDict:
    return TensorDict(
        {
            "params": {
                "x": {"loc": torch.zeros(3, 2), "scale": torch.ones(3, 2)},
                "n": {"k": {"logits": torch.zeros(3, 5)}},
            }
        },
        [3],
    )


def test_composites_write_every_value_and_score():
    module = composite_module(return_log_prob=True, default_interaction_type="random")
    assert module.out_keys == ["x", ("n", "k"), "x_log_prob", ("n", "k_log_prob")]
    td = module(composite_params())
    torch.testing.assert_close(td["x_log_prob"], d.Normal(0.0, 1.0).log_prob(td["x"]))
    torch.testing.assert_close(td["n", "k_log_prob"], torch.full((3,), 0.2).log())
    assert isinstance(module.log_prob(td), TensorDict)
    with pytest.raises(RuntimeError, match="several keys"):
        module.log_prob_key  # noqa: B018  # reading is what fails
    renamed = composite_module(return_log_prob=True, log_prob_keys=["p", "q"])(composite_params())
    assert {"p", "q"} <= set(renamed.keys())
    with set_composite_lp_aggregate(True):
        module = composite_module(return_log_prob=True)
        td = module(composite_params())
        torch.testing.assert_close(td["sample_log_prob"], module.log_prob(td))
        torch.testing.assert_close(td["sample_log_prob"], td["x_log_prob"].sum(-1) + td["n", "k_log_prob"])


# sequences -----------------------------------------------------------------------------------------------------------


def policy(**kwargs) -> Seq:
    return Seq(
        TensorDictModule(nn.Linear(3, 4), ["obs"], ["raw"]),
        TensorDictModule(NormalParamExtractor(), ["raw"], ["loc", "scale"]),
        Prob(
            ["loc", "scale"],
            ["action"],
            distribution_class=lambda loc, scale: d.Independent(d.Normal(loc, scale), 1),
            **kwargs,
        ),
    )


def test_a_policy_draws_and_scores():
    module = policy(return_log_prob=True, default_interaction_type="random")
    td = module(TensorDict({"obs": torch.randn(5, 3)}, [5]))
    assert td["action"].shape == (5, 2) and td["action_log_prob"].shape == (5,)
    torch.testing.assert_close(module.log_prob(td), td["action_log_prob"])
    torch.testing.assert_close(module.get_dist(td).log_prob(td["action"]), td["action_log_prob"])
    assert module.log_prob_key == "action_log_prob" and module.dist_sample_keys == ["action"]
    assert module.det_part.out_keys == ["raw", "loc", "scale"] and "scale" in module.get_dist_params(td)
    assert module.default_interaction_type is InteractionType.RANDOM and not module.return_composite
    module.log_prob(td).sum().backward()
    assert module[0].module.weight.grad is not None


def chained(**kwargs) -> Seq:
    return Seq(
        TensorDictModule(lambda x: x + 1, ["x"], ["loc"]),
        Prob(
            ["loc"],
            ["z"],
            distribution_class=d.Normal,
            distribution_kwargs={"scale": 1.0},
            default_interaction_type="random",
        ),
        TensorDictModule(lambda z: z * 2, ["z"], ["loc2"]),
        Prob(
            {"loc": "loc2"},
            ["y"],
            distribution_class=d.Normal,
            distribution_kwargs={"scale": 1.0},
            default_interaction_type="random",
        ),
        **kwargs,
    )


def test_values_of_a_chain_are_conditional():
    module = chained()
    td = module(TensorDict({"x": torch.zeros(3)}))
    dist = module.get_dist(td)
    assert isinstance(dist, CompositeDistribution) and list(dist) == ["z", "y"]
    scores = module.log_prob(td)
    torch.testing.assert_close(scores["z_log_prob"], d.Normal(1.0, 1.0).log_prob(td["z"]))
    torch.testing.assert_close(scores["y_log_prob"], d.Normal(td["z"] * 2, 1.0).log_prob(td["y"]))
    last = chained(return_composite=False)
    torch.testing.assert_close(last.log_prob(td), scores["y_log_prob"])
    with set_composite_lp_aggregate(True):
        torch.testing.assert_close(chained().log_prob(td), (scores["z_log_prob"] + scores["y_log_prob"]).sum())


def test_asking_for_a_distribution_changes_nothing():
    td = TensorDict({"x": torch.zeros(3)})
    chained().get_dist(td)
    assert list(td.keys()) == ["x"]


def test_sequences_without_a_probabilistic_module_have_no_distribution():
    plain = Seq(TensorDictModule(abs, ["a"], ["b"]))
    assert plain(TensorDict({"a": -1}))["b"] == 1 and plain.det_part is None and not plain.log_prob_keys
    for ask in (plain.get_dist, plain.log_prob, plain.get_dist_params, plain.build_dist_from_params):
        with pytest.raises(RuntimeError, match="No distribution module found"):
            ask(TensorDict({"a": -1}))
    with pytest.raises(TypeError, match="return_composite=True"):
        Seq(normal(), TensorDictModule(abs, ["x"], ["b"]), return_composite=False)
    assert Seq(normal(), TensorDictModule(abs, ["x"], ["b"])).return_composite
    assert type(policy()[:2]) is TensorDictSequential and type(policy()[1:]) is Seq
    assert policy().select_subsequence(out_keys=["action"]).out_keys == policy().out_keys


def test_parameters_of_a_policy_go_through_vmap():
    module = policy()
    stacked = torch.stack([TensorDict.from_module(module).data] * 4)

    def call(td, params):
        with params.to_module(module):
            return module(td)

    out = torch.vmap(call, (None, 0))(TensorDict({"obs": torch.randn(5, 3)}, [5]), stacked)
    assert out.batch_size == (4, 5) and out["action"].shape == (4, 5, 2)


def test_a_policy_compiles_in_one_graph():
    module = policy(return_log_prob=True)

    def call(obs):
        return module(TensorDict({"obs": obs}, [5]))["action_log_prob"]

    obs = torch.randn(5, 3)
    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="eager")(obs), call(obs))


# ensembles -----------------------------------------------------------------------------------------------------------


def test_copies_of_an_ensemble_are_independent():
    net = TensorDictModule(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), ["a"], ["b"])
    ensemble = EnsembleModule(net, 3)
    td = ensemble(TensorDict({"a": torch.randn(10, 4)}, [10]))
    assert td.batch_size == (3, 10) and td["b"].shape == (3, 10, 2) and not torch.allclose(td["b"][0], td["b"][1])
    assert {p.shape[0] for p in ensemble.parameters()} == {3} and len(list(ensemble.parameters())) == 4
    td["b"].sum().backward()
    assert all(p.grad is not None for p in ensemble.parameters())
    for i, row in enumerate(ensemble.params_td.data.unbind(0)):
        with row.to_module(net):
            torch.testing.assert_close(net.module(td["a"][i]), td["b"][i])


def test_ensembles_in_a_row():
    first = EnsembleModule(TensorDictModule(nn.Linear(2, 3), ["x"], ["h"]), 4)
    second = EnsembleModule(TensorDictModule(nn.Linear(3, 1), ["h"], ["y"]), 4, expand_input=False)
    out = TensorDictSequential(first, second)(TensorDict({"x": torch.randn(5, 2)}, [5]))
    assert out.batch_size == (4, 5) and out["y"].shape == (4, 5, 1)


def test_ensembles_are_reset_saved_and_put_to_evaluation():
    ensemble = EnsembleModule(TensorDictModule(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.9)), ["x"], ["h"]), 2).eval()
    td = TensorDict({"x": torch.ones(5, 2)}, [5])
    torch.testing.assert_close(ensemble(td)["h"], ensemble(td)["h"])
    before = {name: value.clone() for name, value in ensemble.state_dict().items()}
    parameters = list(ensemble.parameters())
    ensemble.reset_parameters_recursive()
    assert not any(torch.equal(value, before[name]) for name, value in ensemble.state_dict().items())
    assert all(a is b for a, b in zip(parameters, ensemble.parameters(), strict=True))
    ensemble.load_state_dict(before)
    assert all(torch.equal(value, before[name]) for name, value in ensemble.state_dict().items())


def test_scores_of_a_composite_go_to_the_keys_of_its_values_in_any_order():
    maps = {"x": torch.distributions.Normal, "k": torch.distributions.Categorical}
    params = {"x": {"loc": torch.zeros(3), "scale": torch.ones(3)}, "k": {"logits": torch.zeros(3, 7)}}

    def scores(out_keys, **kwargs):
        module = Prob(
            ["params"], out_keys, distribution_class=CompositeDistribution, return_log_prob=True,
            distribution_kwargs={"distribution_map": maps}, default_interaction_type="mode", **kwargs,
        )  # fmt: skip  # shorter than one a line
        return module(TensorDict({"params": params}, [3]))

    normal, uniform = -0.9189, -1.9459
    for out_keys in (["x", "k"], ["k", "x"], None):
        td = scores(out_keys)
        torch.testing.assert_close(td["x_log_prob"], torch.full((3,), normal), atol=1e-4, rtol=0)
        torch.testing.assert_close(td["k_log_prob"], torch.full((3,), uniform), atol=1e-4, rtol=0)
    td = scores(["k", "x"], log_prob_keys=["p", "q"])
    torch.testing.assert_close(td["p"], torch.full((3,), uniform), atol=1e-4, rtol=0)
    torch.testing.assert_close(td["q"], torch.full((3,), normal), atol=1e-4, rtol=0)
    with pytest.raises(KeyError, match=r"out_key 'y' is none of the components \['x', 'k'\]"):
        scores(["y", "x"])


def test_threads_in_one_decorated_function_have_separate_blocks():
    entered, joined, left, seen = threading.Event(), threading.Event(), threading.Event(), {}

    @set_interaction_type("mode", thread_local=True)
    def wait(mine, other):
        mine.set()
        assert other.wait(10)

    def first():
        with set_interaction_type("mean", thread_local=True):
            wait(entered, joined)  # enters before the other, and leaves before it
            left.set()
            seen["first"] = interaction_type()

    def second():
        assert entered.wait(10)
        with set_interaction_type("random", thread_local=True):
            wait(joined, left)
            seen["second"] = interaction_type()

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"first": InteractionType.MEAN, "second": InteractionType.RANDOM}


def test_interaction_types_in_earlier_pickles_load():
    earlier = b"ctensordict_nn.probabilistic.interaction\nInteractionType\n(Vmode\ntR."
    assert pickle.loads(earlier) is InteractionType.MODE


def test_the_interaction_type_of_a_sequence_holds_in_its_thread_only():
    seen = []

    def look(x):
        thread = threading.Thread(target=lambda: seen.append(interaction_type()))
        thread.start()
        thread.join()
        seen.append(interaction_type())
        return x, x + 1

    sequence = Seq(TensorDictModule(look, ["a"], ["loc", "scale"]), normal())
    sequence(TensorDict({"a": torch.zeros(1)}))
    assert seen == [None, sequence.default_interaction_type] and interaction_type() is None


def test_a_sequence_selects_keys_that_the_next_class_of_a_subclass_does_not_take():
    class Checked(TensorDictSequential):
        def __init__(self, *modules):
            super().__init__(*modules)

    class CheckedSeq(Seq, Checked):
        pass

    sequence = CheckedSeq(TensorDictModule(lambda x: (x, x + 1), ["a"], ["b", "c"]), selected_out_keys=["c"])
    assert sequence.out_keys == ["c"] and set(sequence(TensorDict({"a": torch.zeros(1)})).keys()) == {"a", "c"}
    with pytest.raises(ValueError, match="typo"):
        CheckedSeq(TensorDictModule(lambda x: x, ["a"], ["b"]), selected_out_keys=["typo"])
