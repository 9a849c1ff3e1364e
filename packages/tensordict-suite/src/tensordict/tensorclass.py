"""Tensorclasses (dataclasses of tensors), and containers of non-tensor values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._serve.lazy import serve

if TYPE_CHECKING:
    from tensordict_class import TensorClass as TensorClass
    from tensordict_class import from_dataclass as from_dataclass
    from tensordict_class import tensorclass as tensorclass
    from tensordict_core import MetaData as MetaData
    from tensordict_core import NonTensorData as NonTensorData
    from tensordict_core import NonTensorDataBase as NonTensorDataBase
    from tensordict_core import NonTensorStack as NonTensorStack
    from tensordict_core import TensorAttrs as TensorAttrs
    from tensordict_core import is_non_tensor as is_non_tensor
    from tensordict_core import is_tensorclass as is_tensorclass
else:
    __getattr__, __dir__ = serve(__name__)
