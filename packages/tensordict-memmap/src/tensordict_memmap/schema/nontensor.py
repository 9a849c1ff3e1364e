"""JSON form of non-tensor values: encodes types that JSON lacks as objects with a type tag.

A value has two forms. The *plain* form is ordinary JSON for any reader, with tuples as lists; the *exact* form restores
the value with its types: ``{"$": "tuple", "items": [1, 2]}``. If they differ, both are stored. Enums and dataclasses
are stored under the registered name of their class, and decoding never imports a module that a file names. Other
objects raise an error, and the caller decides whether to pickle them.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import io
import json
import math
import pathlib
import pickle
import tokenize
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import torch

from tensordict_core.extension import find_type, type_name
from tensordict_memmap.schema.dtypes import DTYPES

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
    "stack_size",
    "to_forms",
]

TAG = "$"
"""The key that marks an object as a tagged value; a user's dictionary with this key is stored as a tagged value too."""


class NoPlace(NotImplementedError, TypeError):
    """Raised for an entry that a format has no place for, such as an unbatched tensor outside of safetensors files."""


class NoJsonForm(TypeError, RuntimeError):
    """The error for a value that has no JSON form."""


def encode(value: Any) -> Any:
    """Return the exact form of a value.

    Args:
        value: None, numbers, strings, bytes, lists, tuples, sets and dictionaries of these, NumPy arrays and scalars,
            paths, torch dtypes, devices and sizes, and enums and dataclasses whose class is registered.

    Raises:
        NoJsonForm: The value, or a part of it, has no JSON form.

    >>> encode([1, ("a", None)])
    [1, {'$': 'tuple', 'items': ['a', None]}]
    """
    try:
        form = _encode(value)
    except RecursionError:
        form = value
    else:
        if type(form) not in _CONTAINERS or not _is_deep(form):
            return form
    raise NoJsonForm(
        f"the value holds itself, or its JSON form is nested more than {_DEEPEST} levels; store a flatter one"
    )


_CONTAINERS = (list, dict)
_DEEPEST = 200
"""The most levels of a JSON form, since parsers walk them by recursion."""


def _is_deep(form: Any) -> bool:
    level = [form]
    for _ in range(_DEEPEST):
        inner = [item for one in level for item in (one if type(one) is list else one.values())]
        level = [item for item in inner if type(item) in _CONTAINERS]
        if not level:
            return False
    return True


_DAMAGED = (KeyError, TypeError, AttributeError, RecursionError, OverflowError, SyntaxError, tokenize.TokenError)
"""What reading a damaged form may raise beside ValueError; the last two come from the headers of arrays."""


def decode(form: Any) -> Any:
    """Return the value of an exact form.

    Raises:
        ValueError: The form is not valid, or names a class that is not registered.

    >>> decode(encode({1: b"bytes", "path": pathlib.Path("a/b")}))
    {1: b'bytes', 'path': PosixPath('a/b')}
    """
    try:
        return _decode(form)
    except _DAMAGED as error:
        raise ValueError(
            f"a stored value does not have the form in which values are written ({error}); the file is damaged"
        ) from None


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


def quick_dumps(form: Any, *, finite: bool) -> bytes:
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


def loads(document: bytes) -> Any:
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


_SAME = frozenset({type(None), bool, int, float, str})


def _encode(value: Any) -> Any:
    kind = type(value)
    if kind in _SAME:
        return value
    if kind is list:
        return [_encode(item) for item in value]
    if kind is dict:
        if TAG not in value and all(type(key) is str for key in value):
            return {key: _encode(item) for key, item in value.items()}
        return {TAG: "dict", "items": [[_encode(key), _encode(item)] for key, item in value.items()]}
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value)
    if isinstance(value, enum.Enum):
        return {TAG: "enum", "class": _registered(kind), "value": _encode(value.value)}
    if isinstance(value, np.ndarray | np.generic):
        return _encode_array(value)
    if isinstance(value, pathlib.PurePath):
        name = "Path" if isinstance(value, pathlib.Path) else kind.__name__
        return {TAG: "path", "kind": name, "value": str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {TAG: "dataclass", "class": _registered(kind), "fields": fields}
    raise NoJsonForm(
        f"a value of type {kind.__module__}.{kind.__qualname__} has no JSON form; store its parts as tensors, numbers, "
        "strings or lists instead"
    )


def _registered(cls: type[Any]) -> str:
    name = type_name(cls)
    if find_type(name) is not cls:
        raise NoJsonForm(
            f"{cls.__module__}.{cls.__qualname__} is not registered, and enums and dataclasses are stored by "
            "registered names; register it with tensordict_core.extension.register_type"
        )
    return name


def _encode_array(array: np.ndarray[Any, Any] | np.generic) -> Any:
    if array.dtype.hasobject or not (type(array) is np.ndarray or isinstance(array, np.generic)):
        raise NoJsonForm(
            f"{type(array).__name__} of {array.dtype} has no JSON form; convert it to an array of numbers or strings"
        )
    npy = io.BytesIO()
    np.save(npy, np.asarray(array), allow_pickle=False)
    tag = "array" if isinstance(array, np.ndarray) else "numpy"
    return {TAG: tag, "npy": base64.b64encode(npy.getvalue()).decode()}


def _items(tag: str) -> Callable[[Any], Any]:
    return lambda value: {TAG: tag, "items": [_encode(item) for item in value]}


def _text(tag: str) -> Callable[[Any], Any]:
    return lambda value: {TAG: tag, "value": str(value)}


def _base64(tag: str) -> Callable[[Any], Any]:
    return lambda value: {TAG: tag, "base64": base64.b64encode(value).decode()}


_WRITERS: dict[type[Any], Callable[[Any], Any]] = {
    tuple: _items("tuple"),
    set: _items("set"),
    frozenset: _items("frozenset"),
    torch.Size: _items("size"),
    bytes: _base64("bytes"),
    bytearray: _base64("bytearray"),
    complex: lambda value: {TAG: "complex", "parts": [value.real, value.imag]},
    torch.dtype: _text("dtype"),
    torch.device: _text("device"),
}


def _decode(form: Any) -> Any:
    if type(form) is list:
        return [_decode(item) for item in form]
    if type(form) is not dict:
        return form
    tag = form.get(TAG)
    if tag is None:
        return {key: _decode(item) for key, item in form.items()}
    reader = _READERS.get(tag) if isinstance(tag, str) else None
    if reader is None:
        raise ValueError(
            f"a stored value has one of the tags {sorted(_READERS)}, not {tag!r}; it was written by a later version"
        )
    return reader(form)


def _decode_dict(form: Any) -> Any:
    return {_decode(key): _decode(item) for key, item in form["items"]}


def _decode_array(form: Any) -> Any:
    document = io.BytesIO(base64.b64decode(form["npy"]))
    # np.load allocates what the header claims, before it looks at the bytes
    version = np.lib.format.read_magic(document)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(document)
    nbytes = len(document.getbuffer()) - document.tell()
    if not dtype.hasobject and (any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != nbytes):
        raise ValueError(
            f"an array of {dtype} {list(shape)!r:.100} has {nbytes} bytes, which are not those of its shape"
        )
    document.seek(0)
    return np.load(document, allow_pickle=False)


def _decode_path(form: Any) -> pathlib.PurePath:
    kinds: dict[str, type[pathlib.PurePath]] = {
        "Path": pathlib.Path,
        "PurePosixPath": pathlib.PurePosixPath,
        "PureWindowsPath": pathlib.PureWindowsPath,
    }
    return kinds[form["kind"]](form["value"])


def _class(form: Any, kind: str) -> type[Any]:
    name = form["class"]
    found = find_type(name)
    if found is None:
        raise ValueError(
            f"the {kind} of a stored value is found by its registered name, and no class is registered as {name!r}; "
            "import the module that defines it and register it with tensordict_core.extension.register_type"
        )
    return found


def _decode_enum(form: Any) -> Any:
    cls = _class(form, "enum")
    if not issubclass(cls, enum.Enum):
        raise ValueError(f"{form['class']!r} is not an enum class, which a stored enum names; the file is damaged")
    return cls(_decode(form["value"]))


def _decode_dataclass(form: Any) -> Any:
    cls = _class(form, "dataclass")
    if not dataclasses.is_dataclass(cls):
        raise ValueError(
            f"{form['class']!r} is not a dataclass any more, and a stored value is an instance of it; load it with "
            "the code that wrote it"
        )
    names = {field.name for field in dataclasses.fields(cls)}
    stored = form["fields"]
    if set(stored) != names:
        raise ValueError(
            f"{form['class']!r} has the fields {sorted(names)}, and a stored instance of it {sorted(stored)}; load it "
            "with the code that wrote it"
        )
    # the stored fields are final, so __init__ and __post_init__ do not run
    value = object.__new__(cls)
    for name, item in stored.items():
        object.__setattr__(value, name, _decode(item))
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda form: tuple(_decode(item) for item in form["items"]),
    "set": lambda form: {_decode(item) for item in form["items"]},
    "frozenset": lambda form: frozenset(_decode(item) for item in form["items"]),
    "size": lambda form: torch.Size(form["items"]),
    "bytes": lambda form: base64.b64decode(form["base64"]),
    "bytearray": lambda form: bytearray(base64.b64decode(form["base64"])),
    "complex": lambda form: complex(*form["parts"]),
    "dtype": lambda form: DTYPES[form["value"]],
    "device": lambda form: torch.device(form["value"]),
    "dict": _decode_dict,
    "array": _decode_array,
    "numpy": lambda form: _decode_array(form)[()],
    "path": _decode_path,
    "enum": _decode_enum,
    "dataclass": _decode_dataclass,
}
