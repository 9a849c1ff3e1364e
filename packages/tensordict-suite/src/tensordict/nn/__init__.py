"""Neural network modules that read and write tensordicts, and module parameters as tensordicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._serve.lazy import serve

if TYPE_CHECKING:
    from tensordict_core import make_tensordict as make_tensordict
    from tensordict_nn import AddStateIndependentNormalScale as AddStateIndependentNormalScale
    from tensordict_nn import CompositeDistribution as CompositeDistribution
    from tensordict_nn import CudaGraphModule as CudaGraphModule
    from tensordict_nn import EnsembleModule as EnsembleModule
    from tensordict_nn import InteractionType as InteractionType
    from tensordict_nn import NormalParamExtractor as NormalParamExtractor
    from tensordict_nn import OneHotCategorical as OneHotCategorical
    from tensordict_nn import ProbabilisticTensorDictModule as ProbabilisticTensorDictModule
    from tensordict_nn import ProbabilisticTensorDictSequential as ProbabilisticTensorDictSequential
    from tensordict_nn import TensorClassModuleBase as TensorClassModuleBase
    from tensordict_nn import TensorClassModuleWrapper as TensorClassModuleWrapper
    from tensordict_nn import TensorDictModule as TensorDictModule
    from tensordict_nn import TensorDictModuleBase as TensorDictModuleBase
    from tensordict_nn import TensorDictModuleWrapper as TensorDictModuleWrapper
    from tensordict_nn import TensorDictParams as TensorDictParams
    from tensordict_nn import TensorDictSequential as TensorDictSequential
    from tensordict_nn import TruncatedNormal as TruncatedNormal
    from tensordict_nn import WrapModule as WrapModule
    from tensordict_nn import add_custom_mapping as add_custom_mapping
    from tensordict_nn import as_tensordict_module as as_tensordict_module
    from tensordict_nn import biased_softplus as biased_softplus
    from tensordict_nn import composite_lp_aggregate as composite_lp_aggregate
    from tensordict_nn import dispatch as dispatch
    from tensordict_nn import interaction_type as interaction_type
    from tensordict_nn import inv_softplus as inv_softplus
    from tensordict_nn import mappings as mappings
    from tensordict_nn import rand_one_hot as rand_one_hot
    from tensordict_nn import set_composite_lp_aggregate as set_composite_lp_aggregate
    from tensordict_nn import set_interaction_type as set_interaction_type
    from tensordict_nn import set_skip_existing as set_skip_existing
    from tensordict_nn import skip_existing as skip_existing
else:
    __getattr__, __dir__ = serve(__name__)
