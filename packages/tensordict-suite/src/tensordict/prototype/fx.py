"""Symbolic tracing of modules that read and write tensordicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._serve.lazy import serve

if TYPE_CHECKING:
    from tensordict_nn import TDGraphModule as TDGraphModule
    from tensordict_nn import symbolic_trace as symbolic_trace
else:
    __getattr__, __dir__ = serve(__name__)
