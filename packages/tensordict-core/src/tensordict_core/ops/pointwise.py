"""Pointwise operations and operators: ``abs``, ``add``, ``clamp``, ``lerp``, ``__add__``, ...

Most are one line, because factories hold the algorithms. Operations with three operands, masks or dimensions are
written by hand.
"""

from __future__ import annotations

import operator
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.node import Node, has_entries
from tensordict_core.base.rebuild import SAME, UNLOCKED, How
from tensordict_core.base.shape_op import normal_dim
from tensordict_core.base.tracing import may_fuse
from tensordict_core.ops.factories.methods import binary, of_columns, scaled, unary
from tensordict_core.ops.factories.operands import (
    batch_operand,
    broadcast_how,
    by_parts,
    complete,
    grown,
    holds_lazy,
    keys_where,
    match,
    over_batch_size,
    spread,
)
from tensordict_core.ops.factories.owner import owns_methods
from tensordict_core.ops.factories.spec import OpSpec, record
from tensordict_core.ops.factories.typed import Operand
from tensordict_core.ops.shape.combine import write_out

Td = TypeVar("Td", bound=Node)


def _maximum(tensor: Tensor, other: Any) -> Tensor:
    return torch.maximum(tensor, other) if isinstance(other, Tensor) else tensor.clamp_min(other)


def _minimum(tensor: Tensor, other: Any) -> Tensor:
    return torch.minimum(tensor, other) if isinstance(other, Tensor) else tensor.clamp_max(other)


def _saved(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if autograd needs its values after the tensor is overwritten."""
    return tensor.clone() if tensor.requires_grad else tensor


def _maximum_(tensor: Tensor, other: Any) -> Tensor:
    return tensor.copy_(_maximum(_saved(tensor), other))


def _minimum_(tensor: Tensor, other: Any) -> Tensor:
    return tensor.copy_(_minimum(_saved(tensor), other))


def _logical(name: str) -> Any:
    """Return the function of one leaf for a logical operation, which takes numbers too."""
    function = getattr(torch if not name.endswith("_") else Tensor, name)

    def leaf(tensor: Tensor, other: Any) -> Tensor:
        operand = other if isinstance(other, Tensor) else torch.as_tensor(other, device=tensor.device)
        result: Tensor = function(tensor, operand)
        return result

    return leaf


@owns_methods
class Pointwise(Node):
    """Operations on each element of each leaf."""

    __slots__ = ()

    abs, abs_ = unary("abs", operators=("__abs__",), floating=False)
    acos, acos_ = unary("acos", sample="0.5")
    asin, asin_ = unary("asin", sample="0.5")
    atan, atan_ = unary("atan")
    ceil, ceil_ = unary("ceil")
    cos, cos_ = unary("cos")
    cosh, cosh_ = unary("cosh")
    erf, erf_ = unary("erf")
    erfc, erfc_ = unary("erfc")
    exp, exp_ = unary("exp")
    expm1, expm1_ = unary("expm1")
    floor, floor_ = unary("floor")
    frac, frac_ = unary("frac")
    lgamma, lgamma_ = unary("lgamma")
    log, log_ = unary("log")
    log10, log10_ = unary("log10")
    log1p, log1p_ = unary("log1p")
    log2, log2_ = unary("log2")
    neg, neg_ = unary("neg", operators=("__neg__",), floating=False)
    reciprocal, reciprocal_ = unary("reciprocal")
    round, round_ = unary("round")
    sigmoid, sigmoid_ = unary("sigmoid")
    sign, sign_ = unary("sign", floating=False)
    sin, sin_ = unary("sin")
    sinh, sinh_ = unary("sinh")
    sqrt, sqrt_ = unary("sqrt")
    tan, tan_ = unary("tan")
    tanh, tanh_ = unary("tanh")
    trunc, trunc_ = unary("trunc")

    add, add_ = scaled("add", operators=("__add__", "__radd__"))
    sub, sub_ = scaled("sub", operators=("__sub__",))
    mul, mul_ = binary("mul", operators=("__mul__", "__rmul__"))
    div, div_ = binary("div", operators=("__truediv__",))
    pow, pow_ = binary("pow", operators=("__pow__",))
    mod, mod_ = binary("mod", torch_name="remainder", operators=("__mod__",))
    floor_divide, floor_divide_ = binary("floor_divide", operators=("__floordiv__",))
    clamp_min, clamp_min_ = binary("clamp_min")
    clamp_max, clamp_max_ = binary("clamp_max")
    maximum, maximum_ = binary("maximum", leaf=_maximum, leaf_=_maximum_)
    minimum, minimum_ = binary("minimum", leaf=_minimum, leaf_=_minimum_)
    bitwise_and, bitwise_and_ = binary("bitwise_and", integral=True)
    bitwise_or, bitwise_or_ = binary("bitwise_or", integral=True)
    bitwise_xor, bitwise_xor_ = binary("bitwise_xor", integral=True)
    logical_and, logical_and_ = binary("logical_and", leaf=_logical("logical_and"), leaf_=_logical("logical_and_"))
    logical_or, logical_or_ = binary("logical_or", leaf=_logical("logical_or"), leaf_=_logical("logical_or_"))
    logical_xor, logical_xor_ = binary("logical_xor", leaf=_logical("logical_xor"), leaf_=_logical("logical_xor_"))

    def rsub(self, other: Operand, *, alpha: float | None = None, default: Any = None) -> Self:
        """Return ``other - alpha * leaf`` for every leaf.

        Args:
            other: A number or a tensor, aligned with the batch dimensions, or a tensordict, matched by key.
            alpha: A factor for the leaves.
            default: The value for a leaf that one side lacks, as in ``add``.

        >>> TensorDict({"a": torch.tensor(1.0)}).rsub(3.0)["a"]
        tensor(2.)
        """
        if alpha is True and not all(leaf.dtype is torch.bool for leaf in self._leaves()):
            raise errors.bool_alpha("rsub")  # multiplying would take it for 1
        if isinstance(alpha, float) and _is_integral(self) and _is_integral(other):
            raise RuntimeError(
                f"For integral input tensors, argument alpha must not be a floating point number, got {alpha}; cast "
                "them first"
            )
        td = self
        if default is not None and isinstance(other, Node):
            td, other = complete(self, other, default)
        return (td if alpha is None else td.mul(alpha)).neg().add(other, default=default)

    def clamp(self, min: Any = None, max: Any = None, *, out: Self | None = None) -> Self:
        """Return every leaf with its values limited to the range from ``min`` to ``max``.

        Args:
            min: A number, a tensor or a tensordict; ``None`` for no limit.
            max: The same.
            out: A tensordict of the same keys into which the result is written.

        Raises:
            ValueError: Neither limit is given.

        >>> TensorDict({"a": torch.tensor([0.0, 5.0])}).clamp(1, 2)["a"]
        tensor([1., 2.])
        """
        if min is None and max is None:
            raise errors.NoLimitError("clamp needs min, max or both; give at least one limit")
        if type(min) in (int, float, bool) and type(max) in (int, float, bool):  # one pass over the memory of each leaf
            result = self._rebuild(iter([torch.clamp(leaf, min, max) for leaf in self._leaves()]), UNLOCKED)
        else:
            result = self if min is None else self.clamp_min(min)
            result = result if max is None else result.clamp_max(max)
            if self._locked and min is not None and max is not None:
                result = result._clone(False)  # unlocked, as in the reference
        return result if out is None else write_out("clamp", result, out)

    def addcmul(self, other1: Any, other2: Any, *, value: float = 1) -> Self:
        """Return ``leaf + value * other1 * other2`` for every leaf.

        >>> td = TensorDict({"a": torch.tensor(1.0)})
        >>> td.addcmul(td, td, value=2)["a"]
        tensor(3.)
        """
        return _ternary(self, "addcmul", torch.addcmul, other1, other2, value=value)

    def addcmul_(self, other1: Any, other2: Any, *, value: float = 1) -> Self:
        """Write the result of ``addcmul`` into the leaves.

        >>> TensorDict({"a": torch.tensor(1.0)}).addcmul_(torch.tensor(3.0), torch.tensor(2.0))["a"]
        tensor(7.)
        """
        return _ternary_(self, "addcmul_", Tensor.addcmul_, other1, other2, value=value)

    def addcdiv(self, other1: Any, other2: Any, value: float = 1) -> Self:
        """Return ``leaf + value * other1 / other2`` for every leaf.

        >>> td = TensorDict({"a": torch.tensor(1.0)})
        >>> td.addcdiv(td, td, value=2)["a"]
        tensor(3.)
        """
        return _ternary(self, "addcdiv", torch.addcdiv, other1, other2, value=value)

    def addcdiv_(self, other1: Any, other2: Any, *, value: float = 1) -> Self:
        """Write the result of ``addcdiv`` into the leaves.

        >>> TensorDict({"a": torch.tensor(1.0)}).addcdiv_(torch.tensor(3.0), torch.tensor(2.0))["a"]
        tensor(2.5000)
        """
        return _ternary_(self, "addcdiv_", Tensor.addcdiv_, other1, other2, value=value)

    def lerp(self, end: Any, weight: Any) -> Self:
        """Return ``leaf + weight * (end - leaf)`` for every leaf.

        Args:
            end: A tensordict of the same keys, or a tensor aligned with the batch dimensions.
            weight: A number, a tensor or a tensordict.

        >>> td = TensorDict({"a": torch.tensor(1.0)})
        >>> td.lerp(td * 3, 0.5)["a"]
        tensor(2.)
        """
        return _ternary(self, "lerp", torch.lerp, end, weight)

    def lerp_(self, end: Any, weight: Any) -> Self:
        """Write the result of ``lerp`` into the leaves.

        >>> TensorDict({"a": torch.zeros(2)}, [2]).lerp_(TensorDict({"a": torch.ones(2)}, [2]), 0.25)["a"]
        tensor([0.2500, 0.2500])
        """
        return _ternary_(self, "lerp_", Tensor.lerp_, end, weight)

    def masked_fill(self, mask: Tensor, value: float | bool) -> Self:
        """Return every leaf with ``value`` where the mask, aligned with the batch dimensions, is true.

        Args:
            mask: A bool tensor over the batch dimensions, or the first of them.
            value: The fill value.

        >>> td = TensorDict({"a": torch.zeros(2, 2)}, batch_size=[2])
        >>> td.masked_fill(torch.tensor([True, False]), 1)["a"].sum()
        tensor(2.)
        """
        leaves = self._leaves()
        masks = batch_operand(self, leaves, over_batch_size(mask, self._meta.batch_size))
        return self._rebuild(
            iter([leaf.masked_fill(m, value) for leaf, m in zip(leaves, masks, strict=True)]), UNLOCKED
        )

    def masked_fill_(self, mask: Tensor, value: float | bool) -> Self:
        """Write the result of ``masked_fill`` into the leaves.

        >>> TensorDict({"a": torch.zeros(2)}, [2]).masked_fill_(torch.tensor([True, False]), 5)["a"]
        tensor([5., 0.])
        """
        leaves = self._leaves()
        masks = batch_operand(self, leaves, over_batch_size(mask, self._meta.batch_size))
        for leaf, m in zip(leaves, masks, strict=True):
            leaf.masked_fill_(m, value)
        return self._changed(leaves)

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Self:
        """Return the softmax of every leaf along a batch dimension.

        Args:
            dim: The batch dimension; negative ones are counted from the last batch dimension.
            dtype: The dtype that leaves are cast to first.

        Raises:
            IndexError: ``dim`` is outside the batch dimensions.

        >>> TensorDict({"a": torch.zeros(2, 3)}, batch_size=[2]).softmax(-1)["a"]
        tensor([[0.5000, 0.5000, 0.5000],
                [0.5000, 0.5000, 0.5000]])
        """
        at = normal_dim(dim, self._meta.batch_size)
        td: Any = self
        if own := td._exclusive_keys():
            raise errors.exclusive_keys("softmax along the stack dimension", own)
        if apart := keys_where(td, holds_lazy):
            parts: Self = by_parts(td, apart, lambda part, _: part.softmax(at, dtype))
            return parts
        stack, td = td, self._solid()
        softmax = torch.softmax
        result = td._rebuild(iter([softmax(leaf, at, dtype) for leaf in td._leaves()]), UNLOCKED)
        return cast(Self, stack._in_slices(result, at) if stack._is_lazy_stack else result)

    def zero_(self) -> Self:
        """Fill every leaf with zeros, parameters included.

        >>> TensorDict({"a": torch.ones(1)}).zero_()["a"]
        tensor([0.])
        """
        leaves = [
            leaf if type(leaf) is Tensor or not isinstance(leaf, torch.nn.Parameter) else leaf.data
            for leaf in self._leaves()
        ]
        if leaves and may_fuse() and all(type(leaf) is Tensor and not leaf.is_nested for leaf in leaves):
            torch._foreach_zero_(leaves)
        else:
            for leaf in leaves:
                leaf.zero_()
        return self._changed(leaves)

    def fill_(self, key: Any, value: float | bool) -> Self:
        """Fill one entry (every leaf below it, if it is nested) with a number.

        Raises:
            KeyError: The entry does not exist.

        >>> TensorDict({"a": torch.zeros(2)}).fill_("a", 3)["a"]
        tensor([3., 3.])
        """
        parent, name, entry = self._peek_entry(key)
        if isinstance(entry, Node) and entry._is_opaque:
            for leaf in entry._leaves():
                leaf.fill_(value)
        elif type(entry) is Tensor and type(parent._entries) is dict:
            entry.fill_(value)
        else:
            parent._put_entry(name, Index((), parent._meta.batch_size), value)
        return self

    # operators -------------------------------------------------------------------------------------------------------

    def __abs__(self) -> Self:
        return self.abs()

    def __neg__(self) -> Self:
        return self.neg()

    def __invert__(self) -> Self:
        return self._rebuild(iter([~leaf for leaf in self._leaves()]), SAME)

    def __add__(self, other: Any) -> Self:
        return self.add(other)

    def __radd__(self, other: Any) -> Self:
        return self.add(other)

    def __sub__(self, other: Any) -> Self:
        return self.sub(other)

    def __rsub__(self, other: Any) -> Self:
        return self.rsub(other)

    def __mul__(self, other: Any) -> Self:
        return self.mul(other)

    def __rmul__(self, other: Any) -> Self:
        return self.mul(other)

    def __truediv__(self, other: Any) -> Self:
        return self.div(other)

    def __rtruediv__(self, other: Any) -> Self:
        return self.reciprocal().mul(other)

    def __floordiv__(self, other: Any) -> Self:
        return self.floor_divide(other)

    def __mod__(self, other: Any) -> Self:
        return self.mod(other)

    def __pow__(self, other: Any) -> Self:
        return self.pow(other)

    def __rpow__(self, other: Any) -> Self:
        return _reflected(self, "__rpow__", torch.pow, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return _reflected(self, "__rfloordiv__", torch.floor_divide, other)

    def __rmod__(self, other: Any) -> Self:
        return _reflected(self, "__rmod__", torch.remainder, other)

    def __and__(self, other: Any) -> Self:
        return _with_flags(self.bitwise_and(other), self, other, operator.and_)

    def __or__(self, other: Any) -> Self:
        return _with_flags(self.bitwise_or(other), self, other, operator.or_)

    def __xor__(self, other: Any) -> Self:
        return _with_flags(self.bitwise_xor(other), self, other, operator.xor)

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    def __iadd__(self, other: Any) -> Self:
        return self.add_(other)

    def __isub__(self, other: Any) -> Self:
        return self.sub_(other)

    def __imul__(self, other: Any) -> Self:
        return self.mul_(other)

    def __itruediv__(self, other: Any) -> Self:
        return self.div_(other)

    def __ipow__(self, other: Any) -> Self:
        return self.pow_(other)


def _with_flags(result: Td, left: Any, right: Any, combine: Any) -> Td:
    """Return the result of a logical operator with its non-tensor bools combined too, as bool tensors."""
    if not isinstance(right, Node):
        return result
    for key, mine in left._peek_items():
        theirs = right._peek(key)
        if not (isinstance(mine, Node) and isinstance(theirs, Node)):
            continue
        if not mine._is_opaque:
            _with_flags(cast(Any, result._get(key)), mine, theirs, combine)
        elif mine._is_non_tensor and theirs._is_non_tensor:
            kinds = {type(value) for value in mine._flat_values()}
            # other numbers stay, and "&" keeps what it cannot combine
            if kinds == {bool} or (combine is not operator.and_ and not kinds <= {bool, int, float}):
                result._set(key, combine(mine, theirs))
    return result


def _operand_of_each(name: str, td: Any, leaves: list[Tensor], other: Any) -> list[Any]:
    """Return the operand for each leaf, a number repeated."""
    pairs: tuple[list[Any], list[Any]] | None = td._pairs(other) if isinstance(other, Node) else None
    if pairs is not None:
        return pairs[1]
    operands, scalar = match(name, td, leaves, other)
    return [operands] * len(leaves) if scalar else operands


def _reflected(td: Td, name: str, function: Any, other: Any) -> Td:
    """Return the function of the operand and each leaf."""
    td, other = spread(td, other)
    leaves = td._leaves()
    operands = _operand_of_each(name, td, leaves, other)
    if function is torch.floor_divide:  # which takes no number first
        operands = [
            operand if isinstance(operand, Tensor) else torch.tensor(operand, device="cpu") for operand in operands
        ]
    results = [function(operand, leaf) for operand, leaf in zip(operands, leaves, strict=True)]
    return td._rebuild(iter(results), broadcast_how(td, other, SAME))


def _ternary(td: Td, name: str, leaf: Any, other1: Any, other2: Any, **kwargs: Any) -> Td:
    own = td._meta.batch_size
    td, other1 = spread(td, other1)
    td, other2 = spread(td, other2)
    if td._meta.batch_size != own:  # a ragged stack, which was expanded: its operands are matched element by element
        other1, other2 = _expanded_as(td, other1), _expanded_as(td, other2)
    leaves = td._leaves()
    operands = [_operand_of_each(name, td, leaves, other) for other in (other1, other2)]
    # as in the reference, the result is locked beside a tensordict, and is not beside tensors and numbers only
    locks = isinstance(other1, Node) or isinstance(other2, Node)
    how = _widest(td, broadcast_how(td, other1, SAME), broadcast_how(td, other2, SAME), locks)
    return td._rebuild(iter(of_columns(name, leaf, [leaves, *operands], kwargs)), how)


def _is_integral(operand: Any) -> bool:
    """Return whether some leaves of an operand, or the operand itself, are neither floating-point nor complex."""
    if isinstance(operand, Node) and not isinstance(operand, Tensor):
        return any(_is_integral(leaf) for leaf in operand._leaves())
    if isinstance(operand, Tensor):
        return not (operand.is_floating_point() or operand.is_complex())
    return not isinstance(operand, float | complex)


def _expanded_as(td: Any, other: Any) -> Any:
    return other.expand(td._meta.batch_size) if has_entries(other) else other


def _widest(td: Node, one: How, other: How, locks: bool) -> How:
    """Return the rule for the batch size that two operands broadcast a tensordict to together."""
    if one is other:
        return one
    size = td._meta.batch_size
    first, second = one.meta(td._meta).batch_size, other.meta(td._meta).batch_size
    new = second if first == size else first if second == size else torch.broadcast_shapes(first, second)
    if new == size:
        return SAME if locks else UNLOCKED
    return grown(size, new, one.check or other.check, locks)


def _ternary_(td: Td, name: str, leaf: Any, other1: Any, other2: Any, **kwargs: Any) -> Td:
    leaves = td._leaves()
    operands = [_operand_of_each(name, td, leaves, other) for other in (other1, other2)]
    of_columns(name, leaf, [leaves, *operands], kwargs)
    return td._changed(leaves)


for _name in ("addcmul", "addcdiv", "lerp"):
    record(OpSpec(_name, "ternary", getattr(torch, _name), torch_functions=(getattr(torch, _name),), floating=True))
    record(OpSpec(_name + "_", "ternary", getattr(Tensor, _name + "_"), inplace=True, parameters="data", floating=True))
