"""What type checkers know of a tensorclass: its constructor, from the fields; nothing of this exists when code runs.

`typing.dataclass_transform` makes checkers write the constructor of every subclass from its annotations. The keyword
arguments that every constructor has beside them are said to be keyword-only fields of a common base; being descriptors,
they take what the constructor takes and give what the property gives.
"""

from __future__ import annotations

import dataclasses
from abc import ABCMeta
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, dataclass_transform

import torch

__all__ = ["Constructed", "Transforming", "TransformingByKeyword"]

if TYPE_CHECKING:

    class _BatchSize:
        def __get__(self, instance: Any, owner: Any) -> torch.Size: ...
        def __set__(self, instance: Any, value: Sequence[int] | int | None) -> None: ...

    class _Device:
        def __get__(self, instance: Any, owner: Any) -> torch.device | None: ...
        def __set__(self, instance: Any, value: torch.device | str | int | None) -> None: ...

    class _Names:
        def __get__(self, instance: Any, owner: Any) -> list[str | None]: ...
        def __set__(self, instance: Any, value: Sequence[str | None] | None) -> None: ...

    @dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
    class Transforming(ABCMeta):
        """A class that names this metaclass is neither frozen nor not: subclasses may be either (PEP 681)."""

    @dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field, dataclasses.Field))
    class TransformingByKeyword(Transforming):
        """As `Transforming`, with keyword-only fields."""

    class Constructed(metaclass=Transforming):
        """The keyword arguments of every constructor."""

        batch_size: _BatchSize = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment]
        device: _Device = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment]
        names: _Names = dataclasses.field(default=None, kw_only=True)  # type: ignore[assignment]
        lock: dataclasses.InitVar[bool] = dataclasses.field(default=False, kw_only=True)
else:
    Transforming = TransformingByKeyword = type

    class Constructed:
        """Nothing: type checkers see the keyword arguments of every constructor here."""

        __slots__ = ()
