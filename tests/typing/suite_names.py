"""What a type checker sees under the drop-in name: the same classes as under the packages' own names."""

from __future__ import annotations

from typing import assert_type

import torch

import tensordict
import tensordict_core
import tensordict_memmap
from tensordict import (
    LazyStackedTensorDict,
    MemmapTensor,
    MemoryMappedTensor,
    TensorDict,
    TensorDictParams,
)
from tensordict.base import TensorDictBase
from tensordict.memmap import MemoryMappedTensor as FromModule
from tensordict.nn import TensorDictModule, TensorDictSequential
from tensordict.prototype.fx import symbolic_trace
from tensordict.tensorclass import TensorClass

assert_type(TensorDict({"a": torch.ones(3)}, [3]), tensordict_core.TensorDict)
assert_type(TensorDict({}, []).clone(), tensordict_core.TensorDict)
same: list[type[tensordict_memmap.MemoryMappedTensor]] = [MemoryMappedTensor, MemmapTensor, FromModule]
containers: list[type[TensorDictBase]] = [TensorDict, LazyStackedTensorDict, TensorDictParams]
modules: list[type[torch.nn.Module]] = [TensorDictModule, TensorDictSequential]
used = (symbolic_trace, TensorClass, tensordict.stack, tensordict.unravel_key)
