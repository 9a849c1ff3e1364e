"""JSON form of values: encodes types that JSON lacks as objects with a type tag, ``{"$": "tuple", "items": [1, 2]}``.

Enums and dataclasses are encoded under the registered name of their class, and decoding never imports a module that a
document names. Other objects raise an error, and the caller decides whether to pickle them.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import io
import math
import pathlib
import tokenize
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tensordict_core.base.registry.types import find_type, type_name

DTYPES: dict[str, torch.dtype] = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""All dtypes of the installed torch by their canonical names."""

JSON_TAG = "$"
"""The key that marks an object as a tagged value; a user's dictionary with this key is stored in that form too."""


class NoJsonForm(TypeError, RuntimeError):
    """The error for a value that has no JSON form."""


def encode_value(value: Any) -> Any:
    """Return the JSON form of a value, which has the types that JSON lacks as tagged objects.

    Args:
        value: None, numbers, strings, bytes, lists, tuples, sets and dictionaries of these, NumPy arrays and scalars,
            paths, torch dtypes, devices and sizes, and enums and dataclasses whose class is registered.

    Raises:
        NoJsonForm: The value, or a part of it, has no JSON form.

    >>> encode_value([1, ("a", None)])
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
"""The errors beside ValueError that a damaged form may raise; the last two come from the headers of arrays."""


def decode_value(form: Any) -> Any:
    """Return the value of a JSON form that `encode_value` returned.

    Raises:
        ValueError: The form is not valid, or names a class that is not registered.

    >>> decode_value(encode_value({1: b"bytes", "path": pathlib.Path("a/b")}))
    {1: b'bytes', 'path': PosixPath('a/b')}
    """
    try:
        return _decode(form)
    except _DAMAGED as error:
        raise ValueError(
            f"a stored value does not have the form in which values are written ({error}); the file is damaged"
        ) from None


_PLAIN = frozenset({type(None), bool, int, float, str})


def _encode(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_encode(item) for item in value]
    if kind is dict:
        if JSON_TAG not in value and all(type(key) is str for key in value):
            return {key: _encode(item) for key, item in value.items()}
        return {JSON_TAG: "dict", "items": [[_encode(key), _encode(item)] for key, item in value.items()]}
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value)
    if isinstance(value, enum.Enum):
        return {JSON_TAG: "enum", "class": _registered(kind), "value": _encode(value.value)}
    if isinstance(value, np.ndarray | np.generic):
        return _encode_array(value)
    if isinstance(value, pathlib.PurePath):
        name = "Path" if isinstance(value, pathlib.Path) else kind.__name__
        return {JSON_TAG: "path", "kind": name, "value": str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {JSON_TAG: "dataclass", "class": _registered(kind), "fields": fields}
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
    return {JSON_TAG: tag, "npy": base64.b64encode(npy.getvalue()).decode()}


def _items(tag: str) -> Callable[[Any], Any]:
    return lambda value: {JSON_TAG: tag, "items": [_encode(item) for item in value]}


def _text(tag: str) -> Callable[[Any], Any]:
    return lambda value: {JSON_TAG: tag, "value": str(value)}


def _base64(tag: str) -> Callable[[Any], Any]:
    return lambda value: {JSON_TAG: tag, "base64": base64.b64encode(value).decode()}


_WRITERS: dict[type[Any], Callable[[Any], Any]] = {
    tuple: _items("tuple"),
    set: _items("set"),
    frozenset: _items("frozenset"),
    torch.Size: _items("size"),
    bytes: _base64("bytes"),
    bytearray: _base64("bytearray"),
    complex: lambda value: {JSON_TAG: "complex", "parts": [value.real, value.imag]},
    torch.dtype: _text("dtype"),
    torch.device: _text("device"),
}


def _decode(form: Any) -> Any:
    if type(form) is list:
        return [_decode(item) for item in form]
    if type(form) is not dict:
        return form
    tag = form.get(JSON_TAG)
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
