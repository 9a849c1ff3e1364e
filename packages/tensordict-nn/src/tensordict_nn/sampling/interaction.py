"""Interaction types: which value of a distribution a module writes, for a block of code or for one module."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import Any

from torch.distributions import (
    Distribution,
    LogisticNormal,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    TransformedDistribution,
)
from torch.nn import functional

from tensordict_nn import distribution_errors as errors
from tensordict_nn.settings import Block, Setting


class InteractionType(StrEnum):
    """The value of a distribution that a module uses.

    ``MODE``, ``MEDIAN`` and ``MEAN`` are the properties of these names, ``RANDOM`` is a sample (reparameterized if the
    distribution can), and ``DETERMINISTIC`` is ``deterministic_sample`` if the distribution has it, otherwise the mode
    if its support can be enumerated, otherwise the mean; for relaxed distributions it is the most likely category. A
    mean without a closed form is estimated from samples. Strings are accepted in any case, and a type is equal to its
    name in lower case.

    >>> InteractionType("RANDOM"), InteractionType.from_str("Mode")
    (<InteractionType.RANDOM: 'random'>, <InteractionType.MODE: 'mode'>)
    """

    MODE = "mode"
    MEDIAN = "median"
    MEAN = "mean"
    RANDOM = "random"
    DETERMINISTIC = "deterministic"

    @classmethod
    def _missing_(cls, value: object) -> InteractionType | None:
        return next((one for one in cls if one.value == str(value).lower()), None)

    @classmethod
    def from_str(cls, name: str) -> InteractionType:
        """Return the type of a name, in any case."""
        return cls(name.lower())


_current: Setting[InteractionType | None] = Setting(None)


class _Implied(threading.local):
    """The type of the sequence that runs in this thread."""

    def __init__(self) -> None:  # an attribute of the class would appear in the instance later, which recompiles
        self.value: InteractionType | None = None


_implied = _Implied()


def imply(how: InteractionType | None) -> InteractionType | None:
    """Set the type that holds in this thread where no block is open, and return the earlier one.

    >>> earlier = imply(InteractionType.MODE)
    >>> print(interaction_type(), imply(earlier), interaction_type())
    mode mode None
    """
    earlier = _implied.value
    _implied.value = how
    return earlier


def interaction_type() -> InteractionType | None:
    """Return the type of the enclosing `set_interaction_type` block, or of the sequence that runs; otherwise ``None``.

    >>> with set_interaction_type("mode"):
    ...     print(interaction_type())
    mode
    """
    return _current.get() or _implied.value


class set_interaction_type(Block):
    """Context manager and decorator that set the interaction type of all probabilistic modules.

    Args:
        type: The type; ``None`` uses that of each module.
        thread_local: Whether the type is for this thread only.

    >>> from tensordict_nn import ProbabilisticTensorDictModule
    >>> module = ProbabilisticTensorDictModule(
    ...     in_keys=["loc", "scale"], out_keys=["x"], distribution_class=torch.distributions.LogNormal
    ... )
    >>> with set_interaction_type("mode"):
    ...     module(TensorDict({"loc": torch.zeros(1), "scale": torch.ones(1)}))["x"]
    tensor([0.3679])
    """

    setting = _current

    def __init__(
        self, type: InteractionType | str | None = InteractionType.DETERMINISTIC, *, thread_local: bool = False
    ) -> None:
        self.type = None if type is None else InteractionType(type)
        super().__init__(self.type, thread_local)


def _property(dist: Any, name: str) -> Any:
    """Return a property of a distribution; ``None`` if it has none."""
    try:
        return getattr(dist, name)
    except (AttributeError, NotImplementedError):
        return None


def _most_likely(dist: Any) -> Any:
    """Return the center of a distribution that has neither mode nor mean; ``None`` for other distributions."""
    if isinstance(dist, RelaxedOneHotCategorical):
        return functional.one_hot(dist.logits.argmax(-1), dist.logits.shape[-1]).to(dist.logits.dtype)
    if isinstance(dist, RelaxedBernoulli):
        return (dist.logits > 0).to(dist.logits.dtype)
    if isinstance(dist, LogisticNormal):
        value = dist.base_dist.mean
        for transform in dist.transforms:
            value = transform(value)
        return value
    return None


def _deterministic(dist: Any) -> Any:
    if isinstance(dist, TransformedDistribution) and (value := _most_likely(dist)) is not None:
        return value
    names = ["deterministic_sample"]
    # the mean of categories is not a category
    names += ["mode", "mean"] if isinstance(dist, Distribution) and dist.has_enumerate_support else ["mean", "mode"]
    return next((value for name in names if (value := _property(dist, name)) is not None), None)


def take(dist: Any, how: InteractionType, sample_shape: Any, estimates: int) -> Any:
    """Return a value of a distribution.

    Args:
        dist: The distribution.
        how: The interaction type.
        sample_shape: The sample shape, for ``RANDOM``.
        estimates: The number of samples that estimate a mean without a closed form.

    Raises:
        NotImplementedError: The distribution has no such property.

    >>> take(torch.distributions.Normal(1.0, 1.0), InteractionType.MEAN, (), 10)
    tensor(1.)
    """
    if how is InteractionType.RANDOM:
        return dist.rsample(sample_shape) if dist.has_rsample else dist.sample(sample_shape)
    value = _deterministic(dist) if how is InteractionType.DETERMINISTIC else _property(dist, how.value)
    if value is None and how in (InteractionType.MEAN, InteractionType.DETERMINISTIC):
        draw = dist.rsample if dist.has_rsample else dist.sample
        return draw((estimates,)).mean(0)
    if value is None:
        raise errors.no_such_value(dist, how.value)
    return value
