"""Functions: storing tensordicts on a server, as the methods of core call them."""

from __future__ import annotations

from typing import Any

from tensordict_store.redis.container import TensorDictStore
from tensordict_store.redis.lazy import LazyStackedTensorDictStore


def to_store(td: Any, **kwargs: Any) -> TensorDictStore | LazyStackedTensorDictStore:
    """Store a tensordict on a Redis server; a lazy stack becomes a `LazyStackedTensorDictStore`.

    Args:
        td: The tensordict.
        **kwargs: ``host``, ``port`` and the other arguments of `TensorDictStore.from_tensordict`.

    Raises:
        ImportError: redis-py is not installed.
        ConnectionError: The server does not answer.

    >>> stored = to_store(TensorDict({"a": torch.arange(3)}, [3]), host="localhost")
    >>> stored[1:]["a"]
    tensor([1, 2])
    """
    if getattr(td, "_is_lazy_stack", False):
        return LazyStackedTensorDictStore.from_lazy_stack(td, **kwargs)
    return TensorDictStore.from_tensordict(td, **kwargs)
