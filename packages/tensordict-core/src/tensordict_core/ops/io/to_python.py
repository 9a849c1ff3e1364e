"""Conversions: to dictionaries, lists, named tuples, pytrees and arrays, and the constructors from them.

``convert_tensors`` decides the form of a leaf. The constructors are the functions of `from_python` and `from_pytree`,
as static methods, or as class methods where a subclass of `TensorDict` gets an instance of its own.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

import numpy as np
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.predicates import is_tensorclass
from tensordict_core.base.registry.types import containers
from tensordict_core.base.signature import check_options, with_options
from tensordict_core.ops.io import from_python as build
from tensordict_core.ops.io import from_pytree as pytrees
from tensordict_core.ops.io.linked_list import LinkedList

_namedtuple: Any = namedtuple  # untyped, because the fields are known only at run time

ConvertTensors = bool | Literal["numpy"]


def _leaf(value: Any, convert: ConvertTensors) -> Any:
    """Return a leaf in the form of ``convert_tensors``: a tensor, a nested list or an array."""
    if not convert or not isinstance(value, Tensor):
        return value
    return value.detach().cpu().numpy() if convert == "numpy" else value.tolist()


def _checked(convert: Any) -> Any:
    if convert not in (False, True, "numpy"):
        raise ValueError(f"convert_tensors={convert!r} is unknown; pass True (lists), False (tensors) or 'numpy'")
    return convert


def _is_none(value: Any) -> bool:
    return isinstance(value, Node) and value._is_non_tensor and value._entry_value() is None


def _is_none_everywhere(value: Any) -> bool:
    """Return whether non-tensor data are ``None`` at each position of the batch."""
    if not value._is_non_tensor or value._is_shared:
        return _is_none(value)
    return _are_none(value.tolist(), len(value._meta.batch_size))


def _are_none(values: Any, dims: int) -> bool:
    return values is None if not dims or not isinstance(values, list) else all(_are_none(v, dims - 1) for v in values)


def _rows(td: Any, convert_nodes: bool, convert: ConvertTensors, tolist_first: bool, linked: bool) -> Any:
    """Return the rows of a batch as nested lists."""
    if not td._meta.batch_size:
        if not convert_nodes:
            return td
        if td._is_opaque:
            return _leaf(td._plain_value(), convert)
        row = td.to_dict(convert_tensors=convert, tolist_first=tolist_first)
        is_set = {key: value for key, value in row.items() if value is not None}
        return is_set if is_tensorclass(td) else row  # rows of an instance have the fields that are set
    rows = [_rows(row, convert_nodes, convert, tolist_first, linked) for row in td._unbind(0)]
    return LinkedList(rows, td) if linked else rows


def of_class(cls: type[Any], td: Any, nested: bool = False) -> Any:
    """Return a plain tensordict as an instance of a subclass that the caller constructs from.

    Args:
        cls: The class; only subclasses of `TensorDict` change the result.
        td: The tensordict; the elements of a lazy stack are converted.
        nested: Whether nested tensordicts are converted too.

    >>> class Batch(TensorDict): ...
    >>> type(of_class(Batch, TensorDict({"a": 1}))).__name__
    'Batch'
    """
    plain = containers.dense
    if cls is plain or not isinstance(td, Node) or not issubclass(cls, plain):
        return td
    stack: Any = td
    if stack._is_lazy_stack:
        return stack._restacked([of_class(cls, element, nested) for element in stack.tensordicts])
    if type(td) is not plain:
        return td
    entries = {key: of_class(cls, value, True) for key, value in td._entries.items()} if nested else td._entries
    made = cls._make(entries, td._meta)
    return made.lock_() if td._locked else made


def constructed(cls: type[Any], td: Any) -> Any:
    """Return what `of_class` returns, made by the constructor of the subclass where it has one of its own.

    >>> class Batch(TensorDict):
    ...     def __init__(self, *args, **kwargs):
    ...         super().__init__(*args, **kwargs)
    ...         self.step = 0
    >>> constructed(Batch, TensorDict({"a": 1})).step
    0
    """
    plain = containers.dense
    if not issubclass(cls, plain) or cls.__init__ is plain.__init__ or type(td) is not plain:
        return of_class(cls, td)
    meta = td._meta
    return cls(dict(td._entries), batch_size=meta.batch_size, device=meta.device, names=meta.names)


def _refuse_exclusive_keys(node: Any, what: str) -> None:
    """Raise an error for a lazy stack some of whose elements have keys that the result would lack."""
    if own := node._exclusive_keys():
        raise errors.exclusive_keys(what, own)


class Conversion(Node):
    """``to_dict``, ``from_dict`` and the other conversions."""

    __slots__ = ()

    # to other structures ---------------------------------------------------------------------------------------------

    def to_dict(
        self, *, retain_none: bool = True, convert_tensors: ConvertTensors = False, tolist_first: bool = False
    ) -> dict[str, Any]:
        """Return a dictionary of the entries; nested tensordicts become dictionaries, non-tensor data their values.

        Args:
            retain_none: Whether entries that are ``None``, at all positions, are kept.
            convert_tensors: Whether tensors become nested lists (``True``) or arrays (``"numpy"``).
            tolist_first: Whether nested tensordicts with a batch size become lists of dictionaries, as in ``tolist``.

        >>> TensorDict({"a": torch.zeros(2), "b": {"c": "text"}}).to_dict(convert_tensors=True)
        {'a': [0.0, 0.0], 'b': {'c': 'text'}}
        """
        convert = _checked(convert_tensors)
        _refuse_exclusive_keys(self, "to_dict")
        out: dict[str, Any] = {}
        for key, value in self._items():
            if not isinstance(value, Node):
                out[key] = _leaf(value, convert) if convert else value
            elif value._is_opaque:
                if not retain_none and _is_none_everywhere(value):
                    continue
                held = value.to_dict() if value._is_non_tensor else value._plain_value()
                in_rows = tolist_first and value._is_non_tensor
                out[key] = _rows(value, True, convert, True, False) if in_rows else _leaf(held, convert)
            elif tolist_first and (value._meta.batch_size or is_tensorclass(value)):
                out[key] = _rows(value, True, convert, True, False)
            else:
                out[key] = value.to_dict(retain_none=retain_none, convert_tensors=convert, tolist_first=tolist_first)
        return out

    def tolist(
        self,
        *,
        convert_nodes: bool = True,
        convert_tensors: ConvertTensors = False,
        tolist_first: bool = False,
        as_linked_list: bool = False,
    ) -> Any:
        """Return the rows of the batch as a nested list of dictionaries; without batch dimensions, one dictionary.

        Args:
            convert_nodes: Whether each row is converted to a dictionary; otherwise it stays a tensordict.
            convert_tensors: Whether tensors become nested lists (``True``) or arrays (``"numpy"``).
            tolist_first: Whether nested tensordicts of more batch dimensions become lists of dictionaries too.
            as_linked_list: Whether assigning an element of the list writes it to this tensordict.

        >>> TensorDict({"a": torch.arange(2)}, [2]).tolist(convert_tensors=True)
        [{'a': 0}, {'a': 1}]
        """
        if convert_tensors and not convert_nodes:
            raise TypeError(
                "convert_tensors needs convert_nodes=True, because rows that stay tensordicts hold tensors; pass both"
            )
        return _rows(self, convert_nodes, _checked(convert_tensors), tolist_first, as_linked_list)

    def numpy(self) -> Any:
        """Return a dictionary of arrays, which share the memory of leaves on the CPU; other values are kept.

        Raises:
            RuntimeError: A leaf requires a gradient; call ``detach()`` first.
            TypeError: A leaf is not on the CPU (call ``cpu()`` first), or NumPy has no such dtype.

        >>> TensorDict({"a": torch.zeros(2), "s": "text"}).numpy()
        {'a': array([0., 0.], dtype=float32), 's': 'text'}
        """
        _refuse_exclusive_keys(self, "numpy")
        out = {}
        for key, value in self._items():
            if isinstance(value, Tensor):
                try:
                    out[key] = value.numpy()
                except (RuntimeError, TypeError) as error:
                    error.add_note(f"while converting key {key!r}")
                    raise
            else:
                out[key] = value._plain_value() if value._is_opaque else value.numpy()
        return out

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Return an unlocked copy in which every container is replaced by a `TensorDict`.

        Args:
            retain_none: ``False`` drops the entries that are ``None``; by default they are kept.

        Raises:
            RuntimeError: A lazy stack has entries of different shapes under one key.

        >>> from tensordict_core import lazy_stack
        >>> td = lazy_stack([TensorDict({"a": 1}), TensorDict({"a": 2})])
        >>> type(td.to_tensordict()).__name__
        'TensorDict'
        """
        entries = {}
        fresh = self._reads_copy  # tensors that were read from a store have no other owner
        for key, value in self._items():
            if is_leaf_tensor(value):
                entries[key] = value if fresh else value.clone()
            elif value._is_opaque:
                if retain_none is not False or not _is_none_everywhere(value):
                    entries[key] = value.to_tensordict() if value._is_non_tensor else value._clone(True)
            else:
                entries[key] = value.to_tensordict(retain_none=retain_none)
        return containers.dense._make(entries, self._meta)

    def to_namedtuple(self, dest_cls: type[Any] | None = None) -> Any:
        """Return a named tuple of the entries; nested tensordicts become named tuples too.

        Args:
            dest_cls: The class of the named tuple, whose fields must be the keys; by default a new class.

        Raises:
            TypeError: ``dest_cls`` has other fields.
            ValueError: A key is not a Python name, so it cannot be a field.

        >>> TensorDict({"a": torch.zeros(1), "b": {"c": 1}}).to_namedtuple().b.c
        tensor(1)
        """
        _refuse_exclusive_keys(self, "to_namedtuple")
        values = {}
        for key, value in self._items():
            if isinstance(value, Node):
                value = value._plain_value() if value._is_opaque else value.to_namedtuple()
            values[key] = value
        made: Any = dest_cls
        if made is None:
            try:
                made = _namedtuple("GenericDict", list(values))
            except ValueError as error:
                raise ValueError(f"{error}; rename the key with rename_key_, or use to_dict") from None
        fields = getattr(made, "_fields", None)
        if fields is not None and set(fields) != set(values):
            raise TypeError(
                f"{made.__name__} has the fields {sorted(fields)} and the tensordict the keys {sorted(values)}; "
                "select or rename keys first"
            )
        return made(**values)

    def to_pytree(self) -> Any:
        """Return the pytree from which ``from_pytree`` made this tensordict; other tensordicts are returned unchanged.

        >>> TensorDict.from_pytree([torch.ones(1), (2,)]).to_pytree()
        [tensor([1.]), (tensor(2),)]
        """
        return pytrees.to_pytree(self)

    # from other structures -------------------------------------------------------------------------------------------

    @classmethod
    @with_options(build.BuildOptions, None)
    def from_dict(cls, input_dict: Mapping[Any, Any] | Any, **options: Unpack[build.BuildOptions]) -> Any:
        """Return a tensordict of a dictionary; nested dictionaries become nested tensordicts.

        Args:
            input_dict: The dictionary. Keys are strings or nested keys (tuples).
            auto_batch_size: Whether the batch size is the longest shape prefix that all entries share; by default it is
                empty.
            batch_size: The batch size, of nested tensordicts too.
            device: The device to which every entry is moved.
            batch_dims: The maximum number of batch dimensions; implies ``auto_batch_size`` unless that is ``False``.
            names: A name (or ``None``) for each batch dimension.

        Raises:
            ValueError: Both ``batch_size`` and ``batch_dims`` are given.
            RuntimeError: An entry does not start with the batch size.

        >>> TensorDict.from_dict({"a": torch.zeros(3, 4)}, batch_dims=1).batch_size
        torch.Size([3])
        """
        return constructed(cls, build.from_dict(input_dict, **options))

    @with_options(build.BuildOptions, None)
    def from_dict_instance(self, input_dict: Mapping[Any, Any] | Any, **options: Unpack[build.BuildOptions]) -> Any:
        """Return a tensordict of a dictionary, with containers of the types that this one has under the same keys.

        Args:
            input_dict: The dictionary.
            auto_batch_size: Whether the batch size is the longest shape prefix that all entries share.
            batch_size: The batch size; by default that of a tensordict, as are its names and device.
            device: The device to which every entry is moved.
            batch_dims: The maximum number of batch dimensions.
            names: A name (or ``None``) for each batch dimension.

        >>> td = TensorDict({"a": torch.zeros(3)}, [3])
        >>> td.from_dict_instance({"a": torch.ones(5)}, auto_batch_size=True)["a"]
        tensor([1., 1., 1., 1., 1.])
        """
        check_options("from_dict_instance", options, build.BuildOptions)
        if not isinstance(input_dict, Mapping) and not isinstance(input_dict, Node):
            raise errors.not_convertible("from_dict_instance", "a dictionary or a tensordict", input_dict)
        entries = {}
        for key, value in input_dict.items():
            own = self._get(key) if type(key) is str and isinstance(value, Mapping) else None
            if has_entries(own):
                value = own.from_dict_instance(value, device=options.get("device"))
            entries[key] = value
        given = options.get("auto_batch_size") or any(options.get(k) is not None for k in ("batch_size", "batch_dims"))
        if isinstance(input_dict, Node) and not given:
            meta = input_dict._meta
            options = {"names": meta.names, "device": meta.device, **options, "batch_size": meta.batch_size}
        return self._from_entries(entries, **options)

    @classmethod
    def _from_entries(cls, entries: Mapping[Any, Any], **options: Any) -> Any:
        """Return the result of ``from_dict_instance``; containers that a dictionary can fill override it."""
        return build.from_dict(entries, **options)

    @classmethod
    @with_options(build.BuildOptions, None)
    def from_list(cls, input: Sequence[Any], *, lazy: bool | None = None, **options: Unpack[build.BuildOptions]) -> Any:
        """Return the dictionaries or tensordicts of a list (of lists), stacked along new leading dimensions.

        Args:
            input: The list; elements that are lists add dimensions.
            lazy: ``True`` returns a lazy stack, ``False`` a dense one; by default the result is dense if the elements
                can be stacked.
            auto_batch_size: Whether the batch size grows to the longest that all entries share.
            batch_size: The batch size of the stack.
            device: The device to which every entry is moved.
            batch_dims: The maximum number of batch dimensions; implies ``auto_batch_size`` unless that is ``False``.
            names: A name (or ``None``) for each batch dimension.

        Raises:
            RuntimeError: The list is empty, or ``lazy=False`` and the elements differ.
            TypeError: An element is neither a dictionary nor a tensordict.
            ValueError: ``batch_size`` does not start with the length of the list.

        >>> TensorDict.from_list([{"a": 1}, {"a": 2}])["a"]
        tensor([1, 2])
        """
        return constructed(cls, build.from_list(input, lazy=lazy, **options))

    @classmethod
    @with_options(build.BuildOptions, None)
    def from_any(cls, obj: Any, **options: Unpack[build.BuildOptions]) -> Any:
        """Return a tensordict of a structure: dictionaries, tuples, named tuples, dataclasses, structured arrays, ...

        Args:
            obj: The structure; tensors and other values without fields are returned unchanged.
            auto_batch_size: Whether the batch size grows to the longest that all entries share.
            batch_size: The batch size.
            device: The device to which every entry is moved.
            batch_dims: The maximum number of batch dimensions; implies ``auto_batch_size`` unless that is ``False``.
            names: A name (or ``None``) for each batch dimension.

        >>> TensorDict.from_any({"a": (1, 2)})["a", "1"]
        tensor(2)
        """
        made = build.from_any(obj, **options)
        return constructed(cls, made) if isinstance(obj, (dict, np.ndarray)) else made

    fromkeys = staticmethod(build.fromkeys)
    from_tuple = staticmethod(build.from_tuple)
    from_namedtuple = staticmethod(build.from_namedtuple)
    from_dataclass = staticmethod(build.from_dataclass)
    from_pytree = staticmethod(pytrees.from_pytree)
