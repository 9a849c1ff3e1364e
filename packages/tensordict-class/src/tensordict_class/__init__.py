"""Tensorclasses: dataclasses of tensors that behave like one tensor."""

from __future__ import annotations

from tensordict_class.base import TensorClass
from tensordict_class.convert import from_dataclass
from tensordict_class.decorator import tensorclass
from tensordict_class.models import from_pydantic
from tensordict_class.typed import TypedTensorDict

__version__ = "0.1.0"

__all__ = ["TensorClass", "TypedTensorDict", "from_dataclass", "from_pydantic", "tensorclass"]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
