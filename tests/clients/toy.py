"""A toy environment: a point on a line that is pushed towards zero."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from tensordict import TensorDict, TensorDictBase


class Line(EnvBase):
    """Observation: position; action: a push in ``[-1, 1]``; reward: minus the distance; 20 steps an episode."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((2,)), steps=Unbounded((1,), dtype=torch.int64))
        self.action_spec = Bounded(-1.0, 1.0, (1,))
        self.reward_spec = Unbounded((1,))
        self.rng = torch.Generator().manual_seed(seed or 0)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        start = torch.rand(2, generator=self.rng) * 2 - 1
        return TensorDict({"observation": start, "steps": torch.zeros(1, dtype=torch.int64)}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        place, speed = tensordict["observation"].unbind(-1)
        speed = 0.9 * speed + 0.1 * tensordict["action"].squeeze(-1)
        observation = torch.stack([place + speed, speed], -1)
        steps = tensordict["steps"] + 1
        return TensorDict(
            {
                "observation": observation,
                "steps": steps,
                "reward": -observation[..., :1].abs(),
                "done": steps >= 20,
                "terminated": steps >= 20,
            },
            tensordict.shape,
        )

    def _set_seed(self, seed: int | None) -> None:
        self.rng.manual_seed(seed or 0)
