"""The state of a tensordict over a file beside its entries: the open file, its place, and options of new entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class Opened:
    """Mixin of a container whose entries are in a file or a group that is open.

    >>> from tensordict_store import PersistentTensorDict
    >>> issubclass(PersistentTensorDict, Opened)
    True
    """

    if TYPE_CHECKING:
        _group: Any
        _options: Any

    __slots__ = ()

    @property
    def kwargs(self) -> dict[str, Any]:
        """The options with which new entries are stored.

        >>> from tensordict_store import PersistentTensorDict
        >>> PersistentTensorDict(filename="data.h5", mode="w", compression="gzip").kwargs
        {'compression': 'gzip'}
        """
        return dict(self._options.kwargs)

    @property
    def file(self) -> Any:
        """The open file of h5py, or the group of zarr.

        >>> td = TensorDict({"x": torch.ones(2)}).to_h5("data.h5")
        >>> td.file["x"].chunks is None
        True
        """
        return self._group.handle

    @property
    def mode(self) -> str:
        """``"r"`` if the file is open for reading only, else ``"r+"``.

        >>> TensorDict({"x": torch.ones(2)}).to_h5("data.h5").mode
        'r+'
        """
        return "r+" if self._group.writable else "r"

    @property
    def filename(self) -> Any:
        """The path, URL or store of the entries.

        >>> import os
        >>> os.path.basename(TensorDict({"x": torch.ones(2)}).to_h5("data.h5").filename)
        'data.h5'
        """
        return self._group.location

    def close(self) -> None:
        """Close the file; later reads and writes raise an error.

        Raises:
            OSError: The disk is full, and buffered data cannot be written.

        >>> td = TensorDict({"x": torch.ones(2)}).to_h5("data.h5")
        >>> td.close()
        >>> td["x"]
        Traceback (most recent call last):
        ...
        RuntimeError: ...
        """
        self._group.close()

    def flush(self) -> None:
        """Write all buffered data to the operating system.

        >>> td = TensorDict({"x": torch.ones(2)}).to_h5("data.h5")
        >>> td["y"] = torch.zeros(2)
        >>> td.flush()
        """
        self._group.flush()
