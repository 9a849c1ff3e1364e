"""Values: non-tensor data as strings, bytes or JSON in an array, and back; pickled only with ``allow_pickle=True``.

The names of attributes and the encodings are those of files that the reference implementation writes.
"""

from __future__ import annotations

import json
import pickle
from typing import Any, NamedTuple

import numpy as np

from tensordict_core import NonTensorData, NonTensorStack
from tensordict_core.extension import Meta, NoJsonForm, decode_value, encode_value

STACK = "__tensordict_stack__"
"""Attribute of an array of values, one for each position: the batch size."""
TEXT = "__tensordict_str__"
"""Attribute of an array that is one string."""
VALUE = "__tensordict_non_tensor__"
"""Attribute of an array of bytes that encode a value: a dictionary with the key ``"encoding"``."""


BYTES = "bytes"
"""Encoding of a value that is ``bytes``, which is stored as it is."""
TAGGED = "tagged-json"
"""Encoding of values as JSON in which types that JSON lacks have tags."""
PLAIN = "plain"
"""Encoding of values that a file format returns as a number, as bytes or as an array of NumPy."""


class Encoded(NamedTuple):
    """Non-tensor data as stored: text, an array of text or numbers, or bytes; and the attributes beside it."""

    content: str | np.ndarray[Any, Any] | bytes
    attributes: dict[str, Any]


def encode(key: str, node: Any, allow_pickle: bool = False) -> Encoded:
    """Encode non-tensor data.

    Args:
        key: The key, for errors.
        node: The non-tensor data.
        allow_pickle: Whether a value is pickled that JSON does not restore exactly. Otherwise tuples, sets, dtypes and
            the other values of `tensordict_core.extension.encode_value` are stored as JSON with tags.

    Raises:
        TypeError: The value has no JSON form either, and pickles are not allowed.

    >>> encode("a", NonTensorData({"b": 1}))
    Encoded(content=b'{"b": 1}', attributes={'__tensordict_non_tensor__': {'encoding': 'json'}})
    >>> encode("a", NonTensorData((1, 2))).content
    b'{"$": "tuple", "items": [1, 2]}'
    """
    size = [] if node._is_shared else list(node._meta.batch_size)
    flat = [node.data] if node._is_shared else list(node._flat_values())
    if all(type(value) is str and _is_plain(value) for value in flat):
        if node._is_shared:
            return Encoded(flat[0], {TEXT: True})
        return Encoded(np.array(flat, dtype=object).reshape(size), {STACK: size})
    facts: dict[str, Any] = {} if node._is_shared else {STACK: size}
    value = flat[0] if node._is_shared else flat
    if type(value) is bytes:
        return Encoded(value, {VALUE: {"encoding": BYTES}})
    try:
        text = json.dumps(value)
        if _equal(json.loads(text), value):
            return Encoded(text.encode(), {VALUE: {"encoding": "json"}, **facts})
    except (TypeError, ValueError, RecursionError):
        pass
    if not allow_pickle:
        try:
            return Encoded(json.dumps(encode_value(value)).encode(), {VALUE: {"encoding": TAGGED}, **facts})
        except NoJsonForm as error:
            raise TypeError(
                f"the value of {key!r} cannot be stored as JSON: {error}; pass allow_pickle=True to store a pickle, "
                "which only trusted readers should load"
            ) from None
    return Encoded(pickle.dumps(value), {VALUE: {"encoding": "pickle"}, **facts})


def decode(key: str, stored: Encoded, meta: Meta, allow_pickle: bool = False) -> Any:
    """Return the non-tensor data of a result of `encode`, as an entry of a node with metadata ``meta``.

    Raises:
        ValueError: The bytes are damaged, or they are a pickle and pickles are not allowed.
    """
    content, attributes = stored
    if VALUE in attributes:
        value = _loaded(key, content, attributes[VALUE].get("encoding"), allow_pickle)
        stack = attributes.get(STACK)
    elif isinstance(content, np.ndarray):
        value = [one if isinstance(one, int | float) else text_of(one) for one in content.reshape(-1).tolist()]
        stack = list(content.shape)
    else:
        value, stack = text_of(content), None
    if stack is None:
        return NonTensorData(value, batch_size=meta.batch_size, device=meta.device)
    if not isinstance(value, list) or len(value) != int(np.prod(stack)):
        raise ValueError(
            f"the value of {key!r} is damaged: it should hold {int(np.prod(stack))} values; write the entry again"
        )
    return NonTensorStack.from_list(_nested(value, stack), batch_size=stack, device=meta.device)


def _loaded(key: str, content: Any, encoding: Any, allow_pickle: bool) -> Any:
    if encoding == PLAIN:
        return content.item() if isinstance(content, np.generic) else content
    if encoding == "pickle":
        if not allow_pickle:
            raise ValueError(
                f"the value of {key!r} is a pickle, which runs code when it is loaded; "
                "pass allow_pickle=True if you trust who wrote it"
            )
        return pickle.loads(content)
    if encoding == BYTES:
        return bytes(content)
    if encoding not in ("json", TAGGED):
        raise ValueError(
            f"the value of {key!r} has the unknown encoding {encoding!r}; it should be 'json', {TAGGED!r}, 'bytes' or "
            "'pickle'"
        )
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ValueError(f"the value of {key!r} is damaged: it is not JSON ({error}); write the entry again") from None
    if encoding == "json":
        return value
    try:
        return decode_value(value)
    except ValueError as error:
        raise ValueError(f"the value of {key!r} cannot be restored: {error}") from None


def text_of(value: Any) -> str:
    """Return text that a library returns as bytes or as a string."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_plain(text: str) -> bool:
    """Return whether stores keep a string as it is: HDF5 ends strings at a null, and lone surrogates have no UTF-8."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _equal(loaded: Any, value: Any) -> bool:
    """Return whether JSON restores the exact value: it converts tuples to lists and other keys to strings."""
    if type(loaded) is not type(value):
        return False
    if isinstance(value, dict):
        return loaded.keys() == value.keys() and all(_equal(loaded[key], value[key]) for key in value)
    if isinstance(value, list):
        return len(loaded) == len(value) and all(map(_equal, loaded, value))
    return bool(loaded == value) or loaded != loaded


def _nested(flat: list[Any], size: list[int]) -> list[Any]:
    for n in reversed(size[1:]):
        flat = [flat[i : i + n] for i in range(0, len(flat), n)] if n else [[] for _ in range(size[0])]
    return flat
