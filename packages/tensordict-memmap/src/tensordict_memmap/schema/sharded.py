"""Sharded leaves: whether a tensordict holds DTensors, without importing torch's distributed tensors."""

from __future__ import annotations

import sys
from typing import Any


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
