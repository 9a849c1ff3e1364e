"""Factories of operations: each holds the algorithm of one family and returns a method with a real signature.

On plain eager code an operation on many leaves is one ``torch._foreach_*`` call; under ``torch.compile`` and
``torch.func`` transforms it is a loop over leaves (see ``base.tracing``). Trees without leaves and non-tensor
entries are handled here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import SAME, SHAPE_KEEPING, How
from tensordict_core.base.tracing import may_fuse, with_own_gradients
from tensordict_core.ops.factories.operands import broadcast_how, complete, match, spread
from tensordict_core.ops.factories.spec import OpSpec, record
from tensordict_core.ops.factories.typed import BinaryMethod, ScaledMethod, UnaryMethod

N = TypeVar("N", bound=Node)


def _refused(error: RuntimeError) -> bool:
    """Return whether a fused operation refused its leaves.

    Those are integers together with leaves that require gradients, and tensors with first-class dimensions.
    """
    return "Autograd not support dtype" in str(error) or "Batching rule not implemented" in str(error)


def unary(
    name: str, *, floating: bool = True, sample: str = "1.0", operators: tuple[str, ...] = ()
) -> tuple[UnaryMethod, UnaryMethod]:
    """Return the method ``name`` that applies ``torch.<name>`` to every leaf, and its in-place twin ``name_``.

    Args:
        name: The name of the method and of the ``torch`` function; its fused form, if any, is ``_foreach_<name>``.
        floating: Whether the operation is defined for floating-point (and complex) leaves only.
        sample: The value that the docstring's example uses.
        operators: The operator methods that call it.
    """
    leaf = getattr(torch, name)
    leaf_ = getattr(Tensor, name + "_")
    fused = getattr(torch, "_foreach_" + name, None)
    fused_ = getattr(torch, f"_foreach_{name}_", None)

    def method(self: Any) -> Any:
        leaves = self._leaves()
        if fused is not None and leaves and may_fuse():
            try:
                return self._rebuild(iter(with_own_gradients(fused(leaves), leaves)), SAME)
            except RuntimeError as error:
                if not _refused(error):
                    raise
        return self._rebuild(iter([leaf(tensor) for tensor in leaves]), SAME)

    def method_(self: Any) -> Any:
        leaves = self._leaves()
        if fused_ is not None and leaves and may_fuse():
            try:
                fused_(leaves)
                return self._changed(leaves)
            except RuntimeError as error:
                if not _refused(error):
                    raise
        for tensor in leaves:
            leaf_(tensor)
        return self._changed(leaves)

    functions = tuple(f for f in (leaf, getattr(Tensor, name, None)) if f is not None)
    SHAPE_KEEPING.update(functions)
    record(OpSpec(name, "unary", leaf, floating=floating, torch_functions=functions, operators=operators))
    record(OpSpec(name + "_", "unary", leaf_, inplace=True, floating=floating, parameters="data"))
    method.__doc__ = f"""Return the result of `torch.{name}` for every leaf.

    Returns:
        A tensordict of the same keys, batch size and device.

    >>> TensorDict({{"a": torch.tensor({sample})}}).{name}()["a"].equal(torch.{name}(torch.tensor({sample})))
    True
    """
    method_.__doc__ = f"""Apply `torch.{name}` to every leaf, in place.

    Returns:
        The tensordict itself.

    >>> td = TensorDict({{"a": torch.tensor({sample})}})
    >>> td.{name}_() is td
    True
    """
    return cast(UnaryMethod, method), cast(UnaryMethod, method_)


def _pair(name: str, td: Any, other: Any, default: Any) -> tuple[Any, list[Tensor], Any, bool, How]:
    """Return the matched operands of a binary operation: ``(td, leaves, operands, is_scalar, how)``."""
    if isinstance(other, Node):
        if default is not None:
            td, other = complete(td, other, default)
        elif (pairs := td._pairs(other)) is not None:
            same = other._meta.batch_size == td._meta.batch_size  # the usual case, in half the time
            return td, *pairs, False, SAME if same else broadcast_how(td, other, SAME)
    td, other = spread(td, other)
    leaves = td._leaves()
    operands, scalar = match(name, td, leaves, other)
    return td, leaves, operands, scalar, broadcast_how(td, other, SAME)


def _run(
    leaf: Callable[..., Tensor], fused: Any, leaves: list[Tensor], operands: Any, scalar: bool, kwargs: dict[str, Any]
) -> Iterable[Tensor]:
    if fused is not None and leaves and may_fuse() and (not scalar or type(operands) is not bool):
        try:
            results = fused(leaves, operands, **kwargs)
            if results is None:  # in place
                return leaves
            return with_own_gradients(results, leaves, *(() if scalar else (operands,)))
        except RuntimeError as error:
            if not _refused(error):
                raise
    if scalar:
        return [leaf(tensor, operands, **kwargs) for tensor in leaves]
    return [leaf(tensor, operand, **kwargs) for tensor, operand in zip(leaves, operands, strict=True)]


def of_columns(
    name: str, leaf: Callable[..., Tensor], columns: list[list[Any]], kwargs: dict[str, Any]
) -> list[Tensor]:
    """Return the results of a function of several operands, by one call for all leaves where torch has it.

    Args:
        name: The name of the function; its fused form is ``_foreach_<name>``.
        leaf: The function of one leaf.
        columns: The leaves, then the operands of each place in the order of the leaves: tensors or numbers.
        kwargs: Further arguments.
    """
    if columns[0] and may_fuse():
        try:
            results: Any = getattr(torch, "_foreach_" + name)(*columns, **kwargs)
            return list(columns[0] if results is None else with_own_gradients(results, *columns))
        except TypeError:  # an operand is of no type that the fused function takes
            pass
        except RuntimeError as error:
            if not _refused(error):
                raise
    return [leaf(*column, **kwargs) for column in zip(*columns, strict=True)]


def _binary_methods(
    name: str, leaf: Callable[..., Any], leaf_: Callable[..., Any], fused: Any, fused_: Any, scaled: bool
) -> tuple[Any, Any]:
    def run(td: Any, other: Any, default: Any, options: dict[str, Any]) -> Any:
        td, leaves, operands, scalar, how = _pair(name, td, other, default)
        # the fused forms take alpha for lists of tensors only
        results = _run(leaf, None if options and scalar else fused, leaves, operands, scalar, options)
        return td._rebuild(iter(results), how)

    def run_(td: Any, other: Any, options: dict[str, Any]) -> Any:
        same = isinstance(other, Node) and other._meta.batch_size == td._meta.batch_size
        pairs = td._pairs(other) if same else None
        leaves: list[Tensor] = td._leaves() if pairs is None else pairs[0]
        operands, scalar = match(name + "_", td, leaves, other) if pairs is None else (pairs[1], False)
        _run(leaf_, None if options and scalar else fused_, leaves, operands, scalar, options)
        return td._changed(leaves)

    if not scaled:

        def method(self: Any, other: Any, default: Any = None) -> Any:
            return run(self, other, default, {})

        def method_(self: Any, other: Any) -> Any:
            return run_(self, other, {})

        return method, method_

    def scaled_method(self: Any, other: Any, *, alpha: float | None = None, default: Any = None) -> Any:
        return run(self, other, default, {} if alpha is None else {"alpha": alpha})

    def scaled_method_(self: Any, other: Any, alpha: float | None = None) -> Any:
        return run_(self, other, {} if alpha is None else {"alpha": alpha})

    return scaled_method, scaled_method_


_DEFAULT_DOC = """        default: The value for a leaf that one side lacks: a number, or ``"intersection"`` to keep
            the common leaves only. By default different keys are an error."""


def _binary(
    name: str,
    torch_name: str,
    *,
    operators: tuple[str, ...],
    scaled: bool = False,
    integral: bool = False,
    leaf: Callable[..., Any] | None = None,
    leaf_: Callable[..., Any] | None = None,
) -> tuple[Any, Any]:
    torch_leaf = getattr(torch, torch_name)
    leaf = torch_leaf if leaf is None else leaf
    leaf_ = getattr(Tensor, torch_name + "_") if leaf_ is None else leaf_
    fused = getattr(torch, "_foreach_" + torch_name, None)
    fused_ = getattr(torch, f"_foreach_{torch_name}_", None)
    method, method_ = _binary_methods(name, leaf, leaf_, fused, fused_, scaled)
    functions = tuple(f for f in (torch_leaf, getattr(Tensor, torch_name, None)) if f is not None)
    record(OpSpec(name, "binary", leaf, operators=operators, torch_functions=functions))
    sample = "3" if integral else "3.0"
    alpha = "\n        alpha: A factor for ``other``." if scaled else ""
    method.__doc__ = f"""Return the result of `torch.{torch_name}` for every leaf and its operand.

    Args:
        other: A number or a tensor, aligned with the batch dimensions, or a tensordict, matched by key.{alpha}
{_DEFAULT_DOC}

    Raises:
        KeyError: The keys of ``other`` differ and there is no ``default``.

    >>> td = TensorDict({{"a": torch.tensor({sample})}})
    >>> td.{name}(td)["a"].equal(torch.{torch_name}(torch.tensor({sample}), torch.tensor({sample})))
    True
    """
    record(OpSpec(name + "_", "binary", leaf_, inplace=True, parameters="data"))
    method_.__doc__ = f"""Apply `torch.{torch_name}` to every leaf and its operand, in place.

    Args:
        other: A number or a tensor, aligned with the batch dimensions, or a tensordict, matched by key.{alpha}

    Returns:
        The tensordict itself.

    >>> td = TensorDict({{"a": torch.tensor({sample})}})
    >>> td.{name}_(td.clone()) is td
    True
    """
    return method, method_


def binary(
    name: str,
    *,
    torch_name: str | None = None,
    operators: tuple[str, ...] = (),
    integral: bool = False,
    leaf: Callable[..., Any] | None = None,
    leaf_: Callable[..., Any] | None = None,
) -> tuple[BinaryMethod, BinaryMethod]:
    """Return the method that applies ``torch.<torch_name>`` to every leaf and its operand, and its in-place twin.

    Args:
        name: The name of the method.
        torch_name: The name of the ``torch`` function, if it differs.
        operators: The operator methods that call it.
        integral: Whether the docstring's example needs integers.
        leaf: The function of one leaf, if the ``torch`` function does not take a number.
        leaf_: The in-place function of one leaf.
    """
    pair = _binary(name, torch_name or name, operators=operators, integral=integral, leaf=leaf, leaf_=leaf_)
    return cast(tuple[BinaryMethod, BinaryMethod], pair)


def scaled(name: str, *, operators: tuple[str, ...] = ()) -> tuple[ScaledMethod, ScaledMethod]:
    """Return the methods of a binary operation, as `binary`, whose operand takes a factor ``alpha``."""
    return cast(tuple[ScaledMethod, ScaledMethod], _binary(name, name, operators=operators, scaled=True))
