"""Ray: datasets as sources and sinks of Ray Data, and an executor whose tasks run on a Ray cluster.

Ray is imported by this module only; ``pip install "tensordict-memmap[ray]"`` installs it. Paths must be on storage that
all machines of the cluster share; a URL is read through a cache on each machine.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

try:
    import ray
    from ray.data import Datasink, Datasource
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import ReadTask
except ImportError as error:
    raise ImportError(
        f'tensordict_memmap.data_engines.ray needs Ray ({error}): pip install "tensordict-memmap[ray]"'
    ) from None

from tensordict_memmap.dataset.dataset import MemmapDataset
from tensordict_memmap.dataset.parts import Parts
from tensordict_memmap.dataset.schema import Key
from tensordict_memmap.dataset.tables import rows_to_table

_BLOCK_BYTES = 1 << 26
"""The bytes of rows in a block, about; Ray's own limit is twice this."""


class MemmapDatasource(Datasource):
    """A dataset as a source of ``ray.data.read_datasource``; each block holds consecutive rows.

    Columns are named by their nested keys, joined with ``.``.

    Args:
        dataset: A dataset that is open for reading, or its path or URL.

    Example::

        rows = ray.data.read_datasource(MemmapDatasource("digits"))
        rows.map_batches(lambda batch: {"mean": batch["image"].mean((1, 2))})
    """

    def __init__(self, dataset: MemmapDataset | str | os.PathLike[str]) -> None:
        self.dataset = dataset if isinstance(dataset, MemmapDataset) else MemmapDataset.open(dataset)
        self._row_bytes = 0
        if len(self.dataset):
            table = rows_to_table(self.dataset[:8])
            self._row_bytes = sum(map(_nbytes, table.values())) // min(8, len(self.dataset))

    def get_name(self) -> str:
        """Return the name in Ray's progress messages."""
        return "Memmap"

    def estimate_inmemory_data_size(self) -> int:
        """Return the number of bytes of all rows, from the first ones."""
        return len(self.dataset) * self._row_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        """Return the tasks, each of which reads a range of rows."""
        rows = len(self.dataset)
        count = max(1, min(parallelism, rows))
        bounds = [rows * number // count for number in range(count + 1)]
        tasks = []
        for start, stop in itertools.pairwise(bounds):
            metadata = BlockMetadata(
                num_rows=stop - start, size_bytes=(stop - start) * self._row_bytes, exec_stats=None, input_files=None
            )
            read = partial(_read, self.dataset, start, stop, max(1, _BLOCK_BYTES // max(1, self._row_bytes)))
            tasks.append(ReadTask(read, metadata, per_task_row_limit=per_task_row_limit))
        return tasks


def _nbytes(column: Any) -> int:
    return int(column.nbytes if column.dtype != object else sum(getattr(item, "nbytes", 64) for item in column))


def _read(dataset: MemmapDataset, start: int, stop: int, step: int) -> Iterator[Any]:
    for first in range(start, stop, step):
        yield BlockAccessor.batch_to_block(rows_to_table(dataset[first : min(first + step, stop)]))


class MemmapDatasink(Datasink[Any]):
    """A dataset as a sink of ``ray.data.Dataset.write_datasink``; either all rows are committed or none.

    Tasks write parts beside the folder; when all tasks have ended, the rows are appended in order and committed. A
    failed job adds no rows.

    Args:
        path: The folder of the dataset.
        like: One row: a tensordict. By default the first row that is written; values and arrays of different lengths
            then become ragged columns.
        ragged: The keys of ragged columns, with ``like``.
        append: Whether to append to an existing dataset; otherwise the folder must be new.
        durable: Whether the commit is synced to disk.

    Example::

        ray.data.range(1000).write_datasink(MemmapDatasink("numbers"))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        like: Any = None,
        ragged: Sequence[Key] = (),
        append: bool = False,
        durable: bool = False,
    ) -> None:
        self.parts = Parts(path, like=like, ragged=ragged, append=append, durable=durable)

    def get_name(self) -> str:
        """Return the name in Ray's progress messages."""
        return "Memmap"

    def on_write_start(self, schema: Any = None) -> None:
        """Make the folder of the parts."""
        self.parts.begin()

    def write(self, blocks: Iterable[Any], ctx: Any) -> tuple[int, str | None]:
        """Write the blocks of one task; return its number and the name of its part."""
        tables = (BlockAccessor.for_block(block).to_batch_format("numpy") for block in blocks)
        return ctx.task_idx, self.parts.write(map(self.parts.rows, tables))

    def on_write_complete(self, write_result: Any) -> None:
        """Join the parts in the order of their tasks."""
        self.parts.join([name for _, name in sorted(write_result.write_returns, key=lambda one: one[0])])

    def on_write_failed(self, error: Exception) -> None:
        """Remove the parts."""
        self.parts.remove()


class RayExecutor(Executor):
    """An executor whose calls run as tasks on the Ray cluster that this process is connected to.

    Args:
        options: Options of the tasks, as of ``ray.remote``: ``num_cpus=2``, ``num_gpus=1``.

    Example::

        ray.init()
        result = td.map(square, num_chunks=64, pool=RayExecutor())
    """

    def __init__(self, **options: Any) -> None:
        self._run = ray.remote(**options)(_call) if options else ray.remote(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a task and return its future."""
        future: Future[Any] = self._run.remote(fn, args, kwargs).future()
        return future


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)
