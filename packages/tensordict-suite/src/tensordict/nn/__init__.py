"""Modules that read and write tensordicts, and the parameters of modules as tensordicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._lazy import serve

if TYPE_CHECKING:
    from tensordict_nn import *
else:
    __getattr__, __dir__ = serve(__name__)
