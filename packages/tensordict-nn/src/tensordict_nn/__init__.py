"""Neural network modules that read and write tensordicts, and module parameters as tensordicts."""

from __future__ import annotations

from tensordict_core.extension import register_pickle_names
from tensordict_nn.cudagraph import CudaGraphModule
from tensordict_nn.distributions import (
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
from tensordict_nn.distributions.mappings import biased_softplus, inv_softplus
from tensordict_nn.fx import TDGraphModule, symbolic_trace
from tensordict_nn.modules.base import TensorDictModuleBase
from tensordict_nn.modules.decorators import as_tensordict_module
from tensordict_nn.modules.dispatch import dispatch
from tensordict_nn.modules.ensemble import EnsembleModule
from tensordict_nn.modules.form import Form
from tensordict_nn.modules.module import TensorDictModule, TensorDictModuleWrapper, WrapModule
from tensordict_nn.modules.sequential import TensorDictSequential
from tensordict_nn.modules.skipping import set_skip_existing, skip_existing
from tensordict_nn.modules.tensorclass_module import TensorClassModuleBase, TensorClassModuleWrapper
from tensordict_nn.params.functional import from_module, to_module
from tensordict_nn.params.stacking import from_modules
from tensordict_nn.params.tensordict_params import TensorDictParams
from tensordict_nn.probabilistic.module import ProbabilisticTensorDictModule
from tensordict_nn.probabilistic.sequential import ProbabilisticTensorDictSequential
from tensordict_nn.sampling.aggregation import composite_lp_aggregate, set_composite_lp_aggregate
from tensordict_nn.sampling.interaction import InteractionType, interaction_type, set_interaction_type

EARLIER_MODULES = {
    "base": (TensorDictModuleBase,),
    "ensemble": (EnsembleModule,),
    "form": (Form,),
    "module": (TensorDictModule, TensorDictModuleWrapper, WrapModule),
    "params": (TensorDictParams,),
    "probabilistic.interaction": (InteractionType,),
    "sequential": (TensorDictSequential,),
    "tensorclass_module": (TensorClassModuleBase, TensorClassModuleWrapper),
}
"""Classes by the modules that pickles of earlier releases name."""

register_pickle_names(
    {f"{__name__}.{module}.{cls.__name__}": cls for module, classes in EARLIER_MODULES.items() for cls in classes}
)

__version__ = "0.1.0"

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


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
