"""Distributions in addition to those of ``torch.distributions``, and modules that compute their parameters."""

from __future__ import annotations

from tensordict_nn.distributions.composite import CompositeDistribution
from tensordict_nn.distributions.delta import Delta
from tensordict_nn.distributions.mappings import add_custom_mapping, mappings
from tensordict_nn.distributions.normal_params import AddStateIndependentNormalScale, NormalParamExtractor
from tensordict_nn.distributions.one_hot import OneHotCategorical, rand_one_hot
from tensordict_nn.distributions.truncated_normal import TruncatedNormal
from tensordict_nn.sampling.interaction import InteractionType

__all__ = [
    "AddStateIndependentNormalScale",
    "CompositeDistribution",
    "Delta",
    "InteractionType",
    "NormalParamExtractor",
    "OneHotCategorical",
    "TruncatedNormal",
    "add_custom_mapping",
    "mappings",
    "rand_one_hot",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
