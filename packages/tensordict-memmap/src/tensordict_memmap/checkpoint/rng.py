"""Random number generators: the state of the global ones of Python, NumPy and torch, and of single generators."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """Return the state of the global generators of Python, NumPy, torch and, if it is in use, CUDA.

    >>> state = rng_state()
    >>> first = torch.rand(1)
    >>> set_rng_state(state)
    >>> torch.equal(torch.rand(1), first)
    True
    """
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def check_rng_state(state: Mapping[str, Any]) -> None:
    """Check that `set_rng_state` will take a state, which may come from a damaged file.

    Raises:
        ValueError: A part of it is missing or is not a state.

    >>> check_rng_state(rng_state())
    """
    for name, take in (
        ("python", random.Random().setstate),
        ("numpy", np.random.RandomState().set_state),
        ("torch", torch.Generator().set_state),
    ):
        try:
            take(state[name])
        except (TypeError, ValueError, KeyError, RuntimeError, OverflowError, IndexError) as error:
            raise ValueError(
                f"the random state of {name} in the checkpoint is damaged ({error}); restore the file, or load it with "
                "rng=False"
            ) from None


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Set the global generators to a state that `rng_state` returned.

    Warns:
        UserWarning: The state is that of another number of CUDA devices, which are left as they are.
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    saved = state.get("cuda", ())
    if not saved:
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == len(saved):
        torch.cuda.set_rng_state_all(list(saved))
    else:
        warnings.warn(
            f"the checkpoint holds the random state of {len(saved)} CUDA devices, and this process has {count}; the "
            "generators of its devices stay as they are, and do not repeat the numbers of the saved run: seed them",
            UserWarning,
            stacklevel=3,
        )


def is_generator(value: object) -> bool:
    """Return whether a value is a random number generator of torch, NumPy or Python."""
    return isinstance(value, torch.Generator | np.random.Generator | random.Random)


def generator_state(generator: torch.Generator | np.random.Generator | random.Random) -> Any:
    """Return the state of one generator.

    >>> generator = np.random.default_rng(0)
    >>> state = generator_state(generator)
    >>> first = generator.random()
    >>> set_generator_state(generator, state)
    >>> generator.random() == first
    True
    """
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate()


def set_generator_state(generator: torch.Generator | np.random.Generator | random.Random, state: Any) -> None:
    """Set one generator to a state that `generator_state` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.setstate(state)
