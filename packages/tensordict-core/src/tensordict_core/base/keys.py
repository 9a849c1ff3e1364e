"""Nested keys: a string names an entry, a tuple of strings a nested one; ``("a", ("b",))`` equals ``("a", "b")``.

Frequent callers test ``type(key) is str`` first and call these functions only for other keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tensordict_core.base import errors

if TYPE_CHECKING:
    NestedKey: TypeAlias = str | tuple["NestedKey", ...]
else:

    class _KeyType(type):
        """The metaclass of `NestedKey`: implements ``isinstance``, which a recursive union does not support."""

        def __instancecheck__(cls, key: Any) -> bool:
            if isinstance(key, tuple):
                return bool(key) and all(isinstance(part, cls) for part in key)
            return isinstance(key, str)

    class NestedKey(metaclass=_KeyType):
        """The key of an entry: a string, or a tuple of keys that is a path through nested tensordicts.

        Use it in annotations, and in ``isinstance`` to test whether a value is a key.

        >>> isinstance(("a", ("b",)), NestedKey), isinstance(("a", 1), NestedKey), isinstance((), NestedKey)
        (True, False, False)
        """

        __slots__ = ()


KEY_SEPARATOR: Final = "."
"""The default separator between the levels of a nested key in a flat one."""


def _collect(key: Any, out: list[str], whole: Any) -> None:
    if isinstance(key, str):
        out.append(str.__str__(key))  # a member of an enum of strings names the entry of its value
    elif isinstance(key, tuple):
        for part in key:
            _collect(part, out, whole)
    else:
        raise errors.bad_key(whole)


def unravel_key_to_tuple(key: NestedKey) -> tuple[str, ...]:
    """Return a key as a flat tuple of strings.

    Args:
        key: A string, or a tuple of strings and such tuples.

    Raises:
        TypeError: The key contains an object that is neither a string nor a tuple.

    >>> unravel_key_to_tuple(("a", ("b", ("c",))))
    ('a', 'b', 'c')
    """
    if type(key) is str:
        return (key,)
    if type(key) is tuple:
        for part in key:
            if type(part) is not str:
                break
        else:
            return key  # type: ignore[return-value]  # every part is a string
    out: list[str] = []
    _collect(key, out, key)
    return tuple(out)


def unravel_key(key: NestedKey) -> str | tuple[str, ...]:
    """Return the shortest form of a key: a string for one level, otherwise a flat tuple.

    A tuple that holds anything else, such as an index, names no entry; its result is the empty tuple.

    Raises:
        TypeError: The key is neither a string nor a tuple.

    >>> unravel_key(("a",)), unravel_key((("a", "b"), "c")), unravel_key((0, slice(3)))
    ('a', ('a', 'b', 'c'), ())
    """
    if type(key) is str:
        return key
    try:
        path = unravel_key_to_tuple(key)
    except TypeError:
        if isinstance(key, tuple):
            return ()
        raise
    return path[0] if len(path) == 1 else path


def unravel_key_list(keys: Iterable[NestedKey]) -> list[str | tuple[str, ...]]:
    """Return the shortest form of each key.

    Raises:
        TypeError: An element is not a nested key, or ``keys`` is a single string.

    >>> unravel_key_list(["a", ("b", ("c",))])
    ['a', ('b', 'c')]
    """
    if isinstance(keys, str):
        raise TypeError(f"unravel_key_list(): incompatible function arguments, the string {keys!r}; wrap it in a list")
    return [unravel_key(key) for key in keys]


def join_key(prefix: tuple[str, ...], key: str) -> str | tuple[str, ...]:
    """Return a key with the keys of its parents in front.

    >>> join_key((), "a"), join_key(("a",), "b")
    ('a', ('a', 'b'))
    """
    return (*prefix, key) if prefix else key
