"""Mappings: functions from real to positive numbers, by name, for the scales of distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tensordict_nn import distribution_errors as errors

Mapping = Callable[[Tensor], Tensor]
_LEAST = 1e-6
_BIASED = "biased_softplus"


def inv_softplus(bias: float | Tensor) -> float | Tensor:
    """Inverse of softplus: ``log(exp(bias) - 1)``, also finite for numbers outside the range of softplus.

    >>> torch.nn.functional.softplus(inv_softplus(torch.tensor([1.0, 2.0])))
    tensor([1., 2.])
    """
    if isinstance(bias, Tensor):
        # log(expm1(x)) = x + log(1 - exp(-x)), which does not overflow
        return torch.where(
            bias > 20, bias + torch.log1p(-torch.exp(-bias)), bias.clamp_max(20).expm1().clamp_min(_LEAST).log()
        )
    return bias + math.log1p(-math.exp(-bias)) if bias > 20 else math.log(max(math.expm1(bias), _LEAST))


class biased_softplus(nn.Module):
    """Softplus, shifted so that its value at zero is ``bias`` and all values are above ``min_val``.

    Args:
        bias: The value at zero.
        min_val: The lower bound.

    >>> biased_softplus(1.0)(torch.zeros(2))
    tensor([1., 1.])
    """

    def __init__(self, bias: float, min_val: float = 0.01) -> None:
        super().__init__()
        self.bias = inv_softplus(bias - min_val)
        self.min_val = min_val

    def forward(self, x: Tensor) -> Tensor:
        """Apply the mapping."""
        return functional.softplus(x + self.bias) + self.min_val


def expln(x: Tensor) -> Tensor:
    """Exponential for negative numbers and ``1 + log(1 + x)`` for others: positive, smooth, of slow growth.

    >>> expln(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 1.6931])
    """
    return torch.where(x > 0, x.clamp_min(0).log1p() + 1, x.clamp_max(0).exp())


def _identity(x: Tensor) -> Tensor:
    return x


_known: dict[str, Mapping] = {
    "softplus": functional.softplus,
    "exp": torch.exp,
    "relu": torch.relu,
    "expln": expln,
    "none": _identity,
    _BIASED: biased_softplus(1.0),
}


def mappings(key: str) -> Mapping:
    """Return the mapping of a name.

    Args:
        key: ``"softplus"``, ``"exp"``, ``"relu"``, ``"expln"``, ``"none"``, ``"biased_softplus_{bias}"``,
            ``"biased_softplus_{bias}_{min_val}"``, or a name of `add_custom_mapping`.

    Raises:
        NotImplementedError: The name is unknown.
        ValueError: ``biased_softplus_`` is not followed by one or two numbers.

    >>> mappings("biased_softplus_2.0_0.1")(torch.zeros(2))
    tensor([2., 2.])
    """
    known = _known.get(key)
    if known is not None:
        return known
    if not key.startswith(_BIASED + "_"):
        raise errors.unknown_mapping(key, _known)
    try:
        numbers = [float(part) for part in key.removeprefix(_BIASED + "_").split("_")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise errors.bad_mapping(key)
    return biased_softplus(*numbers)


def add_custom_mapping(name: str, mapping: Mapping) -> None:
    """Register a mapping under a name, and replace an earlier one.

    Args:
        name: The name.
        mapping: A function from a tensor to one of the same shape.

    >>> add_custom_mapping("square", lambda x: x**2)
    >>> mappings("square")(torch.tensor([3.0]))
    tensor([9.])
    """
    _known[name] = mapping
