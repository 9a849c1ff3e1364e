"""PPO on a toy environment, with data from a collector whose environments run in processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from digests import digest
from torch import nn
from torchrl.collectors import MultiSyncCollector
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from toy import Line

from tensordict.nn import NormalParamExtractor, TensorDictModule


def run(folder: Path) -> dict[str, Any]:
    """Returns digests of the collected data, the losses and the parameters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)), in_keys=["observation"])
    loss, advantage = ClipPPOLoss(actor, critic), GAE(gamma=0.95, lmbda=0.9, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
    said: dict[str, Any] = {"rewards": [], "losses": []}
    # the mean of the policy, so that the workers' own random state has no part in the data
    collector = MultiSyncCollector(
        [partial(Line, 1), partial(Line, 2)], actor, frames_per_batch=80, total_frames=240,
        exploration_type=ExplorationType.DETERMINISTIC,
    )  # fmt: skip
    try:
        for data in collector:
            with torch.no_grad():
                advantage(data)
            said["rewards"].append(digest(data["next", "reward"]))
            for _ in range(2):
                losses = loss(data.reshape(-1))
                total = sum(value for key, value in losses.items() if key.startswith("loss_"))
                optimizer.zero_grad()
                total.backward()
                optimizer.step()
                said["losses"].append(digest(total))
            collector.update_policy_weights_()
    finally:
        collector.shutdown()
    torch.manual_seed(1)
    with set_exploration_type(ExplorationType.RANDOM):
        said["rollout"] = digest(Line(3).rollout(10, actor).select("action", ("next", "reward")).to_tensordict())
    said["parameters"] = digest(loss.state_dict())
    return said
