"""The base class of every container, and the functions that build containers from other things."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._lazy import serve

if TYPE_CHECKING:
    from tensordict_core import TensorDictBase as TensorDictBase
else:
    __getattr__, __dir__ = serve(__name__)
