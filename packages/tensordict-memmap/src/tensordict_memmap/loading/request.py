"""Load request: the options of a load, checked once, for all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tensordict_core.extension import TensorCollection
from tensordict_memmap.schema.node import Node
from tensordict_memmap.schema.select import Keys, Part, Rows, Selection, part_of
from tensordict_memmap.storage.verify import check_level
from tensordict_memmap.tensor.mapping import check_mode


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The options of a load, which `load_memmap` describes.

    Args:
        only: The nested key to load alone.
        selection: The keys to load.
        rows: The rows to take.
        mode: How files are mapped; None leaves that to the format.
        device: The device of the result; None and the CPU leave tensors mapped, ``meta`` reads no data.
        non_blocking: Whether moves may be asynchronous.
        allow_pickle: Whether values may be unpickled; None leaves their values out.
        verify: How much of the files is compared.
        cls: The class for a root whose own is not registered.
        locked: Whether the result may be locked already, because nothing is changed in it before it is.
        on_device: Whether the nodes of the result have a device: that of the request, or the CPU.
        eager: Whether the bytes are read into memory at once; None decides by the file system of the file.
        parts: A function of the tensordict over remote files that returns the parts of its tensors to read; None reads
            all of them.

    Raises:
        ValueError: There is no such mode, or no such level of verification.
        TypeError: ``allow_pickle`` is neither True nor False nor None.

    >>> LoadRequest(("a",), device=torch.device("meta")).is_meta
    True
    """

    only: tuple[str, ...] = ()
    selection: Selection | None = None
    rows: Rows | None = None
    mode: str | None = None
    device: torch.device | None = None
    non_blocking: bool = False
    allow_pickle: bool | None = False
    verify: str = "size"
    cls: type[Any] | None = None
    locked: bool = False
    on_device: bool = True
    eager: bool | None = False
    parts: Callable[[Any], Iterable[torch.Tensor]] | None = None

    def __post_init__(self) -> None:
        check_mode(self.mode)
        check_level(self.verify)
        if self.eager and self.mode == "r+":
            raise ValueError("mode='r+' writes to the file, and eager=True reads it into memory; leave one of them out")
        if not (self.allow_pickle is None or isinstance(self.allow_pickle, bool)):
            raise TypeError(
                f"allow_pickle={self.allow_pickle!r:.100} is a {type(self.allow_pickle).__name__}, and it decides "
                "whether code of the file may run; pass True or False"
            )

    @property
    def is_partial(self) -> bool:
        """Whether only some entries are requested."""
        return bool(self.only) or self.selection is not None

    def part_of(self, schema: Node) -> Part:
        """Return the requested part of a schema, which is pruned in place.

        Raises:
            KeyError: It has no such entry.
        """
        return part_of(schema, self.only, self.selection)

    @property
    def wrapper(self) -> type[Any] | None:
        """The class for a root whose own is not registered, if it wraps a tensordict as tensorclasses do."""
        own, default = getattr(self.cls, "_from_disk_form", None), TensorCollection._from_disk_form
        wraps = own is not None and getattr(own, "__func__", None) is not getattr(default, "__func__", None)
        return self.cls if wraps else None

    @property
    def private(self) -> LoadRequest:
        """The request with a mode that does not change the files, if its result is to be in memory."""
        return replace(self, mode="r") if self.eager and self.mode is None else self

    @property
    def is_meta(self) -> bool:
        """Whether no data is looked at."""
        return self.device is not None and self.device.type == "meta"

    @property
    def moves(self) -> bool:
        """Whether data is copied to another device."""
        return self.device is not None and self.device.type not in ("cpu", "meta")

    @property
    def node_device(self) -> torch.device | None:
        """The device of every node of the result."""
        return self.device or (torch.device("cpu") if self.on_device else None)


def key_path(subpath: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return a nested key as a tuple; None is the root.

    >>> key_path(None), key_path("a"), key_path(("a", "b"))
    ((), ('a',), ('a', 'b'))
    """
    return () if subpath is None else (subpath,) if isinstance(subpath, str) else tuple(subpath)


def selection_of(keys: Keys | None) -> Selection | None:
    """Return the keys that patterns name; None is all."""
    return None if keys is None else Selection(keys)
