"""Distributions, compared with closed forms, integrals, distributions of torch and samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions as d
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import (
    AddStateIndependentNormalScale,
    CompositeDistribution,
    Delta,
    NormalParamExtractor,
    OneHotCategorical,
    TruncatedNormal,
    add_custom_mapping,
    biased_softplus,
    inv_softplus,
    mappings,
    rand_one_hot,
    set_composite_lp_aggregate,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# truncated normal ----------------------------------------------------------------------------------------------------

BOUNDS = [(-1.0, 1.0), (-0.5, 2.0), (1.5, 3.0), (-4.0, -2.0), (0.0, 0.1), (5.0, 6.0), (-math.inf, 0.5), (0.3, math.inf)]


def truncated(a: float, b: float, loc: float = 0.2, scale: float = 0.8) -> TruncatedNormal:
    return TruncatedNormal(*(torch.tensor(x, dtype=torch.float64) for x in (loc, scale, a, b)))


def grid(dist: TruncatedNormal) -> torch.Tensor:
    low, high = max(dist.a.item(), -12.0), min(dist.b.item(), 12.0)
    return torch.linspace(low, high, 200_001, dtype=torch.float64)


@pytest.mark.parametrize(("a", "b"), BOUNDS)
def test_densities_and_moments_are_those_of_integrals(a, b):
    dist = truncated(a, b)
    x = grid(dist)
    density = dist.log_prob(x).exp()

    def integral(y):
        return torch.trapezoid(y, x).item()

    mean = integral(x * density)
    assert integral(density) == pytest.approx(1, abs=1e-7)
    assert dist.mean.item() == pytest.approx(mean, abs=1e-6)
    assert dist.variance.item() == pytest.approx(integral((x - mean) ** 2 * density), abs=1e-6)
    assert dist.entropy().item() == pytest.approx(-integral(torch.xlogy(density, density)), abs=1e-5)
    middle = x[len(x) // 3]
    assert dist.cdf(middle).item() == pytest.approx(
        torch.trapezoid(density[: len(x) // 3 + 1], x[: len(x) // 3 + 1]).item(), abs=1e-6
    )
    assert dist.log_prob(dist.mode).item() == pytest.approx(dist.log_prob(x).max().item(), abs=1e-6)


@pytest.mark.parametrize(("a", "b"), BOUNDS)
def test_the_inverse_and_samples(a, b):
    dist = truncated(a, b)
    share = torch.tensor([0.01, 0.3, 0.5, 0.99], dtype=torch.float64)
    torch.testing.assert_close(dist.cdf(dist.icdf(share)), share, atol=1e-7, rtol=1e-6)
    sample = dist.sample((100_000,))
    assert (sample >= dist.a).all() and (sample <= dist.b).all()
    error = 5 * (dist.variance / 100_000).sqrt().item()
    assert sample.mean().item() == pytest.approx(dist.mean.item(), abs=error)
    assert sample.var().item() == pytest.approx(dist.variance.item(), rel=0.05)


def test_without_bounds_it_is_a_normal_distribution():
    dist, normal = truncated(-math.inf, math.inf), d.Normal(torch.tensor(0.2, dtype=torch.float64), 0.8)
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(dist.log_prob(x), normal.log_prob(x))
    torch.testing.assert_close(dist.cdf(x), normal.cdf(x))
    torch.testing.assert_close(dist.entropy(), normal.entropy())
    torch.testing.assert_close(torch.stack([dist.mean, dist.variance]), torch.stack([normal.mean, normal.variance]))


def test_gradients_of_samples_are_those_of_the_mean():
    loc = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    dist = TruncatedNormal(loc, scale, -1.0, 1.5)
    exact = torch.autograd.grad(dist.mean, (loc, scale), retain_graph=True)
    drawn = torch.autograd.grad(dist.rsample((200_000,)).mean(), (loc, scale), retain_graph=True)
    torch.testing.assert_close(torch.stack(drawn), torch.stack(exact), atol=0.01, rtol=0.02)
    x = torch.tensor(0.4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda m, s: TruncatedNormal(m, s, -1.0, 1.5).log_prob(x), (loc, scale))


def test_divergence_between_two_truncated_normals_by_sampling():
    p, q = truncated(-1, 1, 0.0, 1.0), truncated(-1, 1, 0.5, 0.7)
    x = grid(p)
    density = p.log_prob(x).exp()
    exact = torch.trapezoid(density * (p.log_prob(x) - q.log_prob(x)), x)
    sample = p.sample((200_000,))
    torch.testing.assert_close((p.log_prob(sample) - q.log_prob(sample)).mean(), exact, atol=0.01, rtol=0.02)


def test_single_precision_far_from_the_centre():
    dist = TruncatedNormal(torch.zeros(2), torch.ones(2), a=torch.tensor([6.0, -8.0]), b=torch.tensor([7.0, -6.0]))
    exact = TruncatedNormal(*(x.double() for x in (dist.loc, dist.scale, dist.a, dist.b)))
    torch.testing.assert_close(dist.mean.double(), exact.mean, atol=1e-3, rtol=1e-3)
    x = torch.tensor([6.1, -6.1])
    torch.testing.assert_close(dist.log_prob(x).double(), exact.log_prob(x.double()), atol=1e-3, rtol=1e-4)
    assert dist.sample((1000,)).isfinite().all()


def test_bounds_are_checked():
    with pytest.raises(ValueError, match="a < b"):
        TruncatedNormal(torch.zeros(2), torch.ones(2), a=1.0, b=-1.0)
    with pytest.raises(ValueError, match="support"):
        TruncatedNormal(torch.zeros(2), torch.ones(2), a=-1.0, b=1.0, validate_args=True).log_prob(
            torch.full((2,), 3.0)
        )
    outside = TruncatedNormal(torch.zeros(2), torch.ones(2), a=-1.0, b=1.0, validate_args=False)
    assert (outside.log_prob(torch.full((2,), 3.0)) == -torch.inf).all()
    assert outside.expand((3, 2)).sample().shape == (3, 2)


# delta ---------------------------------------------------------------------------------------------------------------


def test_delta_is_its_value():
    param = torch.randn(3, 2, requires_grad=True)
    dist = Delta(param)
    assert dist.batch_shape == (3,) and dist.event_shape == (2,)
    for value in (dist.mean, dist.mode, dist.deterministic_sample, dist.sample(), dist.rsample((4,))[2]):
        torch.testing.assert_close(value, param)
    dist.rsample((4,)).sum().backward()
    assert (param.grad == 4).all()
    near = param.detach().clone()
    near[0, 1] += 1
    assert dist.log_prob(near).tolist() == [-math.inf, math.inf, math.inf]
    assert Delta(param, batch_shape=(3, 2)).log_prob(param).shape == (3, 2)
    assert dist.expand((5, 3)).sample().shape == (5, 3, 2) and (dist.variance == 0).all()


# one-hot -------------------------------------------------------------------------------------------------------------


def test_one_hot_categories_equal_those_of_torch():
    logits = torch.randn(4, 5)
    dist, torchs = OneHotCategorical(logits=logits), d.OneHotCategorical(logits=logits)
    sample = dist.sample((1000,))
    assert sample.dtype == torch.long and sample.shape == (1000, 4, 5) and (sample.sum(-1) == 1).all()
    torch.testing.assert_close(dist.log_prob(sample), torchs.log_prob(sample.float()))
    torch.testing.assert_close(dist.entropy(), torchs.entropy())
    torch.testing.assert_close(dist.mode.float(), torchs.mode)
    torch.testing.assert_close(dist.mean, torchs.mean)
    torch.testing.assert_close(dist.variance, torchs.variance)
    torch.testing.assert_close(sample.float().mean(0), dist.probs, atol=0.07, rtol=0)
    assert torch.equal(dist.deterministic_sample, dist.mode) and dist.enumerate_support().shape == (5, 4, 5)
    assert OneHotCategorical(probs=torch.full((2, 3, 1), 1 / 3)).sample().shape == (2, 3)


def test_straight_through_samples_have_gradients():
    logits = torch.zeros(3, requires_grad=True)
    sample = OneHotCategorical(logits=logits).rsample((500,))
    assert set(sample.unique().tolist()) <= {0.0, 1.0}
    (sample * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert logits.grad[0] < 0 < logits.grad[2]


def test_rand_one_hot_draws_one_hot_vectors():
    drawn = rand_one_hot(torch.tensor([[[0.0, 1.0], [0.3, 0.7]]]).expand(2000, 2, 2), do_softmax=False)
    assert (drawn[:, 0] == torch.tensor([0, 1])).all()
    assert drawn[:, 1, 1].float().mean().item() == pytest.approx(0.7, abs=0.05)
    assert rand_one_hot(torch.randn(4)).sum() == 1


# mappings and their modules ------------------------------------------------------------------------------------------


def test_mappings_by_name():
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(mappings("softplus")(x), nn.functional.softplus(x))
    torch.testing.assert_close(mappings("exp")(x), x.exp())
    torch.testing.assert_close(mappings("relu")(x), x.relu())
    torch.testing.assert_close(mappings("none")(x), x)
    torch.testing.assert_close(mappings("expln")(x), torch.where(x > 0, 1 + (1 + x.clamp_min(0)).log(), x.exp()))
    torch.testing.assert_close(mappings("biased_softplus_0.5")(torch.zeros(1)), torch.full((1,), 0.5))
    torch.testing.assert_close(
        mappings("biased_softplus_2.0_0.3")(torch.tensor([0.0, -100.0])), torch.tensor([2.0, 0.3])
    )
    add_custom_mapping("triple", lambda x: 3 * x)
    assert mappings("triple")(torch.ones(1)) == 3
    with pytest.raises(NotImplementedError, match="Unknown mapping nothing"):
        mappings("nothing")
    for key in ("biased_softplus_x", "biased_softplus_1_2_3"):
        with pytest.raises(ValueError, match=key):
            mappings(key)


def test_the_inverse_of_softplus():
    x = torch.tensor([0.01, 1.0, 5.0, 30.0, 500.0], dtype=torch.float64)
    torch.testing.assert_close(nn.functional.softplus(inv_softplus(x)), x, atol=1e-5, rtol=1e-5)
    assert inv_softplus(1.0) == pytest.approx(math.log(math.e - 1)) and inv_softplus(500.0) == pytest.approx(500)
    torch.testing.assert_close(biased_softplus(1.0, min_val=0.2)(torch.tensor([0.0, -50.0])), torch.tensor([1.0, 0.2]))


def test_parameters_of_normal_distributions():
    x, other = torch.randn(3, 8), torch.ones(1)
    loc, scale, rest = NormalParamExtractor("exp", scale_lb=0.5)(x, other)
    torch.testing.assert_close(loc, x[:, :4])
    torch.testing.assert_close(scale, x[:, 4:].exp().clamp_min(0.5))
    assert rest is other
    module = AddStateIndependentNormalScale(4, scale_mapping="softplus", init_value=1.0)
    loc, scale, rest = module(x[:, :4], other)
    torch.testing.assert_close(scale, nn.functional.softplus(torch.ones(3, 4)))
    scale.sum().backward()
    assert module.state_independent_scale.grad.shape == (4,) and rest is other
    assert not list(AddStateIndependentNormalScale((2, 3), make_param=False).parameters())


def test_the_arguments_of_a_normal_scale_can_be_read_back():
    module = AddStateIndependentNormalScale([2, 3], scale_mapping="softplus", scale_lb=0.5)
    again = AddStateIndependentNormalScale(module.scale_shape, scale_mapping=module.scale_mapping)
    assert (again.scale_shape, again.scale_mapping, module.scale_lb) == ((2, 3), "softplus", 0.5)


# composites ----------------------------------------------------------------------------------------------------------


def composite(**kwargs) -> CompositeDistribution:
    params = TensorDict(
        {"x": {"loc": torch.randn(3, 4), "scale": torch.rand(3, 4) + 0.1}, "n": {"k": {"logits": torch.randn(3, 5)}}},
        [3],
    )
    return CompositeDistribution(params, {"x": d.Normal, ("n", "k"): d.Categorical}, **kwargs)


@pytest.mark.parametrize("mapping", ["exp", "softplus", "biased_softplus_1.0"])
def test_the_scale_of_each_row_is_mapped_so_that_gradients_are_those_of_an_expanded_parameter(mapping: str) -> None:
    module = AddStateIndependentNormalScale(6, scale_mapping=mapping)
    loc, weights = torch.randn(2, 100, 6)
    _, scale = module(loc)
    assert scale.is_contiguous()  # rows share no memory: an in-place change of one leaves the others
    (scale * weights).sum().backward()
    other = torch.zeros(6, requires_grad=True)
    (mappings(mapping)(other.expand(100, 6)).clamp_min(1e-4) * weights).sum().backward()
    assert torch.equal(module.state_independent_scale.grad, other.grad)


def test_composites_sample_and_score_each_part():
    dist = composite()
    assert dist.batch_shape == (3,) and not dist.has_rsample and list(dist) == ["x", ("n", "k")] and len(dist) == 2
    sample = dist.sample((2,))
    assert sample.batch_size == (2, 3) and sample["n", "k"].shape == (2, 3)
    scores = dist.log_prob(sample)
    torch.testing.assert_close(scores["x_log_prob"], dist["x"].log_prob(sample["x"]))
    torch.testing.assert_close(scores["n", "k_log_prob"], dist["n", "k"].log_prob(sample["n", "k"]))
    torch.testing.assert_close(dist.entropy()["x_entropy"], dist["x"].entropy())
    torch.testing.assert_close(dist.mode["n", "k"], dist["n", "k"].mode)
    torch.testing.assert_close(dist.deterministic_sample["x"], dist["x"].mean)


def test_composites_sum_on_request():
    dist = composite(log_prob_key="total")
    sample = dist.sample((2,))
    total = dist["x"].log_prob(sample["x"]).sum(-1) + dist["n", "k"].log_prob(sample["n", "k"])
    torch.testing.assert_close(dist.log_prob_composite(sample, include_sum=True)["total"], total)
    with set_composite_lp_aggregate(True):
        torch.testing.assert_close(dist.log_prob(sample), total)
        torch.testing.assert_close(dist.entropy(), dist["x"].entropy().sum(-1) + dist["n", "k"].entropy())
    assert isinstance(dist.log_prob(sample), TensorDict)


def test_composites_with_and_without_reparameterization():
    loc = torch.zeros(3, requires_grad=True)
    params = TensorDict({"x": {"loc": loc}, "y": {"loc": loc}}, [])
    dist = CompositeDistribution(
        params,
        {"x": d.Normal, "y": d.Normal},
        name_map={"y": ("a", "z")},
        extra_kwargs={"x": {"scale": 1.0}, "y": {"scale": 2.0}},
    )
    sample = dist.rsample()
    assert dist.has_rsample and dist.get(("a", "z")).stddev[0] == 2 and ("a", "z") in dist
    (sample["x"] + sample["a", "z"]).sum().backward()
    assert (loc.grad == 2).all()
    with pytest.raises(KeyError, match="component 'q'"):
        CompositeDistribution(params, {"q": d.Normal})


def composite_of_two_normals():
    params = TensorDict({"x": {"loc": torch.zeros(3)}, "y": {"loc": torch.ones(3)}}, [3])
    scales = {"x": {"scale": 1.0}, "y": {"scale": 2.0}}
    return CompositeDistribution(
        params, {"x": d.Normal, "y": d.Normal}, name_map={"y": ("a", "z")}, extra_kwargs=scales
    )


def test_shares_and_values_of_a_composite_are_set_in_the_sample():
    dist = composite_of_two_normals()
    sample = dist.sample()
    values = sample.clone()
    assert dist.cdf(sample) is sample
    torch.testing.assert_close(sample["x_cdf"], d.Normal(0.0, 1.0).cdf(values["x"]))
    torch.testing.assert_close(sample["a", "z_cdf"], d.Normal(1.0, 2.0).cdf(values["a", "z"]))
    sample["x_cdf"].fill_(0.5)
    assert dist.icdf(sample) is sample
    torch.testing.assert_close(sample["x_icdf"], torch.zeros(3))
    torch.testing.assert_close(sample["a", "z_icdf"], values["a", "z"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(dist.icdf(values.clone())["x_icdf"], values["x"], atol=1e-4, rtol=1e-4)
    assert (sample.select(*values.keys(True, True)) == values).all()


@pytest.mark.parametrize("name", ["sample_and_log_prob", "rsample_and_log_prob"])
@pytest.mark.parametrize("aggregate", [True, False])
def test_samples_come_with_their_scores(name, aggregate):
    dist = composite_of_two_normals()
    with set_composite_lp_aggregate(aggregate):
        sample, scores = getattr(dist, name)((4,))
        assert sample.batch_size == (4, 3) and isinstance(scores, torch.Tensor) == aggregate
        assert (scores == dist.log_prob(sample)).all()


def test_entropies_without_a_closed_form_are_estimated():
    base = d.TransformedDistribution(d.Normal(torch.zeros(3), 1.0), [d.AffineTransform(0.0, 2.0)])
    dist = CompositeDistribution.from_distributions(TensorDict({}, [3]), {"x": base})
    estimate = dist.entropy(samples_mc=20_000)["x_entropy"]
    torch.testing.assert_close(estimate, d.Normal(torch.zeros(3), 2.0).entropy(), atol=0.05, rtol=0.02)


# gradients and divergences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mean", "variance", "entropy", "mode", "cdf", "icdf"])
def test_closed_forms_of_truncated_normals_have_the_right_gradients(name):
    where = torch.tensor(0.4, dtype=torch.float64)

    def value(loc, scale):
        found = getattr(TruncatedNormal(loc, scale, -1.0, 1.5), name)
        return found if torch.is_tensor(found) else found(where) if name in ("cdf", "icdf") else found()

    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.3, 0.7)]
    assert torch.autograd.gradcheck(value, inputs)


def test_gradients_of_scores_of_categories_are_those_of_torch():
    logits, sample = torch.randn(4, 5, requires_grad=True), nn.functional.one_hot(torch.arange(4), 5)
    grads = [
        torch.autograd.grad(dist.log_prob(sample).sum() + dist.entropy().sum(), logits)[0]
        for dist in (OneHotCategorical(logits=logits), d.OneHotCategorical(logits=logits, validate_args=False))
    ]
    torch.testing.assert_close(*grads)
    by_probs = OneHotCategorical(probs=logits.softmax(-1))
    torch.testing.assert_close(by_probs.log_prob(sample), OneHotCategorical(logits=logits).log_prob(sample))


def test_straight_through_samples_have_the_right_shares_and_the_gradients_of_relaxed_ones():
    logits, weights = torch.randn(3, requires_grad=True), torch.tensor([1.0, -2.0, 3.0])
    torch.manual_seed(1)
    sample = OneHotCategorical(logits=logits).rsample((100_000,))
    torch.testing.assert_close(sample.mean(0), logits.softmax(-1), atol=0.01, rtol=0)
    torch.manual_seed(1)
    relaxed = d.RelaxedOneHotCategorical(torch.tensor(1.0), logits=logits).rsample((100_000,))
    grads = [torch.autograd.grad((x @ weights).mean(), logits)[0] for x in (sample, relaxed)]
    torch.testing.assert_close(*grads)


def test_divergence_between_categories_by_sampling_is_that_of_torch():
    p, q = (OneHotCategorical(logits=torch.randn(4)) for _ in range(2))
    exact = d.kl_divergence(d.OneHotCategorical(probs=p.probs), d.OneHotCategorical(probs=q.probs))
    sample = p.sample((200_000,))
    torch.testing.assert_close((p.log_prob(sample) - q.log_prob(sample)).mean(), exact, atol=0.02, rtol=0.02)


def test_divergence_between_composites_by_sampling_is_the_sum_over_parts():
    p, q = (composite(log_prob_key="total") for _ in range(2))
    parts = [d.kl_divergence(p[name], q[name]) for name in ("x", ("n", "k"))]
    with set_composite_lp_aggregate(True):
        sample = p.sample((100_000,))
        estimate = (p.log_prob(sample) - q.log_prob(sample)).mean(0)
    torch.testing.assert_close(estimate, parts[0].sum(-1) + parts[1], atol=0.5, rtol=0.05)


def test_gradients_of_composites_are_those_of_their_parts():
    loc, logits = torch.randn(3, 4, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    params = TensorDict({"x": {"loc": loc, "scale": torch.ones(3, 4)}, "k": {"logits": logits}}, [3])
    dist = CompositeDistribution(params, {"x": d.Normal, "k": d.Categorical})
    sample = dist.sample()
    with set_composite_lp_aggregate(True):
        grads = torch.autograd.grad(dist.log_prob(sample).sum(), (loc, logits))
    exact = d.Normal(loc, 1.0).log_prob(sample["x"]).sum() + d.Categorical(logits=logits).log_prob(sample["k"]).sum()
    torch.testing.assert_close(grads, torch.autograd.grad(exact, (loc, logits)))


def test_a_delta_within_its_tolerance_and_outside():
    dist = Delta(torch.tensor([1.0, 2.0]), atol=0.1, rtol=0.0, batch_shape=(2,), event_shape=())
    assert dist.log_prob(torch.tensor([1.05, 2.2])).tolist() == [math.inf, -math.inf]
    assert dist.log_prob(dist.rsample((3,))).eq(math.inf).all()


def test_a_normal_of_extracted_parameters_has_their_moments_and_gradients():
    raw = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    loc, scale = NormalParamExtractor("softplus")(raw)
    sample = d.Normal(loc, scale).rsample((100_000,))
    error = 5 * scale.max().item() / math.sqrt(100_000)
    torch.testing.assert_close(sample.mean(0), loc, atol=error, rtol=0)
    torch.testing.assert_close(sample.std(0), scale, atol=error, rtol=0)
    assert torch.autograd.gradcheck(lambda raw: NormalParamExtractor("biased_softplus_1.0")(raw), raw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("loc", "scale"), [(0.0, 1e-3), (0.0, 0.05), (2.0, 0.1), (5.0, 0.5), (-40.0, 1.0), (30.0, 2.0)]
)
def test_truncated_normals_are_right_however_far_their_bounds_are(loc, scale, dtype):
    x = torch.linspace(-1, 1, 400_001, dtype=torch.float64)
    logits = -0.5 * ((x - loc) / scale) ** 2
    logits[[0, -1]] -= math.log(2)  # the trapezoidal rule
    density = torch.softmax(logits, 0)
    mean = (density * x).sum()
    std = (density * (x - mean).square()).sum().sqrt()
    entropy = -(density * torch.log(density * 200_000).clamp_min(-700)).sum()

    dist = TruncatedNormal(torch.tensor(loc, dtype=dtype), torch.tensor(scale, dtype=dtype), -1.0, 1.0)
    digits = 1e-4 if dtype is torch.float64 else 3e-3
    torch.testing.assert_close(dist.mean.double(), mean, rtol=0, atol=digits * std.item())
    torch.testing.assert_close(dist.entropy().double(), entropy, rtol=0, atol=max(digits, 1e-3))
    torch.testing.assert_close(dist.variance.sqrt().double(), std, rtol=20 * digits, atol=0)
    torch.manual_seed(0)
    sample = dist.rsample((4000,))
    assert (sample.double().mean() - mean).abs() < 0.1 * std and (sample.double().std() - std).abs() < 0.1 * std
    share = torch.tensor([0.01, 0.3, 0.9], dtype=dtype)
    torch.testing.assert_close(dist.cdf(dist.icdf(share)), share, rtol=0, atol=3 * digits)


@pytest.mark.parametrize(
    "what",
    [
        lambda dist: dist.mean,
        lambda dist: dist.variance,
        lambda dist: dist.entropy(),
        lambda dist: dist.log_prob(torch.tensor(0.5, dtype=torch.float64)),
        lambda dist: dist.icdf(torch.tensor([0.01, 0.5, 0.99], dtype=torch.float64)),
    ],
    ids=["mean", "variance", "entropy", "log_prob", "icdf"],
)
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (0.0, math.inf), (-math.inf, 1.0), (-math.inf, math.inf)], ids=str)
def test_gradients_of_truncated_normals_are_finite_and_right(what, bounds):
    def value(loc, scale):
        return what(TruncatedNormal(loc, scale, *bounds))

    for loc, scale in ((0.0, 0.02), (0.3, 0.7), (5.0, 0.5), (-20.0, 1.0)):
        parameters = [torch.tensor(number, dtype=torch.float64, requires_grad=True) for number in (loc, scale)]
        assert torch.autograd.gradcheck(value, parameters, eps=1e-7, atol=1e-4, rtol=1e-2)
        if bounds == (-1.0, 1.0):  # torch's log_ndtr has no second derivative at infinity
            assert torch.autograd.gradgradcheck(value, parameters, eps=1e-7, atol=1e-3, rtol=1e-2)
        singles = [parameter.detach().float().requires_grad_() for parameter in parameters]
        assert all(grad.isfinite() for grad in torch.autograd.grad(value(*singles).sum(), singles))


def test_one_hot_categories_expand():
    dist = OneHotCategorical(logits=torch.tensor([0.0, 1.0, 2.0])).expand((4, 2))
    assert isinstance(dist, OneHotCategorical) and dist.batch_shape == (4, 2) and dist.sample().shape == (4, 2, 3)
