"""Sharded training states: the ranks save one checkpoint together, and each restores its parts of it.

Parameters that are DTensors (``fully_shard``, ``distribute_tensor``) are saved and read by ``distributed``. This module
adds the random states, which differ between ranks, and the placements of the state of an optimizer, which are those of
its parameters.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tensordict_core import TensorCollection, TensorDict, is_tensor_collection
from tensordict_memmap.checkpoint.state import key_path, pack, places
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.sharded import has_distributed, rank_and_size

Path = tuple[str, ...]


# --- random states


def gather_rng(state: Mapping[str, Any], path: str, **options: Any) -> dict[str, Any]:
    """Return on the first rank the random states of all ranks, each as JSON; every rank calls this.

    Args:
        state: The state of this rank (`rng_state`).
        path: The target of the save.
        options: The options of the save that `distributed.calls.gather_values` takes.

    Raises:
        RankError: Another rank failed, or did not answer in time.
    """
    arrays = {
        name: [one.numpy() for one in value]
        if isinstance(value, list)
        else value.numpy()
        if isinstance(value, torch.Tensor)
        else value
        for name, value in state.items()
    }
    from tensordict_memmap.distributed.calls import gather_values  # imports torch.distributed

    text = nontensor.dumps(nontensor.encode(arrays))
    return {"ranks": [one.decode() for one in gather_values(text, path, **options)]}


def report_failure(error: Exception, path: str, **options: Any) -> None:
    """Tell the other ranks, which save to a path, of an error of this rank; it is raised.

    Args:
        error: The error.
        path: The target of the save.
        options: The options of the save that `distributed.calls.gather_values` takes.
    """
    from tensordict_memmap.distributed.calls import gather_values

    gather_values(b"", path, error=error, **options)


def rng_of_this_rank(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the random state of this rank among those that were saved; None if the number of ranks differs.

    Warns:
        UserWarning: It is.
    """
    if "ranks" not in state:
        return state
    rank, size = rank_and_size()
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


def is_sharded(state: Any) -> bool:
    """Return whether a state holds DTensors.

    >>> is_sharded({"weight": torch.ones(2), "names": ["a"]})
    False
    """
    leaves = pytree.tree_leaves(state, is_leaf=is_tensor_collection)
    return any(has_distributed(leaf) if is_tensor_collection(leaf) else _is_distributed(leaf) for leaf in leaves)


def read_shards(
    loaded: TensorCollection,
    objects: Mapping[str, Any],
    records: Mapping[str, Any],
    state_of: Callable[[str, Any], Any],
) -> None:
    """Replace tensors of a loaded checkpoint by DTensors as the objects have them; this rank reads its ranges only.

    Args:
        loaded: The loaded checkpoint, which is unlocked if an object has DTensors.
        objects: The objects to restore.
        records: The records of their states.
        state_of: A function that returns the state of an object with a name.
    """
    if "torch.distributed.tensor" not in sys.modules:  # there are no DTensors
        return
    like = TensorDict({})
    for name, one in objects.items():
        state = state_of(name, one)
        targets = [*_held_targets(state, name), *_optimizer_targets(one, (name,), loaded)]
        elsewhere = places(records[name], name) if targets else {}
        for path, target in targets:
            place = elsewhere.get(path, path)
            saved = loaded.get(place, None)
            if isinstance(saved, torch.Tensor) and saved.shape == target.shape:
                like.set(place, target.detach())
    if not like.is_empty():
        from tensordict_memmap.distributed.load import sharded_like  # imports torch.distributed

        sharded_like(loaded.unlock_(), like)


def _held_targets(state: Any, name: str) -> Iterator[tuple[Path, Any]]:
    """Yield the DTensors of a state and their keys in a checkpoint."""
    if is_sharded(state):
        for key, tensor in TensorDict(pack(state, name)[1]).items(True, True):
            if _is_distributed(tensor):
                yield key, tensor


def _optimizer_targets(one: Any, path: Path, loaded: TensorCollection) -> Iterator[tuple[Path, Any]]:
    """Yield the parameters that the saved states of optimizers belong to, which have none before their first step."""
    if isinstance(one, torch.optim.Optimizer):
        parameters = (parameter for group in one.param_groups for parameter in group["params"])
        for number, parameter in enumerate(parameters):
            place = (*path, "state", str(number))
            saved = loaded.get(place, None) if _is_distributed(parameter) else None
            for name in saved.keys() if isinstance(saved, TensorCollection) else ():
                if name != "step":  # a plain tensor, whose shape may be that of a parameter without dimensions
                    yield (*place, name), parameter
    elif isinstance(one, list | tuple):
        for number, part in enumerate(one):
            yield from _optimizer_targets(part, (*path, str(number)), loaded)
    elif isinstance(one, dict):
        for key, part in one.items():
            yield from _optimizer_targets(part, path + key_path(key, False), loaded)


def _is_distributed(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "placements")
