"""Distributions beside those of ``torch.distributions``, and modules that make their parameters."""

from __future__ import annotations

from ..probabilistic.interaction import InteractionType
from .composite import CompositeDistribution
from .delta import Delta
from .mappings import add_custom_mapping, mappings
from .normal_params import AddStateIndependentNormalScale, NormalParamExtractor
from .one_hot import OneHotCategorical, rand_one_hot
from .truncated_normal import TruncatedNormal

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
