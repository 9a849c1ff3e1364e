"""Dask: datasets as sources and sinks of bags and arrays.

Dask is imported by this module only; ``pip install "tensordict-memmap[dask]"`` installs it. The functions that read are
lazy; those that write compute, on the scheduler or client that is current. With several machines, paths must be on
storage that they share; a URL is read through a cache on each machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

try:
    import dask.array
    import dask.bag
    from dask.base import compute
    from dask.delayed import delayed
except ImportError as error:
    raise ImportError(
        f'tensordict_memmap.data_engines.dask needs Dask ({error}): pip install "tensordict-memmap[dask]"'
    ) from None

from tensordict_core import lazy_stack
from tensordict_memmap.dataset.dataset import MemmapDataset
from tensordict_memmap.dataset.parts import Parts
from tensordict_memmap.dataset.schema import Key

_BATCH_ROWS = 1024


def read_bag(dataset: MemmapDataset | str | os.PathLike[str], *, partition_rows: int = 10_000) -> Any:
    """Return a bag of the rows of a dataset, each of them a tensordict.

    Args:
        dataset: A dataset that is open for reading, or its path or URL.
        partition_rows: The number of rows of a partition.

    >>> import dask
    >>> from tensordict_core import TensorDict
    >>> with MemmapDataset.create("bagged", TensorDict({"x": torch.tensor(0)})) as made:
    ...     made.extend(TensorDict({"x": torch.arange(5)}, [5]))
    >>> with dask.config.set(scheduler="synchronous"):
    ...     read_bag("bagged", partition_rows=2).map(lambda row: int(row["x"]) ** 2).compute()
    [0, 1, 4, 9, 16]
    """
    opened = _opened(dataset)
    starts = range(0, len(opened), partition_rows)
    parts = [delayed(_rows)(opened, start, min(start + partition_rows, len(opened))) for start in starts]
    return dask.bag.from_delayed(parts) if parts else dask.bag.from_sequence([], npartitions=1)


def read_array(dataset: MemmapDataset | str | os.PathLike[str], key: Key, *, chunk_rows: int = 10_000) -> Any:
    """Return one column of a dataset as an array.

    Args:
        dataset: A dataset that is open for reading, or its path or URL.
        key: The key of a column of one shape.
        chunk_rows: The number of rows of a chunk.

    Raises:
        KeyError: There is no such column.
        ValueError: The column is ragged, or the dataset has no rows.

    >>> import dask
    >>> from tensordict_core import TensorDict
    >>> with MemmapDataset.create("array", TensorDict({"x": torch.zeros(2)})) as made:
    ...     made.extend(TensorDict({"x": torch.ones(5, 2)}, [5]))
    >>> with dask.config.set(scheduler="synchronous"):
    ...     float(read_array("array", "x", chunk_rows=2).sum().compute())
    10.0
    """
    column = _Column(_opened(dataset), key)
    chunks = (max(1, min(chunk_rows, column.shape[0])), *column.shape[1:])
    return dask.array.from_array(column, chunks=chunks, asarray=False, name=False)


def write_bag(
    bag: Any,
    path: str | os.PathLike[str],
    *,
    like: Any = None,
    ragged: Sequence[Key] = (),
    append: bool = False,
    durable: bool = False,
) -> MemmapDataset:
    """Write a bag of rows to a dataset, in one commit.

    Args:
        bag: A bag of tensordicts.
        path: The folder of the dataset.
        like: One row; required for ragged columns of tensors or of values that differ by row.
        ragged: The keys of the ragged columns.
        append: Whether to append to an existing dataset; otherwise the folder must be new.
        durable: Whether the commit is synced to disk.

    Returns:
        The dataset, open for reading.

    >>> import dask
    >>> from tensordict_core import TensorDict
    >>> bag = dask.bag.from_sequence(range(5), npartitions=2).map(lambda n: TensorDict({"x": torch.tensor(n)}))
    >>> with dask.config.set(scheduler="synchronous"):
    ...     write_bag(bag, "written")[:]["x"]
    MemoryMappedTensor([0, 1, 2, 3, 4])
    """
    parts = Parts(path, like=like, ragged=ragged, append=append, durable=durable)
    return _computed(parts, [delayed(_write_rows)(parts, rows) for rows in bag.to_delayed()])


def write_arrays(
    arrays: Mapping[str, Any], path: str | os.PathLike[str], *, append: bool = False, durable: bool = False
) -> MemmapDataset:
    """Write arrays to a dataset, one for each column, in one commit.

    Args:
        arrays: The arrays by the names of their columns; ``.`` separates the parts of a nested key. All have the same
            number of rows; chunks of rows are those of the first one.
        path: The folder of the dataset.
        append: Whether to append to an existing dataset; otherwise the folder must be new.
        durable: Whether the commit is synced to disk.

    Returns:
        The dataset, open for reading.

    Raises:
        ValueError: The arrays differ in their numbers of rows, or these are not known.

    >>> import dask
    >>> with dask.config.set(scheduler="synchronous"):
    ...     write_arrays({"x": dask.array.arange(6, chunks=4)}, "arrays")[:]["x"]
    MemoryMappedTensor([0, 1, 2, 3, 4, 5])
    """
    lengths = {name: array.shape[0] for name, array in arrays.items() if array.ndim}
    if (
        not arrays
        or len(set(lengths.values())) != 1
        or len(lengths) != len(arrays)
        or any(map(np.isnan, lengths.values()))
    ):
        raise ValueError(
            f"the arrays have {lengths} rows, and the columns of a dataset have the same number, which is known; call "
            "compute_chunk_sizes(), or check them"
        )
    rows = next(iter(arrays.values())).chunks[0]
    pieces = {
        name: array.rechunk({0: rows, **{dim: -1 for dim in range(1, array.ndim)}}).to_delayed().reshape(-1)
        for name, array in arrays.items()
    }
    parts = Parts(path, append=append, durable=durable)
    tables = [{name: blocks[number] for name, blocks in pieces.items()} for number in range(len(rows))]
    return _computed(parts, [delayed(_write_table)(parts, table) for table in tables])


def _computed(parts: Parts, tasks: list[Any]) -> MemmapDataset:
    try:
        parts.begin()
        names = compute(*tasks)
    except BaseException:
        parts.remove()
        raise
    return parts.join(names)


def _opened(dataset: Any) -> MemmapDataset:
    return dataset if isinstance(dataset, MemmapDataset) else MemmapDataset.open(dataset)


def _rows(dataset: MemmapDataset, start: int, stop: int) -> list[Any]:
    rows: list[Any] = []
    for first in range(start, stop, _BATCH_ROWS):
        rows += dataset[first : min(first + _BATCH_ROWS, stop)].unbind(0)
    return rows


def _write_rows(parts: Parts, rows: Iterable[Any]) -> str | None:
    def batches() -> Iterator[Any]:
        found = list(rows)
        for start in range(0, len(found), _BATCH_ROWS):
            yield lazy_stack(found[start : start + _BATCH_ROWS])

    return parts.write(batches())


def _write_table(parts: Parts, table: dict[str, Any]) -> str | None:
    return parts.write([parts.rows(table)])


class _Column:
    """A column as Dask slices arrays: it has a shape and a dtype, and reads rows when it is indexed."""

    def __init__(self, dataset: MemmapDataset, key: Key) -> None:
        self.dataset, self.key = dataset, key
        if not len(dataset):
            raise ValueError(
                f"{dataset!r} has no rows, and an array has the shape and dtype of some; append rows first"
            )
        first = dataset[:1].get(key)
        if first is None:
            raise KeyError(f"no column {key!r} in {dataset!r}; pass the key of an entry of its rows")
        if not isinstance(first, torch.Tensor) or first.is_nested:
            raise ValueError(f"column {key!r} is ragged or has values, and an array has one shape; use read_bag")
        self.shape = (len(dataset), *first.shape[1:])
        self.dtype, self.ndim = first.numpy().dtype, first.ndim

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        rows, *rest = index if isinstance(index, tuple) else (index,)
        found: np.ndarray[Any, Any] = self.dataset[rows].get(self.key).as_subclass(torch.Tensor).numpy()
        return found[(slice(None), *rest)] if rest else found
