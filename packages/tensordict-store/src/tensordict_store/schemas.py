"""Schemas: tensordicts of zeros in a file or on a server, to be filled row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensordict_core import TensorDict
from tensordict_store.persistent.container import PersistentTensorDict
from tensordict_store.redis.connection import BACKENDS
from tensordict_store.redis.container import TensorDictStore


def from_schema(
    schema: Mapping[Any, Any],
    *,
    batch_size: Sequence[int] | int | None = None,
    storage: str,
    filename: Any = None,
    device: torch.device | str | int | None = None,
    **kwargs: Any,
) -> PersistentTensorDict | TensorDictStore:
    """Make a tensordict of zeros in a store.

    Args:
        schema: For each key the shape behind the batch dimensions and the dtype; a dictionary nests.
        batch_size: The batch size; by default none.
        storage: ``"h5"``, ``"zarr"``, ``"redis"`` or ``"dragonfly"``.
        filename: The file or the zarr store.
        device: The device of tensors that are read.
        **kwargs: Arguments of `PersistentTensorDict.from_dict` or of `TensorDictStore.from_schema`.

    Raises:
        TypeError: The storage is a file, and ``filename`` is missing.

    >>> td = from_schema({"obs": ([4], torch.float32)}, batch_size=[8], storage="h5", filename="zeros.h5", chunks=2)
    >>> td["obs"].shape, td.close()
    (torch.Size([8, 4]), None)
    """
    if storage in BACKENDS:
        return TensorDictStore.from_schema(schema, batch_size=batch_size, backend=storage, device=device, **kwargs)
    if filename is None:
        raise TypeError(f"from_schema(storage={storage!r}) makes a file and needs its name; pass filename=")
    shapes = TensorDict.from_schema(schema, batch_size=batch_size, device="meta")
    zeros = shapes.apply(lambda leaf: torch.zeros((), dtype=leaf.dtype, device="cpu").expand(leaf.shape), device="cpu")
    return PersistentTensorDict.from_dict(zeros, filename, backend=storage, device=device, **kwargs)
