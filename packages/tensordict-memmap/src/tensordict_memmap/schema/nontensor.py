"""The two JSON forms of non-tensor values in files.

The *plain* form is ordinary JSON for any reader, with tuples as lists; the *exact* form restores the value with its
types (`tensordict_core.extension.encode_value`). If they differ, both are stored.
"""

from __future__ import annotations

import json
import math
import pickle
import warnings
from typing import Any

import orjson

from tensordict_core.extension import NoJsonForm
from tensordict_core.extension import decode_value as decode
from tensordict_core.extension import encode_value as encode

__all__ = [
    "NoJsonForm",
    "NoPlace",
    "decode",
    "dumps",
    "encode",
    "from_forms",
    "is_finite",
    "is_same",
    "loads",
    "pickled",
    "plain",
    "quick_dumps",
    "quick_loads",
    "stack_size",
    "to_forms",
]


class NoPlace(NotImplementedError, TypeError):
    """Raised for an entry that a format has no place for, such as an unbatched tensor outside of safetensors files."""


_SAME = frozenset({type(None), bool, int, float, str})
"""Types whose values are their own plain form."""


def plain(value: Any) -> Any:
    """Return the plain form of a value, with tuples as lists.

    Raises:
        NoJsonForm: JSON cannot represent the value.

    >>> plain((1, {"a": (2,)}))
    [1, {'a': [2]}]
    """
    kind = type(value)
    if kind in _SAME:
        return value
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    if kind is dict and all(type(key) is str for key in value):
        return {key: plain(item) for key, item in value.items()}
    raise NoJsonForm(f"JSON has no values of type {kind.__name__}")


def to_forms(value: Any) -> tuple[Any, Any]:
    """Return the two JSON values that a file stores for a value, from which `from_forms` restores it.

    Returns:
        The plain form, and the exact form or None if that is the same; for a value that has no plain form the exact
        form and True.

    Raises:
        NoJsonForm: The value has no JSON form.

    >>> to_forms([1]), to_forms((1,)), to_forms({1: 2})
    (([1], None), ([1], {'$': 'tuple', 'items': [1]}), ({'$': 'dict', 'items': [[1, 2]]}, True))
    """
    exact = encode(value)
    try:
        readable = plain(value)
    except NoJsonForm:
        return exact, True
    return readable, None if readable is exact or readable == exact else exact


def from_forms(stored: Any, exact: Any) -> Any:
    """Return the value of the two forms of `to_forms`.

    Raises:
        ValueError: The exact form is damaged.

    >>> from_forms(*to_forms((1, {2: 3})))
    (1, {2: 3})
    """
    return stored if exact is None else decode(stored if exact is True else exact)


def pickled(content: Any, value: Any, where: str, reason: Exception) -> bytes:
    """Pickle a value that has no JSON form, with a warning.

    Args:
        content: The object to pickle.
        value: The value, for errors.
        where: Its place, for errors.
        reason: The error that it has no JSON form.

    Raises:
        TypeError: The value cannot be pickled either.

    Warns:
        UserWarning: The value is pickled.
    """
    try:
        data = pickle.dumps(content)
    except Exception as error:  # pickling runs code of the value's class, which may raise anything
        raise TypeError(
            f"{where} holds a {type(value).__name__}, which has no JSON form and cannot be pickled ({error}); remove "
            "it or store its parts"
        ) from error
    warnings.warn(f"{where} is pickled, so it loads only with allow_pickle=True: {reason}", UserWarning, stacklevel=2)
    return data


def stack_size(data: list[Any], size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch size of a nested list of values: ``size`` if the list has that shape, else its length.

    >>> stack_size([["a"], ["b"]], (2, 1)), stack_size(["a", "b", "c"], ())
    ((2, 1), (3,))
    """
    level: list[Any] = [data]
    for n in size:
        if any(not isinstance(item, list) or len(item) != n for item in level):
            return (len(data),)
        level = [inner for item in level for inner in item]
    return size or (len(data),)


def quick_dumps(form: Any, *, finite: bool = True) -> bytes:
    """Like `dumps`, but faster if all numbers are known to be finite; orjson would write others as null.

    Args:
        form: The JSON value to write.
        finite: Whether it holds no infinity and no NaN.

    >>> quick_dumps({"a": [1.5]}, finite=True), quick_dumps([float("inf")], finite=False)
    (b'{"a":[1.5]}', b'[Infinity]')
    """
    if finite:
        try:
            return orjson.dumps(form)
        except (TypeError, orjson.JSONEncodeError):  # lone surrogates, integers of more than 64 bits
            pass
    return dumps(form)


def is_finite(form: Any) -> bool:
    """Return whether a JSON value holds no infinity and no NaN.

    >>> is_finite({"a": [1.5, "x"]}), is_finite([[float("nan")]])
    (True, False)
    """
    if type(form) is float:
        return math.isfinite(form)
    if type(form) is list:
        return all(map(is_finite, form))
    return type(form) is not dict or all(map(is_finite, form.values()))


def dumps(form: Any) -> bytes:
    """Return a JSON document as bytes; infinities, NaN, long integers and lone surrogates are written as by `json`.

    >>> dumps([1.5, float("nan")])
    b'[1.5, NaN]'
    """
    return json.dumps(form).encode()


def loads(document: bytes | str) -> Any:
    """Parse a JSON document, including the extensions that Python writes.

    Raises:
        ValueError: The document is not valid JSON.

    >>> loads(b'[1.5, NaN]')
    [1.5, nan]
    """
    try:
        return json.loads(document)  # not orjson, which turns integers of more than 64 bits into floats
    except RecursionError:
        raise ValueError("a JSON document is nested more deeply than a save writes it; the file is damaged") from None


def quick_loads(document: bytes | str) -> Any:
    """Like `loads`, but faster; integers of more than 64 bits become floats.

    Raises:
        ValueError: The document is not valid JSON.

    >>> quick_loads("[1.5, NaN]")
    [1.5, nan]
    """
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError:
        return loads(document)


def is_same(a: Any, b: Any) -> bool:
    """Return whether two values have the same JSON form, so that NaN equals NaN; others are compared by ``==``.

    >>> is_same((1, float("nan")), (1, float("nan"))), is_same(1, True)
    (True, False)
    """
    if a is b or type(a) is not type(b):
        return a is b
    try:
        return dumps(encode(a)) == dumps(encode(b))
    except NoJsonForm:
        return bool(a == b)
