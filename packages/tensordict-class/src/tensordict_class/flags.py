"""Flags: options of a tensorclass, set by class keyword, decorator argument or brackets, and inherited."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from tensordict_class import errors


class Flags(NamedTuple):
    """The flags of one tensorclass.

    Attributes:
        autocast: Values are cast to the annotated types.
        nocast: Numbers and arrays stay unchanged instead of becoming tensors.
        frozen: Fields cannot be assigned once an instance is made.
        tensor_only: Every field is a tensor or a tensordict.
        shadow: Fields may have the names of methods and attributes, which they hide.
        skip_post_init_on_rebuild: ``__post_init__`` does not run on results of operations.
        cast_filter: A function of a nested key and a leaf that returns whether ``to(dtype)`` and the like cast it.
    """

    autocast: bool = False
    nocast: bool = False
    frozen: bool = False
    tensor_only: bool = False
    shadow: bool = False
    skip_post_init_on_rebuild: bool = False
    cast_filter: Callable[[tuple[str, ...], Any], bool] | None = None

    def with_changes(self, **changes: Any) -> Flags:
        """Return these flags with those that a class sets itself; ``None`` means that a flag is not set.

        Raises:
            TypeError: Two flags exclude each other.

        >>> Flags(frozen=True).with_changes(nocast=True, frozen=None).frozen
        True
        """
        flags = self._replace(**{name: value for name, value in changes.items() if value is not None})
        modes = [name for name in ("autocast", "nocast", "tensor_only") if getattr(flags, name)]
        if len(modes) > 1:
            raise errors.exclusive(modes[0], modes[1])
        return flags


NO_FLAGS = Flags()
BRACKET_FLAGS = tuple(name for name in Flags._fields if name != "cast_filter")
"""The flags that brackets take: ``TensorClass["nocast", "frozen"]``."""


@functools.cache
def flagged(cls: Any, flags: tuple[str, ...]) -> type[Any]:
    """Make a subclass with flags, for brackets: ``TensorClass["frozen"]``."""
    body = {"__module__": cls.__module__, "__qualname__": f"{cls.__name__}[{', '.join(map(repr, flags))}]"}
    name = "_".join([cls.__name__, *flags])
    return types.new_class(name, (cls,), dict.fromkeys(flags, True), lambda namespace: namespace.update(body))
