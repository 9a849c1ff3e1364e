"""SAC: losses with stacked critics, `vmap` and `to_module`, target networks, some steps of Adam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from digests import digest
from torch import nn
from torchrl.data import Bounded
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule


class Critic(nn.Module):
    """A network of the observation and the action."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """The value."""
        value: torch.Tensor = self.net(torch.cat([observation, action], -1))
        return value


def run(folder: Path) -> dict[str, Any]:
    """Returns digests of the losses, the priorities and the parameters."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        spec=Bounded(-1.0, 1.0, (1,)),
    )
    loss = SACLoss(actor, ValueOperator(Critic(), in_keys=["observation", "action"]), num_qvalue_nets=3)
    loss.make_value_estimator(gamma=0.9)
    update, optimizer = SoftUpdate(loss, eps=0.9), torch.optim.Adam(loss.parameters(), 1e-2)
    said = []
    for _ in range(4):
        data = TensorDict(
            {
                "observation": torch.randn(16, 4),
                "action": torch.rand(16, 1) * 2 - 1,
                "next": {
                    "observation": torch.randn(16, 4),
                    "reward": torch.randn(16, 1),
                    "done": torch.zeros(16, 1, dtype=torch.bool),
                    "terminated": torch.zeros(16, 1, dtype=torch.bool),
                },
            },
            [16],
        )
        losses = loss(data)
        optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        optimizer.step()
        update.step()
        said.append([digest(losses.detach().to_tensordict()), digest(data["td_error"])])
    torch.save(loss.state_dict(), folder / "loss.pt")
    loss.load_state_dict(torch.load(folder / "loss.pt"))
    return {"steps": said, "parameters": digest(loss.state_dict())}
