"""Dataclasses of tensors that behave like one tensor."""

from __future__ import annotations

from .convert import from_dataclass
from .decorator import tensorclass
from .tensorclass import TensorClass
from .typed import TypedTensorDict

__all__ = ["TensorClass", "TypedTensorDict", "from_dataclass", "tensorclass"]
