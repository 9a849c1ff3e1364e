"""An ensemble of networks: stacked parameters, `vmap` over them, training steps, and the best member on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from digests import digest
from torch import nn

from tensordict import TensorDict, TensorDictParams, from_modules
from tensordict.nn import EnsembleModule, TensorDictModule, TensorDictSequential


def network() -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def run(folder: Path) -> dict[str, Any]:
    """Returns digests of losses, parameters and predictions."""
    torch.manual_seed(0)
    members = [network() for _ in range(4)]
    params = from_modules(*members, as_module=True)
    empty = network().to("meta")

    def call(params: TensorDict, x: torch.Tensor) -> torch.Tensor:
        with params.to_module(empty):
            return empty(x)

    x, y = torch.randn(32, 3), torch.randn(32, 1)
    optimizer = torch.optim.Adam(params.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        errors = (torch.vmap(call, (0, None))(params, x) - y).square().mean((1, 2))
        optimizer.zero_grad()
        errors.sum().backward()
        optimizer.step()
        losses.append(errors.detach())
    best = int(losses[-1].argmin())
    params.data[best].to_module(members[0])
    torch.save(params.state_dict(), folder / "params.pt")
    again = TensorDictParams(from_modules(*members, as_module=False))
    again.load_state_dict(torch.load(folder / "params.pt"))
    torch.manual_seed(1)
    mapped = EnsembleModule(TensorDictModule(nn.Linear(3, 2), ["x"], ["h"]), num_copies=3)
    chain = TensorDictSequential(mapped, TensorDictModule(lambda h: h.mean(-1), ["h"], ["mean"]))
    out = chain(TensorDict({"x": x}, []))
    return {
        "losses": digest(losses),
        "trained": digest(params.data.flatten_keys(".").to_dict()),
        "reloaded": digest(again.data.flatten_keys(".").to_dict()),
        "best": [best, digest(members[0](x))],
        "ensemble": digest([out["h"], out["mean"]]),
    }
