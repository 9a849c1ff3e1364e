"""MDS datasets of MosaicML Streaming: a sample for each row."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from tensordict_core import is_non_tensor
from tensordict_store.extras import require


def to_mds(
    td: Any,
    *,
    columns: dict[str, str] | None = None,
    out: str | tuple[str, str] | None = None,
    keep_local: bool = False,
    compression: str | None = None,
    hashes: list[str] | None = None,
    size_limit: int | str | None = 1 << 26,
    writer: Any = None,
    finish_writer: bool | None = None,
    **kwargs: Any,
) -> None:
    """Write the rows of a tensordict as the samples of an MDS dataset.

    Tensors are stored as arrays of NumPy, tensors without dimensions as numbers. Nested tensordicts are not samples of
    MDS: call ``flatten_keys`` first.

    Args:
        td: The tensordict; without batch dimensions it is one sample.
        columns: The encoding of each column, by default that of the first sample.
        out: The folder, a remote location, or a pair of both.
        keep_local: Whether the local copy stays after an upload.
        compression: The compression, as ``"name"`` or ``"name:level"``.
        hashes: The hash algorithms of the shards.
        size_limit: The size of a shard in bytes.
        writer: An open ``streaming.MDSWriter`` that takes the samples, in place of ``out``.
        finish_writer: Whether ``writer`` is finished; by default if the tensordict has batch dimensions.
        **kwargs: Other arguments of ``streaming.MDSWriter``.

    Raises:
        ImportError: mosaicml-streaming is not installed.
        ValueError: There is no sample, or neither ``out`` nor ``writer``.
        TypeError: MDS has no encoding for an entry; the error names its key.

    >>> class Writer:
    ...     def write(self, sample): print(sample)
    >>> to_mds(TensorDict({"a": torch.arange(2), "s": ["x", "y"]}, [2]), writer=Writer(), finish_writer=False)
    {'a': 0, 's': 'x'}
    {'a': 1, 's': 'y'}
    """
    rows = [td] if not td.batch_size else list(td.unbind(0))
    if not rows or td.is_empty():
        raise ValueError("the tensordict is empty, and a dataset needs at least one sample; write other rows")
    samples = [_sample(row) for row in rows]
    if writer is not None:
        for sample in samples:
            writer.write(sample)
        if finish_writer is None and td.batch_size:
            warnings.warn(
                "to_mds() finishes the writer; pass finish_writer=True to keep that, or False to write more samples",
                FutureWarning,
                stacklevel=2,
            )
            finish_writer = True
        if finish_writer:
            writer.finish()
        return
    if out is None:
        raise ValueError("to_mds() has no place to write; pass out or writer")
    streaming = require("mds", "to_mds")
    encodings = {key: _encoding(key, value) for key, value in samples[0].items()} if columns is None else columns
    with streaming.MDSWriter(
        columns=encodings,
        out=out,
        keep_local=keep_local,
        compression=compression,
        hashes=hashes,
        size_limit=size_limit,
        **kwargs,
    ) as made:
        for sample in samples:
            made.write(sample)


def _sample(row: Any) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, torch.Tensor):
            array = value.detach().cpu()
            sample[key] = array.numpy() if array.ndim else array.item()
        elif is_non_tensor(value):
            sample[key] = value.tolist()
        else:
            raise TypeError(f"key {key!r} is a nested tensordict, which MDS cannot hold; call flatten_keys() first")
    return sample


_ENCODINGS: tuple[tuple[type, str], ...] = (
    (bool, "int"),  # before int, whose subclass it is
    (int, "int"),
    (float, "float64"),
    (str, "str"),
    (bytes, "bytes"),
    (np.ndarray, "ndarray"),
    (dict, "json"),
    (list, "json"),
)


def _encoding(key: str, value: Any) -> str:
    for kind, encoding in _ENCODINGS:
        if isinstance(value, kind):
            return encoding
    raise TypeError(
        f"key {key!r} holds a {type(value).__name__}, for which MDS has no encoding; pass columns={{{key!r}: 'pkl'}}"
    )
