"""Compiled calls: ten layers on a tensordict, compared with the same layers on a plain dictionary and on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import tensordict
import tensordict.nn
import tensordict_core
import tensordict_nn


class OnDictionary(nn.Module):
    """Reads and writes entries like a sequence: the least overhead of a graph that takes and returns a container."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, entries: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for i, layer in enumerate(self.layers):
            entries[f"h{i + 1}"] = layer(entries[f"h{i}"])
        return entries


class OnTensordict(OnDictionary):
    """The same by hand on a tensordict: the overhead without modules."""

    def forward(self, td: Any) -> Any:
        for i, layer in enumerate(self.layers):
            td.set(f"h{i + 1}", layer(td.get(f"h{i}")))
        return td


class Step(nn.Module):
    """One of these layers in its own module: the overhead of modules around layers."""

    def __init__(self, layer: nn.Linear, in_key: str, out_key: str) -> None:
        super().__init__()
        self.layer, self.in_key, self.out_key = layer, in_key, out_key

    def forward(self, td: Any) -> Any:
        return td.set(self.out_key, self.layer(td.get(self.in_key)))


class OnTensors(nn.Module):
    """Returns the values that the others write."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for layer in self.layers:
            x = layer(x)
            results.append(x)
        return results


class Compiled:
    """Ten linear layers, compiled in one graph; every result is kept."""

    timeout = 300

    def setup(self) -> None:
        layers = [nn.Linear(8, 8) for _ in range(10)]
        self.x = torch.randn(4, 8)

        def sequence(modules: Any) -> Callable[..., Any]:
            return modules.TensorDictSequential(
                *(modules.TensorDictModule(layer, [f"h{i}"], [f"h{i + 1}"]) for i, layer in enumerate(layers))
            )

        torch._dynamo.reset()
        self.plain = torch.compile(OnTensors(layers), fullgraph=True)
        self.dictionary = torch.compile(OnDictionary(layers), fullgraph=True)
        # the same program again: the random difference between two rows
        self.dictionary_again = torch.compile(OnDictionary(layers), fullgraph=True)
        steps = (Step(layer, f"h{i}", f"h{i + 1}") for i, layer in enumerate(layers))
        self.steps = torch.compile(nn.Sequential(*steps), fullgraph=True)
        self.by_hand = torch.compile(OnTensordict(layers), fullgraph=True)
        self.by_hand_reference = torch.compile(OnTensordict(layers), fullgraph=True)
        self.ours = torch.compile(sequence(tensordict_nn), fullgraph=True)
        self.reference = torch.compile(sequence(tensordict.nn), fullgraph=True)
        # the result of a call is the input of the next one, so these time only the calls
        self.entries = {"h0": self.x}
        self.td = tensordict_core.TensorDict({"h0": self.x}, [4])
        self.td_reference = tensordict.TensorDict({"h0": self.x}, [4])
        for _ in range(3):
            for time in [getattr(self, name) for name in dir(self) if name.startswith("time_")]:
                time()

    @torch.no_grad()
    def time_tensors(self) -> None:
        self.plain(self.x)

    @torch.no_grad()
    def time_dictionary(self) -> None:
        self.dictionary(self.entries)

    @torch.no_grad()
    def time_dictionary_again(self) -> None:
        self.dictionary_again(self.entries)

    @torch.no_grad()
    def time_steps(self) -> None:
        self.steps(self.td)

    @torch.no_grad()
    def time_sequence(self) -> None:
        self.ours(self.td)

    @torch.no_grad()
    def time_sequence_reference(self) -> None:
        self.reference(self.td_reference)

    @torch.no_grad()
    def time_by_hand(self) -> None:
        self.by_hand(self.td)

    @torch.no_grad()
    def time_by_hand_reference(self) -> None:
        self.by_hand_reference(self.td_reference)

    @torch.no_grad()
    def time_dictionary_made(self) -> None:
        self.dictionary({"h0": self.x})

    @torch.no_grad()
    def time_sequence_made(self) -> None:
        self.ours(tensordict_core.TensorDict({"h0": self.x}, [4]))

    @torch.no_grad()
    def time_sequence_made_reference(self) -> None:
        self.reference(tensordict.TensorDict({"h0": self.x}, [4]))
