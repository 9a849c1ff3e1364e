"""`apply`: map a function over the leaves of a tensordict.

The results of the function replace the leaves, and ``None`` drops the entry. Other tensordicts are matched by key and
give the function more arguments. One algorithm serves all variants: by name, in place, into ``out``, on nested nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base.keys import unravel_key
from tensordict_core.base.meta import as_batch_size, as_device, as_names
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import KEEP, SAME, SHAPE_KEEPING, UNLOCKED, How, IsLeaf

__all__ = ["Applying"]


_PLAIN = How(prune=True, check=True)
_LOCKED = How(prune=True, check=True, lock=True)
_HASHABLE = (type(torch.sin), type(torch.Tensor.sin))


def _any_node(kind: type[Any]) -> bool:
    return issubclass(kind, Node)


class Applying(Node):
    """Functions on leaves."""

    __slots__ = ()

    def apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: Sequence[int] | None = None,
        device: Any = KEEP,
        names: Any = KEEP,
        inplace: bool = False,
        default: Any = KEEP,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: IsLeaf | None = None,
        out: Any = None,
        **constructor_kwargs: Any,
    ) -> Self | Any:
        """Return the results of ``fn`` for every leaf, in the structure of this tensordict.

        Args:
            fn: Called with a leaf, and those of ``others`` under the same key. Its result replaces the leaf; ``None``
                drops the entry.
            *others: Tensordicts matched by key. A `NonTensorData` gives its value, a function for one.
            batch_size: The batch size of the result, if it changes.
            device: The device of the result, if it changes.
            names: The dim names of the result, if they change.
            inplace: Whether the results are written into the leaves.
            default: The value for a leaf that one of ``others`` lacks; by default a missing leaf is an error.
            filter_empty: Whether nested tensordicts whose leaves were all dropped are dropped; by default they are, and
                the result is ``None`` if nothing is left.
            propagate_lock: Whether the result of a locked tensordict is locked.
            call_on_nested: Whether ``fn`` is called with nested tensordicts instead of their leaves.
            is_leaf: Predicate on types; ``fn`` is called with instances of the types for which it is true.
            out: A tensordict of the same structure that the results are written into.
            **constructor_kwargs: Accepted for compatibility.

        Raises:
            RuntimeError: A result does not start with the batch size.
            KeyError: One of ``others`` lacks a leaf and there is no ``default``.

        >>> td = TensorDict({"a": torch.ones(3), "b": {"c": torch.zeros(3)}}, [3])
        >>> td.apply(lambda x: x + 1)["b", "c"]
        tensor([1., 1., 1.])
        >>> td.apply(lambda x, y: x - y, td)["a"]
        tensor([0., 0., 0.])
        """
        kind = _any_node if call_on_nested else is_leaf
        if batch_size is not None and not inplace:
            self = self._solid()
        leaves = self._leaves(kind)
        if others:
            results = list(map(fn, leaves, *[self._operands(other, default, kind) for other in others]))
        else:
            results = list(map(fn, leaves))
        if (
            results
            and kind is None
            and out is None
            and batch_size is None
            and filter_empty is None
            and not inplace
            and device is KEEP
            and names is KEEP
        ):
            if type(fn) in _HASHABLE and fn in SHAPE_KEEPING:  # a look at the shapes of results costs a tenth of them
                return self._rebuild(iter(results), SAME if propagate_lock else UNLOCKED)
            return self._rebuild(iter(results), _LOCKED if propagate_lock else _PLAIN)
        return self._put_results(results, kind, batch_size, device, names, inplace, filter_empty, propagate_lock, out)

    def named_apply(
        self,
        fn: Callable[..., Any],
        *others: Any,
        nested_keys: bool = False,
        batch_size: Sequence[int] | None = None,
        device: Any = KEEP,
        names: Any = KEEP,
        inplace: bool = False,
        default: Any = KEEP,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: IsLeaf | None = None,
        out: Any = None,
        **constructor_kwargs: Any,
    ) -> Self | Any:
        """As ``apply``, with the key of the leaf as first argument of ``fn``.

        The key is its last level, or all of it if ``nested_keys``.

        >>> TensorDict({"a": 1, "b": {"c": 2}}).named_apply(lambda k, x: x if k == "c" else None)["b", "c"]
        tensor(2)
        """
        kind = _any_node if call_on_nested else is_leaf
        if batch_size is not None and not inplace:
            self = self._solid()
        keys = self._leaf_keys(kind)
        shown = [unravel_key(key) for key in keys] if nested_keys else [key[-1] for key in keys]
        columns = [shown, self._leaves(kind), *(self._operands(other, default, kind) for other in others)]
        results = [fn(*column) for column in zip(*columns, strict=True)]
        return self._put_results(results, kind, batch_size, device, names, inplace, filter_empty, propagate_lock, out)

    def apply_(self, fn: Callable[..., Any], *others: Any, **kwargs: Any) -> Self:
        """``apply`` with ``inplace=True``.

        >>> TensorDict({"a": torch.zeros(2)}).apply_(lambda x: x + 1)["a"]
        tensor([1., 1.])
        """
        self.apply(fn, *others, inplace=True, **kwargs)
        return self

    def _operands(self, other: Any, default: Any, is_leaf: IsLeaf | None) -> list[Any]:
        """Return the argument from ``other`` for each leaf: a tensor, or the value of a `NonTensorData`."""
        found = self._align(other, default, is_leaf)
        if is_leaf is not None or all(type(one) is Tensor for one in found):
            return found
        return [
            one._entry_value() if isinstance(one, Node) and one._is_non_tensor and not one._holds_values else one
            for one in found
        ]

    def _put_results(
        self,
        results: list[Any],
        is_leaf: IsLeaf | None,
        batch_size: Sequence[int] | None,
        device: Any,
        names: Any,
        inplace: bool,
        filter_empty: bool | None,
        propagate_lock: bool,
        out: Any,
    ) -> Any:
        if inplace or out is not None:
            target: Any = self if out is None else out
            leaves = self._leaves(is_leaf)
            # one number stands for all of a leaf
            results = [
                torch.full_like(leaf, new)
                if isinstance(new, int | float | complex) and isinstance(leaf, Tensor)
                else new
                for leaf, new in zip(leaves, results, strict=True)
            ]
            target.update_(self._rebuild(iter(results), How(is_leaf=is_leaf, check=True)))
            return target
        meta = self._meta
        dims = len(meta.batch_size)
        size = None if batch_size is None else as_batch_size(batch_size)
        new_names = names if names is KEEP else as_names(names, dims if size is None else len(size))
        how = How(
            size=None if size is None else lambda own: size + own[dims:] if own[:dims] == meta.batch_size else size,
            names=None
            if new_names is KEEP
            else lambda own: new_names if new_names is None or own is None else new_names + own[dims:],
            device=device if device is KEEP else as_device(device),
            lock=propagate_lock,
            is_leaf=is_leaf,
            prune=filter_empty is not False,
            check=True,
        )
        result = self._rebuild(iter(results), how)
        if result is None and (filter_empty is False or not results):
            return self.empty()
        return result
