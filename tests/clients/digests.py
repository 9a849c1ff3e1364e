"""Digests: what a program computed, as text that is equal only where every bit is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def digest(value: Any) -> Any:
    """The digest of a tensor, of the entries of a tensordict or of a state dict, or the value as it prints.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)), digest(torch.zeros(2)) == digest(-torch.zeros(2))
    (True, False)
    """
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return [digest(part) for part in value.unbind()]
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(data).hexdigest()[:16]]
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(key): digest(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list | tuple):
        return [digest(item) for item in value]
    return repr(value)
