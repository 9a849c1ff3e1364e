"""Errors of distributions and probabilistic modules: each names the offender, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensordict_nn.error_types import MissingDistributionError
from tensordict_nn.errors import listed


def bad_generator(generator: Any) -> TypeError:
    """Report that the value cannot seed samples."""
    return TypeError(
        f"generator is a {type(generator).__name__}, and a probabilistic module takes a torch.Generator, a seed, or "
        "the key of an entry that holds either; pass one of these"
    )


def unknown_mapping(key: str, names: Iterable[str]) -> NotImplementedError:
    """Report that a mapping is unknown."""
    return NotImplementedError(f"Unknown mapping {key}; use one of {listed(names)} or add it with add_custom_mapping")


def bad_mapping(key: str) -> ValueError:
    """Report that the numbers in the name of a biased softplus are invalid."""
    return ValueError(
        f"the mapping {key!r} is not biased_softplus_{{bias}} or biased_softplus_{{bias}}_{{min_val}}; give numbers"
    )


def empty_interval() -> ValueError:
    """Report that the bounds of a truncated normal are in the wrong order."""
    return ValueError(
        "Incorrect truncation range: the bounds a and b leave an empty interval, and a truncated normal needs a < b "
        "everywhere; swap them"
    )


def no_such_value(dist: Any, name: str) -> NotImplementedError:
    """Report that a distribution has no such property."""
    return NotImplementedError(
        f"{type(dist)} does not implement {name}: method {type(dist)}.{name} is not implemented; use another "
        "interaction type, or add a property of that name"
    )


def not_a_sample(sample: Any) -> RuntimeError:
    """Report that the sample of a composite distribution is not a tensordict."""
    return RuntimeError(
        f"Expected a tensordict sample with an entry for each key of the CompositeDistribution, but got a "
        f"{type(sample).__name__}; pass what sample() returns"
    )


def missing_component(name: Any, keys: Iterable[Any]) -> KeyError:
    """Report that the parameters of a component are missing."""
    return KeyError(f"no param {name} found in params with keys {listed(keys)}; add those of the component {name!r}")


def no_probability(key: Any, probability: Any, keys: Iterable[Any]) -> KeyError:
    """Report that a sample has neither a value nor its cumulative probability."""
    return KeyError(
        f"Neither {key} nor {probability} could be found in the sampled tensordict with keys {listed(keys)}; set one"
    )


def no_component(key: Any, keys: Iterable[Any]) -> KeyError:
    """Report that a composite has no component for an output key."""
    return KeyError(f"the out_key {key!r} is none of the components {listed(keys)} of the distribution; rename it")


def no_sum_key(keys: Iterable[Any]) -> RuntimeError:
    """Report that a single key was requested of a module with several log-probabilities."""
    return RuntimeError(
        "composite_lp_aggregate is set to `False` but a `log_prob_key` was requested: the log-probabilities of several "
        f"values have several keys, {listed(keys)}; log_prob_keys must be used instead, or set_composite_lp_aggregate"
    )


def one_sum_key() -> RuntimeError:
    """Report that several keys are given for the one log-probability of a module."""
    return RuntimeError(
        "log_prob_keys was given with composite_lp_aggregate, which sums to one log-probability; pass log_prob_key"
    )


def key_taken(key: Any) -> ValueError:
    """Report that a log-probability would overwrite its sample."""
    return ValueError(f"the key {key!r} is that of a value and cannot be that of a log-probability; pass another key")


def not_probabilistic(module: Any) -> TypeError:
    """Report that the last module of a sequence is not probabilistic."""
    return TypeError(
        f"{type(module).__name__}, the last module of the sequence, is not probabilistic, which return_composite=False "
        "requires; pass return_composite=True"
    )


def no_distribution(module: Any) -> MissingDistributionError:
    """Report that no module of a sequence is probabilistic."""
    found = listed(type(one).__name__ for one in module)
    return MissingDistributionError(
        f"No distribution module found in {type(module).__name__}, which must consist of zero or more "
        f"TensorDictModules followed by a ProbabilisticTensorDictModule; it has {found}"
    )


def bad_parameters(dist: Any, keys: Iterable[Any]) -> str:
    """Return the note of an error that a distribution raised: the keys of its parameters."""
    name = getattr(dist, "__name__", type(dist).__name__)
    keys = listed(keys)
    return f"distribution keywords and tensordict keys indicated by in_keys must match, while making a {name} of {keys}"
