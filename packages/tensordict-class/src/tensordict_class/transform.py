"""Static types of tensorclasses: declarations for type checkers, without effect at run time.

`typing.dataclass_transform` makes checkers derive the constructor of every subclass from its annotations. The keyword
arguments of every constructor are declared as keyword-only fields of a common base. They are descriptors, so that the
constructor and the attribute can have different types.
"""

from __future__ import annotations

import dataclasses
from abc import ABCMeta
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, dataclass_transform

import torch

if TYPE_CHECKING:
    from typing import Self, overload

    from tensordict_core.extension import Rows

if TYPE_CHECKING:
    _UNSET: Any = None

    class _BatchSize:
        def __get__(self, instance: Any, owner: Any) -> torch.Size: ...
        def __set__(self, instance: Any, value: Sequence[int] | int | None) -> None: ...

    class _Device:
        def __get__(self, instance: Any, owner: Any) -> torch.device | None: ...
        def __set__(self, instance: Any, value: torch.device | str | int | None) -> None: ...

    class _Names:
        def __get__(self, instance: Any, owner: Any) -> list[str | None]: ...
        def __set__(self, instance: Any, value: Sequence[str | None] | None) -> None: ...

    @dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field, dataclasses.Field))
    class Transforming(ABCMeta):
        """The metaclass of tensorclasses; with a metaclass, subclasses may be frozen or not (PEP 681)."""

    @dataclass_transform(
        eq_default=False, kw_only_default=True, field_specifiers=(dataclasses.field, dataclasses.Field)
    )
    class TransformingByKeyword(Transforming):
        """The metaclass of classes with keyword-only fields."""

    class Constructed(metaclass=Transforming):
        """The keyword arguments of every constructor, and the result types of indexing."""

        batch_size: _BatchSize = dataclasses.field(default=_UNSET, kw_only=True)
        device: _Device = dataclasses.field(default=_UNSET, kw_only=True)
        names: _Names = dataclasses.field(default=_UNSET, kw_only=True)
        lock: dataclasses.InitVar[bool] = dataclasses.field(default=False, kw_only=True)

        # the value of a field is of any type
        @overload
        def __getitem__(self, index: str | tuple[str, ...]) -> Any: ...
        @overload
        def __getitem__(self, index: Rows | tuple[Rows, ...]) -> Self: ...
        @overload
        def __getitem__(self, index: Any) -> Any: ...
        def __getitem__(self, index: Any) -> Any: ...
else:
    Transforming = TransformingByKeyword = type

    class Constructed:
        """Empty at run time; type checkers see the keyword arguments of every constructor here."""

        __slots__ = ()
