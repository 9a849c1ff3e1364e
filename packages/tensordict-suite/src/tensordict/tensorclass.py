"""Dataclasses of tensors, and containers of values that are no tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._lazy import serve

if TYPE_CHECKING:
    from tensordict_class import *
else:
    __getattr__, __dir__ = serve(__name__)
