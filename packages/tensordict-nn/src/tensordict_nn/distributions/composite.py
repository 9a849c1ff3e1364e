"""`CompositeDistribution`: several named distributions with tensordicts as samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from tensordict_core import NestedKey, TensorDict, unravel_key
from tensordict_core.extension import TensorCollection
from tensordict_nn import distribution_errors as errors
from tensordict_nn.sampling.aggregation import composite_lp_aggregate
from tensordict_nn.sampling.interaction import InteractionType, take

Key = str | tuple[str, ...]
_ESTIMATES = 1000


def with_suffix(key: Key, suffix: str) -> Key:
    """Append a suffix to the last level of a key.

    >>> with_suffix(("agent", "action"), "_log_prob")
    ('agent', 'action_log_prob')
    """
    return key + suffix if isinstance(key, str) else (*key[:-1], key[-1] + suffix)


def _mapped(mapping: dict[Any, Any] | None) -> dict[Any, Any]:
    return {unravel_key(key): value for key, value in (mapping or {}).items()}


class CompositeDistribution(Distribution):
    """Several named distributions as one; its samples are tensordicts with one entry for each distribution.

    `log_prob` and `entropy` return a tensordict with one entry for each distribution, or one sum if
    `composite_lp_aggregate` is true. The batch size of ``params`` is the batch shape. The composite is also a mapping
    from the keys of samples to distributions.

    Args:
        params: For each name, a tensordict of the arguments of its distribution.
        distribution_map: For each name, the class of its distribution, or a function that makes it.
        name_map: For each name, the key of its samples; the name itself by default.
        extra_kwargs: For each name, more keyword arguments.
        log_prob_key: The key of a summed log-probability.
        entropy_key: The key of a summed entropy.

    Raises:
        KeyError: A name has no parameters.

    >>> params = TensorDict({"k": {"logits": torch.zeros(3, 5)}}, [3])
    >>> params["x"] = {"loc": torch.zeros(3, 4), "scale": torch.ones(3, 4)}
    >>> dist = CompositeDistribution(params, {"x": torch.distributions.Normal, "k": torch.distributions.Categorical})
    >>> sample = dist.sample((2,))
    >>> sample.batch_size, sample["x"].shape, dist.log_prob(sample)["k_log_prob"].shape
    (torch.Size([2, 3]), torch.Size([2, 3, 4]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        params: Any,
        distribution_map: dict[Any, Callable[..., Any]],
        *,
        name_map: dict[Any, NestedKey] | None = None,
        extra_kwargs: dict[Any, dict[str, Any]] | None = None,
        log_prob_key: NestedKey | None = None,
        entropy_key: NestedKey | None = None,
    ) -> None:
        extra = _mapped(extra_kwargs)
        made = {}
        for name, make in _mapped(distribution_map).items():
            arguments = params.get(name, None)
            if arguments is None:
                raise errors.missing_component(name, params.keys())
            made[name] = make(**dict(arguments.items()), **extra.get(name, {}))
        self._start(made, params.batch_size, name_map, log_prob_key, entropy_key)

    def _start(
        self, made: dict[Any, Any], size: torch.Size, name_map: Any, log_prob_key: Any, entropy_key: Any
    ) -> None:
        names = _mapped(name_map)
        self.dists: dict[Any, Any] = {unravel_key(names.get(name, name)): dist for name, dist in made.items()}
        self.log_prob_key = "sample_log_prob" if log_prob_key is None else unravel_key(log_prob_key)
        self.entropy_key = "entropy" if entropy_key is None else unravel_key(entropy_key)
        self.has_rsample = all(dist.has_rsample for dist in self.dists.values())
        super().__init__(size, torch.Size(), validate_args=False)

    @classmethod
    def from_distributions(
        cls,
        params: Any,
        distributions: dict[Any, Any],
        *,
        name_map: dict[Any, NestedKey] | None = None,
        log_prob_key: NestedKey | None = None,
        entropy_key: NestedKey | None = None,
    ) -> CompositeDistribution:
        """Make a composite of existing distributions; its batch size is that of ``params``.

        Args:
            params: A tensordict, of which only the batch size is used.
            distributions: The distribution of each key of the samples, or nested dictionaries of them.
            name_map: As for the constructor.
            log_prob_key: As for the constructor.
            entropy_key: As for the constructor.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> CompositeDistribution.from_distributions(TensorDict({}, [3]), dists).mean["x"]
        tensor([0., 0., 0.])
        """
        self = cls.__new__(cls)
        self._start(_mapped(distributions), params.batch_size, name_map, log_prob_key, entropy_key)
        return self

    # a mapping -------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: NestedKey) -> Any:
        return self.dists[unravel_key(key)]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.dists)

    def __len__(self) -> int:
        return len(self.dists)

    def __contains__(self, key: NestedKey) -> bool:
        return unravel_key(key) in self.dists

    def keys(self) -> KeysView[Key]:
        """Return the keys of samples.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> list(composite.keys())
        ['x']
        """
        return self.dists.keys()

    def values(self) -> ValuesView[Any]:
        """Return the distributions.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> [type(dist).__name__ for dist in composite.values()]
        ['Normal']
        """
        return self.dists.values()

    def items(self) -> ItemsView[Key, Any]:
        """Return the keys of samples and the distributions.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> [(key, type(dist).__name__) for key, dist in composite.items()]
        [('x', 'Normal')]
        """
        return self.dists.items()

    def get(self, key: NestedKey, default: Any = None) -> Any:
        """Return the distribution of a key, or ``default``.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> composite.get("x") is dists["x"], composite.get("y")
        (True, None)
        """
        return self.dists.get(unravel_key(key), default)

    # values ----------------------------------------------------------------------------------------------------------

    def _each(self, function: Callable[[Any], Any], sample_shape: Any = ()) -> TensorDict:
        out = TensorDict({}, torch.Size([*sample_shape, *self.batch_shape]))
        for key, dist in self.dists.items():
            out.set(key, function(dist))
        return out

    @property
    def mean(self) -> TensorDict:  # type: ignore[override]  # torch returns tensors
        """The mean of each distribution, estimated from 1000 samples if it has no closed form."""
        return self._each(lambda dist: take(dist, InteractionType.MEAN, (), _ESTIMATES))

    @property
    def mode(self) -> TensorDict:  # type: ignore[override]  # torch returns tensors
        """The mode of each distribution.

        Raises:
            NotImplementedError: A distribution has no mode.
        """
        return self._each(lambda dist: take(dist, InteractionType.MODE, (), _ESTIMATES))

    @property
    def deterministic_sample(self) -> TensorDict:
        """The deterministic value of each distribution, see `InteractionType`.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> composite.deterministic_sample["x"]
        tensor([0., 0., 0.])
        """
        return self._each(lambda dist: take(dist, InteractionType.DETERMINISTIC, (), _ESTIMATES))

    def sample(self, shape: Any = None) -> TensorDict:  # type: ignore[override]  # torch returns tensors
        """Draw a sample of each distribution.

        Args:
            shape: The shape of the samples in front of the batch size; one sample by default.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> composite.sample((5,)).batch_size
        torch.Size([5, 3])
        """
        shape = torch.Size([] if shape is None else shape)
        return self._each(lambda dist: dist.sample(shape), shape)

    def rsample(self, shape: Any = None) -> TensorDict:  # type: ignore[override]  # torch returns tensors
        """Draw a reparameterized sample of each distribution, so that gradients flow to the parameters.

        Args:
            shape: The shape of the samples in front of the batch size; one sample by default.

        Raises:
            NotImplementedError: A distribution has no ``rsample``.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> composite.rsample()["x"].shape
        torch.Size([3])
        """
        shape = torch.Size([] if shape is None else shape)
        return self._each(lambda dist: dist.rsample(shape), shape)

    # scores ----------------------------------------------------------------------------------------------------------

    def _scores(self, score: Callable[[Any, Any], Tensor], suffix: str, size: torch.Size) -> TensorDict:
        out = TensorDict({}, size)
        for key, dist in self.dists.items():
            out.set(with_suffix(key, suffix), score(key, dist))
        return out

    def _sum(self, scores: TensorDict) -> Tensor:
        dims = scores.ndim
        leaves = list(scores.values(True, True))
        return torch.stack([leaf.flatten(dims).sum(-1) if leaf.ndim > dims else leaf for leaf in leaves]).sum(0)

    def log_prob_composite(self, sample: Any, *, include_sum: bool | None = None) -> TensorDict:
        """Return the log-probability of each value at ``<key>_log_prob``, and their sum if ``include_sum``.

        Raises:
            RuntimeError: The sample is not a tensordict.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> sample = TensorDict({"x": torch.zeros(3)}, [3])
        >>> composite.log_prob_composite(sample, include_sum=True).sorted_keys
        ['sample_log_prob', 'x_log_prob']
        """
        if not isinstance(sample, TensorCollection):
            raise errors.not_a_sample(sample)
        scores = self._scores(lambda key, dist: dist.log_prob(sample.get(key)), "_log_prob", sample.batch_size)
        if composite_lp_aggregate() if include_sum is None else include_sum:
            scores.set(self.log_prob_key, self._sum(scores))
        return scores

    def log_prob(self, sample: Any) -> Any:
        """Return the log-probability of each value, or their sum if `composite_lp_aggregate` is true.

        Args:
            sample: A tensordict of a value for each distribution.

        Returns:
            A tensordict of ``<key>_log_prob``, or the sum as a tensor of the batch size of the sample.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> composite.log_prob(TensorDict({"x": torch.zeros(3)}, [3]))["x_log_prob"]
        tensor([-0.9189, -0.9189, -0.9189])
        """
        scores = self.log_prob_composite(sample, include_sum=False)
        return self._sum(scores) if composite_lp_aggregate() else scores

    def sample_and_log_prob(self, shape: Any = None) -> tuple[TensorDict, Any]:
        """Draw a sample and return it with its `log_prob`.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> sample, scores = composite.sample_and_log_prob()
        >>> bool((scores == composite.log_prob(sample)).all())
        True
        """
        sample = self.sample(shape)
        return sample, self.log_prob(sample)

    def rsample_and_log_prob(self, shape: Any = None) -> tuple[TensorDict, Any]:
        """Draw a reparameterized sample and return it with its `log_prob`.

        Raises:
            NotImplementedError: A distribution has no ``rsample``.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> sample, scores = composite.rsample_and_log_prob()
        >>> sample["x"].shape, scores["x_log_prob"].shape
        (torch.Size([3]), torch.Size([3]))
        """
        sample = self.rsample(shape)
        return sample, self.log_prob(sample)

    def entropy_composite(self, samples_mc: int = 1, *, include_sum: bool | None = None) -> TensorDict:
        """Return the entropy of each distribution at ``<key>_entropy``, and their sum if ``include_sum``.

        Args:
            samples_mc: The number of samples that estimate an entropy without a closed form.
            include_sum: Whether to include the sum.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> composite.entropy_composite()["x_entropy"]
        tensor([1.4189, 1.4189, 1.4189])
        """
        scores = self._scores(lambda _, dist: _entropy(dist, samples_mc), "_entropy", self.batch_shape)
        if composite_lp_aggregate() if include_sum is None else include_sum:
            scores.set(self.entropy_key, self._sum(scores))
        return scores

    def entropy(
        self, samples_mc: int = 1, *, aggregate_probabilities: bool | None = None, include_sum: bool | None = None
    ) -> Any:
        """Return the entropy of each distribution, or only their sum if `composite_lp_aggregate` is true.

        Args:
            samples_mc: The number of samples that estimate an entropy without a closed form.
            aggregate_probabilities: Deprecated, without effect; use `set_composite_lp_aggregate`.
            include_sum: Whether to include the sum beside the entropies.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(3), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [3]), dists)
        >>> composite.entropy(include_sum=True).sorted_keys
        ['entropy', 'x_entropy']
        """
        if aggregate_probabilities is not None:
            warnings.warn(
                "aggregate_probabilities has no effect; use set_composite_lp_aggregate",
                DeprecationWarning,
                stacklevel=2,
            )
        aggregate = composite_lp_aggregate()
        scores = self.entropy_composite(samples_mc, include_sum=not aggregate and bool(include_sum))
        return self._sum(scores) if aggregate else scores

    def cdf(self, sample: Any) -> Any:
        """Set the cumulative probability of each value at ``<key>_cdf`` of the sample, and return the sample.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(1), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [1]), dists)
        >>> composite.cdf(TensorDict({"x": torch.zeros(1)}, [1]))["x_cdf"]
        tensor([0.5000])
        """
        for key, dist in self.dists.items():
            sample.set(with_suffix(key, "_cdf"), dist.cdf(sample.get(key)))
        return sample

    def icdf(self, sample: Any) -> Any:
        """Set ``<key>_icdf`` to the quantile of the probability at ``<key>_cdf``, and return the sample.

        Without such an entry, the probability is that of the value, as `cdf` computes it.

        Raises:
            KeyError: The sample has neither of the two.

        >>> dists = {"x": torch.distributions.Normal(torch.zeros(1), 1.0)}
        >>> composite = CompositeDistribution.from_distributions(TensorDict({}, [1]), dists)
        >>> composite.icdf(TensorDict({"x_cdf": torch.tensor([0.5])}, [1]))["x_icdf"]
        tensor([0.])
        """
        for key, dist in self.dists.items():
            share = sample.get(with_suffix(key, "_cdf"), None)
            if share is None:
                value = sample.get(key, None)
                if value is None:
                    raise errors.no_probability(key, with_suffix(key, "_cdf"), sample.keys(True, True))
                share = dist.cdf(value)
            sample.set(with_suffix(key, "_icdf"), dist.icdf(share))
        return sample

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dists})"


def _entropy(dist: Any, samples: int) -> Tensor:
    try:
        known: Tensor = dist.entropy()
        return known
    except NotImplementedError:
        drawn = dist.rsample((samples,)) if dist.has_rsample else dist.sample((samples,))
        estimate: Tensor = -dist.log_prob(drawn).mean(0)
        return estimate
