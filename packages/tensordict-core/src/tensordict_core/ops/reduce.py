"""Reductions (``sum``, ``mean``, ``max``, ``quantile``, ...) over batch dimensions, feature dimensions or everything.

Most are one line, because factories add the shared arguments: ``dim`` and ``keepdim`` for batch dimensions,
``"feature"`` for each leaf's own, ``reduce`` for one tensor of all leaves, ``key_transform``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self, cast, overload

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import UNLOCKED, How
from tensordict_core.ops.factories.owner import owns_methods
from tensordict_core.ops.factories.reduction import (
    Dim,
    Dims,
    Kernel,
    KeyTransform,
    as_tuple,
    batched,
    is_everything,
    over_leaves,
    rename_levels,
    run,
)
from tensordict_core.ops.factories.spec import OpSpec, record
from tensordict_core.ops.factories.typed import (
    CastReduction,
    CumulativeMethod,
    IndexedReduction,
    SpreadReduction,
    ValueReduction,
)
from tensordict_core.ops.shape.combine import check_out, fill_out

_ARGS = """dim: Batch dimensions (one, or a tuple), counted from their end if negative; ``"feature"`` for each leaf's
            own dimensions; by default everything.
        keepdim: Whether reduced dimensions stay as size 1."""
_REDUCE = """reduce: Whether all leaves are reduced together, to one tensor. With ``dim`` they are concatenated along it
            first; with ``"feature"`` the result has the batch size."""
_TRANSFORM = (
    "key_transform: Returns the key of each entry, at every level, which may be nested (not used with ``reduce``)."
)


def _finish(method: Any, name: str, what: str, options: str, example: str, function: Any) -> Any:
    method.__doc__ = f"""{what} of every leaf.

    Args:
        {_ARGS}
        {options}{_REDUCE}
        {_TRANSFORM}

    Returns:
        A tensordict, or a tensor if ``reduce``.

    Raises:
        IndexError: ``dim`` is outside the batch dimensions.
        ValueError: ``reduce`` is true and there is no leaf.

    >>> td = TensorDict({{"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}}, [2])
    >>> td.{name}(dim=0)["a"]
    {example}
    """
    _record(name, function)
    return method


_FLOATING = {"mean", "nanmean", "std", "var", "norm", "logsumexp", "quantile"}


def _record(name: str, function: Any) -> None:
    # torch.norm takes other arguments, so it does not dispatch to the method
    functions = () if name == "norm" else (function,)
    record(OpSpec(name, "reduce", function, torch_functions=functions, floating=name in _FLOATING))


def reduction(
    name: str, what: str, example: str, *, each_dim: bool = False, associative: bool = False
) -> CastReduction:
    """Return the method ``name`` that reduces with ``torch.<name>``, which takes a ``dtype``.

    Args:
        name: The name of the method and of the ``torch`` function.
        what: A noun phrase for the result.
        example: The result of the docstring's example.
        each_dim: Whether the ``torch`` function takes one dimension only, so that several are reduced in turn.
        associative: Whether leaves may be reduced one by one before their results are reduced together.
    """
    function = getattr(torch, name)

    def method(
        self: Any,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
        key_transform: KeyTransform | None = None,
    ) -> Any:
        def kernel(leaf: Tensor, dims: Dims, keep: bool) -> Any:
            if dims is None:
                result = function(leaf, dtype=dtype)
                return result.reshape((1,) * leaf.ndim) if keep else result
            if not each_dim:
                return function(leaf, dim=dims, keepdim=keep, dtype=dtype)
            for d in sorted(as_tuple(dims), reverse=True):
                leaf = function(leaf, dim=d, keepdim=keep, dtype=dtype)
            return leaf

        direct = dtype is None and isinstance(dim, int)  # torch's function then is the kernel
        return run(self, function if direct else kernel, dim, keepdim, reduce, key_transform, name, associative)

    option = "dtype: The dtype that leaves are cast to first.\n        "
    return cast(CastReduction, _finish(method, name, what, option, example, function))


def spread(name: str, what: str, example: str) -> SpreadReduction:
    """Return the method ``name`` that reduces with ``torch.<name>``, which takes a ``correction``."""
    function = getattr(torch, name)

    def method(
        self: Any,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        correction: float = 1,
        reduce: bool | None = None,
        key_transform: KeyTransform | None = None,
    ) -> Any:
        def kernel(leaf: Tensor, dims: Dims, keep: bool) -> Any:
            return function(leaf, dim=dims, correction=correction, keepdim=keep)

        return run(self, kernel, dim, keepdim, reduce, key_transform, name)

    option = "correction: The divisor is the number of elements minus the correction.\n        "
    return cast(SpreadReduction, _finish(method, name, what, option, example, function))


def extreme(name: str, what: str, example: str) -> ValueReduction:
    """Return the method ``name`` that reduces with ``torch.<name>``, values only."""
    function = getattr(torch, name)

    def method(
        self: Any,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
        key_transform: KeyTransform | None = None,
    ) -> Any:
        kernel = function if isinstance(dim, int) else _with_dims(function)
        return run(self, kernel, dim, keepdim, reduce, key_transform, name, associative=True)

    return cast(ValueReduction, _finish(method, name, what, "", example, function))


def _with_dims(function: Callable[..., Tensor]) -> Kernel:
    def kernel(leaf: Tensor, dims: Dims, keep: bool) -> Any:
        return function(leaf, dim=() if dims is None else dims, keepdim=keep)

    return kernel


def extreme_and_index(name: str, what: str, example: str) -> IndexedReduction:
    """Return the method ``name``: the values of ``torch.<name>``, and along a dimension also their indices."""
    function, values_only = getattr(torch, name), getattr(torch, f"a{name}")

    def method(
        self: Any,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
        return_indices: bool = True,
    ) -> Any:
        if dim is None or not return_indices:
            return run(self, _with_dims(values_only), dim, keepdim, reduce, None, name, associative=True)
        if not reduce:
            return _with_indices(self, name, function, dim, keepdim)

        def kernel(leaf: Tensor, dims: Dims, keep: bool) -> Any:
            return function(leaf, _one(name, dims), keep)

        return run(self, kernel, dim, keepdim, True, None, name)

    method.__doc__ = f"""{what} of every leaf; along a dimension, with its index.

    Args:
        dim: A batch dimension, or ``"feature"`` (then indices count in the leaf's own dimensions, flattened); by
            default everything.
        keepdim: Whether the reduced dimension stays as size 1.
        reduce: Whether all leaves are reduced together, concatenated along ``dim`` if it is given.
        return_indices: Whether indices are returned too if ``dim`` is given.

    Returns:
        A tensordict; with ``dim``, the named tuple ``(values, indices)`` of two; a tensor (or such a tuple of two)
        if ``reduce``.

    >>> td = TensorDict({{"a": torch.tensor([1, 3, 2])}}, [3])
    >>> td.{name}()["a"], td.{name}(dim=0).indices["a"]
    {example}
    """
    _record(name, function)
    return cast(IndexedReduction, method)


def cumulative(name: str, what: str, example: str) -> CumulativeMethod:
    """Return the method ``name`` that returns values and indices of ``torch.<name>`` along a batch dimension."""
    function = getattr(torch, name)

    def method(self: Any, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        if not isinstance(dim, int):
            raise TypeError(f"{name} runs along one batch dimension, got {dim!r}; give an integer")

        def kernel(leaf: Tensor, along: Any, keep: Any) -> Any:
            return function(leaf, along)

        if reduce:
            pair = run(self, kernel, dim, False, True, None, name)
        else:
            pair = _with_indices(self, name, kernel, dim, False, UNLOCKED)
        return pair if return_indices else pair.values

    method.__doc__ = f"""{what} so far along a batch dimension, of every leaf, with its index.

    Args:
        dim: A batch dimension.
        reduce: Whether the leaves are concatenated along ``dim`` first; the result then holds tensors.
        return_indices: Whether indices are returned too.

    Returns:
        The named tuple ``(values, indices)`` of two tensordicts (of two tensors if ``reduce``), or the values alone.

    Raises:
        TypeError: ``dim`` is not an integer.

    >>> TensorDict({{"a": torch.tensor([2, 3, 1])}}, [3]).{name}(0).values["a"]
    {example}
    """
    _record(name, function)
    return cast(CumulativeMethod, method)


def _with_indices(td: Any, name: str, function: Any, dim: Dim, keepdim: bool, how: How | None = None) -> Any:
    """Return values and indices along one dimension, as a named tuple of two tensordicts."""
    if not isinstance(dim, int | str):
        raise TypeError(f"{name} with indices takes one dim, got {dim!r}; use amax or amin for several")
    indices: list[Tensor] = []

    def kernel(leaf: Tensor, dims: Dims, keep: bool) -> Any:
        values, at = function(leaf, _one(name, dims), keep)
        indices.append(at)
        return values

    td = td._solid()
    values = over_leaves(td, kernel, dim, keepdim, how)
    found = iter(indices)
    # an unbatched tensor is not reduced, so it takes the place of an index
    at = [next(found) if has_batch else leaf for leaf, has_batch in zip(td._leaves(), batched(td), strict=True)]
    named = getattr(torch.return_types, name)
    return named((values, values._rebuild(iter(at), UNLOCKED)))


def _one(name: str, dims: Any) -> int:
    """Return the single dimension of a kernel's argument, or raise."""
    if dims is None or len(as_tuple(dims)) != 1:
        got = () if dims is None else dims
        raise TypeError(f"{name} with indices takes one dim, got {got}; use amax or amin for several")
    dims = as_tuple(dims)
    return int(dims[0])


@owns_methods
class Reduction(Node):
    """Sums, means, extremes, norms and quantiles."""

    __slots__ = ()

    sum = reduction("sum", "The sum", "tensor([4., 6.])", associative=True)
    mean = reduction("mean", "The mean", "tensor([2., 3.])")
    prod = reduction("prod", "The product", "tensor([3., 8.])", each_dim=True, associative=True)
    nansum = reduction("nansum", "The sum of the elements that are not NaN", "tensor([4., 6.])", associative=True)
    nanmean = reduction("nanmean", "The mean of the elements that are not NaN", "tensor([2., 3.])")
    std = spread("std", "The standard deviation", "tensor([1.4142, 1.4142])")
    var = spread("var", "The variance", "tensor([2., 2.])")
    amax = extreme("amax", "The largest element", "tensor([3., 4.])")
    amin = extreme("amin", "The smallest element", "tensor([1., 2.])")
    max = extreme_and_index("max", "The largest element", "(tensor(3), tensor(1))")
    min = extreme_and_index("min", "The smallest element", "(tensor(1), tensor(0))")
    cummax = cumulative("cummax", "The largest element", "tensor([2, 3, 3])")
    cummin = cumulative("cummin", "The smallest element", "tensor([2, 2, 1])")

    def norm(
        self,
        *,
        out: Self | None = None,
        dtype: torch.dtype | None = None,
        key_transform: KeyTransform | None = None,
    ) -> Self:
        """Return the 2-norm of all elements of every leaf.

        Args:
            out: A tensordict that takes the entries of the result; tensors that it held before are not changed.
            dtype: The dtype that leaves are cast to first.
            key_transform: Returns the key of each entry, at every level; a nested key adds levels.

        Raises:
            RuntimeError: A leaf has an integer dtype and no ``dtype`` is given.

        >>> TensorDict({"a": torch.tensor([3.0, 4.0])}).norm()["a"]
        tensor(5.)
        """
        if out is not None:
            check_out("norm", out)
        result = over_leaves(self, lambda leaf, dims, keep: _norm(leaf, dtype), None, False)
        if key_transform is not None:
            result = rename_levels(result, key_transform)
        if out is not None:
            return cast(Self, cast(Any, out).update(result))
        return result.lock_() if self._locked else result

    def logsumexp(self, dim: Dim = None, keepdim: bool = False, *, out: Self | None = None) -> Self:
        """Return the logarithm of the sum of exponentials of every leaf, along batch dimensions.

        Args:
            dim: Batch dimensions (one, or a tuple) or ``"feature"``; by default all batch dimensions.
            keepdim: Whether reduced dimensions stay as size 1.
            out: A tensordict into which the result is written; entries that it lacks are added.

        Raises:
            IndexError: ``dim`` is outside the batch dimensions.

        >>> TensorDict({"a": torch.zeros(2, 3)}, [2]).logsumexp()["a"]
        tensor([0.6931, 0.6931, 0.6931])
        """
        if is_everything(dim):
            dim = tuple(range(len(self._meta.batch_size)))
        if dim == ():
            result = self._clone(True)
        else:
            result = over_leaves(self, _logsumexp, dim, keepdim)
        return result if out is None else fill_out("logsumexp", result, out)

    @overload
    def quantile(
        self, q: float | Tensor, dim: Dim = ..., keepdim: bool = ..., *, interpolation: str = ..., reduce: Literal[True]
    ) -> Tensor: ...
    @overload
    def quantile(
        self,
        q: float | Tensor,
        dim: Dim = ...,
        keepdim: bool = ...,
        *,
        interpolation: str = ...,
        reduce: Literal[False] | None = ...,
        key_transform: KeyTransform | None = ...,
    ) -> Self: ...
    def quantile(
        self,
        q: float | Tensor,
        dim: Dim = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        reduce: bool | None = None,
        key_transform: KeyTransform | None = None,
    ) -> Any:
        """Return the ``q``-th quantile of every leaf.

        Args:
            q: The quantile, from 0 to 1; a tensor of ``n`` quantiles adds a leading dimension of size ``n`` to every
                leaf, and to the batch size if ``dim`` or ``keepdim`` is given.
            dim: Batch dimensions (one, or a tuple), or ``"feature"``; by default everything.
            keepdim: Whether reduced dimensions stay as size 1.
            interpolation: The value between two elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"midpoint"``,
                ``"nearest"``.
            reduce: Whether all leaves are reduced together, to one tensor.
            key_transform: Returns the key of each entry, at every level; a nested key adds levels.

        >>> TensorDict({"a": torch.arange(5.0)}, [5]).quantile(0.5)["a"]
        tensor(2.)
        """

        def kernel(leaf: Tensor, dims: Dims, keep: bool) -> Tensor:
            if dims is None:
                result = torch.quantile(leaf.reshape(-1), q, interpolation=interpolation)
                return result.reshape((*result.shape, *(1,) * leaf.ndim)) if keep else result
            dims = as_tuple(dims)
            rest = [d for d in range(leaf.ndim) if d not in dims]
            result = torch.quantile(
                leaf.permute(*rest, *dims).flatten(len(rest)), q, dim=-1, interpolation=interpolation
            )
            for d in sorted(dims) if keep else ():
                result = result.unsqueeze(d + _leading(q))
            return result

        result = run(self, kernel, dim, keepdim, reduce, key_transform, "quantile")
        if reduce or (is_everything(dim) and not keepdim) or not isinstance(q, Tensor) or not q.ndim:
            return result
        n = q.shape[0]
        how = How(size=lambda own: torch.Size([n, *own]), names=lambda own: None if own is None else (None, *own))
        return result._rebuild(iter(result._leaves()), how)


def _logsumexp(leaf: Tensor, dims: Any, keep: bool) -> Tensor:
    return torch.logsumexp(leaf, dims, keep)


def _leading(q: float | Tensor) -> int:
    """Return the number of dimensions that quantiles add in front."""
    return q.ndim if isinstance(q, Tensor) else 0


def _norm(leaf: Tensor, dtype: torch.dtype | None) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(leaf if dtype is None else leaf.to(dtype))
    return result


for _name in ("norm", "logsumexp", "quantile"):
    _record(_name, getattr(torch, _name))
