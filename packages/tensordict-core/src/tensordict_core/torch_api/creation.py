"""The ``*_like`` functions of torch: a new tensordict of the same keys and shapes, filled in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensordict_core.base.meta import as_device
from tensordict_core.base.rebuild import KEEP, How
from tensordict_core.torch_api.dispatch import implements

__all__ = ["register"]


def _like(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The handler for a ``torch`` function that takes a pattern, values if it needs any, and options of the result."""

    def handler(input: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is not None:
            options["device"] = as_device(device)
        leaves = [function(leaf, *args, **options) for leaf in input._leaves()]
        return input._rebuild(iter(leaves), How(device=KEEP if device is None else options["device"]))

    return handler


def register() -> None:
    """Enter the ``*_like`` functions into the dispatch table."""
    for function in (
        torch.zeros_like,
        torch.ones_like,
        torch.empty_like,
        torch.full_like,
        torch.rand_like,
        torch.randn_like,
        torch.randint_like,
    ):
        implements(function)(_like(function))
