"""TransferQueue's messages, rsl_rl's rollout storage and an environment of rl4co, with tensordicts in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from digests import digest
from rl4co.envs import TSPEnv
from rl4co.utils.decoding import random_policy, rollout
from rsl_rl.storage import RolloutStorage
from transfer_queue.utils.serial_utils import MsgpackDecoder, MsgpackEncoder

from tensordict import TensorDict


def storage() -> RolloutStorage:
    """Eight steps of six environments."""
    observations = TensorDict({"policy": torch.randn(6, 4), "critic": torch.randn(6, 2)}, [6])
    kept = RolloutStorage("rl", 6, 8, observations, [3])
    for step in range(8):
        one = RolloutStorage.Transition()
        one.observations = observations.apply(lambda x, step=step: x + step)
        one.hidden_states = (None, None)
        one.actions = torch.randn(6, 3)
        one.values, one.rewards, one.dones = torch.randn(6, 1), torch.randn(6), torch.zeros(6)
        one.actions_log_prob = torch.randn(6)
        one.distribution_params = (torch.randn(6, 3), torch.ones(6, 3))
        kept.add_transition(one)
    kept.returns, kept.advantages = torch.randn_like(kept.returns), torch.randn_like(kept.advantages)
    return kept


def run(folder: Path) -> dict[str, Any]:
    """Returns digests of each result."""
    torch.manual_seed(0)
    jagged = torch.nested.as_nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    sent = TensorDict({"x": torch.randn(2, 3), "ragged": jagged, "n": {"y": torch.arange(2)}}, [2])
    got = MsgpackDecoder().decode(MsgpackEncoder().encode(sent))
    torch.manual_seed(1)
    batches = [batch.observations.to_dict() for batch in storage().mini_batch_generator(2, 1)]
    torch.manual_seed(2)
    env = TSPEnv(generator_params={"num_loc": 10})
    reward, state, actions = rollout(env, env.reset(batch_size=[4]), random_policy)
    return {
        "message": [digest(got["x"]), digest(got["ragged"]), digest(got["n"]["y"])],
        "batches": digest(batches),
        "tour": [digest(reward), digest(actions), digest(state["locs"])],
    }
