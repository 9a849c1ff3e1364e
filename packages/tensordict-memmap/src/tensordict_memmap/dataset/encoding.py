"""Encoding of values: strings, bytes and JSON values as the bytes that a column of a dataset stores.

Strings are stored as UTF-8, bytes as they are, and other values as the JSON documents of ``schema/nontensor.py``, which
restore tuples, sets and the like. Nothing is pickled.
"""

from __future__ import annotations

from typing import Any

from tensordict_memmap.schema import nontensor

TENSOR = "tensor"
"""The kind of a column that holds tensors, which are not encoded."""


def kind_of(value: Any) -> str:
    """Return the kind of the column of which a value is an example.

    >>> kind_of("a"), kind_of(b"a"), kind_of({"a": 1})
    ('str', 'bytes', 'json')
    """
    return "str" if type(value) is str else "bytes" if type(value) is bytes else "json"


def encode(kind: str, value: Any, where: str) -> bytes:
    r"""Return the bytes of a value.

    Args:
        kind: The kind of the column.
        value: The value.
        where: The name of the key, for errors.

    Raises:
        ValueError: The value is of another type than the column, or has no JSON form.

    >>> encode("str", "ä", "key 'a'"), encode("json", [1, (2,)], "key 'a'")
    (b'\xc3\xa4', b'[1,{"$":"tuple","items":[2]}]')
    """
    if kind == "json":
        try:
            form = nontensor.encode(value)
        except nontensor.NoJsonForm as error:
            raise ValueError(f"{where} cannot be stored in a column, as columns never pickle: {error}") from None
        return nontensor.quick_dumps(form, finite=nontensor.is_finite(form))
    if kind != kind_of(value):
        raise ValueError(
            f"{where} is {value!r:.100} where the saved rows have values of type {kind}; convert it, or create the "
            "dataset with a row that has another value there, such as None, for JSON values"
        )
    return value.encode("utf-8", "surrogatepass") if kind == "str" else bytes(value)


def decode(kind: str, data: bytes) -> Any:
    """Return the value of some bytes.

    Raises:
        ValueError: The bytes are damaged.

    >>> decode("str", b"a"), decode("bytes", b"a"), decode("json", b'[1,{"$":"tuple","items":[2]}]')
    ('a', b'a', [1, (2,)])
    """
    if kind == "bytes":
        return data
    if kind == "str":
        return data.decode("utf-8", "surrogatepass")
    return nontensor.decode(nontensor.loads(data)) if data else None  # rows that `resize` added have no bytes
