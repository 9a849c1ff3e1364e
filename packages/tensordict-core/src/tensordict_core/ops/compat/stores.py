"""HDF5, zarr and Redis: the methods that ``tensordict-store`` implements.

Each is typed and documented here and calls `satellite` in one line. The examples run if ``tensordict-store`` is
installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict_core.base.node import Node
from tensordict_core.base.plugins import satellite
from tensordict_core.ops.compat.options import StrPath

__all__ = ["StoreStubs"]

_NAME = "tensordict_store"


class StoreStubs(Node):
    """``to_h5`` and ``from_h5``."""

    __slots__ = ()

    def to_h5(self, filename: StrPath, **kwargs: Any) -> Any:
        """Store the entries in a new HDF5 file, and return it as a `PersistentTensorDict` that may be written.

        Args:
            filename: The file; an earlier one is replaced as a whole or not at all.
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
        return satellite(_NAME, "TensorDict.to_h5").to_h5(self, filename, **kwargs)

    @classmethod
    def from_h5(
        cls,
        filename: StrPath,
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: Sequence[int] | int | None = None,
        non_tensor_as_stack: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Open an HDF5 file as a `PersistentTensorDict`; entries are read when they are used.

        Args:
            filename: The file.
            mode: ``"r"`` for reading, ``"r+"`` for reading and writing.
            auto_batch_size: Whether the batch size is what the shapes have in common.
            batch_dims: How many dimensions ``auto_batch_size`` takes at most.
            batch_size: The batch size; by default what the file says, and none if another program wrote it.
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
        return satellite(_NAME, "TensorDict.from_h5").from_h5(
            filename,
            mode=mode,
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims,
            batch_size=batch_size,
            non_tensor_as_stack=non_tensor_as_stack,
            **kwargs,
        )
