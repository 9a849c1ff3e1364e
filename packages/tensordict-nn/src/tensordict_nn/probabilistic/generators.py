"""Random generators: draws from a distribution with a generator instead of the global one.

Distributions take no generator, so the global random state is swapped during the draw. This works for every
distribution; a compiled graph cannot swap it and uses its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tensordict_core.extension import is_compiling


@contextmanager
def use_generator(generator: torch.Generator | None) -> Iterator[None]:
    """Context manager in which random functions draw from a generator instead of the global one.

    Args:
        generator: The generator, which advances; ``None`` leaves the global one.

    >>> with use_generator(torch.Generator().manual_seed(0)):
    ...     first = torch.rand(())
    >>> first.equal(torch.rand((), generator=torch.Generator().manual_seed(0)))
    True
    """
    if generator is None:
        yield
        return
    on_gpu = generator.device.type == "cuda"
    get: Callable[[], Tensor] = (lambda: torch.cuda.get_rng_state(generator.device)) if on_gpu else torch.get_rng_state
    put: Callable[[Tensor], None] = (
        (lambda state: torch.cuda.set_rng_state(state, generator.device)) if on_gpu else torch.set_rng_state
    )
    before = get()
    put(generator.get_state())
    try:
        yield
        generator.set_state(get())
    finally:
        put(before)


def _draw(generator: torch.Generator, draw: Callable[[], Any]) -> Any:
    with use_generator(generator):
        return draw()


def draw_with(source: Any, td: Any, draw: Callable[[], Any]) -> Any:
    """Draw with a generator, or with that of an entry; a seed in an entry is replaced by the next one.

    Args:
        source: A generator, the key of an entry (a generator or a seed), or ``None`` for the global generator.
        td: The tensordict of the entry.
        draw: Draws the value.

    >>> td = TensorDict({"seed": 0})
    >>> first = draw_with("seed", td, lambda: torch.rand(()))
    >>> first.equal(draw_with("seed", td, lambda: torch.rand(())))
    False
    >>> first.equal(draw_with("seed", TensorDict({"seed": 0}), lambda: torch.rand(())))
    True
    """
    if source is None or is_compiling():
        return draw()
    generator, write_back = resolve_generator(source, td)
    if generator is None:
        return draw()
    value = _draw(generator, draw)
    if write_back is not None:
        write_back(generator)
    return value


def resolve_generator(source: Any, td: Any) -> tuple[torch.Generator | None, Callable[[torch.Generator], None] | None]:
    """Return the generator that draws, and a function that stores the next seed once the value is drawn.

    Args:
        source: A generator, the key of an entry (a generator or a seed), or ``None`` for the global generator.
        td: The tensordict of the entry.

    Returns:
        ``None`` for the global generator; and ``None`` where no seed has to be stored.

    >>> td = TensorDict({"seed": 0})
    >>> generator, write_back = resolve_generator("seed", td)
    >>> write_back(generator)
    >>> int(td["seed"]) == 0
    False
    """
    if source is None or isinstance(source, torch.Generator):
        return source, None
    entry = td.get(source, None)
    if entry is None:
        return None, None
    if not isinstance(entry, Tensor):
        entry = td[source]
    if isinstance(entry, torch.Generator):
        return entry, None
    seed = int(entry.flatten()[0]) if isinstance(entry, Tensor) else int(entry)

    def write_back(generator: torch.Generator) -> None:
        following = torch.randint(2**62, (), generator=generator)
        td.set(source, following.expand(entry.shape).clone() if isinstance(entry, Tensor) else int(following))

    return torch.Generator().manual_seed(seed), write_back
