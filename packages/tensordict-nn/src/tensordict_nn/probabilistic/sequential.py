"""`ProbabilisticTensorDictSequential`: a sequence of modules with probabilistic ones, and its distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict_core import NestedKey, TensorDict
from tensordict_nn import errors
from tensordict_nn.base import Keys
from tensordict_nn.distributions.composite import CompositeDistribution
from tensordict_nn.probabilistic.module import ProbabilisticTensorDictModule
from tensordict_nn.sampling.interaction import InteractionType
from tensordict_nn.sequential import TensorDictSequential

__all__ = ["ProbabilisticTensorDictSequential"]


class ProbabilisticTensorDictSequential(TensorDictSequential):
    """A sequence of modules, of which the last or several are probabilistic.

    `get_dist` and `log_prob` are conditional: if the parameters of one distribution depend on values of another one,
    they use the values in the tensordict.

    Args:
        *modules: See `TensorDictSequential`.
        partial_tolerant: Whether a module with missing inputs is skipped.
        return_composite: Whether `get_dist` returns a `CompositeDistribution` of all distributions instead of the last
            one; True by default if there are several, or if the last module is not probabilistic.
        selected_out_keys: The ``out_keys`` to keep.
        inplace: Where results are written, see `TensorDictSequential`.

    Raises:
        TypeError: No module is probabilistic, or the last one is not and ``return_composite`` is False.

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
        """Returns the probabilistic modules, including those of nested sequences."""
        found: list[ProbabilisticTensorDictModule] = []
        for module in self:
            if isinstance(module, ProbabilisticTensorDictSequential):
                found += module._probabilistic()
            elif isinstance(module, _KINDS):
                found.append(module)
        return found

    @property
    def return_composite(self) -> bool:
        """Whether `get_dist` returns a `CompositeDistribution`."""
        if self._asked_composite is not None:
            return self._asked_composite
        return len(self._probabilistic()) > 1 or not isinstance(self[-1], (*_KINDS, ProbabilisticTensorDictSequential))

    def _with(self, modules: Any) -> Any:
        """Makes a sequence of other modules, which is a plain one if no module is probabilistic."""
        items = modules.values() if isinstance(modules, dict) else modules
        kind: Any = TensorDictSequential
        if any(isinstance(module, (*_KINDS, ProbabilisticTensorDictSequential)) for module in items):
            kind = type(self)
        given = (modules,) if isinstance(modules, dict) else modules
        return kind(*given, partial_tolerant=self.partial_tolerant, inplace=self.inplace)

    # properties of the probabilistic modules -----------------------------------------------------------------------

    def _last(self) -> ProbabilisticTensorDictModule:
        return self._probabilistic()[-1]

    @property
    def det_part(self) -> TensorDictSequential:
        """The modules before the last one."""
        return TensorDictSequential(*list(self)[:-1])

    @property
    def default_interaction_type(self) -> InteractionType:
        """The default interaction type of the last probabilistic module."""
        return self._last().default_interaction_type

    @property
    def num_samples(self) -> Any:
        """The sample shape of the last probabilistic module."""
        return self._last().num_samples

    @property
    def log_prob_keys(self) -> Keys:
        """The keys of log-probabilities, of all probabilistic modules."""
        return [key for module in self._probabilistic() for key in module.log_prob_keys]

    log_prob_key = ProbabilisticTensorDictModule.log_prob_key

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
        """Computes the parameters of the last distribution.

        Args:
            tensordict: The tensordict of the inputs.
            tensordict_out: The tensordict that takes the results; a copy by default.
            **kwargs: More keyword arguments for every module.
        """
        out = tensordict.copy() if tensordict_out is None else tensordict_out.update(tensordict)
        for module in list(self)[:-1]:
            out = module(out, **kwargs)
        return out

    def get_dist(self, tensordict: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        """Makes the distribution of the outputs; the tensordict stays unchanged.

        Args:
            tensordict: The tensordict of the inputs; missing values that later modules read are drawn.
            tensordict_out: The tensordict that takes intermediate results.
            **kwargs: More keyword arguments for every module.
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
        """Runs the modules, and collects the distribution of each probabilistic one."""
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
        """Makes the distribution of the last module from parameters in a tensordict."""
        return self._last().build_dist_from_params(tensordict)

    def log_prob(self, tensordict: Any, tensordict_out: Any = None, *, dist: Any = None, **kwargs: Any) -> Any:
        """Returns the log-probability of the values in a tensordict.

        Args:
            tensordict: The tensordict of the inputs and the values.
            tensordict_out: The tensordict that takes intermediate results.
            dist: The distribution, if it is known.
            **kwargs: More keyword arguments for every module.

        Returns:
            A tensor; for a `CompositeDistribution` a tensordict, unless `composite_lp_aggregate` is set.
        """
        dist = self.get_dist(tensordict, tensordict_out, **kwargs) if dist is None else dist
        return self._last().log_prob(tensordict, dist=dist)


_KINDS = (ProbabilisticTensorDictModule,)
