"""`ProbabilisticTensorDictSequential`: a sequence that knows the distribution of what it samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict_core import NestedKey, TensorDict
from tensordict_nn import errors
from tensordict_nn.base import Keys
from tensordict_nn.distributions.composite import CompositeDistribution
from tensordict_nn.probabilistic.interaction import InteractionType
from tensordict_nn.probabilistic.module import ProbabilisticTensorDictModule
from tensordict_nn.sequential import TensorDictSequential

__all__ = ["ProbabilisticTensorDictSequential"]


class ProbabilisticTensorDictSequential(TensorDictSequential):
    """Modules in a row, of which the last, or several, are probabilistic.

    `get_dist` and `log_prob` are conditional: where the parameters of one depend on values of another, the values that
    the tensordict has are taken as given.

    Args:
        *modules: As for `TensorDictSequential`.
        partial_tolerant: Whether a module whose inputs are not all there is passed over.
        return_composite: Whether `get_dist` gives a `CompositeDistribution` of all of them rather than the last one's
            distribution; by default if there are several, or the last module is not probabilistic.
        selected_out_keys: The ``out_keys`` to keep.
        inplace: Where results go, as for `TensorDictSequential`.

    Raises:
        TypeError: There is no probabilistic module, or the last one is none and ``return_composite`` is false.

    >>> from tensordict_nn import TensorDictModule
    >>> policy = ProbabilisticTensorDictSequential(
    ...     TensorDictModule(lambda x: (x, x + 1), in_keys=["x"], out_keys=["loc", "scale"]),
    ...     ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=torch.distributions.Normal),
    ... )
    >>> policy.get_dist(TensorDict({"x": torch.zeros(1)})), policy(x=torch.zeros(1))[-1]
    (Normal(loc: tensor([0.]), scale: tensor([1.])), tensor([0.]))
    """

    def __init__(
        self,
        *modules: Any,
        partial_tolerant: bool = False,
        return_composite: bool | None = None,
        selected_out_keys: Sequence[NestedKey] | None = None,
        inplace: bool | str | None = None,
    ) -> None:
        super().__init__(
            *modules, partial_tolerant=partial_tolerant, selected_out_keys=selected_out_keys, inplace=inplace
        )
        self._check(return_composite)
        self._asked_composite = return_composite

    def _check(self, return_composite: bool | None) -> None:
        if not self._probabilistic():
            raise errors.no_distribution(self)
        last = self[-1]
        if return_composite is False and not isinstance(last, (*_KINDS, ProbabilisticTensorDictSequential)):
            raise errors.not_probabilistic(last)

    def _probabilistic(self) -> list[ProbabilisticTensorDictModule]:
        """The probabilistic modules, those of nested sequences included."""
        found: list[ProbabilisticTensorDictModule] = []
        for module in self:
            if isinstance(module, ProbabilisticTensorDictSequential):
                found += module._probabilistic()
            elif isinstance(module, _KINDS):
                found.append(module)
        return found

    @property
    def return_composite(self) -> bool:
        """Whether `get_dist` gives a `CompositeDistribution`."""
        if self._asked_composite is not None:
            return self._asked_composite
        return len(self._probabilistic()) > 1 or not isinstance(self[-1], (*_KINDS, ProbabilisticTensorDictSequential))

    def _with(self, modules: Any) -> Any:
        """A sequence of other modules; without a probabilistic one it is a plain sequence."""
        items = modules.values() if isinstance(modules, dict) else modules
        kind: Any = TensorDictSequential
        if any(isinstance(module, (*_KINDS, ProbabilisticTensorDictSequential)) for module in items):
            kind = type(self)
        given = (modules,) if isinstance(modules, dict) else modules
        return kind(*given, partial_tolerant=self.partial_tolerant, inplace=self.inplace)

    # what is known of the last one, or of all ------------------------------------------------------------------------

    def _last(self) -> ProbabilisticTensorDictModule:
        return self._probabilistic()[-1]

    @property
    def det_part(self) -> TensorDictSequential:
        """The modules before the last one."""
        return TensorDictSequential(*list(self)[:-1])

    @property
    def default_interaction_type(self) -> InteractionType:
        """That of the last probabilistic module."""
        return self._last().default_interaction_type

    @property
    def num_samples(self) -> Any:
        """The number of values of the last probabilistic module."""
        return self._last().num_samples

    @property
    def log_prob_keys(self) -> Keys:
        """The keys of log-probabilities, of all probabilistic modules."""
        return [key for module in self._probabilistic() for key in module.log_prob_keys]

    @property
    def log_prob_key(self) -> Any:
        """The key of the log-probability, where there is one.

        Raises:
            RuntimeError: There are several.
        """
        keys = self.log_prob_keys
        if len(keys) > 1:
            raise errors.no_sum_key(keys)
        return keys[0]

    @property
    def dist_params_keys(self) -> Keys:
        """The keys of parameters, of all probabilistic modules."""
        return [key for module in self._probabilistic() for key in module.dist_params_keys]

    @property
    def dist_sample_keys(self) -> Keys:
        """The keys of values, of all probabilistic modules."""
        return [key for module in self._probabilistic() for key in module.dist_sample_keys]

    # distributions ---------------------------------------------------------------------------------------------------

    def get_dist_params(self, tensordict: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        """The tensordict with the parameters of the last distribution.

        Args:
            tensordict: Has the first inputs.
            tensordict_out: Where they go; by default into a copy.
            **kwargs: More arguments for every module.
        """
        out = tensordict.copy() if tensordict_out is None else tensordict_out.update(tensordict)
        for module in list(self)[:-1]:
            out = module(out, **kwargs)
        return out

    def get_dist(self, tensordict: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        """The distribution of what the sequence samples; the tensordict stays as it is.

        Args:
            tensordict: Has the first inputs; values that later modules depend on are drawn unless it has them.
            tensordict_out: Takes what is computed on the way.
            **kwargs: More arguments for every module.
        """
        out = tensordict.copy() if tensordict_out is None else tensordict_out.update(tensordict)
        dists: dict[Any, Any] = {}
        self._walk(out, dists, kwargs)
        if not self.return_composite:
            return dists[tuple(self._last().dist_sample_keys)]
        named: dict[Any, Any] = {}
        for keys, dist in dists.items():
            named.update(dist.items() if isinstance(dist, CompositeDistribution) else {keys[0]: dist})
        return CompositeDistribution.from_distributions(TensorDict({}, out.batch_size), named)

    def _walk(self, td: Any, dists: dict[Any, Any], kwargs: dict[str, Any]) -> None:
        """Run the modules, and note the distribution of each probabilistic one."""
        for module in self:
            if isinstance(module, ProbabilisticTensorDictSequential):
                module._walk(td, dists, kwargs)
            elif isinstance(module, _KINDS):
                dists[tuple(module.dist_sample_keys)] = module.get_dist(td)
                if not all(key in td for key in module.dist_sample_keys if key != "_"):
                    module(td)
            else:
                module(td, **kwargs)

    def build_dist_from_params(self, tensordict: Any) -> Any:
        """The distribution of the last module, of parameters that are in a tensordict already."""
        return self._last().build_dist_from_params(tensordict)

    def log_prob(self, tensordict: Any, tensordict_out: Any = None, *, dist: Any = None, **kwargs: Any) -> Any:
        """The log-probability of the values in a tensordict.

        Args:
            tensordict: Has the first inputs and the values.
            tensordict_out: Takes what is computed on the way.
            dist: The distribution, if it is known.
            **kwargs: More arguments for every module.

        Returns:
            A tensor; for a `CompositeDistribution` a tensordict, unless `composite_lp_aggregate` is set.
        """
        dist = self.get_dist(tensordict, tensordict_out, **kwargs) if dist is None else dist
        return self._last().log_prob(tensordict, dist=dist)


_KINDS = (ProbabilisticTensorDictModule,)
