"""`MemmapDataset`: a saved folder to which rows are appended while other processes read it.

Rows are written after the committed ones, then committed in one step by replacing the manifest
(``storage/rows_committed.py``). So readers see complete rows, the same number in each leaf, and a killed writer loses
only uncommitted rows. File locks, which end with their process, allow one writer, or several for ranges that do not
overlap. A dataset is an ordinary saved folder: ``load_memmap`` and the tensordict package open it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensordict_memmap.dataset.columns import check_growable
from tensordict_memmap.dataset.describe import as_html, as_text
from tensordict_memmap.dataset.remote import DEFAULT_CACHE_BYTES, RemoteRows
from tensordict_memmap.dataset.ring import RingRows, new_ring
from tensordict_memmap.dataset.rows import Rows, open_rows
from tensordict_memmap.dataset.schema import Key, plan_rows
from tensordict_memmap.dataset.upload import upload
from tensordict_memmap.dataset.writer import Writer, write_empty
from tensordict_memmap.engine import syscalls
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.manifest import NAME


class MemmapDataset:
    """A dataset of rows on disk, with many readers and one writer, or several writers of separate ranges.

    Call :meth:`create` or :meth:`open`. A dataset has a length and is indexed like a tensordict, so it can be passed to
    a ``DataLoader``; ``collate_fn`` receives a tensordict with the rows of a batch, read by one indexing operation.

    >>> import torch
    >>> from tensordict_core import TensorDict
    >>> row = TensorDict({"image": torch.zeros(2, 2), "label": torch.tensor(0)})
    >>> with MemmapDataset.create("digits", row) as digits:
    ...     digits.append(row)
    ...     digits.extend(row.expand(3))
    >>> digits = MemmapDataset.open("digits")
    >>> len(digits), digits[torch.tensor([2, 0])]["image"].shape
    (4, torch.Size([2, 2, 2]))
    """

    def __init__(
        self, path: str | os.PathLike[str], tensordict: Any, allow_pickle: bool | None, seen: syscalls.Stamp | None
    ) -> None:
        self._path: str = str(path) if isinstance(tensordict, RemoteRows) else os.fspath(os.path.realpath(path))
        self._td = tensordict
        self._allow_pickle = allow_pickle
        self._writer: Writer | None = None
        self._seen = seen  # the tensordict is at least as new as this manifest

    # --- constructors

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        like: Any,
        *,
        capacity: int = 0,
        reserve: bool = False,
        durable: bool = False,
        existsok: bool = False,
        ragged: Sequence[Key] = (),
        ring: bool = False,
    ) -> Self:
        """Create an empty dataset and open it for writing.

        Args:
            path: The folder, created in one step.
            like: One row: a tensordict or tensorclass. Its tensors are not stored; its non-tensor values are those of
                all rows.
            capacity: The number of rows for which the files are made long enough. These rows are not committed and take
                no disk space.
            reserve: Whether to allocate the disk space for ``capacity`` rows, so that a full disk raises an error in
                this call.
            durable: Whether commits are synced to disk.
            existsok: Whether an existing save may be replaced.
            ragged: The keys of the columns whose rows differ in size: tensors that differ in the first dimension, and
                non-tensor values. In a batch, such a column is a jagged tensor or a stack of values. The row ``like``
                determines the dtype and the other dimensions, or whether the values are strings, bytes, or other values
                with a JSON form.
            ring: Whether to keep the last ``capacity`` rows only: new rows replace the oldest ones.

        Raises:
            RuntimeError: The folder is not empty and ``existsok`` is False.
            ValueError: An entry cannot grow: a lazy stack, a nested tensor, a stack of non-tensor values.
            KeyError: The row lacks a key of ``ragged``.
            ValueError: A ring has no capacity, or ragged columns.
            OSError: Writing fails, for example because the disk is full; the error names the key, and no files are
                left.

        >>> import torch
        >>> from tensordict_core import TensorDict
        >>> dataset = MemmapDataset.create("made", TensorDict({"a": torch.zeros(3)}), capacity=100)
        >>> len(dataset), os.path.getsize("made/a.memmap")
        (0, 1200)
        >>> row = TensorDict({"text": "", "tokens": torch.zeros(0, dtype=torch.int64)})
        >>> with MemmapDataset.create("texts", row, ragged=["text", "tokens"]) as texts:
        ...     texts.append(TensorDict({"text": "two words", "tokens": torch.tensor([5, 7])}))
        ...     texts.append(TensorDict({"text": "one", "tokens": torch.tensor([6])}))
        >>> texts[1]["text"], texts[[1, 0]]["tokens"].offsets()
        ('one', tensor([0, 1, 3]))
        >>> last = MemmapDataset.create("last", TensorDict({"a": torch.tensor(0)}), capacity=3, ring=True)
        >>> last.extend(TensorDict({"a": torch.arange(8)}, [8]))
        >>> last[:]["a"], last[-1]["a"]
        (tensor([5, 6, 7]), tensor(7))
        """
        path = local_path(path)
        if is_remote(path):
            raise ValueError(f"{path} is remote, where rows cannot be appended; create a local dataset and upload it")
        root = os.path.realpath(path)
        if not existsok:
            transaction.check_new(root)
        node, states = plan_rows(like, ragged)
        check_growable(node, "the row")
        slots = new_ring(capacity) if ring else None
        if slots is not None:
            capacity = slots.slots
            if states:
                raise ValueError("a ring has rows of one size, and ragged= was passed; pad them, or leave ring out")
        with transaction.saving(root, is_folder=True, durable=durable, existsok=existsok) as stage:
            stage.manifest = write_empty(node, stage.path, capacity, reserve, durable, states, slots)
        return cls.open(root, mode="r+", durable=durable, allow_pickle=True)  # this process wrote the pickles

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: str = "r",
        *,
        part: tuple[int, int] | None = None,
        durable: bool = False,
        allow_pickle: bool | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> Self:
        """Open a saved tensordict, from this package or from tensordict, to read its rows or to append rows.

        Args:
            path: The folder, or the URL of one, such as ``s3://bucket/data``, to read its rows through a local cache.
            mode: ``"r"`` reads, and in-place changes of entries stay in this process; ``"r+"`` writes.
            part: With ``"r+"``, the range of rows ``(start, stop)`` to write as one of several writers. Rows become
                visible when all rows before them are committed. To continue a range, open it again with the same
                numbers.
            durable: Whether commits are synced to disk.
            allow_pickle: Whether non-tensor values without a JSON form may be unpickled.
            cache: For a URL, the folder of the cache, which later runs and other processes of this machine can reuse;
                by default a temporary folder.
            cache_bytes: The maximum size in bytes of the cached blocks on disk.

        Raises:
            BlockingIOError: Another writer holds some of the rows.
            FileNotFoundError: There is no saved tensordict.
            PermissionError: The store of a URL refused the request.
            ValueError: The tensordict cannot grow, ``part`` overlaps committed rows or another range, or ``mode`` is
                ``"r+"`` for a URL.

        >>> _ = TensorDict({"x": torch.arange(3)}, [3]).save("rows")
        >>> len(MemmapDataset.open("rows"))
        3
        """
        if mode not in ("r", "r+"):
            raise ValueError(f"mode {mode!r} is neither 'r' nor 'r+'; use 'r+' to write")
        path = local_path(path)
        if is_remote(path):
            if mode != "r" or part is not None:
                raise ValueError(
                    f"{path} is remote, where rows can be read only; write to a local dataset and call upload({path!r})"
                )
            where = None if cache is None else os.fspath(cache)
            return cls(path, RemoteRows(str(path), where, cache_bytes, allow_pickle), allow_pickle, None)
        if mode == "r":
            if part is not None:
                raise ValueError("part is for writers; pass mode='r+', or leave part out and index the dataset")
            seen = _stamp(path)
            return cls(path, open_rows(os.path.realpath(path), "r", allow_pickle), allow_pickle, seen)
        writer = Writer(os.path.realpath(path), part, durable, allow_pickle)
        made = cls(path, None, allow_pickle, None)
        made._writer = writer
        return made

    # --- reading

    @property
    def path(self) -> Path:
        """The folder; of a remote dataset, that of its local cache.

        >>> dataset = MemmapDataset.create("rows", TensorDict({"x": torch.zeros(2)}))
        >>> dataset.path.name
        'rows'
        """
        return Path(self._td.folder if isinstance(self._td, RemoteRows) else self._path)

    @property
    def tensordict(self) -> Any:
        """The committed rows, as a locked tensordict or tensorclass mapped onto the files.

        Ragged columns are jagged tensors; those of values hold the bytes that encode them. The rows of a ring are
        copied to memory.

        >>> dataset = MemmapDataset.create("rows", TensorDict({"x": torch.zeros(2)}))
        >>> dataset.extend(TensorDict({"x": torch.ones(5, 2)}, [5]))
        >>> dataset.tensordict.batch_size, dataset.tensordict.is_locked
        (torch.Size([5]), True)
        """
        rows = self._rows
        if isinstance(rows, RemoteRows):
            raise RuntimeError(
                f"{self._path} is remote and read by rows; index the dataset, or load all of it with "
                f"load_memmap({self._path!r})"
            )
        if isinstance(rows, RingRows):
            return rows[:].lock_()
        return rows.tensordict() if isinstance(rows, Rows) else rows

    @property
    def _rows(self) -> Any:
        """The committed rows: a tensordict, or `Rows` with ragged columns, or `RingRows`, or `RemoteRows`."""
        if self._td is None:
            self._td = open_rows(self._path, "r" if self._writer is None else "r+", self._allow_pickle)
        return self._td

    def __len__(self) -> int:
        """Return the number of committed rows."""
        if self._td is None and self._writer is not None:
            ring = self._writer.ring
            return self._writer.committed.rows if ring is None else ring.rows
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return rows by index, or an entry by key, like a tensordict."""
        return self._rows[index]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Return the rows of a ``DataLoader`` batch, in one indexing operation."""
        return self._rows.__getitems__(indices)

    def refresh(self) -> int:
        """Make newly committed rows visible; tensors that were read before do not change.

        Returns:
            The number of committed rows.

        >>> import torch
        >>> from tensordict_core import TensorDict
        >>> writer = MemmapDataset.create("live", TensorDict({"a": torch.tensor(0)}))
        >>> reader = MemmapDataset.open("live")
        >>> writer.append(TensorDict({"a": torch.tensor(7)}))
        >>> len(reader), reader.refresh()
        (0, 1)
        """
        if isinstance(self._td, RemoteRows):
            if not self._td.is_current():
                remote = self._td
                self._td = RemoteRows(remote.url, remote.cache, remote.cache_bytes, remote.allow_pickle)
            return len(self._td)
        if isinstance(self._td, RingRows):
            self._td.refresh()
            return len(self._td)
        stamp = _stamp(self._path)
        if stamp != self._seen or self._td is None:
            self._td = None
            if self._writer is not None:
                self._writer.refresh()
            rows = len(self._rows)
            self._seen = stamp
            return rows
        return len(self)

    def upload(self, url: str, *, existsok: bool = True) -> None:
        """Upload the committed rows to a URL; readers there see all of them or the earlier save.

        Args:
            url: The URL, such as ``s3://bucket/data``.
            existsok: Whether an earlier save at the URL may be replaced.

        Raises:
            RuntimeError: The URL is in use, and ``existsok`` is False.

        >>> import torch
        >>> from tensordict_core import TensorDict
        >>> with MemmapDataset.create("local", TensorDict({"a": torch.tensor(0)})) as dataset:
        ...     dataset.extend(TensorDict({"a": torch.arange(10)}, [10]))
        ...     dataset.upload("memory://uploaded")
        >>> MemmapDataset.open("memory://uploaded")[[7, 2]]["a"]
        tensor([7, 2])
        """
        upload(self._path, url, existsok=existsok)

    def __reduce__(self) -> Any:
        """Pickle a reader of the same rows."""
        return type(self), (self._path, self._rows, self._allow_pickle, self._seen)  # of a writer, the committed rows

    def __repr__(self) -> str:
        """Return the columns with dtypes, shapes of a row and sizes, the folder, and the number of rows as text."""
        try:
            return as_text(type(self).__name__, self._path, self._rows)
        except (OSError, ValueError):  # the folder was removed or is damaged; the text is printed all the same
            return f"{type(self).__name__}({self._path!r})"

    def _repr_html_(self) -> str:
        """Return the same as a folding table, for notebooks."""
        return as_html(type(self).__name__, self._path, self._rows)

    # --- writing

    def append(self, row: Any, *, commit: bool = True) -> None:
        """Append one row.

        Args:
            row: The row, without the row dimension, with the keys, classes, dtypes and shapes of the saved rows.
            commit: Whether to commit the row immediately. A commit takes longer than a write: to write many rows, pass
                False and call :meth:`commit` after the last one.

        Raises:
            ValueError: The row does not match the saved ones; the error names the key, and nothing is written.
            OSError: A write fails, for example because the disk is full; committed rows are unchanged.

        >>> dataset = MemmapDataset.create("rows", TensorDict({"x": torch.zeros(2)}))
        >>> dataset.append(TensorDict({"x": torch.ones(2)}))
        >>> len(dataset)
        1
        """
        self._written(self._check_writer().write(row, one=True), commit)

    def extend(self, rows: Any, *, commit: bool = True, threads: int | None = None, pbar: bool | None = None) -> None:
        """Append rows along the first batch dimension.

        Args:
            rows: The rows.
            commit: Whether to commit them immediately.
            threads: The number of threads; chosen for the machine if None.
            pbar: Whether to show a progress bar; None shows one on a terminal after two seconds.

        >>> dataset = MemmapDataset.create("rows", TensorDict({"x": torch.zeros(2)}))
        >>> dataset.extend(TensorDict({"x": torch.ones(5, 2)}, [5]))
        >>> len(dataset), dataset[2:4]["x"].shape
        (5, torch.Size([2, 2]))
        """
        self._written(self._check_writer().write(rows, one=False, threads=threads, pbar=pbar), commit)

    def _written(self, rows: int, commit: bool) -> None:
        if rows and commit:
            self.commit()
        elif isinstance(self._td, RingRows):  # a full ring commits by itself
            self._td.refresh()

    def commit(self) -> None:
        """Commit all written rows, in one step.

        >>> dataset = MemmapDataset.create("rows", TensorDict({"x": torch.zeros(2)}))
        >>> dataset.append(TensorDict({"x": torch.ones(2)}), commit=False)
        >>> before = len(MemmapDataset.open("rows"))
        >>> dataset.commit()
        >>> before, len(MemmapDataset.open("rows"))
        (0, 1)
        """
        if not self._check_writer().commit():
            return
        if isinstance(self._td, RingRows):
            self._td.refresh()  # the slots stay mapped
        else:
            self._td = None

    def resize(self, rows: int) -> None:
        """Set the number of committed rows: remove rows at the end, or add rows of zeros, which take no disk space.

        Ranges that other writers have begun are dropped.

        >>> dataset = MemmapDataset.create("rows", TensorDict({"x": torch.zeros(2)}))
        >>> dataset.resize(3)
        >>> dataset[:]["x"].sum(), len(dataset)
        (tensor(0.), 3)
        """
        self._check_writer().resize(rows)
        self._td = None

    def reserve(self, rows: int) -> None:
        """Allocate the disk space for a total number of rows, so that a full disk raises an error in this call.

        Raises:
            OSError: The disk is full; the error names the key, and the files are unchanged.

        >>> dataset = MemmapDataset.create("rows", TensorDict({"x": torch.zeros(2)}))
        >>> dataset.reserve(1000)
        >>> len(dataset)
        0
        """
        self._check_writer().reserve(rows)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Overwrite committed rows in place; readers may see a partial change."""
        if self._check_writer().part is not None:
            raise RuntimeError("the writer of a part cannot overwrite committed rows; open the dataset without a part")
        self._rows[index] = value

    def close(self) -> None:
        """Commit all written rows and release the lock; the dataset can still be read.

        >>> dataset = MemmapDataset.create("rows", TensorDict({"x": torch.zeros(2)}))
        >>> dataset.append(TensorDict({"x": torch.ones(2)}), commit=False)
        >>> dataset.close()
        >>> len(MemmapDataset.open("rows"))
        1
        """
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.commit()
            finally:
                writer.close()
                self._td = None

    def __enter__(self) -> Self:
        """Close the dataset at the end of the block; after an error, rows that are not committed are dropped."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        elif self._writer is not None:
            self._writer.close()
            self._writer, self._td = None, None

    def _check_writer(self) -> Writer:
        if isinstance(self._td, RemoteRows):
            raise RuntimeError(
                f"{self._path} is remote, where rows can be read only; write to a local dataset and upload it"
            )
        if self._writer is None:
            raise RuntimeError(f"{self._path} is open for reading; open it with mode='r+' to write")
        return self._writer


def _stamp(path: str | os.PathLike[str]) -> syscalls.Stamp | None:
    return syscalls.stamp(os.path.join(path, NAME))


def append_memmap(prefix: str | os.PathLike[str], rows: Any, *, allow_pickle: bool | None = None) -> None:
    """Append rows to a saved tensordict along its first batch dimension, in one commit.

    Args:
        prefix: The folder, saved by this package or by tensordict.
        rows: The rows, with the keys, classes, dtypes and trailing shapes of the saved ones. Non-tensor values must be
            equal to the saved ones.
        allow_pickle: Whether saved non-tensor values without a JSON form may be unpickled, to compare them.

    Raises:
        ValueError: ``prefix`` is not a folder, or the rows do not match its content; the error names the key.
        BlockingIOError: Another writer has the dataset open.
        OSError: A write fails, for example because the disk is full; saved rows are unchanged.

    >>> import torch
    >>> from tensordict_core import TensorDict
    >>> _ = TensorDict({"a": torch.zeros(3, 2)}, [3]).save("appended")
    >>> append_memmap("appended", TensorDict({"a": torch.ones(2, 2)}, [2]))
    >>> TensorDict.load_memmap("appended")["a"].sum(-1).tolist()
    [0.0, 0.0, 0.0, 2.0, 2.0]
    """
    if not os.path.isdir(prefix):
        raise ValueError(
            f"{os.fspath(prefix)} is not a saved folder, and rows are appended to folders only; unpack an archive with "
            "unpack_memmap first"
        )
    if not hasattr(rows, "batch_size"):
        raise TypeError(f"{type(rows).__name__} holds no rows; pass a tensordict or tensorclass")
    with MemmapDataset.open(prefix, "r+", allow_pickle=allow_pickle) as dataset:
        dataset.extend(rows)
