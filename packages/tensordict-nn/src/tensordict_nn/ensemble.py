"""`EnsembleModule`: copies of a module with different parameters, run at once."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch

from tensordict_nn.base import TensorDictModuleBase
from tensordict_nn.stacking import from_modules

__all__ = ["EnsembleModule"]


class EnsembleModule(TensorDictModuleBase):
    """Runs ``num_copies`` copies of a module; every output has a new first dimension of that size.

    The parameters of the copies are stacked, and reset for each copy by ``reset_parameters`` of its sub-modules.

    Args:
        module: The module.
        num_copies: The number of copies.
        expand_input: Whether every copy takes the same input; otherwise each takes its index of the input's first
            dimension, as after another ensemble.

    >>> from tensordict_nn import TensorDictModule
    >>> ensemble = EnsembleModule(TensorDictModule(torch.nn.Linear(4, 2), ["a"], ["b"]), num_copies=3)
    >>> ensemble(TensorDict({"a": torch.ones(10, 4)}, [10]))["b"].shape
    torch.Size([3, 10, 2])
    """

    def __init__(self, module: TensorDictModuleBase, num_copies: int, expand_input: bool = True) -> None:
        super().__init__()
        self.in_keys = module.in_keys
        self.out_keys = module.out_keys
        copies = [copy.deepcopy(module) for _ in range(num_copies)]
        for one in copies:
            one._reset(one)
        self.params_td = from_modules(*copies, as_module=True)
        # not registered and without memory, so that optimizers and state dicts see the stack only
        self.__dict__["_empty"] = copy.deepcopy(module).to("meta")
        self.num_copies = num_copies
        self.expand_input = expand_input

    @property
    def module(self) -> TensorDictModuleBase:
        """The module with the structure of the copies, without memory."""
        empty: TensorDictModuleBase = self.__dict__["_empty"]
        return empty

    def forward(self, tensordict: Any) -> Any:
        """Runs all copies."""
        return torch.vmap(self._one, (None if self.expand_input else 0, 0), randomness="different")(
            tensordict, self.params_td
        )

    def _one(self, tensordict: Any, params: Any) -> Any:
        with params.to_module(self.module):
            return self.module(tensordict.copy())

    def train(self, mode: bool = True) -> Self:
        """Sets the training mode, also of the unregistered module."""
        self.module.train(mode)
        return super().train(mode)

    def reset_parameters_recursive(self, parameters: Any = None) -> Any:
        """Resets the parameters of every copy, in place.

        Args:
            parameters: A stack of parameters to reset instead of the ensemble's own.

        Returns:
            ``parameters``.
        """
        stack = self.params_td if parameters is None else parameters
        for one in stack.data.unbind(0):
            with one.to_module(self.module, preserve_module_state=False):
                self._reset(self.module)
        return parameters
