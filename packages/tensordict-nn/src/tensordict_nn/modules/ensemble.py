"""`EnsembleModule`: copies of a module with different parameters, run at once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from tensordict_nn.modules.base import TensorDictModuleBase
from tensordict_nn.modules.dispatch import dispatch
from tensordict_nn.params.functional import from_module
from tensordict_nn.params.leaves import copy_tied
from tensordict_nn.params.stacking import stack_parameters


def _without_memory(module: TensorDictModuleBase) -> TensorDictModuleBase:
    """Return a copy of a module on the meta device, or the module itself if it cannot be copied."""
    try:
        return copy.deepcopy(module).to("meta")
    except Exception:  # modules raise errors of any type
        return module


def _reset_copies(module: TensorDictModuleBase, count: int) -> list[Any]:
    """Return copies of the parameters of a module, each after a reset; the module itself stays unchanged.

    The module is reset, and not copies of it, so that ``reset_parameters`` may depend on earlier calls.
    """
    original = from_module(module)
    before = _copied(original)
    copies = []
    for _ in range(count):
        module._reset(module)
        copies.append(_copied(from_module(module)))
    original.to_module(module)  # a reset may replace parameters
    with torch.no_grad():
        for leaf, value in zip(original._leaves(), before._leaves(), strict=True):
            if not is_lazy(leaf):
                leaf.copy_(value)
    return copies


def _copied(params: Any) -> Any:
    made: dict[Tensor, Tensor] = {}  # tied weights stay tied
    return params.apply(lambda leaf: copy_tied(leaf, made))


class EnsembleModule(TensorDictModuleBase):
    """Runs ``num_copies`` copies of a module; every output has a new first dimension of that size.

    The parameters of the copies are stacked, and reset for each copy by ``reset_parameters`` of its sub-modules.

    Args:
        module: The module.
        num_copies: The number of copies.
        expand_input: Whether every copy gets the same input; otherwise copy ``i`` gets index ``i`` of the first
            dimension of the input, as after another ensemble.

    >>> from tensordict_nn import TensorDictModule
    >>> ensemble = EnsembleModule(TensorDictModule(torch.nn.Linear(4, 2), ["a"], ["b"]), num_copies=3)
    >>> ensemble(TensorDict({"a": torch.ones(10, 4)}, [10]))["b"].shape
    torch.Size([3, 10, 2])
    """

    def __init__(self, module: TensorDictModuleBase, num_copies: int, expand_input: bool = True) -> None:
        super().__init__()
        self.in_keys = module.in_keys
        self.out_keys = module.out_keys
        # not registered and without memory, so that optimizers and state dicts see the stack only
        self.__dict__["_empty"] = _without_memory(module)
        self.params_td = stack_parameters(_reset_copies(module, num_copies), as_module=True)
        self.num_copies = num_copies
        self.expand_input = expand_input

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # the reference also saves the original module
        for key in [key for key in state_dict if key.startswith(f"{prefix}module.")]:
            del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def module(self) -> TensorDictModuleBase:
        """The module with the structure of the copies, without memory.

        >>> from tensordict_nn import TensorDictModule
        >>> EnsembleModule(TensorDictModule(torch.nn.Linear(4, 2), ["a"], ["b"]), num_copies=3).module.device
        device(type='meta')
        """
        empty: TensorDictModuleBase = self.__dict__["_empty"]
        return empty

    @property
    def vmapped_forward(self) -> Callable[[Any, Any], Any]:
        """The function of a tensordict and a stack of parameters that runs one copy for each of them.

        >>> from tensordict_nn import TensorDictModule
        >>> ensemble = EnsembleModule(TensorDictModule(torch.nn.Linear(4, 2), ["a"], ["b"]), num_copies=3)
        >>> ensemble.vmapped_forward(TensorDict({"a": torch.ones(4)}), ensemble.params_td[:2])["b"].shape
        torch.Size([2, 2])
        """
        return torch.vmap(self._one, (None if self.expand_input else 0, 0), randomness="different")

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: Any) -> Any:
        """Run all copies, on a tensordict or on the tensors of its ``in_keys``."""
        return self.vmapped_forward(tensordict, self.params_td)

    def _one(self, tensordict: Any, params: Any) -> Any:
        with params.to_module(self.module):
            return self.module(tensordict.copy())

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, also of the unregistered module."""
        self.module.train(mode)
        return super().train(mode)

    def reset_parameters_recursive(self, parameters: Any = None) -> Any:
        """Reset the parameters of every copy, in place.

        Args:
            parameters: A stack of parameters to reset instead of the ensemble's own.

        Returns:
            ``parameters``.

        >>> from tensordict_nn import TensorDictModule
        >>> ensemble = EnsembleModule(TensorDictModule(torch.nn.Linear(4, 2), ["a"], ["b"]), num_copies=3)
        >>> before = ensemble.params_td.data.clone()
        >>> ensemble.reset_parameters_recursive()
        >>> bool((before == ensemble.params_td).any())
        False
        """
        stack = self.params_td if parameters is None else parameters
        for one in stack.data.unbind(0):
            with one.to_module(self.module, preserve_module_state=False):
                self._reset(self.module)
        return parameters
