"""Metadata of a node: an immutable record of batch size, device and dimension names.

The result of an operation that changes none of them shares the record of its source. ``names`` is ``None`` if no
dimension has a name.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch

from tensordict_core.base import errors

CONSOLIDATED = "consolidated"
"""The annotation that holds the storage of all leaves, which moves and pickles handle once instead of once a leaf."""
WAS_LOCKED = "was_locked"
"""The annotation that holds whether a consolidated tensordict was locked before, and so is locked after unpickling."""

Names: TypeAlias = "tuple[str | None, ...] | None"


class Meta:
    """The batch size, device and dimension names of one node; immutable.

    >>> Meta(torch.Size([3])).batch_size
    torch.Size([3])
    """

    __slots__ = ("batch_size", "device", "names")

    batch_size: torch.Size
    device: torch.device | None
    names: Names

    def __init__(self, batch_size: torch.Size, device: torch.device | None = None, names: Names = None) -> None:
        self.batch_size = batch_size
        self.device = device
        self.names = names

    def resized(self, batch_size: torch.Size, names: Names = None) -> Meta:
        """Return a copy with another batch size and other names."""
        return Meta(batch_size, self.device, names)

    def fitted(self, batch_size: torch.Size) -> Meta:
        """Return a copy with another batch size, in which the dimensions that both have keep their names."""
        dims = len(batch_size)
        names = None if self.names is None else (self.names + (None,) * dims)[:dims]
        return Meta(batch_size, self.device, names_or_none(names))

    def moved(self, device: torch.device | None) -> Meta:
        """Return a copy with another device."""
        return self if device == self.device else Meta(self.batch_size, device, self.names)

    def named(self, names: Names) -> Meta:
        """Return a copy with other names."""
        return Meta(self.batch_size, self.device, names)

    def __reduce__(self) -> Any:
        return Meta, (self.batch_size, self.device, self.names)

    def __repr__(self) -> str:
        return f"Meta(batch_size={list(self.batch_size)}, device={self.device}, names={self.names})"


NO_META = Meta(torch.Size(()))


def names_or_none(names: Names) -> Names:
    """Return dimension names, or ``None`` if no dimension is named.

    >>> names_or_none((None, "time")), names_or_none((None, None))
    ((None, 'time'), None)
    """
    return names if names is not None and any(name is not None for name in names) else None


def starts_with(shape: torch.Size, size: torch.Size) -> bool:
    """Return whether a shape starts with a batch size.

    >>> starts_with(torch.Size([3, 4]), torch.Size([3]))
    True
    """
    dims = len(size)
    if dims == 1:
        # slicing a torch.Size is slow, and most tensordicts have one batch dimension
        return shape[0] == size[0] if shape else False
    return dims == 0 or shape[:dims] == size


def as_batch_size(batch_size: Sequence[int] | int | None) -> torch.Size:
    """Convert a batch size argument (``None``, an integer, or a sequence of integers) to a ``torch.Size``.

    A size of -1 is one that differs between rows, such as that of nested tensors.

    Raises:
        ValueError: A size is negative and not -1.
        TypeError: The argument is neither an integer nor a sequence of integers.

    >>> as_batch_size(3), as_batch_size(None)
    (torch.Size([3]), torch.Size([]))
    """
    if isinstance(batch_size, torch.Size):
        return batch_size
    if batch_size is None or (type(batch_size) is list and not batch_size):
        return NO_META.batch_size
    if type(batch_size) is not list and isinstance(batch_size, int | torch.SymInt):
        batch_size = (batch_size,)
    try:
        size = torch.Size(batch_size)
    except TypeError:
        if isinstance(batch_size, numbers.Integral):  # of NumPy
            return as_batch_size(int(batch_size))
        raise errors.BatchSizeError(
            f"{batch_size!r} is not a batch size, which is an integer or a sequence of integers; pass sizes such as [3]"
        ) from None
    for n in size:
        if n < -1:
            raise errors.SizeError(
                f"the batch size {list(size)} has a negative size; pass sizes of 0 or more, or -1 for sizes that "
                "differ between rows"
            )
    return size


def as_device(device: torch.device | str | int | None) -> torch.device | None:
    """Convert a device argument to a ``torch.device``, with the index of the current accelerator by default.

    >>> as_device("cpu"), as_device(None)
    (device(type='cpu'), None)
    """
    if device is None:
        return None
    if type(device) is torch.device and (device.index is not None or device.type in ("cpu", "meta")):
        return device
    device = torch.device(device)
    if device.index is None and device.type not in ("cpu", "meta"):
        # tensors report the index, so a device without one would never compare equal to theirs
        device = torch.empty((), device=device).device
    return device


_PYTHON_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def as_dtype(dtype: Any) -> Any:
    """Convert Python's types of numbers, which torch takes as dtypes, to dtypes; other values are returned as they are.

    >>> as_dtype(float), as_dtype(torch.int8)
    (torch.float64, torch.int8)
    """
    return _PYTHON_DTYPES.get(dtype, dtype) if isinstance(dtype, type) else dtype


def as_names(names: Iterable[str | None] | None, batch_dims: int) -> Names:
    """Convert dimension names to a tuple, or to ``None`` if no dimension is named.

    Raises:
        TypeError: ``names`` is not a sequence of strings and ``None``.
        ValueError: The number of names is not the number of batch dimensions.
        ValueError: A name is given twice.

    >>> as_names(["time"], 1), as_names([None], 1)
    (('time',), None)
    """
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"names is a sequence of strings and None, got {names!r}; give one for each batch dimension")
    given = tuple(names)
    if not all(name is None or isinstance(name, str) for name in given):
        raise TypeError(f"a dim name is a string or None, got {list(given)}; name each dimension or give None")
    if len(given) != batch_dims:
        raise errors.SizeError(
            f"the length of the dimension names must equate the tensordict batch_dims attribute. Got {list(given)} for "
            f"batch_dims {batch_dims}; give one name (or None) per dimension"
        )
    named = [n for n in given if n is not None]
    if len(set(named)) != len(named):
        raise ValueError(f"Some dimension names are non-unique: {list(given)}; rename one")
    return given if named else None


def stacked_meta(nodes: Sequence[Any], dim: int) -> Meta:
    """Return the metadata of a stack: the device of the first node, and the names if all have the same.

    torch stacks tensors of one device only, so that of the first holds for all.
    """
    first = nodes[0]._meta
    size, names = [*first.batch_size], first.names
    size.insert(dim, len(nodes))
    if names is not None:
        same = all([node._meta.names == names for node in nodes])
        names = (*names[:dim], None, *names[dim:]) if same else None
    return Meta(torch.Size(size), first.device, names)


def cat_meta(nodes: Sequence[Any], dim: int) -> Meta:
    """Return the metadata of nodes that are concatenated: the device and the names are those of the first."""
    first: Meta = nodes[0]._meta
    size = [*first.batch_size]
    size[dim] = sum([node._meta.batch_size[dim] for node in nodes])
    return first.resized(torch.Size(size), first.names)


def unbound_meta(meta: Meta, dim: int) -> Meta:
    """Return the metadata of a part of a node that is split into its positions along a dimension."""
    size, names = meta.batch_size, meta.names
    if names is not None:
        names = names_or_none(names[:dim] + names[dim + 1 :])
    return Meta(size[:dim] + size[dim + 1 :], meta.device, names)


def check_devices(nodes: Sequence[Any]) -> None:
    """Raise an error if tensordicts that are to be the elements of one lazy stack differ in their devices."""
    for node in nodes:
        if node._meta.device != nodes[0]._meta.device:
            raise errors.devices_differ(nodes[0]._meta.device, node._meta.device)
