"""Replay buffers of torchrl on disk and in memory: extend, sample, save, load, sample again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from digests import digest
from torchrl.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)

from tensordict import TensorDict


def rollout(steps: int) -> TensorDict:
    """Transitions of two episodes, with names of the actions."""
    done = torch.zeros(steps, 1, dtype=torch.bool)
    done[steps // 2 - 1] = done[-1] = True
    return TensorDict(
        {
            "observation": torch.randn(steps, 4),
            "action": torch.randint(3, (steps, 1)),
            "episode": (torch.arange(steps) >= steps // 2).long(),
            "next": {"observation": torch.randn(steps, 4), "reward": torch.randn(steps, 1), "done": done},
        },
        [steps],
    )


def run(folder: Path) -> dict[str, Any]:
    """Returns digests of what each buffer gives back."""
    torch.manual_seed(0)
    data, said = rollout(40), {}
    storages = {
        "disk": LazyMemmapStorage(64, scratch_dir=folder / "scratch"),
        "memory": LazyTensorStorage(64),
        "list": ListStorage(64),
        "lazy": LazyStackStorage(64),
    }
    for name, storage in storages.items():
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=8)
        buffer.extend(data)
        buffer.extend(data[:30])
        said[name] = [len(buffer), digest(buffer[:].to_tensordict()) if name in ("disk", "memory") else None]
        torch.manual_seed(1)
        said[f"{name} sample"] = digest(buffer.sample().exclude("index").to_tensordict())
    saved = TensorDictReplayBuffer(storage=LazyMemmapStorage(64), batch_size=8)
    saved.extend(data)
    saved.dumps(folder / "saved")
    loaded = TensorDictReplayBuffer(storage=LazyMemmapStorage(64), batch_size=8)
    loaded.loads(folder / "saved")
    said["loaded"] = digest(loaded[:].to_tensordict())
    said["state"] = digest(saved.state_dict()["_storage"]["_len"])
    torch.manual_seed(2)
    slices = TensorDictReplayBuffer(
        storage=LazyTensorStorage(64), sampler=SliceSampler(num_slices=4, traj_key="episode"), batch_size=16
    )
    slices.extend(data)
    said["slices"] = digest(slices.sample().select("observation", "episode").to_tensordict())
    torch.manual_seed(3)
    once = ReplayBuffer(storage=LazyTensorStorage(64), sampler=SamplerWithoutReplacement(), batch_size=10)
    once.extend(data)
    said["epoch"] = [digest(batch["observation"]) for batch, _ in zip(once, range(4), strict=False)]
    return said
