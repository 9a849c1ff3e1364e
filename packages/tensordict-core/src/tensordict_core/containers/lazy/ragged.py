"""Ragged entries of a lazy stack: entries whose shapes differ between the elements.

They are read as a list, as a nested tensor, or padded to the longest; non-tensor values as nested lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import non_tensor_entry
from tensordict_core.base.keys import NestedKey
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.predicates import is_non_tensor
from tensordict_core.base.rebuild import NO_DEFAULT
from tensordict_core.base.registry.types import containers
from tensordict_core.containers.lazy.columns import as_nested, as_padded, stacked_lists

_FORMS = ("as_list", "as_nested_tensor", "as_padded_tensor")


def _nothing(key: str, sample: Any, batch_dims: int, meta: Any) -> Any:
    """Return an entry without content of the kind of a sample, for an element that has none."""
    if not isinstance(sample, Node):
        own = sample.shape[batch_dims:]
        if not own:
            raise errors.no_empty_form(key)
        return sample.new_empty((*meta.batch_size, 0, *own[1:]))
    if not sample._is_opaque:
        return sample._new({}, meta)
    if not sample._is_non_tensor:
        raise errors.no_empty_form(key)
    return non_tensor_entry(meta, None)


class LazyRagged:
    """Ways to read entries that do not stack, and to make the stack dense."""

    __slots__ = ()

    def _get_ragged(
        self: Any,
        key: str,
        default: Any = None,
        *,
        as_list: bool = False,
        as_nested_tensor: bool = False,
        as_padded_tensor: bool = False,
        padding_side: str = "right",
        padding_value: float = 0.0,
        layout: torch.layout | None = None,
        **options: Any,
    ) -> Any:
        if options:
            raise TypeError(
                f"get() of a lazy stack takes no option {sorted(options)}; it takes as_list, as_nested_tensor ..."
            )
        first = self._peek(key)
        if first is None:
            return default
        given = (as_list, as_nested_tensor, as_padded_tensor)
        forms = [name for name, is_given in zip(_FORMS, given, strict=True) if is_given]
        if len(forms) > 1:
            raise errors.two_ways(forms[0], forms[1], "how a ragged entry is read")
        if not (is_leaf_tensor(first) or (as_list and isinstance(first, containers.unbatched))) or not forms:
            return self._get(key)
        if as_list:
            return [td._get_ragged(key, as_list=True) for td in self.tensordicts]
        if not all(is_leaf_tensor(td._peek(key)) for td in self.tensordicts):
            raise errors.mixed_column(key)
        if as_nested_tensor:
            return as_nested([td._get(key) for td in self.tensordicts], layout)
        column = [
            td._get_ragged(key, as_padded_tensor=True, padding_side=padding_side, padding_value=padding_value)
            for td in self.tensordicts
        ]
        return as_padded(column, self._stack_dim, padding_side, padding_value)

    def _values(self: Any, key: str) -> list[Any]:
        """Return the values of a non-tensor entry at every position, as nested lists, which may differ in length."""
        columns = [td._values(key) if td._is_lazy_stack else td._get(key).tolist() for td in self.tensordicts]
        return stacked_lists(columns, self._stack_dim)

    def _parts_of_node(self: Any, value: Any) -> Any:
        """Return the parts of a node for each element, which fit elements of several batch sizes."""
        return _unbound(value, self._stack_dim, [td._meta.batch_size for td in self.tensordicts])

    def get_nestedtensor(
        self: Any, key: NestedKey, default: Any = NO_DEFAULT, *, layout: torch.layout | None = None
    ) -> Any:
        """Return an entry as a nested tensor, whose components are the tensors of the elements.

        Args:
            key: A string or a nested key.
            default: The result if there is no such entry; without it a missing key is an error.
            layout: The layout of the nested tensor; strided by default, other than that of ``get``.

        Raises:
            KeyError: There is no such entry, and no default.
            RuntimeError: The stack dim is not 0, the dimension of the components of a nested tensor.

        >>> ragged = TensorDict.lazy_stack([TensorDict({"a": torch.zeros(1)}), TensorDict({"a": torch.ones(2)})])
        >>> [len(part) for part in ragged.get_nestedtensor("a").unbind()]
        [1, 2]
        """
        if self._stack_dim:
            raise errors.nested_stack_dim(self._stack_dim)
        return self.get(key, default, as_nested_tensor=True, layout=layout or torch.strided)

    def _shape_of(self: Any, name: str) -> Any:
        entry = self._peek(name)
        if not is_leaf_tensor(entry):
            return entry.shape
        shapes = [td._shape_of(name) for td in self.tensordicts]
        if len({len(shape) for shape in shapes}) > 1:
            raise errors.ragged(name, shapes)
        sizes = [column[0] if len(set(column)) == 1 else -1 for column in zip(*shapes, strict=True)]
        return torch.Size((*sizes[: self._stack_dim], len(shapes), *sizes[self._stack_dim :]))

    def _is_ragged(self: Any) -> bool:
        """Return whether the stack has no dense form: shapes or keys differ between elements."""
        tds = [td._inmost() for td in self.tensordicts]
        if -1 in self._meta.batch_size:
            return True
        plain = {*map(type, tds)} <= {containers.dense}
        if not plain and any([td._is_lazy_stack and td._is_ragged() for td in tds]):
            return True
        keys = tuple(self._keys())
        if any([len(td._entries if plain else tuple(td._keys())) != len(keys) for td in tds]):
            return True
        return any(_is_ragged_column(tds, key, self._stack_dim, plain) for key in keys)

    def _completed(self: Any) -> Any:
        """Return the stack with an empty entry for each one that only other elements have; else the stack itself."""
        samples: dict[str, Any] = {}
        for td in self.tensordicts:
            for key, entry in td._peek_items():
                samples.setdefault(key, (entry, len(td._meta.batch_size)))
        missing = [[key for key in samples if td._peek(key) is None] for td in self.tensordicts]
        if not any(missing):
            return self
        elements = []
        for td, keys in zip(self.tensordicts, missing, strict=True):
            element = td._clone(False) if keys else td
            for key in keys:
                sample, batch_dims = samples[key]
                element._set(key, _nothing(key, sample, batch_dims, td._meta))
            elements.append(element)
        return type(self)._lazy(elements, self._stack_dim)

    def densify(self: Any, layout: torch.layout = torch.strided) -> Any:
        """Return a plain tensordict: entries of one shape are stacked, ragged ones become nested tensors.

        An element that lacks an entry has an empty component in its nested tensor, or the value ``None``.

        Args:
            layout: The layout of the nested tensors.

        Raises:
            ValueError: An entry is ragged and the stack dim is not 0.
            RuntimeError: An entry without dimensions of its own is missing in some elements.

        >>> ragged = TensorDict.lazy_stack([TensorDict({"a": torch.zeros(1)}), TensorDict({"a": torch.ones(2)})])
        >>> type(ragged.densify(layout=torch.jagged)).__name__
        'TensorDict'
        >>> ragged.tensordicts[0]["b"] = torch.ones(3)
        >>> [len(part) for part in ragged.densify(layout=torch.jagged)["b"].unbind()]
        [3, 0]
        """
        complete = self._completed()
        if complete is not self:
            return complete.densify(layout=layout)
        entries = {}
        for key in self._keys():
            if is_leaf_tensor(self._peek(key)):
                shapes = {td._shape_of(key) for td in self.tensordicts}
                ragged = len(shapes) > 1 or -1 in shapes.pop()
                if ragged and self._stack_dim:
                    raise errors.nested_stack_dim(self._stack_dim)
                entries[key] = self._get_ragged(key, as_nested_tensor=True, layout=layout) if ragged else self._get(key)
            else:
                entries[key] = self._get(key).densify(layout=layout)
        return self._new(entries, self._meta)


def _unbound(value: Any, dim: int, sizes: Sequence[torch.Size]) -> Any:
    """Return the parts of a node along a dimension, for elements of these batch sizes.

    A node of a batch size with ``-1`` has no tensors, only values and such nodes.
    """
    if -1 not in value._meta.batch_size or value._lazy_stack is not None:
        return value._unbind(dim)
    if is_non_tensor(value):
        return value._unbind_ragged(dim, sizes)
    further = value._meta.batch_size[len(sizes[0]) + 1 :]
    parts = [value._new({}, value._meta.resized(torch.Size((*size, *further)))) for size in sizes]
    for key, entry in value._items():
        for part, below in zip(parts, _unbound(entry, dim, [part._meta.batch_size for part in parts]), strict=True):
            part._set(key, below)
    return parts


def _is_ragged_column(tds: list[Any], key: str, dim: int, plain: bool) -> bool:
    """Return whether the entries of elements under a key do not stack; ``plain`` elements are dense tensordicts."""
    column = [td._peek(key) for td in tds]
    first = column[0]
    if plain and type(first) is Tensor:  # the usual case, in few calls: a stack may have thousands of elements
        shape = first.shape
        return not all([type(entry) is Tensor and entry.shape == shape for entry in column])
    if is_leaf_tensor(first):
        if not all(is_leaf_tensor(entry) for entry in column):
            return True
        shapes = {entry.shape if plain else td._shape_of(key) for td, entry in zip(tds, column, strict=True)}
        return len(shapes) > 1 or -1 in shapes.pop()
    if isinstance(first, containers.unbatched):
        return not first._stacks(column)
    if not all(isinstance(entry, Node) and entry._is_opaque is first._is_opaque for entry in column):
        return True
    lazy = None if first._is_opaque else type(first)._lazy(column, dim)._lazy_stack
    return lazy is not None and lazy._is_ragged()
