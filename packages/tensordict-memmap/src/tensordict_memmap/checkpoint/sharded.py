"""Sharded training states: the ranks save one checkpoint together, and each restores its parts of it.

Parameters that are DTensors (``fully_shard``, ``distribute_tensor``) are saved and read by ``distributed``. This module
adds the random states, which differ between ranks, and the placements of the state of an optimizer, which are those of
its parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from tensordict_core import TensorCollection, TensorDict, is_tensor_collection
from tensordict_memmap.checkpoint.state import key_path
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.sharded import has_distributed

__all__ = ["gather_rng", "is_coordinator", "read_shards", "rng_of_this_rank"]

Path = tuple[str, ...]


def is_coordinator() -> bool:
    """Return whether this is the rank that saves what all ranks have in common.

    >>> is_coordinator()
    True
    """
    dist = torch.distributed
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


# --- random states


def gather_rng(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the random states of all ranks, each as JSON; every rank calls this.

    Args:
        state: The state of this rank (`rng_state`).
    """
    arrays = {
        name: [one.numpy() for one in value]
        if isinstance(value, list)
        else value.numpy()
        if isinstance(value, torch.Tensor)
        else value
        for name, value in state.items()
    }
    text = nontensor.dumps(nontensor.encode(arrays)).decode()
    texts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(texts, text)
    return {"ranks": texts}


def rng_of_this_rank(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the random state of this rank among those that were saved; None if the number of ranks is another one.

    Warns:
        UserWarning: It is.
    """
    if "ranks" not in state:
        return state
    dist = torch.distributed
    running = dist.is_available() and dist.is_initialized()
    rank, size = (dist.get_rank(), dist.get_world_size()) if running else (0, 1)
    if size != len(state["ranks"]):
        warnings.warn(
            f"the checkpoint holds the random states of {len(state['ranks'])} ranks, and {size} load it; their "
            "generators stay as they are: seed them, or pass rng=False",
            UserWarning,
            stacklevel=4,
        )
        return None
    found = nontensor.decode(nontensor.loads(state["ranks"][rank].encode()))
    return {name: _tensors(value) if name in ("torch", "cuda") else value for name, value in found.items()}


def _tensors(value: Any) -> Any:
    return [torch.from_numpy(one) for one in value] if isinstance(value, list) else torch.from_numpy(np.array(value))


# --- parts of tensors


def read_shards(loaded: TensorCollection, objects: Mapping[str, Any]) -> None:
    """Replace tensors of a loaded checkpoint by DTensors as the objects have them; this rank reads its ranges only.

    Args:
        loaded: The loaded checkpoint, which is unlocked if an object has DTensors.
        objects: The objects to restore.
    """
    like = TensorDict({})
    for name, one in objects.items():
        for path, target in _targets(one, (name,), loaded):
            saved = loaded.get(path, None)
            if isinstance(saved, torch.Tensor) and saved.shape == target.shape:
                like.set(path, target)
    if not like.is_empty():
        from tensordict_memmap.distributed.load import sharded_like  # imports torch.distributed

        sharded_like(loaded.unlock_(), like)


def _targets(one: Any, path: Path, loaded: TensorCollection) -> Iterator[tuple[Path, Any]]:
    """Yield the keys of an object's tensors in a checkpoint, and DTensors of their meshes and placements."""
    if isinstance(one, torch.nn.Module):
        for name, tensor in one.state_dict().items():
            if _is_distributed(tensor):
                yield path + key_path(name, True), tensor.detach()
    elif isinstance(one, torch.optim.Optimizer):
        parameters = (parameter for group in one.param_groups for parameter in group["params"])
        for number, parameter in enumerate(parameters):
            place = (*path, "state", str(number))
            saved = loaded.get(place, None) if _is_distributed(parameter) else None
            for name in saved.keys() if isinstance(saved, TensorCollection) else ():
                if name != "step":  # a plain tensor, whose shape may be that of a parameter without dimensions
                    yield (*place, name), parameter.detach()
    elif is_tensor_collection(one):
        for key, tensor in one.items(True, True) if has_distributed(one) else ():
            if _is_distributed(tensor):
                yield path + (key if isinstance(key, tuple) else (key,)), tensor.detach()
    elif isinstance(one, list | tuple):
        for number, part in enumerate(one):
            yield from _targets(part, (*path, str(number)), loaded)
    elif isinstance(one, dict):
        for key, part in one.items():
            yield from _targets(part, path + key_path(key, False), loaded)


def _is_distributed(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "placements")
