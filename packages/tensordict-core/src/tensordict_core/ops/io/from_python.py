"""Constructors from Python structures: dictionaries, tuples, dataclasses, lists, arrays.

Each function makes a tree of plain tensordicts without batch size and sets the batch size at the end: the given one, or
the longest that all entries share.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import as_tensor, structured
from tensordict_core.base.keys import NestedKey
from tensordict_core.base.meta import as_batch_size, as_device
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.registry.plugins import satellite
from tensordict_core.base.registry.types import containers
from tensordict_core.base.signature import check_options, with_options
from tensordict_core.ops.shape.combine import lazy_stack, maybe_dense_stack, stack


class BuildOptions(TypedDict, total=False):
    """The options of the constructors from Python structures, which their docstrings explain."""

    auto_batch_size: bool | None
    batch_dims: int | None
    device: Any
    batch_size: Sequence[int] | int | None
    names: Sequence[str | None] | None


def sized(td: Any, options: BuildOptions) -> Any:
    """Set the batch size and names of a tree by the options of a constructor, and return it."""
    batch_size, batch_dims = options.get("batch_size"), options.get("batch_dims")
    auto_batch_size, names = options.get("auto_batch_size"), options.get("names")
    if batch_size is not None:
        if batch_dims is not None:
            raise errors.two_ways("batch_size", "batch_dims", "the batch size")
        if td._meta.batch_size != (size := as_batch_size(batch_size)):
            td._change_batch_size(size)
    elif auto_batch_size or (batch_dims is not None and auto_batch_size is None):
        td.auto_batch_size_(batch_dims)
    if names is not None:
        td._name_dims(names)
    return td


def _lenient(options: BuildOptions) -> BuildOptions:
    """Return the options without ``auto_batch_size=False``, so that ``batch_dims`` alone decides."""
    return {**options, "auto_batch_size": options.get("auto_batch_size") or None}


def _from_tree(obj: Any, options: BuildOptions) -> Any:
    """Return the tensordict of a structure; an object without fields is returned unchanged."""
    size = options.get("batch_size")
    td = _tree(obj, options.get("device"), None if size is None else as_batch_size(size))
    if not has_entries(td):
        return td
    if options.get("names") is not None:
        td = td._clone(False)  # nested tensordicts that were given keep their names
    return sized(td, _lenient(options))


def _value(value: Any, size: torch.Size | None) -> Any:
    """Return a number of a dictionary as non-tensor data of the batch size: it has no batch dimension."""
    if size and isinstance(value, numbers.Number | np.generic):
        return containers.non_tensor(value, batch_size=size)
    return value


def _converted(d: Any, device: Any, size: torch.Size | None) -> dict[Any, Any]:
    """Return a dictionary whose tuples, dataclasses and mappings are the tensordicts that `from_any` makes of them."""
    return {
        key: _converted(value, device, size)
        if type(value) is dict
        else _tree(value, device, size)
        if isinstance(value, tuple | Mapping) or _is_dataclass(value)
        else _value(value, size)
        for key, value in d.items()
    }


def _is_dataclass(obj: Any) -> bool:
    return dataclasses.is_dataclass(obj) and not isinstance(obj, type | Node)


@with_options(BuildOptions, None)
def from_dict(d: Mapping[Any, Any] | Any, **options: Unpack[BuildOptions]) -> Any:
    """Return a tensordict of a dictionary; nested dictionaries and tuples become nested tensordicts.

    Args:
        d: The dictionary. Keys are strings or nested keys (tuples). A tensordict is returned as it is, or with the
            options in a new one.
        auto_batch_size: Whether the batch size is the longest shape prefix that all entries share; by default it is
            empty.
        batch_dims: The maximum number of batch dimensions; implies ``auto_batch_size`` unless that is ``False``.
        device: The device to which every entry is moved.
        batch_size: The batch size, of nested tensordicts too.
        names: A name (or ``None``) for each batch dimension.

    Raises:
        ValueError: Both ``batch_size`` and ``batch_dims`` are given.
        RuntimeError: An entry does not start with the batch size.

    >>> from tensordict_core import from_dict
    >>> td = from_dict({"a": torch.zeros(3, 4), "b": {"c": torch.zeros(3, 5)}}, auto_batch_size=True)
    >>> td.batch_size, td["b"].batch_size
    (torch.Size([3]), torch.Size([3, 5]))
    """
    check_options("from_dict", options, BuildOptions)
    device, batch_size = options.get("device"), options.get("batch_size")
    size = None if batch_size is None or options.get("batch_dims") is not None else as_batch_size(batch_size)
    if isinstance(d, Node):  # tensordicts are mappings too
        given = any(value is not None for value in options.values())
        return _from_tree(d._clone(False), options) if given else d
    if not isinstance(d, Mapping):
        raise errors.not_convertible("from_dict", "a dictionary or a tensordict", d)
    d = _converted(d, device, size)
    if size is not None:
        # one pass, and every entry is checked against the batch size under its own key
        return containers.dense(d, batch_size=size, device=device, names=options.get("names"))
    return sized(containers.dense(d, device=device), options)


@with_options(BuildOptions, None)
def from_list(input: Sequence[Any], *, lazy: bool | None = None, **options: Unpack[BuildOptions]) -> Any:
    """Return the dictionaries or tensordicts of a list (of lists), stacked along new leading dimensions.

    Args:
        input: The list; elements that are lists add dimensions.
        auto_batch_size: Whether the batch size grows to the longest that all entries share.
        batch_dims: The maximum number of batch dimensions; implies ``auto_batch_size`` unless that is ``False``.
        device: The device to which every entry is moved.
        batch_size: The batch size of the stack.
        names: A name (or ``None``) for each batch dimension.
        lazy: ``True`` returns a lazy stack, ``False`` a dense one; by default the result is dense if the elements
            can be stacked.

    Raises:
        RuntimeError: The list is empty, or ``lazy=False`` and the elements differ.
        TypeError: An element is neither a dictionary nor a tensordict.

    >>> from tensordict_core import from_list
    >>> from_list([{"a": 1}, {"a": 2}])["a"]
    tensor([1, 2])
    """
    check_options("from_list", options, BuildOptions)
    device = options.get("device")
    combine = maybe_dense_stack if lazy is None else lazy_stack if lazy else stack

    if not isinstance(input, list | tuple):
        raise errors.not_convertible("from_list", "a list", input)
    size = options.get("batch_size")
    if size is not None and input and tuple(as_batch_size(size)[:1]) != (len(input),):
        raise errors.SizeError(
            f"the batch size {list(as_batch_size(size))} does not match the length of the list ({len(input)}); its "
            "first size is that length"
        )
    return sized(_stacked(input, combine, device), options)


def _stacked(items: Any, combine: Callable[[list[Any], int], Any], device: Any) -> Any:
    if not len(items):
        raise RuntimeError("from_list needs at least one element; make an empty tensordict of that batch size instead")
    nodes = []
    for i, item in enumerate(items):
        if isinstance(item, list | tuple):
            nodes.append(_stacked(item, combine, device))
        elif isinstance(item, Node):
            nodes.append(item if device is None else item.to(device))
        elif isinstance(item, Mapping):
            nodes.append(from_dict(item, device=device))
        else:
            raise TypeError(
                f"from_list takes dictionaries, tensordicts and lists of them, got {type(item).__name__} at "
                f"position {i}; convert a list of numbers with torch.tensor"
            )
    return combine(nodes, 0)


@with_options(BuildOptions, None)
def from_any(obj: Any, **options: Unpack[BuildOptions]) -> Any:
    """Return a tensordict of any nested structure: dictionaries, tuples, named tuples, dataclasses, structured arrays.

    Numeric data become tensors, and a list of other values becomes a `NonTensorStack`. An object without fields (a
    string, ``None``) is returned unchanged.

    Args:
        obj: The structure.
        auto_batch_size: Whether the batch size is the longest shape prefix that all entries share.
        batch_dims: The maximum number of batch dimensions.
        device: The device to which every entry is moved.
        batch_size: The batch size.
        names: A name (or ``None``) for each batch dimension.

    Raises:
        RuntimeError: An entry does not start with the batch size.

    >>> from tensordict_core import from_any
    >>> td = from_any({"a": (torch.zeros(2), {"b": [1, 2]})})
    >>> td["a", "1", "b"]
    tensor([1, 2])
    """
    check_options("from_any", options, BuildOptions)
    device = as_device(options.get("device"))
    if isinstance(obj, Tensor):
        return obj if device is None else obj.to(device)
    if not isinstance(obj, Node):
        return _from_tree(obj, options)
    td = obj if device is None else obj.to(device)
    if options.get("auto_batch_size") or any(options.get(name) is not None for name in ("batch_dims", "batch_size")):
        return sized(obj._clone(False) if td is obj else td, _lenient(options))
    return td


def _tree(obj: Any, device: Any, size: torch.Size | None = None) -> Any:
    """Return the tree of a structure, with the batch size if given; a tensor or another object if it has no fields."""
    if isinstance(obj, Tensor):
        return obj
    if isinstance(obj, Node):
        return obj if device is None else obj.to(device)
    if isinstance(obj, Mapping):
        return _node(((key, _value(value, size)) for key, value in obj.items()), device, size)
    if isinstance(obj, tuple):
        fields = _fields(obj)
        return _node(zip(map(str, range(len(obj))) if fields is None else fields, obj, strict=True), device, size)
    if _is_dataclass(obj):
        return _node(((field.name, getattr(obj, field.name)) for field in dataclasses.fields(obj)), device, size)
    if isinstance(obj, np.ndarray) and obj.dtype.names is not None:
        return structured(obj, device)
    if isinstance(obj, list | np.ndarray):
        tensor = as_tensor(obj, device)
        if tensor is not None:
            return tensor
        return containers.non_tensor_stack.from_list(list(obj), device=device)
    return obj


def _fields(obj: Any) -> tuple[str, ...] | None:
    """Return the fields of a named tuple, or of a struct sequence such as the result of ``torch.max``."""
    if not isinstance(obj, tuple):
        return None
    if not hasattr(obj, "n_sequence_fields"):
        return getattr(obj, "_fields", None)
    names: tuple[str, ...] = getattr(type(obj), "__match_args__", ())
    return names if len(names) == len(obj) else None  # os.stat has fields without a name


def _node(items: Iterable[tuple[Any, Any]], device: Any, size: torch.Size | None) -> Any:
    return containers.dense({key: _tree(value, device, size) for key, value in items}, batch_size=size, device=device)


@with_options(BuildOptions, None)
def from_tuple(obj: tuple[Any, ...], **options: Unpack[BuildOptions]) -> Any:
    """Return a tensordict of a tuple; its elements get the keys ``"0"``, ``"1"``, ...

    Args:
        obj: The tuple; its elements may be any structure that ``from_any`` takes.
        auto_batch_size: Whether the batch size is the longest shape prefix that all entries share.
        batch_dims: The maximum number of batch dimensions.
        device: The device to which every entry is moved.
        batch_size: The batch size.
        names: A name (or ``None``) for each batch dimension.

    Raises:
        TypeError: ``obj`` is not a tuple.

    >>> from tensordict_core import from_tuple
    >>> from_tuple((torch.zeros(2), torch.ones(2)))["1"]
    tensor([1., 1.])
    """
    check_options("from_tuple", options, BuildOptions)
    if not isinstance(obj, tuple | list):
        raise errors.not_convertible("from_tuple", "a tuple", obj)
    return _from_tree(tuple(obj), options)


@with_options(BuildOptions, None)
def from_namedtuple(named_tuple: Any, **options: Unpack[BuildOptions]) -> Any:
    """Return a tensordict of a named tuple, with its fields as keys.

    Args:
        named_tuple: The named tuple, the result of a function such as ``torch.max``, or a mapping; its fields may hold
            any structure that ``from_any`` takes.
        auto_batch_size: Whether the batch size is the longest shape prefix that all entries share.
        batch_dims: The maximum number of batch dimensions.
        device: The device to which every entry is moved.
        batch_size: The batch size.
        names: A name (or ``None``) for each batch dimension.

    Raises:
        TypeError: ``named_tuple`` is not a named tuple.

    >>> from collections import namedtuple
    >>> from tensordict_core import from_namedtuple
    >>> Point = namedtuple("Point", "x y")
    >>> from_namedtuple(Point(torch.zeros(2), torch.ones(2)), auto_batch_size=True)["y"]
    tensor([1., 1.])
    >>> from_namedtuple(torch.tensor([2, 0, 1]).max(0))["indices"]
    tensor(0)
    """
    check_options("from_namedtuple", options, BuildOptions)
    if _fields(named_tuple) is None and not isinstance(named_tuple, Mapping):
        raise errors.not_convertible("from_namedtuple", "a named tuple", named_tuple)
    return _from_tree(named_tuple, options)


@with_options(BuildOptions, None)
def from_dataclass(
    dataclass: Any,
    *,
    dest_cls: type[Any] | None = None,
    as_tensorclass: bool = False,
    **options: Unpack[BuildOptions],
) -> Any:
    """Return a tensordict (or a tensorclass) of a dataclass instance.

    Args:
        dataclass: The instance; its fields may hold any structure that ``from_any`` takes. With ``as_tensorclass`` it
            may be a dataclass type, whose tensorclass is returned.
        dest_cls: The tensorclass of the result.
        auto_batch_size: Whether the batch size is the longest shape prefix that all entries share.
        batch_dims: The maximum number of batch dimensions.
        as_tensorclass: Whether the result is a tensorclass of the same fields.
        device: The device to which every entry is moved.
        batch_size: The batch size.
        names: A name (or ``None``) for each batch dimension.

    Raises:
        TypeError: ``dataclass`` is not a dataclass instance.
        ImportError: The result would be a tensorclass and ``tensordict-class`` is not installed.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: torch.Tensor
    >>> TensorDict.from_dataclass(Point(torch.ones(2)))["x"]
    tensor([1., 1.])
    """
    check_options("from_dataclass", options, BuildOptions)
    if as_tensorclass or dest_cls is not None:
        return satellite("tensordict_class", "TensorDict.from_dataclass(as_tensorclass=True)").from_dataclass(
            dataclass, dest_cls=dest_cls, **options
        )
    if isinstance(dataclass, Node) and not dataclass._is_non_tensor and dataclasses.is_dataclass(dataclass):
        unset = dict.fromkeys(field.name for field in dataclasses.fields(dataclass))
        dataclass = containers.dense(unset | dict(dataclass._items()))  # a tensorclass
    if isinstance(dataclass, Node):
        return _from_tree(dataclass, options)
    if isinstance(dataclass, type) or not dataclasses.is_dataclass(dataclass):
        raise errors.no_dataclass(dataclass)
    return _from_tree(dataclass, options)


def fromkeys(keys: Iterable[NestedKey], value: Any = 0) -> Any:
    """Return a tensordict with the same value under several keys.

    Args:
        keys: The keys.
        value: Their value.

    Raises:
        KeyError: A key is the start of another one.

    >>> from tensordict_core import fromkeys
    >>> fromkeys(["a", ("b", "c")], 1)["b", "c"]
    tensor(1)
    """
    td = containers.dense()
    for key in keys:
        held = td.get(key)
        if has_entries(held):
            raise errors.start_of_a_key(key)
        td.set(key, value)
    return td


def make_tensordict(
    input_dict: Mapping[Any, Any] | None = None,
    batch_size: Sequence[int] | int | None = None,
    device: Any = None,
    auto_batch_size: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Return a tensordict of a dictionary and of entries by name.

    Args:
        input_dict: The dictionary.
        batch_size: The batch size.
        device: The device to which every entry is moved.
        auto_batch_size: Whether the batch size is the longest shape prefix that all entries share.
        **kwargs: More entries by name.

    >>> from tensordict_core import make_tensordict
    >>> make_tensordict(a=torch.zeros(3), b=torch.ones(3), auto_batch_size=True).batch_size
    torch.Size([3])
    """
    entries = {**({} if input_dict is None else input_dict), **kwargs}
    return from_dict(entries, batch_size=batch_size, device=device, auto_batch_size=auto_batch_size)
