"""Names of probabilistic modules that subclasses in published programs use."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from tensordict_core import TensorDict
from tensordict_nn import (
    AddStateIndependentNormalScale,
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictParams,
    TensorDictSequential,
    TruncatedNormal,
    dispatch,
    interaction_type,
    set_interaction_type,
)
from tensordict_nn.compat import set_dispatch, use_generator


def normal(**options):
    options = {"distribution_class": Normal, "default_interaction_type": "random", **options}
    return ProbabilisticTensorDictModule(["loc", "scale"], ["x"], **options)


def test_a_subclass_draws_with_the_generator_of_the_module_and_stores_the_next_seed():
    td = TensorDict({"loc": torch.zeros(2), "scale": torch.ones(2), "seed": torch.tensor(3)})
    module = normal(generator="seed")
    generator, write_back = module._resolve_generator(td)
    with use_generator(generator):
        own = module.get_dist(td).rsample()
    write_back(generator)
    again = module(TensorDict({"loc": torch.zeros(2), "scale": torch.ones(2), "seed": torch.tensor(3)}))
    assert own.equal(again["x"])
    assert td["seed"] == again["seed"] != 3
    assert normal()._resolve_generator(td) == (None, None)


def test_without_a_sample_the_value_of_the_tensordict_is_scored():
    td = TensorDict({"loc": torch.zeros(2), "scale": torch.ones(2), "x": torch.ones(2)})
    out = normal(return_log_prob=True)(td, _requires_sample=False)
    assert out["x"].equal(torch.ones(2))
    assert out["x_log_prob"].equal(Normal(0.0, 1.0).log_prob(torch.ones(2)))


def test_dispatch_can_be_switched_off_for_a_block():
    module = normal()
    with set_dispatch(False), pytest.raises(TypeError, match="loc"):
        module(loc=torch.zeros(2), scale=torch.ones(2))
    assert module(loc=torch.zeros(2), scale=torch.ones(2)).shape == (2,)


def test_a_subclass_reads_the_keys_of_a_sequence_before_its_modules_are_set():
    class Own(TensorDictModule):
        def __init__(self, *modules):
            object.__setattr__(self, "known", TensorDictSequential._compute_in_and_out_keys(modules))
            with pytest.raises(AttributeError):
                self.typo  # noqa: B018 (the access is the test)

    first, last = (TensorDictModule(torch.nn.Identity(), [key], [out]) for key, out in ("ab", "bc"))
    assert Own(first, last).known == (["a"], ["b", "c"])


def drawn(*, with_score: bool = False) -> ProbabilisticTensorDictSequential:
    first = TensorDictModule(lambda x: (x, x + 1, x + 7), ["obs"], ["loc", "scale", "x"])
    return ProbabilisticTensorDictSequential(first, normal(return_log_prob=with_score))


def test_values_that_an_earlier_module_writes_are_scored_and_not_drawn():
    out = drawn(with_score=True)(TensorDict({"obs": torch.zeros(2)}))
    assert out["x"].equal(torch.full((2,), 7.0))
    assert out["x_log_prob"].equal(Normal(0.0, 1.0).log_prob(torch.full((2,), 7.0)))
    assert drawn()._requires_sample is False


def test_a_program_takes_a_value_of_a_distribution_as_the_module_does():
    dist = Normal(torch.zeros(2), torch.ones(2))
    module, sequence = normal(default_interaction_type="mean"), drawn()
    assert module._dist_sample(dist).equal(dist.mean)
    assert sequence._dist_sample(dist, interaction_type=InteractionType.MODE).equal(dist.mode)


def test_parameters_are_read_as_a_plain_tensordict():
    params = TensorDictParams({"layer": {"weight": torch.ones(2)}})
    with torch.no_grad():
        plain = params._param_td
        plain += 1
    assert type(plain) is TensorDict
    assert plain["layer", "weight"] is params["layer", "weight"]
    assert params["layer", "weight"].equal(torch.full((2,), 2.0))


def test_attributes_that_programs_read():
    named = ProbabilisticTensorDictModule({"loc": "mean", "scale": "std"}, ["x"], distribution_class=Normal)
    assert (named.dist_keys, named.dist_params_keys) == (["loc", "scale"], ["mean", "std"])
    assert normal().dist_keys == ["loc", "scale"]
    assert AddStateIndependentNormalScale((3, 2)).scale_shape == (3, 2)
    assert (dispatch.DEFAULT_SEPARATOR, dispatch.DEFAULT_SOURCE, dispatch.DEFAULT_DEST) == ("_", "in_keys", "out_keys")
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 2.0])
    drawn = TruncatedNormal(torch.tensor([0.5, 0.0]), torch.tensor([2.0, 1.0]), low, high)
    whole = Normal(drawn.loc, drawn.scale)
    torch.testing.assert_close(drawn.auc, whole.cdf(high) - whole.cdf(low))


def test_a_clone_of_a_block_begins_on_its_own():
    block = set_interaction_type("mode")
    with block:
        copied = block.clone()
    assert interaction_type() is None
    with copied:
        assert interaction_type() is InteractionType.MODE
