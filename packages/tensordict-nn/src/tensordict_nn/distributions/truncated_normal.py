"""`TruncatedNormal`: a normal distribution restricted to an interval.

With ``alpha`` and ``beta`` the bounds in standard units and ``Z = Phi(beta) - Phi(alpha)``, all follows in closed form
(Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions, 1994, chapter 13). Intervals right of the centre
are mirrored to the left first, where ``Phi`` keeps its digits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.special import log_ndtr, ndtr, ndtri

from .. import errors

__all__ = ["TruncatedNormal"]

_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)


def _density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x - _LOG_ROOT_TAU)


def _moment(x: Tensor) -> Tensor:
    """``x`` times its density, zero at infinity."""
    finite = torch.where(x.isinf(), torch.zeros_like(x), x)
    return torch.where(x.isinf(), torch.zeros_like(x), finite * _density(finite))


class TruncatedNormal(Distribution):
    """A normal distribution restricted to ``[a, b]``, with reparameterized samples.

    Args:
        loc: The mean before truncation.
        scale: The standard deviation before truncation; at least ``1e-6``.
        a: The lower bound.
        b: The upper bound.
        validate_args: As for every distribution of ``torch``.

    Raises:
        ValueError: ``a`` is not below ``b`` everywhere.

    >>> TruncatedNormal(torch.tensor(5.0), torch.tensor(1.0), a=4.0, b=6.0).mean
    tensor(5.)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012 - torch's own spelling
    has_rsample = True

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        a: float | Tensor,
        b: float | Tensor,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.a, self.b = broadcast_all(loc, scale, a, b)
        if not torch.compiler.is_compiling() and not bool((self.a < self.b).all()):
            raise errors.empty_interval()
        self.scale = self.scale.clamp_min(1e-6)
        alpha, beta = (self.a - self.loc) / self.scale, (self.b - self.loc) / self.scale
        self._alpha, self._beta = alpha, beta
        self._mirrored = alpha > 0
        self._low = torch.where(self._mirrored, -beta, alpha)
        self._high = torch.where(self._mirrored, -alpha, beta)
        self._below = ndtr(self._low)
        self._mass = (ndtr(self._high) - self._below).clamp_min(torch.finfo(alpha.dtype).tiny)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        """The interval."""
        return constraints.interval(self.a, self.b)  # type: ignore[no-untyped-call]  # untyped in torch

    @property
    def _log_mass(self) -> Tensor:
        # log(Phi(high) - Phi(low)), also where both are too small for a number
        high = log_ndtr(self._high)
        log_mass: Tensor = high + torch.log1p(
            -torch.exp((log_ndtr(self._low) - high).clamp_max(-torch.finfo(high.dtype).eps))
        )
        return log_mass

    @property
    def _shift(self) -> Tensor:
        """How far the mean is from ``loc``, in standard units."""
        shift: Tensor = torch.exp(torch.log(_density(self._alpha)) - self._log_mass) - torch.exp(
            torch.log(_density(self._beta)) - self._log_mass
        )
        return shift

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return (self.loc + self.scale * self._shift).clamp(self.a, self.b)

    @property
    def mode(self) -> Tensor:
        """The point of the interval next to ``loc``."""
        return self.loc.clamp(self.a, self.b)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        moments = (_moment(self._alpha) - _moment(self._beta)) / self._mass
        variance: Tensor = self.scale.square() * (1 + moments - self._shift.square())
        return variance

    @property
    def deterministic_sample(self) -> Tensor:
        """The mean."""
        return self.mean

    def entropy(self) -> Tensor:
        """The differential entropy."""
        moments = (_moment(self._alpha) - _moment(self._beta)) / self._mass
        entropy: Tensor = _LOG_ROOT_TAU + 0.5 + self.scale.log() + self._log_mass + 0.5 * moments
        return entropy

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density; minus infinity outside of the interval."""
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        inside = -0.5 * z * z - _LOG_ROOT_TAU - self.scale.log() - self._log_mass
        return torch.where((value >= self.a) & (value <= self.b), inside, torch.full_like(inside, -torch.inf))

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of smaller values."""
        z = (value - self.loc) / self.scale
        mirrored = torch.where(self._mirrored, -z, z)
        share = ((ndtr(mirrored) - self._below) / self._mass).clamp(0, 1)
        return torch.where(self._mirrored, 1 - share, share)

    def icdf(self, value: Tensor) -> Tensor:
        """The value that is larger than a share ``value`` of all."""
        share = torch.where(self._mirrored, 1 - value, value)
        z = ndtri((self._below + share * self._mass).clamp(torch.finfo(self._mass.dtype).tiny, 1))
        x = self.loc + self.scale * torch.where(self._mirrored, -z, z)
        return torch.minimum(torch.maximum(x, self.a), self.b)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 - torch's own default
        """Samples by the inverse of the distribution function, so that gradients reach the parameters."""
        shape = self._extended_shape(torch.Size(sample_shape))
        # strictly inside of (0, 1), where the inverse is finite
        eps = torch.finfo(self.loc.dtype).eps
        return self.icdf(torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device).clamp(eps, 1 - eps))

    def expand(self, batch_shape: Any, _instance: Any = None) -> TruncatedNormal:
        """The distribution with a larger batch shape."""
        loc, scale, a, b = (x.expand(batch_shape) for x in (self.loc, self.scale, self.a, self.b))
        return TruncatedNormal(loc, scale, a, b, validate_args=False)
