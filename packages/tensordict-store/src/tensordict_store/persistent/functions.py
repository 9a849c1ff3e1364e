"""Functions: opening and writing files, as the methods of core call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict_store.persistent.container import PersistentTensorDict


def from_h5(
    h5_file: Any,
    *,
    mode: str = "r",
    auto_batch_size: bool | None = None,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | int | None = None,
    non_tensor_as_stack: bool = False,
    allow_pickle: bool | None = None,
    **kwargs: Any,
) -> PersistentTensorDict:
    """Open an HDF5 file as a tensordict; entries are read when they are used.

    Args:
        h5_file: The file.
        mode: ``"r"``, ``"r+"`` or ``"a"``.
        auto_batch_size: Whether the batch size is the longest common prefix of all shapes; by default it is if neither
            ``batch_size`` nor the file has one.
        batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
        batch_size: The batch size; by default the one that is stored in the file.
        non_tensor_as_stack: Whether one non-tensor value of a batch is read as a value for each position.
        allow_pickle: Whether pickled values are loaded; a pickle runs code when it is loaded.
        **kwargs: How new entries are stored.

    Raises:
        ImportError: h5py is not installed.
        OSError: The file cannot be opened.

    >>> TensorDict({"x": torch.arange(6).view(3, 2)}, [3]).to_h5("rows.h5").close()
    >>> td = from_h5("rows.h5")
    >>> td[1]["x"]
    tensor([2, 3])
    >>> td.close()
    """
    options = {"mode": mode, "batch_size": batch_size, "non_tensor_as_stack": non_tensor_as_stack, **kwargs}
    return _opened("h5", h5_file, auto_batch_size, batch_dims, allow_pickle=allow_pickle, **options)


def _opened(
    backend: str, filename: Any, auto_batch_size: bool | None, batch_dims: int | None, **options: Any
) -> PersistentTensorDict:
    td = PersistentTensorDict(filename=filename, backend=backend, **options)
    if auto_batch_size is None:
        auto_batch_size = options["batch_size"] is None and "batch_size" not in td._group.facts
    if auto_batch_size:
        td.auto_batch_size_(batch_dims)
    return td


def from_zarr(
    zarr_file: Any,
    *,
    mode: str = "r",
    auto_batch_size: bool | None = None,
    batch_dims: int | None = None,
    batch_size: Sequence[int] | int | None = None,
    non_tensor_as_stack: bool = False,
    allow_pickle: bool | None = None,
    **kwargs: Any,
) -> PersistentTensorDict:
    """Open a zarr store as a tensordict; entries are read when they are used.

    Args:
        zarr_file: A folder, a URL of fsspec, or a store of zarr.
        mode: ``"r"``, ``"r+"`` or ``"a"``.
        auto_batch_size: Whether the batch size is the longest common prefix of all shapes; by default it is if neither
            ``batch_size`` nor the file has one.
        batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
        batch_size: The batch size; by default the one that is in the store.
        non_tensor_as_stack: Whether one non-tensor value of a batch is read as a value for each position.
        allow_pickle: Whether pickled values are loaded; a pickle runs code when it is loaded.
        **kwargs: How new entries are stored, and ``storage_options`` of fsspec.

    Raises:
        ImportError: zarr is not installed.
        OSError: The store cannot be opened.

    >>> TensorDict({"x": torch.arange(6).view(3, 2)}, [3]).to_zarr("rows.zarr").close()
    >>> from_zarr("rows.zarr")[1]["x"]
    tensor([2, 3])
    """
    options = {"mode": mode, "batch_size": batch_size, "non_tensor_as_stack": non_tensor_as_stack, **kwargs}
    return _opened("zarr", zarr_file, auto_batch_size, batch_dims, allow_pickle=allow_pickle, **options)


def to_zarr(td: Any, filename: Any, *, allow_pickle: bool | None = None, **kwargs: Any) -> PersistentTensorDict:
    """Store a tensordict in a new zarr store, and return it open for reading and writing.

    Args:
        td: The tensordict.
        filename: A folder, which replaces an existing one atomically; a URL of fsspec, or a store of zarr.
        allow_pickle: Whether non-tensor values that JSON cannot hold are pickled.
        **kwargs: ``chunks`` and ``shards`` (a number of rows, or a shape), ``compressors`` and other arguments of
            ``create_array`` of zarr; ``storage_options`` of fsspec.

    Raises:
        ImportError: zarr is not installed.
        TypeError: An entry cannot be stored; the error names its key.

    >>> td = to_zarr(TensorDict({"x": torch.zeros(3)}, [3]), "x.zarr", chunks=2)
    >>> td.file["x"].chunks
    (2,)
    """
    return PersistentTensorDict.from_dict(td, filename, backend="zarr", allow_pickle=allow_pickle, **kwargs)


def to_h5(td: Any, filename: Any, **kwargs: Any) -> PersistentTensorDict:
    """Store a tensordict in a new HDF5 file, and return it open for reading and writing.

    Args:
        td: The tensordict.
        filename: The file; an existing file is replaced atomically.
        **kwargs: ``device``, ``allow_pickle``, and how entries are stored, as for `PersistentTensorDict.from_dict`.

    Raises:
        ImportError: h5py is not installed.
        TypeError: An entry cannot be stored; the error names its key.

    >>> td = to_h5(TensorDict({"x": torch.zeros(3)}, [3]), "x.h5", chunks=2, compression="gzip")
    >>> td.file["x"].chunks, td.close()
    ((2,), None)
    """
    return PersistentTensorDict.from_dict(td, filename, backend="h5", **kwargs)
