"""`Delta`: a distribution with all its mass on one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints


class Delta(Distribution):
    """A distribution whose samples are always its parameter.

    Args:
        param: The value.
        atol: The absolute tolerance for values that equal it.
        rtol: The relative tolerance.
        batch_shape: The batch shape. Without both shapes, the last dimension of ``param`` is the event.
        event_shape: The event shape.

    >>> Delta(torch.tensor([1.0, 2.0])).log_prob(torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
    tensor([inf, -inf])
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch's own spelling
    has_rsample = True

    def __init__(
        self,
        param: Tensor,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        batch_shape: Sequence[int] | None = None,
        event_shape: Sequence[int] | None = None,
    ) -> None:
        if not batch_shape and not event_shape:
            batch_shape, event_shape = param.shape[:-1], param.shape[-1:]
        elif batch_shape is None:
            batch_shape = param.shape[: param.ndim - len(event_shape or ())]
        elif event_shape is None:
            event_shape = param.shape[len(batch_shape) :]
        self.param = param
        self.atol = atol
        self.rtol = rtol
        super().__init__(torch.Size(batch_shape), torch.Size(event_shape or ()), validate_args=False)

    def update(self, param: Tensor) -> None:
        """Replace the value; the shapes stay.

        >>> delta = Delta(torch.zeros(2))
        >>> delta.update(torch.ones(2))
        >>> delta.mode
        tensor([1., 1.])
        """
        self.param = param

    @property
    def support(self) -> Any:
        """The real numbers."""
        return constraints.real

    @property
    def mean(self) -> Tensor:
        """The value.

        >>> Delta(torch.tensor([1.0, 2.0])).mean
        tensor([1., 2.])
        """
        return self.param

    @property
    def mode(self) -> Tensor:
        """The value.

        >>> Delta(torch.tensor([1.0, 2.0])).mode
        tensor([1., 2.])
        """
        return self.param

    @property
    def deterministic_sample(self) -> Tensor:
        """The value.

        >>> Delta(torch.tensor([1.0, 2.0])).deterministic_sample
        tensor([1., 2.])
        """
        return self.param

    @property
    def variance(self) -> Tensor:
        """Zero.

        >>> Delta(torch.tensor([1.0, 2.0])).variance
        tensor([0., 0.])
        """
        return torch.zeros_like(self.param)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Delta:
        """Return the distribution with a larger batch shape."""
        param = self.param.expand((*batch_shape, *self.event_shape))
        return Delta(param, self.atol, self.rtol, torch.Size(batch_shape), self.event_shape)

    def rsample(self, sample_shape: Any = None) -> Tensor:
        """Return the value for each sample; gradients flow to the parameter.

        Args:
            sample_shape: The shape of the samples in front of the batch shape.

        >>> Delta(torch.tensor([1.0, 2.0])).rsample((3,)).shape
        torch.Size([3, 2])
        """
        return self.param.expand((*(sample_shape or ()), *self.param.shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return infinity for events that equal the value, and minus infinity for others.

        >>> Delta(torch.tensor([1.0, 2.0])).log_prob(torch.tensor([1.0, 2.0]))
        tensor(inf)
        """
        equal = torch.isclose(value, self.param.expand_as(value), rtol=self.rtol, atol=self.atol)
        if self.event_shape:
            equal = equal.flatten(-len(self.event_shape)).all(-1)
        zero = torch.zeros(equal.shape, dtype=self.param.dtype, device=self.param.device)
        return torch.where(equal, zero + torch.inf, zero - torch.inf)
