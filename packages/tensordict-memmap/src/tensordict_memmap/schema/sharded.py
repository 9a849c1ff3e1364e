"""Sharded leaves: whether a tensordict holds DTensors, without importing torch's distributed tensors, and the ranks."""

from __future__ import annotations

import sys
from typing import Any

import torch


def has_distributed(data: Any) -> bool:
    """Return whether a leaf of a tensordict is a DTensor; None has no leaves.

    >>> has_distributed(TensorDict({"a": torch.zeros(2)}))
    False
    """
    module = sys.modules.get("torch.distributed.tensor")  # there are no DTensors if the module is not imported
    kind = getattr(module, "DTensor", None)
    if kind is None or data is None:
        return False
    try:
        return any(isinstance(leaf, kind) for leaf in getattr(data, "_leaves", tuple)())
    except RecursionError:  # what follows names the key that is nested too deep
        return False


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process in the default process group, and the number of its ranks; 0 and 1 without one.

    >>> rank_and_size()
    (0, 1)
    """
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()
