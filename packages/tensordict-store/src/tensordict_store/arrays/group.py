"""Groups and arrays: the interface of a file format, on which `PersistentTensorDict` is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from tensordict_store.arrays.selection import Range, Selection
from tensordict_store.arrays.values import Encoded

FACTS = "__tensordict__"
"""Attribute of a group: its batch size, its names, and the class of a tensorclass."""


def visible_shape(shape: Sequence[int], rows: int | None) -> torch.Size:
    """Return the shape of an array without the rows that an interrupted append left behind the batch."""
    return torch.Size((rows, *shape[1:])) if rows is not None and shape and shape[0] > rows else torch.Size(shape)


def check_facts(facts: Any, name: str, location: Any) -> dict[str, Any]:
    """Return the attribute `FACTS` of a group.

    Raises:
        ValueError: It is no dictionary.
    """
    if not isinstance(facts, dict):
        raise ValueError(
            f"the attribute {FACTS!r} of group {name!r} in {location!r} is damaged; remove it, and pass batch_size"
        )
    return facts


class Writable(Protocol):
    """The interface of a new array that is filled."""

    @property
    def unit(self) -> int:
        """The rows that are stored together; writes of whole units need no reads."""

    def write(self, box: Sequence[Range], value: Tensor) -> None:
        """Write a tensor of the shape and dtype of a box into it."""


class Array(ABC):
    """An array of a file: a tensor, or encoded non-tensor data."""

    shape: torch.Size
    """The shape of the tensor."""
    dtype: torch.dtype | None
    """The dtype of the tensor; ``None`` for non-tensor data."""

    @abstractmethod
    def read(self, selection: Selection) -> Tensor:
        """Return the values of the boxes of a selection, side by side."""

    @abstractmethod
    def write(self, box: Sequence[Range], value: Tensor) -> None:
        """Write a tensor of the shape and dtype of a box into it."""

    @abstractmethod
    def resize(self, rows: int) -> None:
        """Change the number of rows.

        Raises:
            RuntimeError: The format fixed it when the array was created.
        """

    @abstractmethod
    def value(self) -> Encoded:
        """Return the encoded non-tensor data."""

    @property
    @abstractmethod
    def unit(self) -> int:
        """The rows that are stored together; writes of whole units need no reads."""

    @property
    @abstractmethod
    def gap(self) -> int:
        """The number of rows between two runs that are worth reading, to read both runs at once."""


class Target(ABC):
    """A group that is filled: one of an open file, or one of a file that is being created."""

    @abstractmethod
    def create_group(self, name: str) -> Target:
        """Create an empty group replacing an existing object of that name."""

    @abstractmethod
    def put_array(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Writable:
        """Return an array of a shape and dtype: the one that has the name, or a new one in place of another object."""

    @abstractmethod
    def put_value(self, name: str, value: Encoded) -> None:
        """Create an array with encoded non-tensor data, replacing an existing object of that name."""

    @abstractmethod
    def set_facts(self, facts: dict[str, Any]) -> None:
        """Replace the attribute `FACTS`."""


class Group(Target):
    """A group of arrays and groups."""

    backend: ClassVar[str]
    """The name of the format."""
    writable: bool
    """Whether the file was opened for writing."""
    handle: Any
    """The object of the library: a file of h5py, a group of zarr."""
    location: Any
    """The path, URL or store that was opened."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names in the group, in order."""

    @abstractmethod
    def find(self, name: str) -> Array | Group | None:
        """Return the array or group under a name."""

    @abstractmethod
    def create_group(self, name: str) -> Group:
        """Create an empty group replacing an existing object of that name."""

    @abstractmethod
    def put_array(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Array:
        """Return an array of a shape and dtype: the one that has the name, or a new one in place of another object."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an array or a group."""

    @contextmanager
    def undone_by_errors(self, name: str) -> Iterator[None]:
        """If the block that stores an entry raises, remove what it stored, so that no entry is there in part."""
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first error is the informative one
                if self.find(name) is not None:
                    self.remove(name)
            raise

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Rename an array or a group."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The attribute `FACTS`; empty if another program wrote the group."""

    def read_all(self, pairs: Sequence[tuple[Array, Selection]]) -> list[Tensor]:
        """Return the values of several selections of arrays of this file."""
        return [array.read(selection) for array, selection in pairs]

    @abstractmethod
    def flush(self) -> None:
        """Write all buffered data to the operating system."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    @abstractmethod
    def recipe(self) -> tuple[Any, ...]:
        """Return a function and its arguments with which another process opens this group."""
