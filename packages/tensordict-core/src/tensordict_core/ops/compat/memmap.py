"""Saving and memory mapping: the methods that ``tensordict-memmap`` implements.

Each is typed and documented here and calls `satellite` in one line. The examples run if ``tensordict-memmap`` is
installed.
"""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Self, Unpack, cast, overload

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey
from tensordict_core.base.node import Node
from tensordict_core.base.registry.plugins import is_loaded, satellite
from tensordict_core.base.signature import with_options
from tensordict_core.base.tracing import is_compiling
from tensordict_core.ops.compat.options import (
    ConsolidateOptions,
    MemmapLikeOptions,
    MemmapOptions,
    RankSaveOptions,
    SaveOptions,
    StrPath,
)

_NAME = "tensordict_memmap"


class MemmapStubs(Node):
    """``memmap``, ``save``, ``consolidate`` and related methods."""

    __slots__ = ()

    @overload
    def memmap(
        self,
        prefix: StrPath | None = ...,
        copy_existing: bool = ...,
        *,
        return_early: Literal[False] = ...,
        **options: Unpack[SaveOptions],
    ) -> Self: ...
    @overload
    def memmap(
        self,
        prefix: StrPath | None = ...,
        copy_existing: bool = ...,
        *,
        return_early: Literal[True],
        **options: Unpack[SaveOptions],
    ) -> Future[Self]: ...
    @with_options(SaveOptions)
    def memmap(
        self,
        prefix: StrPath | None = None,
        copy_existing: bool = False,
        *,
        return_early: bool = False,
        **options: Unpack[SaveOptions],
    ) -> Any:
        """Write all entries to disk and return a locked tensordict of the same structure that is mapped onto the files.

        Args:
            prefix: The folder or file; without one, entries are copied to anonymous shared memory.
            copy_existing: Whether entries that are mapped onto other files are copied; otherwise they raise an error.
            num_threads: The number of threads that copy; by default chosen for this machine.
            return_early: Whether to return a future immediately.
            share_non_tensor: Whether non-tensor values are also shared between processes.
            existsok: Whether an existing save may be replaced.
            robust_key: Accepted for compatibility; file names always escape unusual characters of keys.
            archive: Whether to write one archive file; the default is true if ``prefix`` ends in ``.tdz``.
            compression: The compression of the archive; by default none.
            atomic: Whether an interrupted save leaves an existing save intact; otherwise its files are overwritten in
                place.
            durable: Whether files and folders are synced to disk before the call returns.
            checksum: Whether to record checksums, which ``load_memmap(..., verify="full")`` compares. The result is
                then mapped copy-on-write, so that the checksums remain valid.
            pbar: Whether to show the progress in bytes; by default on a terminal, if the save takes over two seconds.
            format: ``"tree"`` for a folder with a file for each entry, ``"safetensors"`` for one file, ``"archive"``
                for one zip file; by default according to the suffix of ``prefix``, ``.safetensors`` or ``.tdz``.
            shard_size: The maximum size in bytes of the tensors in one safetensors file; ``prefix`` is then a folder of
                such files.

        Raises:
            ImportError: ``tensordict-memmap`` is not installed.
            RuntimeError: An entry is mapped onto another file and ``copy_existing`` is false.

        >>> td = TensorDict({"a": torch.ones(3)}, [3]).memmap()
        >>> td.is_memmap(), td.is_locked
        (True, True)
        """
        return satellite(_NAME, "TensorDict.memmap").memmap(
            self, prefix, copy_existing=copy_existing, return_early=return_early, **options
        )

    @overload
    def memmap_(
        self,
        prefix: StrPath | None = ...,
        copy_existing: bool = ...,
        *,
        return_early: Literal[False] = ...,
        **options: Unpack[MemmapOptions],
    ) -> Self: ...
    @overload
    def memmap_(
        self,
        prefix: StrPath | None = ...,
        copy_existing: bool = ...,
        *,
        return_early: Literal[True],
        **options: Unpack[MemmapOptions],
    ) -> Future[Self]: ...
    @with_options(MemmapOptions)
    def memmap_(
        self,
        prefix: StrPath | None = None,
        copy_existing: bool = False,
        *,
        return_early: bool = False,
        **options: Unpack[MemmapOptions],
    ) -> Any:
        """Write all entries to disk as ``memmap``, replace them by mapped ones, and lock this tensordict.

        Raises:
            ImportError: ``tensordict-memmap`` is not installed.
            RuntimeError: Entries are in a file or on a server, and reads copy them.

        >>> TensorDict({"a": torch.ones(3)}, [3]).memmap_().is_memmap()
        True
        """
        if Node._copies_exist and self._copies_below():
            raise errors.not_in_memory("memmap_", self)
        if self._locked and self._in_shared_memory():
            raise errors.mapped_and_shared("memmap_", "in shared memory")
        return satellite(_NAME, "TensorDict.memmap_").memmap_(
            self, prefix, copy_existing=copy_existing, return_early=return_early, **options
        )

    @overload
    def memmap_like(
        self,
        prefix: StrPath | None = ...,
        copy_existing: bool = ...,
        *,
        return_early: Literal[False] = ...,
        **options: Unpack[MemmapLikeOptions],
    ) -> Self: ...
    @overload
    def memmap_like(
        self,
        prefix: StrPath | None = ...,
        copy_existing: bool = ...,
        *,
        return_early: Literal[True],
        **options: Unpack[MemmapLikeOptions],
    ) -> Future[Self]: ...
    @with_options(MemmapLikeOptions)
    def memmap_like(
        self,
        prefix: StrPath | None = None,
        copy_existing: bool = False,
        *,
        return_early: bool = False,
        **options: Unpack[MemmapLikeOptions],
    ) -> Any:
        """Return a mapped tensordict of the same structure, filled with zeros.

        A folder that holds a save of this structure (keys, shapes, dtypes and classes) is opened, and its tensors keep
        their values, unless ``existsok=False``; a save of another structure is replaced.

        Values are not copied; expanded entries get files of their expanded size. Other arguments are those of
        ``memmap``. Files take no disk space until they are written; ``reserve=True`` allocates the space during the
        call, which raises an ``OSError`` if the disk is full.

        Raises:
            ImportError: ``tensordict-memmap`` is not installed.

        >>> TensorDict({"a": torch.ones(())}).expand(3).memmap_like()["a"].sum()
        tensor(0.)
        """
        return satellite(_NAME, "TensorDict.memmap_like").memmap_like(
            self, prefix, copy_existing=copy_existing, return_early=return_early, **options
        )

    @overload
    def save(
        self,
        prefix: StrPath,
        copy_existing: bool = ...,
        *,
        return_early: Literal[False] = ...,
        **options: Unpack[RankSaveOptions],
    ) -> Self: ...
    @overload
    def save(
        self,
        prefix: StrPath,
        copy_existing: bool = ...,
        *,
        return_early: Literal[True],
        **options: Unpack[RankSaveOptions],
    ) -> Future[Self]: ...
    @with_options(RankSaveOptions)
    def save(
        self,
        prefix: StrPath,
        copy_existing: bool = True,
        *,
        return_early: bool = False,
        **options: Unpack[RankSaveOptions],
    ) -> Any:
        """Write all entries to disk without mapping them, and return this tensordict unchanged.

        If leaves are DTensors, or with ``group``, all ranks of a process group save together: each rank calls this
        method and writes its own bytes of one checkpoint, which replaces an existing one when all ranks have written.

        Arguments are those of ``memmap``, and these: ``group`` is the process group or device mesh of the ranks that
        save; by default the default process group if a leaf is a DTensor, otherwise this process alone. ``placements``
        describes the plain leaves: by default each rank holds the whole tensor; with ``Shard(dim)`` the ranks hold
        consecutive parts of it along that dimension. ``timeout`` is the maximum time to wait for another rank in
        seconds, by default half an hour. With ``return_early``, ``pending`` says whether to wait for an earlier save of
        these ranks that still runs (``"wait"``) or to cancel it (``"cancel"``).

        With ``return_early=True`` the result is a future of this tensordict, which is returned immediately.

        Raises:
            ImportError: ``tensordict-memmap`` is not installed.

        >>> td = TensorDict({"a": torch.arange(3)}, [3])
        >>> td.save("run") is td, TensorDict.load("run")["a"]
        (True, MemoryMappedTensor([0, 1, 2]))
        """
        return satellite(_NAME, "TensorDict.save").save(
            self, prefix, copy_existing=copy_existing, return_early=return_early, **options
        )

    dumps = save

    def save_delta(
        self,
        path: StrPath,
        *,
        base: StrPath | Node,
        block_size: int = 1 << 16,
        max_chain: int = 8,
        num_threads: int | None = None,
        existsok: bool = True,
        durable: bool = False,
    ) -> Self:
        """Write the differences from an earlier save to one file, and return this tensordict.

        ``load`` of that file returns all entries.

        Args:
            path: The file, in the format of safetensors.
            base: The earlier save, or a tensordict loaded from it: a folder with a file for each entry, a safetensors
                file, or another delta, saved with ``checksum=True``. It must exist when the delta is loaded.
            block_size: The size in bytes of the blocks that are compared and written.
            max_chain: The maximum number of deltas on top of each other.
            num_threads: The number of threads that write; by default chosen for this machine.
            existsok: Whether an earlier file may be replaced.
            durable: Whether the file is synced to disk before the call returns.

        Raises:
            ImportError: ``tensordict-memmap`` is not installed.
            FileNotFoundError: There is no save at ``base``.
            ValueError: A delta cannot be based on the save at ``base``; the error says why.

        >>> td = TensorDict({"a": torch.zeros(3), "b": torch.ones(3)})
        >>> _ = td.save("step-1", checksum=True)
        >>> _ = td.set("b", torch.ones(3) * 2).save_delta("step-2", base="step-1")
        >>> TensorDict.load("step-2")["b"].tolist()
        [2.0, 2.0, 2.0]
        """
        satellite(_NAME, "TensorDict.save_delta").save_delta(
            self,
            path,
            base=base,
            block_size=block_size,
            max_chain=max_chain,
            num_threads=num_threads,
            existsok=existsok,
            durable=durable,
        )
        return self

    def make_memmap(
        self,
        key: NestedKey,
        shape: torch.Size | Tensor,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = None,
    ) -> Tensor:
        """Return a new mapped entry of zeros, stored under ``key`` of a mapped tensordict (which may be locked).

        Args:
            key: The key of the new entry; nested tensordicts that are missing are created.
            shape: Its shape; of a nested tensor, a 2D integer tensor with the shape of one component in each row.
            dtype: Its dtype; torch's default if None.
            robust_key: Accepted for compatibility and ignored.

        Raises:
            RuntimeError: The tensordict is not mapped, or the key exists.

        >>> disk = TensorDict({"a": torch.ones(3)}, [3]).memmap("run")
        >>> disk.make_memmap("b", [3, 2], dtype=torch.int64).sum(), TensorDict.load("run").sorted_keys
        (tensor(0), ['a', 'b'])
        """
        result: Tensor = satellite(_NAME, "TensorDict.make_memmap").make_memmap(self, key, shape, dtype=dtype)
        return result

    def make_memmap_from_storage(
        self,
        key: NestedKey,
        storage: torch.UntypedStorage,
        shape: torch.Size | Tensor,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = None,
    ) -> Tensor:
        """Return a new mapped entry with the values of a storage, stored under ``key`` of a mapped tensordict.

        In shared memory the entry shares the storage; in a folder it is a copy in a file of its own.

        Args:
            key: As for ``make_memmap``.
            storage: The storage; its first elements are those of the entry.
            shape: The shape of the entry.
            dtype: Its dtype; torch's default if None.
            robust_key: Accepted for compatibility and ignored.

        Raises:
            RuntimeError: The tensordict is not mapped, or the key exists.

        >>> disk = TensorDict({"a": torch.ones(3)}, [3]).memmap("run")
        >>> storage = disk["a"].untyped_storage()
        >>> disk.make_memmap_from_storage("b", storage, [3], dtype=torch.float32).tolist()
        [1.0, 1.0, 1.0]
        """
        result: Tensor = satellite(_NAME, "TensorDict.make_memmap_from_storage").make_memmap_from_storage(
            self, key, storage, shape, dtype=dtype
        )
        return result

    def make_memmap_from_tensor(
        self,
        key: NestedKey,
        tensor: Tensor,
        *,
        copy_data: bool = True,
        existsok: bool = True,
        robust_key: bool | None = None,
    ) -> Tensor:
        """Return a new mapped entry of the shape and dtype of a tensor, with its values if ``copy_data``.

        Args:
            key: As for ``make_memmap``.
            tensor: The tensor.
            copy_data: Whether its values are written; otherwise the entry has zeros.
            existsok: Accepted for compatibility and ignored.
            robust_key: Accepted for compatibility and ignored.

        Raises:
            RuntimeError: The tensordict is not mapped, or the key exists.

        >>> disk = TensorDict({"a": torch.ones(3)}, [3]).memmap("run")
        >>> _ = disk.make_memmap_from_tensor("b", torch.arange(3))
        >>> TensorDict.load("run")["b"].tolist()
        [0, 1, 2]
        """
        result: Tensor = satellite(_NAME, "TensorDict.make_memmap_from_tensor").make_memmap_from_tensor(
            self, key, tensor, copy_data=copy_data
        )
        return result

    def is_memmap(self) -> bool:
        """Return whether all leaves are memory mapped; false without leaves, and in compiled code.

        >>> TensorDict({"a": torch.ones(3)}).memmap().is_memmap(), TensorDict({"a": torch.ones(3)}).is_memmap()
        (True, False)
        """
        if is_compiling() or not is_loaded(_NAME):  # the tensors of compiled code are fake
            return False
        return bool(satellite(_NAME, "TensorDict.is_memmap").is_memmap(self))

    @overload
    def consolidate(
        self,
        filename: StrPath | None = ...,
        *,
        return_early: Literal[False] = ...,
        **options: Unpack[ConsolidateOptions],
    ) -> Self: ...
    @overload
    def consolidate(
        self, filename: StrPath | None = ..., *, return_early: Literal[True], **options: Unpack[ConsolidateOptions]
    ) -> Future[Self]: ...
    @with_options(ConsolidateOptions)
    def consolidate(
        self, filename: StrPath | None = None, *, return_early: bool = False, **options: Unpack[ConsolidateOptions]
    ) -> Any:
        """Copy all leaves into one storage, and return a locked tensordict of views of it.

        Args:
            filename: A file to use as the storage, which ``from_consolidated`` opens. Writes to the result change the
                file.
            num_threads: The number of threads that copy.
            device: The device of the storage; by default that of the tensordict. Exclusive with ``filename``.
            non_blocking: Whether copies between devices may be asynchronous.
            inplace: Whether the views replace the leaves of this tensordict, which is returned.
            return_early: With ``num_threads > 1``, whether to return a future at once.
            use_buffer: Whether leaves are copied to a buffer in shared memory, which is written to the file and becomes
                the storage. Writes to the result then do not change the file.
            share_memory: Whether the storage is shared memory.
            pin_memory: Whether the storage is pinned.
            metadata: Accepted for compatibility; a file always holds the structure.

        Raises:
            ImportError: ``tensordict-memmap`` is not installed.
            RuntimeError: ``filename`` is given with a device other than the CPU.
            ValueError: ``return_early`` is given with ``use_buffer`` or ``non_blocking``.
            TypeError: An entry cannot be stored in one storage; the error names its key.

        >>> td = TensorDict({"a": torch.zeros(2), "b": {"c": torch.ones(3)}}).consolidate()
        >>> td.is_consolidated(), td["a"].untyped_storage().data_ptr() == td["b", "c"].untyped_storage().data_ptr()
        (True, True)
        """
        return satellite(_NAME, "TensorDict.consolidate").consolidate(
            self, filename, return_early=return_early, **options
        )

    def is_consolidated(self) -> bool:
        """Return whether all leaves are views of one storage that ``consolidate`` made.

        >>> td = TensorDict({"a": torch.ones(3)}, [3])
        >>> td.is_consolidated(), td.consolidate().is_consolidated()
        (False, True)
        """
        return is_loaded(_NAME) and bool(satellite(_NAME, "TensorDict.is_consolidated").is_consolidated(self))

    @property
    def saved_path(self) -> Path | None:
        """The folder that this tensordict is mapped onto; ``None`` if its tensors are mapped without one.

        Raises:
            AttributeError: The tensors are not mapped onto files.

        >>> TensorDict({"a": torch.ones(3)}, [3]).memmap("run").saved_path.name
        'run'
        """
        path = None if self._annotations is None else self._annotations.get("saved_path")
        if path is None and not self.is_memmap():
            raise AttributeError("the tensordict is not mapped, so it has no saved path; call memmap(path) first")
        return cast("Path | None", path)
