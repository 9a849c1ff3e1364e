"""Names of batch dimensions: ``names``, ``rename``, ``refine_names``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tensordict_core.base import errors
from tensordict_core.base.meta import as_names, names_or_none
from tensordict_core.base.node import Node


def _check_names(node: Any, names: tuple[str | None, ...]) -> None:
    """Refuse new dim names of which one is that of a further dimension of a nested tensordict."""
    for below in node._nodes():
        own = below._meta.names
        if own is not None and node._lazy_stack is None:
            twice = [name for name in own[len(node._meta.batch_size) :] if name is not None and name in names]
            if twice:
                raise errors.name_of_nested(twice[0], own)
        _check_names(below, names)


class DimNames(Node):
    """Reading and setting the names of batch dimensions."""

    __slots__ = ()

    @property
    def names(self) -> list[str | None]:
        """A name (or ``None``) for each batch dimension; settable.

        >>> TensorDict({}, [3, 4], names=["time", None]).names
        ['time', None]
        """
        return self._dim_names()

    @names.setter
    def names(self, value: Sequence[str | None] | None) -> None:
        self._name_dims(value)

    # a tensorclass may refuse assignments to names, or have a field of this name

    def _dim_names(self) -> list[str | None]:
        names = self._meta.names
        return [None] * len(self._meta.batch_size) if names is None else list(names)

    def _name_dims(self, value: Sequence[str | None] | None) -> None:
        names = as_names(value, len(self._meta.batch_size))
        if names is not None:
            _check_names(self, names)
        self._put_names(names)

    def _put_names(self, names: tuple[str | None, ...] | None) -> None:
        self._set_meta(self._meta.named(names))
        for node in self._nodes():
            own = node._meta
            if names is None:
                rest = (None,) * len(self._meta.batch_size) + (own.names or ())[len(self._meta.batch_size) :]
                node._put_names(names_or_none(rest))
            else:
                nested = own.names or (None,) * len(own.batch_size)
                node._put_names(names + nested[len(names) :])

    def _adopt_names(self, entry: Any) -> None:
        """Take over the names that a nested tensordict gives to the batch dimensions, which had none."""
        names = names_or_none(entry._meta.names[: len(self._meta.batch_size)])
        if names is not None:
            self._put_names(names)

    def rename_(self, *names: str | None, **rename_map: str) -> Self:
        """Set the dim names: all of them in order, or some of them by their old name.

        Raises:
            RuntimeError: The number of names differs from the number of batch dimensions.
            ValueError: No dimension has an old name.

        >>> TensorDict({}, [3], names=["a"]).rename_(a="b").names
        ['b']
        """
        self._name_dims(self._renamed(names, rename_map))
        return self

    def rename(self, *names: str | None, **rename_map: str) -> Self:
        """Return a shallow copy with other dim names; arguments are those of ``rename_``.

        Raises:
            ValueError: No names are given, or names in order and by old name.

        >>> TensorDict({"a": torch.zeros(2, 3)}, [2, 3], names=["time", "env"]).rename(time="step").names
        ['step', 'env']
        """
        if not names and not rename_map:
            raise ValueError("rename takes new names in order or by old name, got none; pass None to drop the names")
        out = self._clone(False)
        out._name_dims(self._renamed(names, rename_map))
        return out

    def _renamed(self, names: tuple[str | None, ...], rename_map: dict[str, str]) -> list[str | None] | None:
        if names and rename_map:
            raise ValueError("rename takes names in order or by old name, not both; pass one of them")
        if names == (None,) and len(self._meta.batch_size) != 1:
            return None
        if not rename_map:
            return list(names)
        own = self._dim_names()
        unknown = [old for old in rename_map if old not in own]
        if unknown:
            raise ValueError(
                f"Some names to be renamed were not part of the tensordict names: {unknown[0]!r}; use {own}"
            )
        return [rename_map.get(name, name) if name is not None else None for name in own]

    def refine_names(self, *names: Any) -> Self:
        """Name dimensions that have no name yet; ``...`` skips the dimensions in its place.

        Raises:
            RuntimeError: A dimension has another name already.

        >>> TensorDict({}, [3, 4]).refine_names(..., "x").names
        [None, 'x']
        """
        own = self._dim_names()
        given = list(names)
        if ... in given:
            at = given.index(...)
            given[at : at + 1] = own[at : len(own) - (len(given) - at - 1)]
        if len(given) != len(own):
            raise errors.SizeError(
                f"refine_names got {len(given)} names for {len(own)} batch dimensions; "
                "pass one per dimension or use '...'"
            )
        for old, new in zip(own, given, strict=True):
            if old is not None and new != old:
                raise RuntimeError(
                    f"refine_names: cannot coerce TensorDict names {own} to {given}; use rename_ to change {old!r}"
                )
        self._name_dims(given)
        return self
