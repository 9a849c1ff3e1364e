"""Losses of ``torch.nn.functional`` between two tensordicts: one loss for each leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from tensordict_core.base import errors
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import UNLOCKED, How
from tensordict_core.base.registry.torch_functions import implements
from tensordict_core.ops.factories.operands import match

_LOSSES = (functional.l1_loss, functional.mse_loss, functional.smooth_l1_loss)
_SCALAR = How(size=lambda own: own[:0], names=lambda names: None)
"""A mean or a sum over a leaf has no dimension."""


def register() -> None:
    """Register handlers for the losses."""
    for function in _LOSSES:
        implements(function)(_by_leaf(function))


def _by_leaf(function: Callable[..., Tensor]) -> Callable[..., Any]:
    name = function.__name__

    def handler(
        input: Any,
        target: Any,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not (isinstance(input, Node) and isinstance(target, Node)):
            wrong = target if isinstance(input, Node) else input
            raise errors.no_loss(name, wrong)
        whole = (reduction == "none" and size_average is None and reduce is None) or reduce is False
        if not whole:  # a lazy stack keeps its elements apart
            input = input._solid()
        leaves = input._leaves()
        targets, _ = match(name, input, leaves, target)
        results = [
            function(mine, theirs, size_average, reduce, reduction, *args, **kwargs)
            for mine, theirs in zip(leaves, targets, strict=True)
        ]
        return input._rebuild(iter(results), UNLOCKED if whole else _SCALAR)

    return handler
