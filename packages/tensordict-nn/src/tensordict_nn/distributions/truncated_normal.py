"""`TruncatedNormal`: a normal distribution restricted to an interval.

With the bounds ``alpha`` and ``beta`` in standard units and ``Z = Phi(beta) - Phi(alpha)``, all properties have a
closed form (Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions, 1994, chapter 13). Intervals right of
the center are mirrored to the left, where ``Phi`` is precise, and all computations use logarithms: ten standard
deviations away from the center, density and mass underflow.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.special import erfcx, log_ndtr, ndtri

from tensordict_nn import distribution_errors as errors

_LOG_ROOT_TAU = 0.5 * math.log(2 * math.pi)


_FAR = -50.0
"""Log-probabilities below this are inverted by Newton's method, others by `ndtri`."""


def _log_density(x: Tensor) -> Tensor:
    return -0.5 * x * x - _LOG_ROOT_TAU


def _inverse_log_ndtr(log_p: Tensor) -> Tensor:
    """Inverse of `log_ndtr`, with its first and second derivative."""
    with torch.no_grad():
        far = log_p.clamp_max(_FAR)
        # in the far tail, the probability is about the density over -z
        z = -torch.sqrt(-2 * (far + _LOG_ROOT_TAU) - torch.log(-2 * far))
        for _ in range(2):
            log_mass = log_ndtr(z)
            z = z - (log_mass - far) * torch.exp(log_mass - _log_density(z))
        z = torch.where(log_p < _FAR, z, ndtri(log_p.clamp_min(_FAR).exp()))
        slope = torch.exp((log_p - _log_density(z)).clamp_max(-_FAR))
        bend = 1 + z.clamp_max(-_FAR) * slope  # the derivative of the logarithm of the slope
    change = log_p - log_p.detach()  # zero, with derivatives
    return z + slope * change * (1 + 0.5 * bend * change)


class TruncatedNormal(Distribution):
    """A normal distribution restricted to ``[a, b]``, with reparameterized samples.

    The batch shape is the shape to which the four arguments broadcast.

    Args:
        loc: The mean before truncation.
        scale: The standard deviation before truncation; at least ``1e-6``.
        a: The lower bound.
        b: The upper bound.
        validate_args: See ``torch.distributions.Distribution``.

    Raises:
        ValueError: ``a`` is not below ``b`` everywhere.

    >>> TruncatedNormal(torch.tensor(5.0), torch.tensor(1.0), a=4.0, b=6.0).mean
    tensor(5.)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012 - torch's own spelling
    eps = 1e-6
    """The smallest scale; a smaller one is replaced by it."""
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
        self.scale = self.scale.clamp_min(self.eps)
        alpha, beta = self._in_units(self.a), self._in_units(self.b)
        self._mirrored = alpha > 0
        self._low = torch.where(self._mirrored, -beta, alpha)
        self._high = torch.where(self._mirrored, -alpha, beta)
        self._log_high = log_ndtr(self._high)
        # the log-ratio of the masses left of the lower and left of the upper end; the interval has the rest
        self._log_below = (log_ndtr(self._low) - self._log_high).clamp_max(-torch.finfo(alpha.dtype).eps)
        self._log_mass = self._log_high + torch.log(-torch.expm1(self._log_below))
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        """The interval."""
        return constraints.interval(self.a, self.b)

    @property
    def auc(self) -> Tensor:
        """The probability of the interval under the normal distribution that is not truncated.

        >>> TruncatedNormal(torch.zeros(1), torch.ones(1), -1.0, 1.0).auc
        tensor([0.6827])
        """
        auc: Tensor = self._log_mass.exp()
        return auc

    def _in_units(self, bound: Tensor) -> Tensor:
        """Return a bound in standard units; infinite ones become large numbers with finite squares and gradient 0."""
        most = math.sqrt(torch.finfo(bound.dtype).max) / 4
        return ((bound.clamp(-most, most) - self.loc) / self.scale).clamp(-most, most)

    def _ratios(self) -> tuple[Tensor, Tensor]:
        """Return the densities at the lower and the upper end, in standard units."""
        low, high = self._low, self._high
        at_low, at_high = (torch.exp(_log_density(end) - self._log_mass) for end in (low, high))
        # far from the center, the differences of two large logarithms have few digits
        far = math.sqrt(2 / math.pi) / erfcx(-high.clamp_max(0) * math.sqrt(0.5)) / -torch.expm1(self._log_below)
        fall = torch.exp((0.5 * (high - low) * (high + low)).clamp_max(0))
        return torch.where(high < 0, far * fall, at_low), torch.where(high < 0, far, at_high)

    @property
    def _shift(self) -> Tensor:
        """The distance of the mean from ``loc``, in standard units."""
        at_low, at_high = self._ratios()
        return torch.where(self._mirrored, at_high - at_low, at_low - at_high)

    @property
    def _moment(self) -> Tensor:
        at_low, at_high = self._ratios()
        return self._low * at_low - self._high * at_high

    @property
    def mean(self) -> Tensor:
        """The mean.

        >>> TruncatedNormal(torch.zeros(2), torch.ones(2), -1.0, 1.0).mean
        tensor([0., 0.])
        """
        return (self.loc + self.scale * self._shift).clamp(self.a, self.b)

    @property
    def mode(self) -> Tensor:
        """The point of the interval that is closest to ``loc``.

        >>> TruncatedNormal(torch.tensor([0.5]), torch.ones(1), -1.0, 1.0).mode
        tensor([0.5000])
        """
        return self.loc.clamp(self.a, self.b)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        variance: Tensor = self.scale.square() * (1 + self._moment - self._shift.square())
        # far from loc, rounding can leave the range of possible variances
        return variance.clamp(torch.zeros_like(variance), ((self.b - self.a) / 2).square())

    @property
    def deterministic_sample(self) -> Tensor:
        """The mean.

        >>> TruncatedNormal(torch.zeros(2), torch.ones(2), -1.0, 1.0).deterministic_sample
        tensor([0., 0.])
        """
        return self.mean

    def entropy(self) -> Tensor:
        """Return the differential entropy, in nats.

        >>> TruncatedNormal(torch.zeros(2), torch.ones(2), -1.0, 1.0).entropy()
        tensor([0.6828, 0.6828])
        """
        entropy: Tensor = _LOG_ROOT_TAU + 0.5 + self.scale.log() + self._log_mass + 0.5 * self._moment
        return entropy

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density; minus infinity outside of the interval.

        Raises:
            ValueError: A value is outside of the interval, and ``validate_args`` is true, as it is by default.

        >>> dist = TruncatedNormal(torch.zeros(2), torch.ones(2), -1.0, 1.0, validate_args=False)
        >>> dist.log_prob(torch.tensor([0.0, 2.0]))
        tensor([-0.5372,    -inf])
        """
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        inside = -0.5 * z * z - _LOG_ROOT_TAU - self.scale.log() - self._log_mass
        return torch.where((value >= self.a) & (value <= self.b), inside, torch.full_like(inside, -torch.inf))

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of smaller values.

        >>> TruncatedNormal(torch.zeros(2), torch.ones(2), -1.0, 1.0).cdf(torch.zeros(2))
        tensor([0.5000, 0.5000])
        """
        z = (value - self.loc) / self.scale
        mirrored = torch.where(self._mirrored, -z, z)
        below = torch.exp(self._log_below)
        share = ((torch.exp(log_ndtr(mirrored) - self._log_high) - below) / (1 - below)).clamp(0, 1)
        return torch.where(self._mirrored, 1 - share, share)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the quantile of a probability.

        >>> TruncatedNormal(torch.zeros(2), torch.ones(2), -1.0, 1.0).icdf(torch.ones(2))
        tensor([1., 1.])
        """
        share = torch.where(self._mirrored, 1 - value, value)
        below = torch.exp(self._log_below)
        z = _inverse_log_ndtr(
            self._log_high + torch.log((below + share * (1 - below)).clamp_min(torch.finfo(below.dtype).tiny))
        )
        x = self.loc + self.scale * torch.where(self._mirrored, -z, z)
        return torch.minimum(torch.maximum(x, self.a), self.b)

    def rsample(self, sample_shape: Any = None) -> Tensor:
        """Draw samples by the inverse of the distribution function, so that gradients flow to the parameters.

        Args:
            sample_shape: The shape of the samples in front of the batch shape.

        >>> TruncatedNormal(torch.zeros(2), torch.ones(2), -1.0, 1.0).rsample((3,)).shape
        torch.Size([3, 2])
        """
        shape = self._extended_shape(torch.Size(sample_shape or ()))
        # strictly inside (0, 1), where the inverse is finite
        eps = torch.finfo(self.loc.dtype).eps
        return self.icdf(torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device).clamp(eps, 1 - eps))

    def expand(self, batch_shape: Any, _instance: Any = None) -> TruncatedNormal:
        """Return the distribution with a larger batch shape."""
        loc, scale, a, b = (x.expand(batch_shape) for x in (self.loc, self.scale, self.a, self.b))
        return TruncatedNormal(loc, scale, a, b, validate_args=False)


class TruncatedStandardNormal(TruncatedNormal):
    """A standard normal distribution restricted to ``[a, b]``.

    Args:
        a: The lower bound.
        b: The upper bound.
        validate_args: See ``torch.distributions.Distribution``.

    >>> TruncatedStandardNormal(torch.tensor(-1.0), torch.tensor(1.0)).mean
    tensor(0.)
    """

    def __init__(self, a: float | Tensor, b: float | Tensor, validate_args: bool | None = None) -> None:
        device = next((bound.device for bound in (a, b) if isinstance(bound, Tensor)), None)
        super().__init__(torch.zeros((), device=device), torch.ones((), device=device), a, b, validate_args)
