"""`ProbabilisticTensorDictSequential`: a sequence of modules with probabilistic ones, and its distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensordict_core import NestedKey, TensorDict
from tensordict_nn import distribution_errors
from tensordict_nn.distributions.composite import CompositeDistribution
from tensordict_nn.modules.base import Keys
from tensordict_nn.modules.sequential import TensorDictSequential, chained_keys, copy_entries
from tensordict_nn.probabilistic.module import ProbabilisticTensorDictModule
from tensordict_nn.sampling.interaction import InteractionType, imply, interaction_type


class ProbabilisticTensorDictSequential(TensorDictSequential):
    """A sequence of modules, of which the last one or several are probabilistic.

    `get_dist` and `log_prob` are conditional: if the parameters of one distribution depend on the value of another,
    they use the value in the tensordict. Outside of `set_interaction_type` blocks, all modules of a sequence with one
    distribution use its ``default_interaction_type``.

    Args:
        *modules: See `TensorDictSequential`.
        partial_tolerant: Whether a module with missing inputs is skipped.
        return_composite: Whether `get_dist` returns a `CompositeDistribution` of all distributions instead of the last
            one; True by default if there are several, or if the last module is not probabilistic.
        selected_out_keys: The ``out_keys`` to keep.
        inplace: Where results are written, see `TensorDictSequential`.

    Raises:
        ValueError: There are no modules.
        TypeError: The last module is not probabilistic, and ``return_composite`` is False.

    >>> from tensordict_nn import TensorDictModule
    >>> policy = ProbabilisticTensorDictSequential(
    ...     TensorDictModule(lambda x: (x, x + 1), in_keys=["x"], out_keys=["loc", "scale"]),
    ...     ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=torch.distributions.Normal),
    ... )
    >>> policy.get_dist(TensorDict({"x": torch.zeros(1)})), policy(x=torch.zeros(1))[-1]
    (Normal(loc: tensor([0.]), scale: tensor([1.])), tensor([0.]))
    """

    _ruling: Any = None

    def __init__(
        self,
        *modules: Any,
        partial_tolerant: bool = False,
        return_composite: bool | None = None,
        selected_out_keys: Sequence[NestedKey] | None = None,
        inplace: bool | str | None = None,
    ) -> None:
        # the next class of a subclass with several bases may take fewer arguments
        options: dict[str, Any] = {"partial_tolerant": True} if partial_tolerant else {}
        if inplace is not None:
            options["inplace"] = inplace
        super().__init__(*modules, **options)
        if not len(self):
            raise distribution_errors.no_distribution(self)
        if return_composite is False and not self._ends_probabilistic():
            raise distribution_errors.not_probabilistic(self[-1])
        self._asked_composite = return_composite
        self._find_ruling()
        if selected_out_keys is not None:
            self.select_out_keys(*selected_out_keys)

    def _connect(self) -> None:
        super()._connect()
        if "_asked_composite" in self.__dict__:
            self._find_ruling()

    def _find_ruling(self) -> None:
        """Note the module whose default interaction type holds, and whether earlier modules write the last values.

        The default interaction type of a module holds for the sequence if that has one distribution.
        """
        # not through `__setattr__`, which would register the module again
        modules = [] if self.return_composite else self._probabilistic()
        self.__dict__["_ruling"] = modules[-1] if modules else None
        last = self[-1] if len(self) else None
        known = chained_keys(list(self)[:-1])[1] if isinstance(last, _KINDS) else []
        keys = last.dist_sample_keys if isinstance(last, _KINDS) else []
        self.__dict__["_requires_sample"] = not keys or not all(key in known for key in keys)

    def _ends_probabilistic(self) -> bool:
        last = self[-1] if len(self) else None
        return isinstance(last, (*_KINDS, ProbabilisticTensorDictSequential))

    def _probabilistic(self) -> list[ProbabilisticTensorDictModule]:
        """Return the probabilistic modules, including those of nested sequences."""
        found: list[ProbabilisticTensorDictModule] = []
        for module in self:
            if isinstance(module, ProbabilisticTensorDictSequential):
                found += module._probabilistic()
            elif isinstance(module, _KINDS):
                found.append(module)
        return found

    @property
    def return_composite(self) -> bool:
        """Whether `get_dist` returns a `CompositeDistribution`.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.return_composite, ProbabilisticTensorDictSequential(draw, return_composite=True).return_composite
        (False, True)
        """
        if self._asked_composite is not None:
            return self._asked_composite
        return not self._ends_probabilistic() or (len(self._probabilistic()) > 1 and isinstance(self[-1], _KINDS))

    def _with(self, modules: Any) -> Any:
        """Make a sequence of other modules, which is a plain one if no module is probabilistic."""
        items = modules.values() if isinstance(modules, dict) else modules
        if any(isinstance(module, (*_KINDS, ProbabilisticTensorDictSequential)) for module in items):
            return self._subsequence(modules)
        return self._like(modules, TensorDictSequential)

    # properties of the probabilistic modules -----------------------------------------------------------------------

    def _last(self) -> ProbabilisticTensorDictModule:
        modules = self._probabilistic()
        if not modules:
            raise distribution_errors.no_distribution(self)
        return modules[-1]

    @property
    def det_part(self) -> TensorDictSequential | None:
        """The modules before the last one; ``None`` if no module is probabilistic.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.det_part.out_keys
        ['loc', 'scale']
        """
        return TensorDictSequential(*list(self)[:-1]) if self._probabilistic() else None

    @property
    def default_interaction_type(self) -> InteractionType | None:
        """The default interaction type of the last probabilistic module; ``None`` if there is none.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.default_interaction_type
        <InteractionType.DETERMINISTIC...>
        """
        modules = self._probabilistic()
        return modules[-1].default_interaction_type if modules else None

    @property
    def num_samples(self) -> Any:
        """The sample shape of the last probabilistic module; empty if there is none.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.num_samples
        torch.Size([])
        """
        modules = self._probabilistic()
        return (modules[-1].num_samples if modules else None) or torch.Size()

    @property
    def log_prob_keys(self) -> Keys:
        """The keys of log-probabilities, of all probabilistic modules, the last one first.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.log_prob_keys
        ['x_log_prob']
        """
        return [key for module in reversed(self._probabilistic()) for key in module.log_prob_keys]

    @property
    def log_prob_key(self) -> Any:
        """The key of the single log-probability.

        Raises:
            RuntimeError: There are several log-probabilities, or none.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.log_prob_key
        'x_log_prob'
        """
        keys = self.log_prob_keys
        if not keys:
            raise distribution_errors.no_distribution(self)
        if len(keys) > 1:
            raise distribution_errors.no_sum_key(keys)
        return keys[0]

    @property
    def dist_params_keys(self) -> Keys:
        """The keys of parameters, of all probabilistic modules, the last one first.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.dist_params_keys
        ['loc', 'scale']
        """
        return [key for module in reversed(self._probabilistic()) for key in module.dist_params_keys]

    @property
    def dist_sample_keys(self) -> Keys:
        """The keys of values, of all probabilistic modules, the last one first.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.dist_sample_keys
        ['x']
        """
        return [key for module in reversed(self._probabilistic()) for key in module.dist_sample_keys]

    # running ---------------------------------------------------------------------------------------------------------

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Accept keyword arguments, which go to the modules that are not probabilistic."""

    def _call(self, module: Any, td: Any, kwargs: dict[str, Any]) -> Any:
        return module(td) if isinstance(module, _KINDS) else module(td, **kwargs)

    def _run(self, td: Any, kwargs: dict[str, Any]) -> Any:
        draws = kwargs.pop("_requires_sample", True) and self._requires_sample
        run = super()._run if draws else self._run_and_score
        ruling = self._ruling
        if ruling is None or interaction_type() is not None:
            return run(td, kwargs)
        earlier = imply(ruling.default_interaction_type)
        try:
            return run(td, kwargs)
        finally:
            imply(earlier)

    def _run_and_score(self, td: Any, kwargs: dict[str, Any]) -> Any:
        """Run the modules where earlier ones write the values of the last one, which it scores and does not draw."""
        *earlier, last = self
        for module in earlier:
            run = self._run_where_possible if self.partial_tolerant else self._call
            td = run(module, td, kwargs)
        return last(td, _requires_sample=False)

    def _dist_sample(self, dist: Any, interaction_type: InteractionType | None = None) -> Any:
        """Return a value of a distribution, as the last probabilistic module does; published programs call it."""
        return self._last()._dist_sample(dist, interaction_type)

    # distributions ---------------------------------------------------------------------------------------------------

    def get_dist_params(self, tensordict: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        """Compute the parameters of the last distribution.

        Values that the tensordict already has are not drawn again.

        Args:
            tensordict: The tensordict with the inputs, into which the results are written by default.
            tensordict_out: A tensordict into which the results are written instead.
            **kwargs: More keyword arguments for every module.

        Returns:
            The tensordict with the results.

        Raises:
            ValueError: No module is probabilistic.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.get_dist_params(TensorDict({"a": torch.zeros(1)}))["scale"]
        tensor([1.])
        """
        if not self._probabilistic():
            raise distribution_errors.no_distribution(self)
        modules = list(self)[:-1]
        if tensordict_out is None:
            return self._walk(modules, tensordict, {}, kwargs)
        result = self._walk(modules, tensordict.copy(), {}, kwargs)
        copy_entries(result, tensordict_out, chained_keys(modules)[1])
        return tensordict_out

    def get_dist(self, tensordict: Any, tensordict_out: Any = None, **kwargs: Any) -> Any:
        """Build the distribution of the outputs.

        For a single distribution, its parameters are written into the tensordict. For a composite, the tensordict is
        not changed, and missing values that later modules read are drawn.

        Args:
            tensordict: The tensordict with the inputs, into which the parameters are written by default.
            tensordict_out: A tensordict into which the parameters are written instead.
            **kwargs: More keyword arguments for every module.

        Raises:
            RuntimeError: No module is probabilistic.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.get_dist(TensorDict({"a": torch.zeros(1)}))
        Normal(loc: tensor([0.]), scale: tensor([1.]))
        """
        if not self.return_composite:
            out = self.get_dist_params(tensordict, tensordict_out, **kwargs)
            if tensordict_out is not None:  # the last module may read an input of the sequence, too
                out = tensordict.copy().update(out)
            return self[-1].get_dist(out)
        if not self._probabilistic():
            raise distribution_errors.no_distribution(self)
        dists: dict[Any, Any] = {}
        out = self._walk(list(self), tensordict.copy(), dists, kwargs)
        named: dict[Any, Any] = {}
        for keys, dist in dists.items():
            named.update(dist.items() if isinstance(dist, CompositeDistribution) else {keys[0]: dist})
        return CompositeDistribution.from_distributions(TensorDict({}, out.batch_size), named)

    def _walk(self, modules: list[Any], td: Any, dists: dict[Any, Any], kwargs: dict[str, Any]) -> Any:
        """Run modules, and collect the distribution of each probabilistic one.

        Args:
            modules: The modules of this sequence to run.
            td: The tensordict that they read and write.
            dists: Receives the distributions, by the keys of their values.
            kwargs: More keyword arguments for every other module.

        Returns:
            The tensordict with the results, which ``num_samples`` expands.
        """
        ruling = self._ruling
        implies = ruling is not None and interaction_type() is None
        earlier = imply(ruling.default_interaction_type) if implies else None
        try:
            for module in modules:
                if isinstance(module, ProbabilisticTensorDictSequential):
                    td = module._walk(list(module), td, dists, kwargs)
                elif isinstance(module, _KINDS):
                    dists[tuple(module.dist_sample_keys)] = module.get_dist(td)
                    if not all(key in td for key in module.dist_sample_keys if key != "_"):
                        td = module(td)
                else:
                    td = self._call(module, td, kwargs)
            return td
        finally:
            if implies:
                imply(earlier)

    def build_dist_from_params(self, tensordict: Any) -> Any:
        """Make the distribution of the last probabilistic module from parameters in a tensordict.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.build_dist_from_params(TensorDict({"loc": torch.zeros(1), "scale": torch.ones(1)})).mean
        tensor([0.])
        """
        return self._last().build_dist_from_params(tensordict)

    def log_prob(self, tensordict: Any, tensordict_out: Any = None, *, dist: Any = None, **kwargs: Any) -> Any:
        """Return the log-probability of the values in a tensordict.

        Args:
            tensordict: The tensordict with the inputs and the values; the parameters of a single distribution are
                written into it.
            tensordict_out: If given, neither tensordict is changed.
            dist: The distribution, if it is known.
            **kwargs: More keyword arguments for every module.

        Returns:
            A tensor; for a `CompositeDistribution` a tensordict, unless `composite_lp_aggregate` is set.

        Raises:
            RuntimeError: No module is probabilistic.

        >>> from tensordict_nn import TensorDictModule
        >>> draw = ProbabilisticTensorDictModule(["loc", "scale"], ["x"], distribution_class=torch.distributions.Normal)
        >>> net = TensorDictModule(lambda a: (a, a + 1), in_keys=["a"], out_keys=["loc", "scale"])
        >>> module = ProbabilisticTensorDictSequential(net, draw)
        >>> module.log_prob(TensorDict({"a": torch.zeros(1), "x": torch.zeros(1)}))
        tensor([-0.9189])
        """
        if dist is None:
            unchanged = tensordict if tensordict_out is None else tensordict.copy()
            dist = self.get_dist(unchanged, **kwargs)
        return self._last().log_prob(tensordict, dist=dist)


_KINDS = (ProbabilisticTensorDictModule,)
