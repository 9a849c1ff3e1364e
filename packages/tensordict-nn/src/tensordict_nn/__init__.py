"""Modules that read and write tensordicts, and parameters of modules as tensordicts."""

from __future__ import annotations

from .base import TensorDictModuleBase
from .decorators import as_tensordict_module
from .dispatch import dispatch
from .functional import from_module, from_modules, to_module
from .fx import TDGraphModule, symbolic_trace
from .module import TensorDictModule, TensorDictModuleWrapper, WrapModule
from .params import TensorDictParams
from .sequential import TensorDictSequential
from .skipping import set_skip_existing, skip_existing
from .tensorclass_module import TensorClassModuleBase, TensorClassModuleWrapper

__all__ = [
    "TDGraphModule",
    "TensorClassModuleBase",
    "TensorClassModuleWrapper",
    "TensorDictModule",
    "TensorDictModuleBase",
    "TensorDictModuleWrapper",
    "TensorDictParams",
    "TensorDictSequential",
    "WrapModule",
    "as_tensordict_module",
    "dispatch",
    "from_module",
    "from_modules",
    "set_skip_existing",
    "skip_existing",
    "symbolic_trace",
    "to_module",
]
