"""Loading: the methods that ``tensordict-memmap`` implements; the examples run if it is installed."""

from __future__ import annotations

from typing import Self, Unpack

import torch

from tensordict_core.base.node import Node
from tensordict_core.base.registry.plugins import satellite
from tensordict_core.base.signature import with_options
from tensordict_core.ops.compat.options import LoadOptions, StrPath

_NAME = "tensordict_memmap"


class LoadStubs(Node):
    """``load``, ``load_memmap``, ``from_consolidated`` and related methods."""

    __slots__ = ()

    @classmethod
    @with_options(LoadOptions)
    def load_memmap(
        cls,
        prefix: StrPath,
        device: torch.device | str | None = None,
        non_blocking: bool = False,
        **options: Unpack[LoadOptions],
    ) -> Self:
        """Return a tensordict mapped onto the files of a saved folder or of a saved file.

        Args:
            prefix: A folder that ``memmap`` or ``save`` wrote, or a sub-folder of it for a nested tensordict alone; a
                safetensors file, an archive or a consolidated file; or a URL such as ``s3://bucket/run``, which is read
                into memory.
            device: The device to which entries are copied; by default they are mapped. ``"meta"`` reads no data.
            non_blocking: Whether copies to ``device`` may be asynchronous.
            out: A tensordict into which the values are written, in place; entries that it lacks are added.
            robust_key: Accepted for compatibility; file names are read as they were written.
            subpath: A nested key to load alone; for a leaf the result is a tensor, which the annotation does not show.
            mode: ``"r+"`` if writes to the tensors change the files, ``"r"`` or ``"c"`` if they are private to the
                process; by default ``"r+"`` for a folder without checksums, otherwise ``"r"``.
            num_threads: The number of threads that copy.
            allow_pickle: Whether values without a JSON form may be unpickled.
            verify: ``"size"`` compares the sizes of files, ``"full"`` reads them and compares the checksums that
                ``checksum=True`` recorded, ``"none"`` also accepts files that are too long.
            keys: One or several patterns of keys to load: ``[("encoder", "*"), "decoder.**.weight"]``. A pattern is a
                tuple of names, or a string that is split on ``.``; in a name, ``*``, ``?`` and ``[...]`` match
                characters, and ``**`` matches any number of names. A match includes all entries nested in it.
            rows: The rows to load along the first batch dimension: a slice, whose result is mapped, or one or several
                numbers, whose rows are read into memory.
            like: A tensordict of the expected structure; it may be on the ``meta`` device.
            strict: With ``like``, whether missing keys, unexpected keys and other dtypes raise an error. Otherwise
                missing entries keep the values of ``like``, and unexpected ones are ignored.
            fill: With ``like``, the value of entries that were not saved.
            cast: With ``like``, whether entries are converted to its dtypes.
            eager: Whether several threads read all tensors into memory during the call; by default only on a network
                file system, with ``mode="r"`` or ``"c"``.

        Raises:
            ImportError: ``tensordict-memmap`` is not installed.
            FileNotFoundError: The folder or the file of an entry is missing; the error names the key.
            ValueError: A file is damaged; the error names the key.
            KeyError: There is no saved entry under ``subpath``, or a pattern of ``keys`` matches no key.
            RuntimeError: The saved structure differs from ``like``; the error lists all differences.

        >>> _ = TensorDict({"a": torch.arange(4), "b": {"c": torch.ones(4), "d": torch.ones(4)}}, [4]).save("parts")
        >>> part = TensorDict.load_memmap("parts", keys=["a", "b.c"], rows=slice(1, 3))
        >>> part["a"].tolist(), ("b", "d") in part
        ([1, 2], False)
        """
        loaded: Self = satellite(_NAME, "TensorDict.load_memmap").load_memmap(
            prefix, device, non_blocking, cls=cls, **options
        )
        return loaded

    @classmethod
    @with_options(LoadOptions)
    def load(
        cls,
        prefix: StrPath,
        device: torch.device | str | None = None,
        non_blocking: bool = False,
        **options: Unpack[LoadOptions],
    ) -> Self:
        """Load a tensordict, as ``load_memmap``.

        >>> _ = TensorDict({"a": torch.arange(3)}, [3]).save("run")
        >>> TensorDict.load("run", rows=slice(1, 3))["a"].tolist()
        [1, 2]
        """
        return cls.load_memmap(prefix, device, non_blocking, **options)

    def load_memmap_(
        self,
        prefix: StrPath,
        robust_key: bool | None = None,
        allow_pickle: bool | None = None,
        mode: str | None = None,
        *,
        verify: str = "size",
    ) -> Self:
        """Write a save into this tensordict: values are written in place, missing keys are added.

        Keys that the save lacks are removed; ``load_memmap(prefix, out=td)`` keeps them.

        Args:
            prefix: The path or URL of the save, in any format.
            robust_key: Accepted for compatibility and ignored.
            allow_pickle: Whether values without a JSON form may be unpickled, which can run arbitrary code.
            mode: How the files of added entries are mapped, as for ``load_memmap``; ``"r"`` by default.
            verify: How much of the save is checked, as for ``load_memmap``.

        Raises:
            KeyError: The tensordict is locked, and it or the save lacks a key; nothing is written then.
            ImportError: ``tensordict-memmap`` is not installed.

        >>> _ = TensorDict({"a": torch.ones(3)}, [3]).save("run")
        >>> TensorDict({"a": torch.zeros(3)}, [3]).load_memmap_("run")["a"]
        tensor([1., 1., 1.])
        """
        satellite(_NAME, "TensorDict.load_memmap_").load_memmap_(
            self, prefix, allow_pickle=allow_pickle, mode=mode, verify=verify
        )
        return self

    load_ = load_memmap_

    def memmap_refresh_(self, *, allow_pickle: bool | None = None) -> Self:
        """Load the entries that other processes added to the folder that this tensordict is mapped onto.

        Raises:
            RuntimeError: The tensordict is not mapped onto a folder.

        >>> reader = TensorDict({"a": torch.ones(3)}, [3]).memmap("run")
        >>> _ = TensorDict.load("run").make_memmap("b", [3])  # another holder of the files adds an entry
        >>> "b" in reader, "b" in reader.memmap_refresh_()
        (False, True)
        """
        satellite(_NAME, "TensorDict.memmap_refresh_").memmap_refresh_(self, allow_pickle=allow_pickle)
        return self

    @classmethod
    def from_consolidated(cls, filename: StrPath) -> Self:
        """Return a tensordict mapped onto a file that ``consolidate`` wrote; writes to it are private to this process.

        Raises:
            ImportError: ``tensordict-memmap`` is not installed.
            ValueError: The file is damaged.

        >>> _ = TensorDict({"a": torch.arange(3)}, [3]).consolidate("run.tdc")
        >>> TensorDict.from_consolidated("run.tdc")["a"].tolist()
        [0, 1, 2]
        """
        loaded: Self = satellite(_NAME, "TensorDict.from_consolidated").from_consolidated(filename)
        return loaded
