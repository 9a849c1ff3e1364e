"""Comparison operators, tests such as ``isnan``, and ``all`` and ``any``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self, cast, overload

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.entry import as_tensor
from tensordict_core.base.keys import unravel_key
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.rebuild import SAME, UNLOCKED
from tensordict_core.base.registry.types import containers
from tensordict_core.ops.factories.operands import OPERANDS, broadcast_how, match, spread
from tensordict_core.ops.factories.owner import owns_methods
from tensordict_core.ops.factories.reduction import BatchDims, Dim, Kernel, over_leaves
from tensordict_core.ops.factories.spec import OpSpec, record
from tensordict_core.ops.factories.typed import UnaryMethod

_ALL = cast(Kernel, Tensor.all)
_ANY = cast(Kernel, Tensor.any)


def _comparison(name: str, function: Callable[..., Tensor], symbol: str) -> Any:
    """Return an operator that compares leaf by leaf; non-tensor entries are compared by value."""

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, Node):
            if other._noun == "tensorclass" != self._noun and not other._is_opaque:
                return NotImplemented  # Python then calls the tensorclass, and the result is one
            if (pairs := self._pairs(other)) is not None:
                return self._rebuild(map(function, *pairs), broadcast_how(self, other, UNLOCKED))
        if not isinstance(other, OPERANDS):
            return NotImplemented  # == of any other value is then false, and < a TypeError of Python
        if name in ("__eq__", "__ne__") and isinstance(other, dict):
            other = containers.dense(other, batch_size=None if self._lazy_stack is None else self._meta.batch_size)
        has_values = isinstance(other, Node) and (_has_values(self) or _has_values(other))
        if has_values and name in ("__eq__", "__ne__"):
            self, other = _alike(self, other)
        self, other = spread(self, other)
        leaves = self._leaves()
        operands, scalar = match(name, self, leaves, other)
        if has_values:
            _check_values(self, other)
        how = broadcast_how(self, other, UNLOCKED)
        result = self._rebuild(map(function, leaves, repeat(operands) if scalar else operands), how)
        if has_values and name in ("__eq__", "__ne__"):
            _compare_values(result, self, other, name == "__eq__")
        return result

    method.__doc__ = f"""Return ``leaf {symbol} operand`` for every leaf, as bool leaves.

    Args:
        other: A number or a tensor, aligned with the batch dimensions, or a tensordict, matched by key.

    Raises:
        KeyError: The keys of ``other`` differ.
    """
    record(OpSpec(name, "compare", function, torch_functions=(function, getattr(Tensor, function.__name__))))
    return method


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Return both operands with entries of one kind where one has a tensor and the other one non-tensor data.

    3 equals ``tensor(3)``; a value that is no tensor is compared with the tensor as a value.
    """
    if left._is_opaque or right._is_opaque or left._lazy_stack is not None or right._lazy_stack is not None:
        return left, right
    values: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, mine in left._items():
        theirs = right._peek(key) if isinstance(mine, Node) else None
        if isinstance(theirs, Node):
            new_mine, new_theirs = _alike(mine, theirs)
            if new_mine is not mine or new_theirs is not theirs:
                values[0][key], values[1][key] = new_mine, new_theirs
        elif is_leaf_tensor(theirs) and mine._is_non_tensor:
            values[0][key], values[1][key] = _value_and_tensor(mine, theirs)
    for key, theirs in right._items():
        mine = left._peek(key) if isinstance(theirs, Node) and theirs._is_non_tensor else None
        if is_leaf_tensor(mine):
            values[1][key], values[0][key] = _value_and_tensor(theirs, mine)
    return _replaced(left, values[0]), _replaced(right, values[1])


def _value_and_tensor(value: Any, tensor: Any) -> tuple[Any, Any]:
    """Return non-tensor data and a tensor as two tensors or, if the value is none, as two non-tensor data."""
    as_number = as_tensor(value.tolist())
    if as_number is not None:
        return as_number, tensor
    return value, containers.non_tensor(tensor, batch_size=value._meta.batch_size)


def _replaced(td: Any, entries: dict[str, Any]) -> Any:
    """Return a tensordict with other entries; itself if there are none."""
    result = td._clone(False) if entries else td
    for key, entry in entries.items():
        result._set(key, entry)
    return result


def _has_values(node: Any) -> bool:
    """Return whether a tree may have entries without leaves: non-tensor data, or empty tensordicts."""
    if node._is_opaque or node._lazy_stack is not None:
        return True
    empty = True
    for _, entry in node._peek_items():
        if type(entry) is not Tensor and isinstance(entry, Node) and _has_values(entry):
            return True
        empty = False
    return empty


def _value_paths(node: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the entries of all levels that have no leaves: non-tensor data, and empty tensordicts."""
    for key, entry in node._peek_items():
        if type(entry) is not Tensor and isinstance(entry, Node):
            if entry._is_non_tensor or not (entry._is_opaque or any(True for _ in entry._keys())):
                yield (*prefix, key)
            elif not entry._is_opaque:
                yield from _value_paths(entry, (*prefix, key))


def _elements(*nodes: Any) -> Iterator[tuple[Any, ...]] | None:
    """Return the elements of lazy stacks along one dimension, which may have keys of their own; else ``None``."""
    stacks = [node._lazy_stack for node in nodes]
    if None in stacks or len({stack.stack_dim for stack in stacks}) > 1:
        return None
    return zip(*(stack.tensordicts for stack in stacks), strict=False)


def _check_values(left: Any, right: Any) -> None:
    """Check that both operands have the same entries without leaves; tensors are checked where they are matched.

    Raises:
        KeyError: One has a non-tensor entry or an empty tensordict that the other lacks.
    """
    if left._is_opaque or right._is_opaque:
        return
    if (elements := _elements(left, right)) is not None:
        for mine, theirs in elements:
            _check_values(mine, theirs)
        return
    more = [unravel_key(path) for path in _value_paths(left) if right._peek_path(path) is None]
    less = [unravel_key(path) for path in _value_paths(right) if left._peek_path(path) is None]
    if more or less:
        raise errors.keys_mismatch(more, less)


def _compare_values(result: Any, left: Any, right: Any, equal: bool) -> None:
    """Replace the non-tensor entries of ``result`` by the result of comparing their values."""
    if (elements := _elements(result, left, right)) is not None:
        for made, mine, theirs in elements:
            _compare_values(made, mine, theirs, equal)
        return
    for key, mine in left._peek_items():
        if type(mine) is Tensor or not isinstance(mine, Node):
            continue
        theirs = right._peek(key)
        if not isinstance(theirs, Node):
            continue  # a tensor, compared with an unbatched one
        if mine._is_non_tensor:
            same = mine == theirs
            result._set(key, same if equal else ~same)
        else:
            _compare_values(result._get(key), mine, theirs, equal)


def _test(name: str) -> UnaryMethod:
    """Return the method ``name`` that tests every element of every leaf."""
    function = getattr(torch, name)

    def method(self: Any) -> Any:
        return self._rebuild(iter([function(leaf) for leaf in self._leaves()]), SAME)

    method.__doc__ = f"""Return the result of `torch.{name}` for every leaf, as bool leaves.

    >>> TensorDict({{"a": torch.tensor(1.0)}}).{name}()["a"].dtype
    torch.bool
    """
    record(OpSpec(name, "test", function, torch_functions=(function,)))
    return cast(UnaryMethod, method)


@owns_methods
class Comparison(Node):
    """Comparisons and tests."""

    __slots__ = ()

    if TYPE_CHECKING:
        # type checkers would give generated operators the signatures of object
        def __eq__(self, other: object) -> Self: ...  # type: ignore[override]  # object returns a bool
        def __ne__(self, other: object) -> Self: ...  # type: ignore[override]  # object returns a bool
        def __lt__(self, other: Any) -> Self: ...
        def __le__(self, other: Any) -> Self: ...
        def __gt__(self, other: Any) -> Self: ...
        def __ge__(self, other: Any) -> Self: ...
    else:
        __eq__ = _comparison("__eq__", torch.eq, "==")
        __ne__ = _comparison("__ne__", torch.ne, "!=")
        __lt__ = _comparison("__lt__", torch.lt, "<")
        __le__ = _comparison("__le__", torch.le, "<=")
        __gt__ = _comparison("__gt__", torch.gt, ">")
        __ge__ = _comparison("__ge__", torch.ge, ">=")

    isfinite = _test("isfinite")
    isnan = _test("isnan")
    isinf = _test("isinf")
    isneginf = _test("isneginf")
    isposinf = _test("isposinf")
    isreal = _test("isreal")

    @overload
    def all(self, dim: None = ...) -> bool: ...
    @overload
    def all(self, dim: BatchDims) -> Self: ...
    def all(self, dim: Dim = None) -> Any:
        """Return whether all elements of all leaves are true.

        Args:
            dim: Batch dimensions, or ``"feature"`` for each leaf's own; the result is then a tensordict of bool leaves.

        >>> td = TensorDict({"a": torch.tensor([1, 0])}, [2])
        >>> td.all(), td.all(dim=0)["a"]
        (False, tensor(False))
        """
        if dim is None:
            return all(bool(leaf.all()) for leaf in self._leaves())
        return over_leaves(self, _ALL, dim, False)

    @overload
    def any(self, dim: None = ...) -> bool: ...
    @overload
    def any(self, dim: BatchDims) -> Self: ...
    def any(self, dim: Dim = None) -> Any:
        """Return whether any element of any leaf is true.

        Args:
            dim: Batch dimensions, or ``"feature"`` for each leaf's own; the result is then a tensordict of bool leaves.

        >>> td = TensorDict({"a": torch.tensor([1, 0])}, [2])
        >>> td.any(), td.any(dim=0)["a"]
        (True, tensor(True))
        """
        if dim is None:
            return any(bool(leaf.any()) for leaf in self._leaves())
        return over_leaves(self, _ANY, dim, False)

    def __bool__(self) -> bool:
        """Raise an error, because the truth value of a tensordict is ambiguous.

        Raises:
            RuntimeError: Always; use ``len``, ``is_empty`` or ``(a == b).all()``.
        """
        raise errors.ambiguous_bool(self._noun)


record(OpSpec("all", "reduce", torch.all, torch_functions=(torch.all,)))
record(OpSpec("any", "reduce", torch.any, torch_functions=(torch.any,)))
