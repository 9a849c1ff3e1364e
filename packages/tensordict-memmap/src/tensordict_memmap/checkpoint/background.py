"""Background checkpoints: the state is copied to host memory, so that training continues while the copy is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensordict_memmap.saving.host_copy import copy_to_host
from tensordict_memmap.schema.plan import memory_of


def hold(data: Any) -> tuple[Any, Callable[[], None]]:
    """Copy the tensors of a tensordict to host memory that is used again, pinned if a tensor is on a GPU.

    Returns:
        A tensordict of the copies, in which tensors that share memory still do, and a function to call when they are
        not needed any more.

    >>> from tensordict_core import TensorDict
    >>> weight = torch.ones(2)
    >>> held, release = hold(TensorDict({"a": weight, "b": weight}))
    >>> weight.zero_().tolist(), held["a"].tolist(), held["a"].data_ptr() == held["b"].data_ptr()
    ([0.0, 0.0], [1.0, 1.0], True)
    >>> release()
    """
    places: dict[Any, int] = {}
    sources: list[torch.Tensor] = []
    order: list[int | None] = []  # leaves of lazy stacks are seen by apply only, so that it is called twice

    def collect(leaf: torch.Tensor) -> torch.Tensor:
        number = None
        if leaf.layout is torch.strided and not leaf.is_nested:
            number = places.setdefault(memory_of(leaf) or id(leaf), len(sources))
            if number == len(sources):
                sources.append(leaf.detach())
        order.append(number)
        return leaf

    data.apply(collect)
    copies, release = copy_to_host(sources)
    numbers = iter(order)

    def copy_of(leaf: torch.Tensor) -> torch.Tensor:
        number = next(numbers)
        return leaf.detach().clone() if number is None else copies[number]

    try:
        return data.apply(copy_of), release
    except BaseException:
        release()
        raise
