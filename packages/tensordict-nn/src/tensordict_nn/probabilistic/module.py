"""`ProbabilisticTensorDictModule`: builds a distribution from entries of a tensordict and writes a value of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensordict_core import NestedKey, unravel_key
from tensordict_core.extension import TensorCollection
from tensordict_nn import distribution_errors, errors
from tensordict_nn.distributions.composite import CompositeDistribution, with_suffix
from tensordict_nn.distributions.delta import Delta
from tensordict_nn.modules.base import Keys, TensorDictModuleBase, as_keys, checked_keys, format_module
from tensordict_nn.modules.dispatch import dispatch
from tensordict_nn.modules.skipping import may_skip, skips
from tensordict_nn.probabilistic.generators import draw_with, resolve_generator
from tensordict_nn.sampling.aggregation import composite_lp_aggregate
from tensordict_nn.sampling.interaction import InteractionType, interaction_type, take

_SUM = "sample_log_prob"


def _is_below(key: Any, node: Any) -> bool:
    """Return whether a key is that of an entry of a node."""
    path = (node,) if isinstance(node, str) else node
    return isinstance(key, tuple) and key[: len(path)] == path


class ProbabilisticTensorDictModule(TensorDictModuleBase):
    """Builds a distribution from the entries ``in_keys`` and writes a value of it at ``out_keys``.

    The enclosing `set_interaction_type` block determines which value is written: a sample, the mean, the mode, ...;
    outside of such blocks, ``default_interaction_type`` does.

    Args:
        in_keys: The keys of the distribution's parameters, whose last levels are the names of the arguments; or a
            dictionary from names of arguments to keys.
        out_keys: The keys of values. By default the keys of the samples of a `CompositeDistribution`; for other
            distributions ``"_"``, which writes no value.
        default_interaction_type: Which value is written outside of a block.
        distribution_class: The class, or a function that makes a distribution from keyword arguments.
        distribution_kwargs: More keyword arguments for it.
        return_log_prob: Whether to write the log-probability of the value, too.
        log_prob_keys: The keys of log-probabilities, one for each value; by default ``<key>_log_prob``.
        log_prob_key: The key of a single log-probability.
        cache_dist: Accepted for compatibility, without effect.
        n_empirical_estimate: The number of samples that estimate a mean without a closed form.
        num_samples: The sample shape, the first dimensions of the result.
        generator: A ``torch.Generator``, a seed, or the key of an entry that holds either; a seed in an entry is
            replaced by the next one. By default the global generator.

    Raises:
        RuntimeError: ``log_prob_keys`` is given for a single log-probability, or ``log_prob_key`` for several.
        ValueError: A log-probability has the key of a value.

    >>> normal = torch.distributions.Normal
    >>> module = ProbabilisticTensorDictModule(
    ...     in_keys=["loc", "scale"], out_keys=["x"], distribution_class=normal, return_log_prob=True
    ... )
    >>> td = module(TensorDict({"loc": torch.zeros(1), "scale": torch.ones(1)}))
    >>> td["x"], td["x_log_prob"]
    (tensor([0.]), tensor([-0.9189]))
    """

    def __init__(
        self,
        in_keys: NestedKey | Sequence[NestedKey] | dict[str, NestedKey],
        out_keys: NestedKey | Sequence[NestedKey] | None = None,
        *,
        default_interaction_type: InteractionType | str = InteractionType.DETERMINISTIC,
        distribution_class: Callable[..., Any] = Delta,
        distribution_kwargs: dict[str, Any] | None = None,
        return_log_prob: bool = False,
        log_prob_keys: Sequence[NestedKey] | None = None,
        log_prob_key: NestedKey | None = None,
        cache_dist: bool = False,
        n_empirical_estimate: int = 1000,
        num_samples: int | Sequence[int] | None = None,
        generator: torch.Generator | int | NestedKey | None = None,
    ) -> None:
        super().__init__()
        if isinstance(in_keys, dict):
            if not in_keys or not all(isinstance(name, str) for name in in_keys):
                raise errors.bad_keys("in_keys", in_keys)
            self.in_keys = checked_keys(list(in_keys.values()), "in_keys")
            self._arguments = list(in_keys)
        else:
            self.in_keys = checked_keys(in_keys, "in_keys")
            self._arguments = [key if isinstance(key, str) else key[-1] for key in self.in_keys]
        if distribution_class is Delta and len(self._arguments) == 1 and not isinstance(in_keys, dict):
            self._arguments = ["param"]
        self.distribution_class = distribution_class
        # a module here is registered, so that it moves with this one
        self.distribution_kwargs = distribution_kwargs if distribution_kwargs is not None else {}
        self.default_interaction_type = InteractionType(default_interaction_type)
        self.return_log_prob = return_log_prob
        self._composite_lp_aggreate_at_init = composite_lp_aggregate()  # spelled as subclasses of programs read it
        self.cache_dist = cache_dist
        self.n_empirical_estimate = n_empirical_estimate
        self.num_samples = (
            None if num_samples is None else torch.Size([num_samples] if isinstance(num_samples, int) else num_samples)
        )
        if not (generator is None or isinstance(generator, torch.Generator | int | str | tuple)):
            raise distribution_errors.bad_generator(generator)
        self.generator = torch.Generator().manual_seed(generator) if isinstance(generator, int) else generator
        self._sampled = self._component_keys() if out_keys is None else checked_keys(out_keys, "out_keys")
        self._scored = self._score_keys(log_prob_keys, log_prob_key)
        self.out_keys = [*self._sampled, *(self._scored if return_log_prob else [])]

    def _component_keys(self) -> Keys:
        kwargs = self.distribution_kwargs
        if "distribution_map" not in kwargs:
            return ["_"]
        names = {unravel_key(key): value for key, value in (kwargs.get("name_map") or {}).items()}
        return [unravel_key(names.get(unravel_key(key), key)) for key in kwargs["distribution_map"]]

    def _score_keys(self, keys: Sequence[NestedKey] | None, key: NestedKey | None) -> Keys:
        if composite_lp_aggregate():
            if keys is not None:
                raise distribution_errors.one_sum_key()
            scored = [_SUM if key is None else unravel_key(key)]
        elif keys is not None:
            scored = as_keys(list(keys))
        elif key is not None:
            if len(self._sampled) > 1:
                raise distribution_errors.no_sum_key(self._sampled)
            scored = [unravel_key(key)]
        else:
            scored = [_SUM if one == "_" else with_suffix(one, "_log_prob") for one in self._sampled]
        for one in scored:
            if one in self._sampled:
                raise distribution_errors.key_taken(one)
        return scored

    # keys ------------------------------------------------------------------------------------------------------------

    @property
    def log_prob_keys(self) -> Keys:
        """The keys of log-probabilities, one for each value.

        >>> normal = torch.distributions.Normal
        >>> module = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=normal)
        >>> module.log_prob_keys
        ['x_log_prob']
        """
        return self._scored

    @property
    def log_prob_key(self) -> Any:
        """The key of the single log-probability.

        Raises:
            RuntimeError: There are several log-probabilities.

        >>> normal = torch.distributions.Normal
        >>> module = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=normal)
        >>> module.log_prob_key
        'x_log_prob'
        """
        keys = self.log_prob_keys
        if len(keys) > 1:
            raise distribution_errors.no_sum_key(keys)
        return keys[0]

    @property
    def dist_keys(self) -> list[str]:
        """The names of the distribution's parameters, in the order of the keys that hold them.

        >>> normal = torch.distributions.Normal
        >>> module = ProbabilisticTensorDictModule({"loc": "mean", "scale": "std"}, ["x"], distribution_class=normal)
        >>> module.dist_keys, module.dist_params_keys
        (['loc', 'scale'], ['mean', 'std'])
        """
        return list(self._arguments)

    @property
    def dist_params_keys(self) -> Keys:
        """The keys of the distribution's parameters.

        >>> normal = torch.distributions.Normal
        >>> module = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=normal)
        >>> module.dist_params_keys
        ['loc', 'scale']
        """
        return self.in_keys

    @property
    def dist_sample_keys(self) -> Keys:
        """The keys of values.

        >>> normal = torch.distributions.Normal
        >>> module = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=normal)
        >>> module.dist_sample_keys
        ['x']
        """
        return self._sampled

    # distributions ---------------------------------------------------------------------------------------------------

    def get_dist(self, tensordict: Any) -> Any:
        """Make the distribution.

        Args:
            tensordict: The tensordict with the parameters.

        Raises:
            KeyError: A parameter is missing; the error is a `ValueError` and a `TypeError`, too.

        >>> normal = torch.distributions.Normal
        >>> module = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=normal)
        >>> module.get_dist(TensorDict({"loc": torch.zeros(1), "scale": torch.ones(1)}))
        Normal(loc: tensor([0.]), scale: tensor([1.]))
        """
        values = [tensordict.get(key, None) for key in self.in_keys]
        absent = [key for key, value in zip(self.in_keys, values, strict=True) if value is None]
        if absent:
            raise errors.missing_inputs(self, absent, tensordict.keys())
        arguments = dict(zip(self._arguments, values, strict=True))
        extra = self.distribution_kwargs
        if isinstance(extra, TensorCollection):  # non-tensor data is passed as its value
            extra = dict(zip(extra.keys(), map(extra.__getitem__, extra.keys()), strict=True))
        try:
            return self.distribution_class(**arguments, **(extra if type(extra) is dict else dict(extra.items())))
        except Exception as error:
            error.add_note(distribution_errors.bad_parameters(self.distribution_class, self.in_keys))
            raise

    def build_dist_from_params(self, tensordict: Any) -> Any:
        """Make the distribution, like `get_dist`.

        >>> normal = torch.distributions.Normal
        >>> module = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=normal)
        >>> module.build_dist_from_params(TensorDict({"loc": torch.zeros(1), "scale": torch.ones(1)})).mean
        tensor([0.])
        """
        return self.get_dist(tensordict)

    def log_prob(self, tensordict: Any, *, dist: Any = None) -> Any:
        """Return the log-probability of the values in a tensordict.

        Args:
            tensordict: The tensordict of the values and, without ``dist``, of the parameters.
            dist: The distribution.

        Returns:
            A tensor; for a `CompositeDistribution` a tensordict, unless `composite_lp_aggregate` is set.

        >>> normal = torch.distributions.Normal
        >>> module = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=normal)
        >>> module.log_prob(TensorDict({"loc": torch.zeros(1), "scale": torch.ones(1), "x": torch.ones(1)}))
        tensor([-1.4189])
        """
        dist = self.get_dist(tensordict) if dist is None else dist
        return dist.log_prob(
            tensordict if isinstance(dist, CompositeDistribution) else tensordict.get(self._sampled[0])
        )

    # running ---------------------------------------------------------------------------------------------------------

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any, tensordict_out: Any = None, _requires_sample: bool = True) -> Any:
        """Make the distribution and write a value of it.

        Args:
            tensordict: The tensordict with the parameters.
            tensordict_out: The tensordict into which the results are written; by default ``tensordict``.

        Returns:
            The tensordict with the values; with ``num_samples``, a copy expanded by the sample shape.
        """
        skipping = may_skip() and tensordict_out is None
        if skipping and skips(self.in_keys, self.out_keys_source, tensordict):
            return tensordict
        dist = self.get_dist(tensordict)
        out = tensordict if tensordict_out is None else tensordict_out
        if not _requires_sample:  # the value that the tensordict has is scored
            if self.return_log_prob:
                own = tensordict if isinstance(dist, CompositeDistribution) else tensordict.get(self._sampled[0])
                self._write_scores(out, dist, own, None)
            return out
        value, scores = self._take(dist, tensordict)
        if self.num_samples is not None:
            out = out.expand(*self.num_samples, *out.batch_size)
        self._write_values(out, value)
        if self.return_log_prob:
            self._write_scores(out, dist, value, scores)
        return out

    # names that subclasses of published programs use ------------------------------------------------------------------

    _CHANGE_IN_C_LP_A = "composite_lp_aggregate() is {2} now and was {1} when this {0} was made; make it anew"

    def _update_td_lp(self, log_prob: Any) -> None:
        """Give the log-probabilities of components the keys of this module, in place."""
        for key, component in zip(self._scored, self._sampled, strict=False):
            made = with_suffix(component, "_log_prob")
            if key != made and made in log_prob:
                log_prob.rename_key_(made, key)

    def _resolve_generator(self, tensordict: Any) -> Any:
        """Return the generator that draws and a function that stores the next seed; published programs call it."""
        return resolve_generator(self.generator, tensordict)

    def _dist_sample(self, dist: Any, interaction_type: InteractionType | None = None) -> Any:
        """Return a value of a distribution, by the given interaction type or the default one."""
        how = self.default_interaction_type if interaction_type is None else interaction_type
        return take(dist, how, self.num_samples or torch.Size(), self.n_empirical_estimate)

    def _take(self, dist: Any, td: Any) -> tuple[Any, Any]:
        """Return a value, and its log-probability if the distribution computes both at once."""
        how = interaction_type() or self.default_interaction_type
        shape = torch.Size() if self.num_samples is None else self.num_samples
        if how is InteractionType.RANDOM and self.return_log_prob:
            name = "rsample_and_log_prob" if dist.has_rsample else "sample_and_log_prob"
            both = getattr(dist, name, None)
            if both is not None:
                value, scores = draw_with(self.generator, td, lambda: both(shape))
                return value, scores
        estimates = self.n_empirical_estimate
        value = draw_with(self.generator, td, lambda: take(dist, how, shape, estimates))
        if how is not InteractionType.RANDOM and self.num_samples is not None:
            size = (*shape, *(value.batch_size if isinstance(value, TensorCollection) else value.shape))
            value = value.expand(*size)
        return value, None

    def _write_values(self, td: Any, value: Any) -> None:
        if isinstance(value, TensorCollection):
            td.update(value)
            return
        values = value if isinstance(value, tuple) else (value,)
        if len(values) != len(self._sampled):
            raise errors.wrong_count(self, len(values), self._sampled)
        for key, one in zip(self._sampled, values, strict=True):
            if key != "_":
                td.set(key, one)

    def _write_scores(self, td: Any, dist: Any, value: Any, scores: Any) -> None:
        if not isinstance(dist, CompositeDistribution):
            td.set(self.log_prob_key, dist.log_prob(value) if scores is None else scores)
            return
        each = dist.log_prob_composite(value, include_sum=False)
        if composite_lp_aggregate():
            td.update(each)
            td.set(self.log_prob_key, dist._sum(each))
        else:
            components = dist.keys() if self._sampled == ["_"] else self._sampled
            for key, component in zip(self._scored, components, strict=True):
                if component in dist:
                    td.set(key, each[with_suffix(component, "_log_prob")])
                    continue
                parts = [part for part, _ in dist.items() if _is_below(part, component)]
                if not parts:
                    raise distribution_errors.no_component(component, dist.keys())
                td.update(each.select(*(with_suffix(part, "_log_prob") for part in parts)))

    def __repr__(self) -> str:
        keys = {"in_keys": self.in_keys, "out_keys": self.out_keys}
        names = ("distribution_class", "distribution_kwargs", "default_interaction_type", "num_samples")
        return format_module(self, **keys, **{name: getattr(self, name) for name in names})
