"""Dataclasses of tensors that behave like one tensor."""

from __future__ import annotations

from .base import TensorClass
from .convert import from_dataclass
from .decorator import tensorclass
from .models import from_pydantic
from .typed import TypedTensorDict

__all__ = ["TensorClass", "TypedTensorDict", "from_dataclass", "from_pydantic", "tensorclass"]
