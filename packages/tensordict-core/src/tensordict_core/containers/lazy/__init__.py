"""Lazy stacks: tensordicts that are kept apart and combined only where they are read."""

from __future__ import annotations

from tensordict_core.containers.lazy.stack import LazyStackedTensorDict

__all__ = ["LazyStackedTensorDict"]
