"""`apply`: map a function over the leaves of a tensordict.

The results of the function replace the leaves, and ``None`` drops the entry. Other tensordicts are matched by key and
supply further arguments. One algorithm serves all variants: by name, in place, into ``out``, on nested nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Self, TypedDict, Unpack

import torch
from torch import Tensor

from tensordict_core.base.keys import unravel_key
from tensordict_core.base.meta import as_batch_size, as_device, as_names, starts_with
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.rebuild import KEEP, SAME, SHAPE_KEEPING, UNLOCKED, How, IsLeaf
from tensordict_core.base.signature import with_options
from tensordict_core.ops.shape.combine import check_out

_PLAIN = How(prune=True, check=True)
_LOCKED = How(prune=True, check=True, lock=True)
_HASHABLE = (type(torch.sin), type(torch.Tensor.sin))
_SIMPLE = ("default", "propagate_lock")
"""Options that leave batch size, device, names and leaves of the result to the usual rules."""


class ApplyOptions(TypedDict, total=False):
    """The options of ``apply``, ``named_apply`` and ``apply_``; the docstring of ``apply`` explains each."""

    batch_size: Sequence[int] | None
    device: Any
    names: Any
    inplace: bool
    default: Any
    filter_empty: bool | None
    propagate_lock: bool
    call_on_nested: bool
    is_leaf: IsLeaf | None
    out: Any


def _any_node(kind: type[Any]) -> bool:
    return issubclass(kind, Node)


def _argument(entry: Any) -> Any:
    """Return the argument that an entry of another tensordict becomes: the value of a `NonTensorData`, or the entry."""
    single = isinstance(entry, Node) and entry._is_non_tensor and not entry._holds_values
    return entry._entry_value() if single else entry


def _leaf_types(options: ApplyOptions) -> IsLeaf | None:
    """Return the predicate on the types of nodes that the function is called with."""
    return _any_node if options.get("call_on_nested") else options.get("is_leaf")


class Applying(Node):
    """``apply`` and its variants."""

    __slots__ = ()

    @with_options(ApplyOptions)
    def apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        named: bool = False,
        nested_keys: bool = False,
        **options: Unpack[ApplyOptions],
    ) -> Self | Any:
        """Apply a function to every leaf, and return the results in a tensordict of the same structure.

        Args:
            fn: A function that is called with a leaf, and with the leaves of ``others`` under the same key. Its result
                replaces the leaf; ``None`` removes the entry.
            *others: Tensordicts matched by key. `NonTensorData` is passed as its value.
            batch_size: The batch size of the result, if it changes.
            device: The device of the result, if it changes.
            names: The dim names of the result, if they change.
            inplace: Whether the results are written into the leaves.
            default: The value in place of a leaf that one of ``others`` lacks; by default a missing leaf raises a
                ``KeyError``.
            filter_empty: Whether to remove nested tensordicts without leaves, and to return ``None`` if there is no
                leaf; the default is to remove those that lost all their leaves.
            propagate_lock: Whether the result of a locked tensordict is locked.
            call_on_nested: Whether ``fn`` is called with nested tensordicts instead of their leaves.
            is_leaf: Predicate on types; ``fn`` is called with instances of the types for which it is true.
            named: Whether ``fn`` receives the name of the entry as its first argument, as in ``named_apply``.
            nested_keys: With ``named``, whether ``fn`` receives the whole nested key.
            out: A tensordict in which the results are stored as entries; tensors that it held before are not changed.

        Raises:
            RuntimeError: A result does not start with the batch size.
            KeyError: One of ``others`` lacks a leaf and there is no ``default``.

        >>> td = TensorDict({"a": torch.ones(3), "b": {"c": torch.zeros(3)}}, [3])
        >>> td.apply(lambda x: x + 1)["b", "c"]
        tensor([1., 1., 1.])
        >>> td.apply(lambda x, y: x - y, td)["a"]
        tensor([0., 0., 0.])
        """
        if named:
            return self.named_apply(fn, *others, nested_keys=nested_keys, **options)
        kind, td = (_leaf_types(options), self._apply_source(options)) if options else (None, self)
        operands = td._operands(others, kind, options) if others else ()
        results = list(map(fn, td._leaves(kind), *operands))
        if results and (not options or all([name in _SIMPLE for name in options])):
            locks = options.get("propagate_lock", False)
            # the check of the results' shapes would cost a tenth of the call
            if type(fn) in _HASHABLE and fn in SHAPE_KEEPING:
                return td._rebuild(iter(results), SAME if locks else UNLOCKED)
            return td._rebuild(iter(results), _LOCKED if locks else _PLAIN)
        return td._put_results(results, kind, options)

    @with_options(ApplyOptions)
    def named_apply(
        self, fn: Callable[..., Any], *others: Any, nested_keys: bool = False, **options: Unpack[ApplyOptions]
    ) -> Self | Any:
        """Apply a function that takes the key of the leaf first; other arguments are those of ``apply``.

        Args:
            fn: A function that is called with the key, the leaf, and the leaves of ``others`` under the same key.
            *others: Tensordicts matched by key.
            nested_keys: Whether ``fn`` receives the whole nested key rather than its last level.

        >>> TensorDict({"a": 1, "b": {"c": 2}}).named_apply(lambda k, x: x if k == "c" else None)["b", "c"]
        tensor(2)
        """
        kind, td = _leaf_types(options), self._apply_source(options)
        keys = td._leaf_keys(kind)
        names = [unravel_key(key) for key in keys] if nested_keys else [key[-1] for key in keys]
        results = list(map(fn, names, td._leaves(kind), *td._operands(others, kind, options)))
        return td._put_results(results, kind, options)

    @with_options(ApplyOptions)
    def apply_(self, fn: Callable[..., Any], *others: Any, **options: Unpack[ApplyOptions]) -> Self:
        """Write the results of a function into the leaves, as ``apply`` with ``inplace=True``.

        >>> TensorDict({"a": torch.zeros(2)}).apply_(lambda x: x + 1)["a"]
        tensor([1., 1.])
        """
        in_place: ApplyOptions = {**options, "inplace": True}
        self.apply(fn, *others, **in_place)
        return self

    def _apply_source(self, options: ApplyOptions) -> Any:
        """Return the tree whose leaves the function is called with; a new batch size needs a dense one."""
        if options.get("batch_size") is None or options.get("inplace"):
            return self
        # nested tensordicts that the function is called with stay as they are
        solid = self._solid(nested=not options.get("call_on_nested"))
        return solid.lock_() if self._locked and options.get("propagate_lock") else solid

    def _operands(self, others: Sequence[Any], is_leaf: IsLeaf | None, options: ApplyOptions) -> list[list[Any]]:
        """Return for each of ``others`` the argument for each leaf: a tensor, or the value of a `NonTensorData`."""
        columns = [self._align(other, options.get("default", KEEP), is_leaf) for other in others]
        if is_leaf is not None:
            return columns
        return [[one if type(one) is Tensor else _argument(one) for one in column] for column in columns]

    def _keep_own_sizes(self, results: list[Any], size: torch.Size, is_leaf: IsLeaf | None) -> bool:
        """Return whether results fit the longer nested batch sizes, where that of the root is to be ``size``."""
        dims = len(self._meta.batch_size)
        return all(
            starts_with(result._meta.batch_size if isinstance(result, Node) else result.shape, size + own[dims:])
            for result, (_, own) in zip(results, self._leaf_places(is_leaf), strict=True)
            if len(own) > dims and (is_leaf_tensor(result) or isinstance(result, Node))
        )

    def _put_inplace(self, results: list[Any], is_leaf: IsLeaf | None, out: Any) -> Any:
        """Write the results into the leaves of this tensordict or of ``out``; a number fills its leaf."""
        if out is not None:
            check_out("apply", out)
        target: Any = self if out is None else out
        leaves = self._leaves(is_leaf)
        if target is self and all(map(is_, results, leaves)):
            return self  # the function wrote into the leaves
        results = [
            new
            if is_leaf_tensor(new) or not (isinstance(new, int | float | complex) and is_leaf_tensor(leaf))
            else torch.full_like(leaf, new)
            for leaf, new in zip(leaves, results, strict=True)
        ]
        how = _PLAIN if is_leaf is None else How(is_leaf=is_leaf, check=True)
        target.update_(self._rebuild(iter(results), how))
        return target

    def _put_results(self, results: list[Any], is_leaf: IsLeaf | None, options: ApplyOptions) -> Any:
        """Return a tree with the results as leaves, or write them into this tensordict or ``out``."""
        out, filter_empty = options.get("out"), options.get("filter_empty")
        device = options.get("device", KEEP)
        device = device if device is KEEP else as_device(device)
        if options.get("inplace"):
            return self._put_inplace(results, is_leaf, out)
        meta = self._meta
        dims = len(meta.batch_size)
        batch_size, names = options.get("batch_size"), options.get("names", KEEP)
        size = None if batch_size is None else as_batch_size(batch_size)
        new_names = names if names is KEEP else as_names(names, dims if size is None else len(size))
        keeps = size is not None and self._keep_own_sizes(results, size, is_leaf)
        how = How(
            size=None
            if size is None
            else lambda own: size + own[dims:] if keeps and own[:dims] == meta.batch_size else size,
            names=None
            if new_names is KEEP
            else lambda own: new_names if new_names is None or own is None else new_names + own[dims:],
            device=device,
            lock=options.get("propagate_lock", False),
            is_leaf=is_leaf,
            prune=filter_empty is not False,
            prune_empty=bool(filter_empty),
            check=True,
        )
        result = self._rebuild(iter(results), how)
        if result is None and (filter_empty is False or not (results or filter_empty)):
            return self.empty()
        if out is not None:
            check_out("apply", out)
        return result if out is None or result is None else out.update(result)
