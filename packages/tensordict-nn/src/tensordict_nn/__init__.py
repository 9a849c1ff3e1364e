"""Modules that read and write tensordicts, and parameters of modules as tensordicts."""

from __future__ import annotations

from .base import TensorDictModuleBase
from .cudagraph import CudaGraphModule
from .decorators import as_tensordict_module
from .dispatch import dispatch
from .distributions import (
    AddStateIndependentNormalScale,
    CompositeDistribution,
    Delta,
    NormalParamExtractor,
    OneHotCategorical,
    TruncatedNormal,
    add_custom_mapping,
    mappings,
    rand_one_hot,
)
from .distributions.mappings import biased_softplus, inv_softplus
from .ensemble import EnsembleModule
from .functional import from_module, to_module
from .fx import TDGraphModule, symbolic_trace
from .module import TensorDictModule, TensorDictModuleWrapper, WrapModule
from .params import TensorDictParams
from .probabilistic.aggregation import composite_lp_aggregate, set_composite_lp_aggregate
from .probabilistic.interaction import InteractionType, interaction_type, set_interaction_type
from .probabilistic.module import ProbabilisticTensorDictModule
from .probabilistic.sequential import ProbabilisticTensorDictSequential
from .sequential import TensorDictSequential
from .skipping import set_skip_existing, skip_existing
from .stacking import from_modules
from .tensorclass_module import TensorClassModuleBase, TensorClassModuleWrapper

__all__ = [
    "AddStateIndependentNormalScale",
    "CompositeDistribution",
    "CudaGraphModule",
    "Delta",
    "EnsembleModule",
    "InteractionType",
    "NormalParamExtractor",
    "OneHotCategorical",
    "ProbabilisticTensorDictModule",
    "ProbabilisticTensorDictSequential",
    "TDGraphModule",
    "TensorClassModuleBase",
    "TensorClassModuleWrapper",
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictModuleWrapper",
    "TensorDictParams",
    "TensorDictSequential",
    "TruncatedNormal",
    "WrapModule",
    "add_custom_mapping",
    "as_tensordict_module",
    "biased_softplus",
    "composite_lp_aggregate",
    "dispatch",
    "from_module",
    "from_modules",
    "interaction_type",
    "inv_softplus",
    "mappings",
    "rand_one_hot",
    "set_composite_lp_aggregate",
    "set_interaction_type",
    "set_skip_existing",
    "skip_existing",
    "symbolic_trace",
    "to_module",
]
