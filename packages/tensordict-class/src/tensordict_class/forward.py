"""Forwarding: a container that wraps another one and forwards the methods of core's `Node` to it.

Every operation is inherited from core, where it is built on the methods of `Node`. Their results are wrapped in the
same class again (`_wrap`), so every operation returns the class, whether it wraps a dense tensordict, a lazy stack, a
memory-mapped one, or a view.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch

from tensordict_class import errors
from tensordict_core import KEY_SEPARATOR, LazyStackedTensorDict, NestedKey
from tensordict_core.extension import (
    How,
    Index,
    IsLeaf,
    Meta,
    ShapeOp,
    TensorCollection,
    common_container,
    is_tensordict,
    operations,
    register_type,
    register_wrapper,
    type_name,
)


def _forwarded(name: str) -> Any:
    """Make a method that calls the wrapped container's method ``name`` and returns its result unchanged."""

    def method(self: Any, *args: Any) -> Any:
        return getattr(self._tensordict, name)(*args)

    method.__name__ = name
    return method


def _wrapped_attribute(name: str) -> Any:
    """Make a property for an attribute of the wrapped container."""

    def read(self: Any) -> Any:
        return getattr(self._tensordict, name)

    def write(self: Any, value: Any) -> None:
        setattr(self._tensordict, name, value)

    return property(read, write)


class Forwarding(TensorCollection):
    """The base class of containers that wrap another one and forward methods to it."""

    __slots__ = ("_tensordict",)

    _tensordict: TensorCollection
    """The wrapped container."""

    @classmethod
    def _wrap(cls, tensordict: Any) -> Self:
        """Wrap a container whose entries fit the class."""
        return cls._shell(tensordict)

    @classmethod
    def _shell(cls, tensordict: Any) -> Self:
        """Wrap a container without running code of subclasses, for example before it has entries."""
        self = object.__new__(cls)
        object.__setattr__(self, "_tensordict", tensordict)
        return self

    @classmethod
    def _check_key(cls, key: str) -> None:
        """Raise an error if the class takes no entry of that name."""

    @classmethod
    def _fits(cls, tensordict: Any) -> bool:
        """Return whether the class can wrap a container."""
        return True

    @classmethod
    def _unwrapped(cls, items: Sequence[Any], what: str) -> list[Any]:
        """Return the containers that instances of this class wrap, and plain tensordicts unchanged."""
        inner = []
        for item in items:
            if type(item) is cls:
                inner.append(item._tensordict)
            elif isinstance(item, Forwarding):
                raise errors.other_class(what, cls, type(item))
            else:
                inner.append(item)
        return inner

    def _as_result(self, result: Any) -> Any:
        """Wrap the result of an operation of the wrapped container."""
        if result is self._tensordict:
            return self
        if isinstance(result, tuple):
            return tuple(map(self._as_result, result))
        if is_tensordict(result) and self._fits(result):
            return self._wrap(result)
        return result

    # state -----------------------------------------------------------------------------------------------------------

    @property
    def _meta(self) -> Meta:  # type: ignore[override]  # an attribute of others; read by every operation
        return self._tensordict._meta

    _locked: bool = _wrapped_attribute("_locked")
    _holders: Any = _wrapped_attribute("_holders")
    _annotations: Any = _wrapped_attribute("_annotations")
    _last_exit: Any = _wrapped_attribute("_last_exit")

    @property
    def _reads_copy(self) -> bool:
        return self._tensordict._reads_copy

    @property
    def _entries(self) -> Mapping[str, Any]:
        entries: Mapping[str, Any] = self._tensordict._entries
        return entries

    # entries ---------------------------------------------------------------------------------------------------------

    def _keys(self) -> Iterable[str]:
        return self._tensordict._keys()

    def _get(self, key: str) -> Any:
        return self._tensordict._get(key)

    def _peek(self, key: str) -> Any:
        return self._tensordict._peek(key)

    def _items(self) -> Iterable[tuple[str, Any]]:
        return self._tensordict._items()

    _peek_items = _forwarded("_peek_items")

    def _get_ragged(self, key: str, default: Any = None, **options: Any) -> Any:
        return self._tensordict._get_ragged(key, default, **options)

    def _set(self, key: str, value: Any) -> None:
        self._check_key(key)
        self._tensordict._set(key, value)

    def _del(self, key: str) -> None:
        self._tensordict._del(key)

    def _rename(self, old: str, new: str) -> None:
        self._check_key(new)
        self._tensordict._rename(old, new)

    # leaves ----------------------------------------------------------------------------------------------------------

    def _collect(self, out: list[Any], is_leaf: IsLeaf | None) -> None:
        self._tensordict._collect(out, is_leaf)

    _collect_aligned = _forwarded("_collect_aligned")
    _collect_places = _forwarded("_collect_places")
    _line_up = _forwarded("_line_up")
    _pairs = _forwarded("_pairs")

    def _rebuild(self, leaves: Iterator[Any], how: How) -> Any:
        result: Any = self._tensordict._rebuild(leaves, how)
        return None if result is None else self._wrap(result)

    _inmost = _forwarded("_inmost")

    def _solid(self, nested: bool = True) -> Any:
        solid = self._tensordict._solid(nested)
        return self if solid is self._tensordict else self._wrap(solid)

    # shape -----------------------------------------------------------------------------------------------------------

    def _index(self, index: Index) -> Any:
        return self._wrap(self._tensordict._index(index))

    def _view_at(self, index: Index) -> Any:
        return self._wrap(self._tensordict._view_at(index))

    def _unwritten(self, size: torch.Size) -> Any:
        return self._shell(self._tensordict._unwritten(size))

    def _reshape(self, op: ShapeOp) -> Any:
        return self._wrap(self._tensordict._reshape(op))

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        inner = cls._unwrapped(items, "stack")
        return cls._wrap(common_container(inner)._stack(inner, dim))

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        inner = cls._unwrapped(items, "cat")
        return cls._wrap(common_container(inner)._cat(inner, dim))

    @classmethod
    def _lazy(cls, items: Sequence[Any], dim: int) -> Any:
        if any(isinstance(item, Forwarding) and type(item) is not cls for item in items):
            return LazyStackedTensorDict(*items, stack_dim=dim)  # instances of several classes keep their class
        inner = cls._unwrapped(items, "lazy_stack")
        return cls._wrap(common_container(inner)._lazy(inner, dim))

    def _unbind(self, dim: int) -> tuple[Any, ...]:
        return tuple(map(self._wrap, self._tensordict._unbind(dim)))

    # life ------------------------------------------------------------------------------------------------------------

    def _clone(self, recurse: bool) -> Self:
        return self._wrap(self._tensordict._clone(recurse))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = self._restored(copy.deepcopy(self._tensordict, memo))
        memo[id(self)] = new
        if hasattr(self, "__dict__"):
            new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new

    def __reduce__(self) -> Any:
        return type(self)._restored, (self._tensordict,), getattr(self, "__dict__", None) or None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @classmethod
    def _restored(cls, tensordict: Any) -> Self:
        """Make a copied or unpickled instance around the copy of its container."""
        return cls._shell(tensordict)

    def get_item_shape(self, key: Any) -> Any:
        """Return the shape of a field, batch dimensions included, without reading it."""
        # not forwarded as other methods are: a size would be taken for a tuple of results
        return self._tensordict.get_item_shape(key)

    _nodes = _forwarded("_nodes")
    _set_meta = _forwarded("_set_meta")
    _set_locked = _forwarded("_set_locked")
    _are_elements_locked = _forwarded("_are_elements_locked")
    _set_exit = _forwarded("_set_exit")
    _change_batch_size = _forwarded("_change_batch_size")
    _put_names = _forwarded("_put_names")
    _put_device = _forwarded("_put_device")
    _plan_write = _forwarded("_plan_write")
    _plan_entry = _forwarded("_plan_entry")

    def _plan_leaf(self, *plan: Any) -> None:
        self._tensordict._plan_leaf(*plan)

    def _plan_update(self, source: Any, plan: Any, prefix: tuple[str, ...]) -> None:
        # elements of a lazy stack are updated each, since their shapes may differ
        stack = self._lazy_stack
        parts = None if stack is None else stack._parts(source)
        if not parts:
            super()._plan_update(source, plan, prefix)
            return
        for td, part in zip(stack.tensordicts, parts, strict=True):
            self._shell(td)._plan_update(part, plan, prefix)

    _shape_of = _forwarded("_shape_of")
    _read = _forwarded("_read")
    _describe = _forwarded("_describe")
    _repr_meta = _forwarded("_repr_meta")

    @property
    def depth(self) -> int:
        """The number of levels of nested tensordicts below this one."""
        return self._tensordict.depth

    def empty(self, recurse: bool = False, **kwargs: Any) -> Self:
        """Return a copy without entries, with the same metadata.

        Args:
            recurse: Whether nested nodes stay, without entries.
            **kwargs: Other metadata, see ``TensorDict.empty``.
        """
        return self._shell(self._tensordict.empty(recurse, **kwargs))

    def select(self, *keys: NestedKey, inplace: bool = False, strict: bool = True, as_tensordict: bool = False) -> Self:
        """Select entries by key, in the same class or, with ``as_tensordict``, in a plain tensordict.

        Args:
            *keys: The keys, or one list of them.
            inplace: Whether to remove the other entries from this container instead.
            strict: Whether a missing key raises an error; otherwise it is ignored.
            as_tensordict: Whether the result is a plain tensordict.

        Raises:
            KeyError: A key is missing, and ``strict`` is True.

        >>> from tensordict_class import TensorClass
        >>> class Pair(TensorClass):
        ...     x: torch.Tensor
        ...     y: torch.Tensor
        >>> pair = Pair(torch.zeros(2), torch.ones(2))
        >>> pair.select("x").y is None, type(pair.select("x", as_tensordict=True)).__name__
        (True, 'TensorDict')
        """
        result: Any = self._tensordict.select(*keys, inplace=inplace, strict=strict, as_tensordict=as_tensordict)
        selected: Self = result if as_tensordict else self._as_result(result)
        return selected

    def flatten_keys(
        self, separator: str = KEY_SEPARATOR, inplace: bool = False, is_leaf: IsLeaf | None = None
    ) -> Self:
        """Return the entries of all levels in one level; with ``inplace``, all keys must be fields of the class."""
        return self._with_other_keys("flatten_keys", inplace, separator=separator, is_leaf=is_leaf)

    def unflatten_keys(self, separator: str = KEY_SEPARATOR, inplace: bool = False) -> Self:
        """Return nested tensordicts of joined keys; with ``inplace``, all keys must be fields of the class."""
        return self._with_other_keys("unflatten_keys", inplace, separator=separator)

    def _with_other_keys(self, name: str, inplace: bool, **options: Any) -> Self:
        operation = getattr(self._tensordict, name)
        if inplace:  # the keys are checked before the first one changes
            for key in operation(**options)._keys():
                self._check_key(key)
        result: Self = self._as_result(operation(inplace=inplace, **options))
        return result

    def _flattened(self, separator: str, is_leaf: IsLeaf | None, paths: dict[str, Any]) -> Any:
        return self._as_result(self._tensordict._flattened(separator, is_leaf, paths))

    def _unflattened(self, separator: str) -> Any:
        return self._as_result(self._tensordict._unflattened(separator))

    # on disk ---------------------------------------------------------------------------------------------------------

    def _disk_form(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return {}, {"_tensordict": self._tensordict}

    @classmethod
    def _from_disk_form(cls, facts: dict[str, Any], parts: dict[str, Any]) -> Any:
        return cls._wrap(parts["_tensordict"])


def _forwarded_operation(name: str) -> Any:
    """Make a method that calls the wrapped container's operation ``name`` and wraps its result."""

    @functools.wraps(getattr(TensorCollection, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._as_result(getattr(self._tensordict, name)(*args, **kwargs))

    return method


# Operations that lazy stacks or views override: on keys, locks, and in place.
for _name in (
    *("exclude", "split_keys", "filter_empty_", "filter_non_tensor_data"),
    *("auto_batch_size_", "densify", "lock_", "unlock_", "entry_class", "repeat_interleave", "softmax", "where"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "zero_", "masked_fill_", "to_h5", "to_zarr", "to_store"),
    *(spec.name for spec in operations() if spec.inplace and hasattr(TensorCollection, spec.name)),
):
    setattr(Forwarding, _name, _forwarded_operation(_name))


def hide_annotations(*classes: type[Any]) -> None:
    """Remove the annotations of classes, so that ``typing.get_type_hints`` of a subclass has its fields only."""
    for cls in classes:
        cls.__annotations__ = {}


def make_known(cls: Any) -> None:
    """Register a class: under a stable name for saved instances, and as a pytree node."""
    cls._note_abstract_methods()  # fields may implement some
    register_type(cls)
    register_wrapper(
        cls, type_name(cls), lambda node: (node._tensordict, None), lambda tensordict, _: cls._wrap(tensordict)
    )
