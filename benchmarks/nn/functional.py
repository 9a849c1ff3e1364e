"""Swaps of parameters and calls of modules, compared with the reference and with torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, stack_module_state

import tensordict
import tensordict.nn
import tensordict_core
import tensordict_nn


def transformer() -> nn.Transformer:
    """Makes 184 parameters in 151 modules; small ones, because swapping does not depend on their size."""
    return nn.Transformer(32, 2, 6, 6, 32, batch_first=True)


class Empty(nn.Module):
    """A module without work, so that only the overhead around it is measured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Swap:
    """Enters and leaves a block in which a Transformer has other parameters."""

    def setup(self) -> None:
        self.module = transformer()
        self.params = tensordict_core.TensorDict.from_module(self.module)
        self.reference = tensordict.TensorDict.from_module(self.module)
        self.tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        # asv calls this before every sample, and the first swap of a module makes the plan of the next ones
        for swap in (self.time_swap, self.time_swap_reference, self.time_swap_torch):
            swap()

    def time_swap(self) -> None:
        with self.params.to_module(self.module):
            pass

    def time_swap_reference(self) -> None:
        with self.reference.to_module(self.module):
            pass

    def time_swap_torch(self) -> None:
        with nn.utils.stateless._reparametrize_module(self.module, self.tensors):
            pass

    def time_from_module(self) -> None:
        tensordict_core.TensorDict.from_module(self.module)

    def time_from_module_reference(self) -> None:
        tensordict.TensorDict.from_module(self.module)


class Calls:
    """The overhead of a module on tensordicts, and of ten in a row, over the wrapped modules."""

    def setup(self) -> None:
        self.empty = Empty()
        self.x = torch.ones(2)
        for suffix, core, modules in (("", tensordict_core, tensordict_nn), ("_reference", tensordict, tensordict.nn)):
            one = modules.TensorDictModule(self.empty, ["x"], ["x"])
            ten = modules.TensorDictSequential(*(modules.TensorDictModule(self.empty, ["x"], ["x"]) for _ in range(10)))
            td = core.TensorDict({"x": self.x})
            one(td)
            ten(td)
            setattr(self, f"td{suffix}", td)
            setattr(self, f"one{suffix}", one)
            setattr(self, f"ten{suffix}", ten)

    def time_plain(self) -> None:
        self.empty(self.x)

    def time_plain_of_ten(self) -> None:
        x = self.x
        for _ in range(10):
            x = self.empty(x)

    def time_module(self) -> None:
        self.one(self.td)

    def time_module_reference(self) -> None:
        self.one_reference(self.td_reference)

    def time_sequence_of_ten(self) -> None:
        self.ten(self.td)

    def time_sequence_of_ten_reference(self) -> None:
        self.ten_reference(self.td_reference)


class Ensemble:
    """Runs a hundred stacked models at once, under vmap."""

    def setup(self) -> None:
        models = [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)) for _ in range(100)]
        self.x = torch.randn(32, 8)
        self.empty = models[0]
        self.params = tensordict_core.TensorDict.from_modules(*models)
        self.reference = tensordict.TensorDict.from_modules(*models)
        self.stacked = stack_module_state(models)
        for ensemble in (self.time_ensemble, self.time_ensemble_reference, self.time_ensemble_torch):
            ensemble()

    def call(self, params: object, x: torch.Tensor) -> torch.Tensor:
        with params.to_module(self.empty):
            return self.empty(x)

    def time_ensemble(self) -> None:
        torch.vmap(self.call, (0, None))(self.params, self.x)

    def time_ensemble_torch_again(self) -> None:
        """The same again: the random difference between two rows."""
        self.time_ensemble_torch()

    def time_ensemble_reference(self) -> None:
        torch.vmap(self.call, (0, None))(self.reference, self.x)

    def time_ensemble_torch(self) -> None:
        def call(state: object, x: torch.Tensor) -> torch.Tensor:
            return functional_call(self.empty, state, (x,))

        torch.vmap(call, (0, None))(self.stacked, self.x)
