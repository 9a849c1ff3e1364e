"""Distributions that build themselves from the entries of a tensordict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._serve.lazy import serve

if TYPE_CHECKING:
    from tensordict_nn import set_interaction_type as set_interaction_type
    from tensordict_nn.distributions import AddStateIndependentNormalScale as AddStateIndependentNormalScale
    from tensordict_nn.distributions import CompositeDistribution as CompositeDistribution
    from tensordict_nn.distributions import Delta as Delta
    from tensordict_nn.distributions import InteractionType as InteractionType
    from tensordict_nn.distributions import NormalParamExtractor as NormalParamExtractor
    from tensordict_nn.distributions import OneHotCategorical as OneHotCategorical
    from tensordict_nn.distributions import TruncatedNormal as TruncatedNormal
    from tensordict_nn.distributions import add_custom_mapping as add_custom_mapping
    from tensordict_nn.distributions import mappings as mappings
    from tensordict_nn.distributions import rand_one_hot as rand_one_hot
else:
    __getattr__, __dir__ = serve(__name__)
