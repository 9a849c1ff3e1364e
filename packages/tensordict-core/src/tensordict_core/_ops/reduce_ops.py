"""How a reduction over batch dimensions changes a tree: its leaves, and every node's batch size and names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._meta import Names
from .._rebuild import How
from .shape_ops import normal_dim

__all__ = ["batch_dims", "over_batch", "reduced"]


def batch_dims(td: Any, dim: int | Sequence[int]) -> tuple[int, ...]:
    """Batch dimensions counted from the front.

    Raises:
        IndexError: One is outside the batch dimensions.
    """
    size = td._meta.batch_size
    return tuple(normal_dim(d, size) for d in ([dim] if isinstance(dim, int) else dim))


def reduced(dims: tuple[int, ...], keepdim: bool) -> How:
    """What becomes of nodes whose batch dimensions ``dims`` are reduced."""

    def size(own: torch.Size) -> torch.Size:
        if keepdim:
            return torch.Size(1 if i in dims else n for i, n in enumerate(own))
        return torch.Size(n for i, n in enumerate(own) if i not in dims)

    def names(own: Names) -> Names:
        if own is None or keepdim:
            return own
        kept = tuple(name for i, name in enumerate(own) if i not in dims)
        return kept if any(name is not None for name in kept) else None

    return How(size=size, names=names)


def over_batch(td: Any, name: str, dim: int | Sequence[int], keepdim: bool = False, **kwargs: Any) -> Any:
    """The tensor method ``name`` along batch dimensions of every leaf."""
    dims = batch_dims(td, dim)
    at: Any = dims[0] if isinstance(dim, int) else dims
    leaf: Callable[[Tensor], Tensor] = lambda tensor: getattr(tensor, name)(dim=at, keepdim=keepdim, **kwargs)  # noqa: E731
    return td._rebuild(iter([leaf(tensor) for tensor in td._leaves()]), reduced(dims, keepdim))
