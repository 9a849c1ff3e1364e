"""HDF5, zarr and Redis: the methods that ``tensordict-store`` implements.

Each is typed and documented here and calls `satellite` in one line. The examples run if ``tensordict-store`` is
installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensordict_core.base.node import Node
from tensordict_core.ops.compat.implemented import implemented_by
from tensordict_core.ops.compat.options import StrPath


class StoreStubs(Node):
    """``to_h5``, ``from_h5``, ``to_zarr``, ``from_zarr`` and ``to_store``."""

    __slots__ = ()

    @implemented_by("tensordict_store")
    def to_h5(self, filename: StrPath, **kwargs: Any) -> Any:
        """Store the entries in a new HDF5 file, and return it as a `PersistentTensorDict` that may be written.

        Args:
            filename: The file; an existing file is replaced atomically.
            **kwargs: How entries are stored: ``chunks`` (``True``, a number of rows, or a shape), ``compression`` and
                the other arguments of ``create_dataset`` of h5py; ``allow_pickle`` for non-tensor values that JSON
                cannot hold.

        Raises:
            ImportError: ``tensordict-store`` or h5py is not installed.
            TypeError: An entry cannot be stored; the error names its key.

        >>> stored = TensorDict({"x": torch.arange(6).view(3, 2)}, [3]).to_h5("rows.h5")
        >>> stored[1:]["x"], stored.close()
        (tensor([[2, 3], [4, 5]]), None)
        """

    @classmethod
    @implemented_by("tensordict_store")
    def from_h5(
        cls,
        filename: StrPath,
        *,
        mode: str = "r",
        auto_batch_size: bool | None = None,
        batch_dims: int | None = None,
        batch_size: Sequence[int] | int | None = None,
        non_tensor_as_stack: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Open an HDF5 file as a `PersistentTensorDict`; entries are read when they are used.

        Args:
            filename: The file.
            mode: ``"r"`` for reading, ``"r+"`` for reading and writing.
            auto_batch_size: Whether the batch size is the longest common prefix of all shapes; by default it is if
                neither ``batch_size`` nor the file has one.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            batch_size: The batch size; by default the one that is stored in the file.
            non_tensor_as_stack: Whether one non-tensor value of a batch is read as a value for each position.
            **kwargs: ``allow_pickle``, and how new entries are stored.

        Raises:
            ImportError: ``tensordict-store`` or h5py is not installed.
            OSError: The file cannot be opened.

        >>> TensorDict({"x": torch.arange(6).view(3, 2)}, [3]).to_h5("rows.h5").close()
        >>> stored = TensorDict.from_h5("rows.h5")
        >>> stored[2]["x"], stored.close()
        (tensor([4, 5]), None)
        """

    @implemented_by("tensordict_store")
    def to_zarr(self, filename: Any, *, allow_pickle: bool | None = None, **kwargs: Any) -> Any:
        """Store the entries in a new zarr store, and return it as a `PersistentTensorDict` that may be written.

        Args:
            filename: A folder, which replaces an earlier one; a URL of fsspec, or a store of zarr.
            allow_pickle: Whether non-tensor values that JSON cannot hold are pickled.
            **kwargs: How entries are stored: ``chunks`` and ``shards`` (a number of rows, or a shape), ``compressors``
                and the other arguments of ``create_array`` of zarr; ``storage_options`` of fsspec.

        Raises:
            ImportError: ``tensordict-store`` or zarr is not installed.
            TypeError: An entry cannot be stored; the error names its key.

        >>> stored = TensorDict({"x": torch.arange(6).view(3, 2)}, [3]).to_zarr("rows.zarr", chunks=2)
        >>> stored[1:]["x"]
        tensor([[2, 3],
                [4, 5]])
        """

    @classmethod
    @implemented_by("tensordict_store")
    def from_zarr(
        cls,
        filename: Any,
        *,
        mode: str = "r",
        auto_batch_size: bool | None = None,
        batch_dims: int | None = None,
        batch_size: Sequence[int] | int | None = None,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a zarr store as a `PersistentTensorDict`; entries are read when they are used.

        Args:
            filename: A folder, a URL of fsspec, or a store of zarr.
            mode: ``"r"`` for reading, ``"r+"`` for reading and writing.
            auto_batch_size: Whether the batch size is the longest common prefix of all shapes; by default it is if
                neither ``batch_size`` nor the file has one.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            batch_size: The batch size; by default the one that is in the store.
            non_tensor_as_stack: Whether one non-tensor value of a batch is read as a value for each position.
            allow_pickle: Whether pickled values are loaded; a pickle runs code when it is loaded.
            **kwargs: How new entries are stored, and ``storage_options`` of fsspec.

        Raises:
            ImportError: ``tensordict-store`` or zarr is not installed.
            OSError: The store cannot be opened.

        >>> TensorDict({"x": torch.arange(6).view(3, 2)}, [3]).to_zarr("rows.zarr").close()
        >>> TensorDict.from_zarr("rows.zarr")[2]["x"]
        tensor([4, 5])
        """

    @implemented_by("tensordict_store")
    def to_store(
        self,
        *,
        backend: str = "redis",
        host: str = "localhost",
        port: int = 6379,
        db: int = 0,
        unix_socket_path: str | None = None,
        prefix: str = "tensordict",
        device: torch.device | str | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Store the entries on a Redis server, in one request, and return a `TensorDictStore` over them.

        A lazy stack becomes a `LazyStackedTensorDictStore`, whose elements may differ in shape.

        Args:
            backend: ``"redis"`` or ``"dragonfly"``, which use the same protocol.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine, in place of host and port.
            prefix: The first part of all names on the server.
            device: The device of tensors that are read; by default the device of this tensordict.
            **kwargs: ``ttl``, ``client``, ``td_id``, ``allow_pickle`` and options of ``redis.Redis``.

        Raises:
            ImportError: ``tensordict-store`` or redis-py is not installed.
            ConnectionError: The server does not answer.
            TypeError: An entry cannot be stored; the error names its key.

        >>> stored = TensorDict({"a": torch.ones(3)}, [3]).to_store(host="localhost")
        >>> stored["a"]
        tensor([1., 1., 1.])
        """
