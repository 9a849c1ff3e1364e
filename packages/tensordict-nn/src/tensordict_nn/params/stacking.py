"""Stacked parameters: the parameters of several modules as one tensordict, to run them at once by ``torch.vmap``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter, is_lazy

from tensordict_core import TensorDict
from tensordict_core import lazy_stack as stack_lazily
from tensordict_core.extension import KEEP, Meta, dense, is_leaf_tensor
from tensordict_nn import errors
from tensordict_nn.params.functional import from_module
from tensordict_nn.params.tensordict_params import TensorDictParams
from tensordict_nn.params.uninitialized import stack_lazy


def _stacked(column: tuple[Any, ...], path: tuple[str, ...], expand_identical: bool) -> Tensor:
    first: Tensor = column[0]
    lazy = [is_lazy(leaf) for leaf in column]
    if any(lazy) and not all(lazy):
        raise errors.uninitialized(path)
    if len({(leaf.dtype, leaf.requires_grad) for leaf in column}) > 1:
        raise errors.unlike(path)
    if lazy[0]:
        return stack_lazy(column)
    if expand_identical and all(leaf is first for leaf in column):
        return first.expand(len(column), *first.shape)
    stacked = torch.stack([leaf.detach() for leaf in column])
    return Parameter(stacked, requires_grad=first.requires_grad) if isinstance(first, Parameter) else stacked


def from_modules(
    *modules: nn.Module,
    as_module: bool = False,
    lock: bool = True,
    use_state_dict: bool = False,
    lazy_stack: bool = False,
    expand_identical: bool = False,
) -> Any:
    """Stack the parameters and buffers of modules of one architecture along a new first dimension.

    The stacks are new parameters; pass them to the optimizer. Run the ensemble by ``torch.vmap`` over `to_module`. The
    stack of parameters of lazy modules has no shape until such a call, which sets the parameters of a lazy module with
    ``preserve_module_state=False``: the module then initializes the whole stack.

    Args:
        *modules: The modules.
        as_module: Whether the result is a `TensorDictParams`.
        lock: Whether the result is locked.
        use_state_dict: Whether to use ``module.state_dict()``.
        lazy_stack: Whether to keep the parameters separate, so that gradients flow to those of the modules.
        expand_identical: Whether a parameter that all modules share is expanded instead of stacked.

    Raises:
        RuntimeError: Shapes, dtypes or ``requires_grad`` differ, there is no module, some of several lazy modules have
            not run yet (with ``lazy_stack``, any), or both ``lazy_stack`` and ``as_module`` are given.
        KeyError: The modules do not have the same parameters.

    >>> import torch
    >>> params = from_modules(torch.nn.Linear(3, 4), torch.nn.Linear(3, 4))
    >>> empty = torch.nn.Linear(3, 4, device="meta")
    >>> def call(params, x):
    ...     with params.to_module(empty):
    ...         return empty(x)
    >>> torch.vmap(call, (0, None))(params, torch.ones(3)).shape
    torch.Size([2, 4])
    """
    if lazy_stack and as_module:
        raise errors.exclusive("lazy_stack=True", "as_module=True", "from_modules")
    if not modules:
        raise errors.no_modules()
    tds = [from_module(module, lock=False, use_state_dict=use_state_dict) for module in modules]
    return stack_parameters(
        tds, as_module=as_module, lock=lock, lazy_stack=lazy_stack, expand_identical=expand_identical
    )


def stack_parameters(
    tds: list[Any],
    *,
    as_module: bool = False,
    lock: bool = True,
    lazy_stack: bool = False,
    expand_identical: bool = False,
) -> Any:
    """Stack the parameters of modules, as `from_modules` does.

    Args:
        tds: The parameters of each module.
        as_module: Whether the result is a `TensorDictParams`.
        lock: Whether the result is locked.
        lazy_stack: Whether to keep the parameters separate.
        expand_identical: Whether a parameter that all modules share is expanded instead of stacked.

    >>> stack_parameters([TensorDict({"w": torch.zeros(2)}), TensorDict({"w": torch.ones(2)})]).batch_size
    torch.Size([2])
    """
    if not tds:
        raise errors.no_modules()
    first = tds[0]
    for other in tds[1:]:
        try:
            first._align(other, KEEP)
            other._align(first, KEEP)  # keys that only the other has are an error, too
        except KeyError as error:
            raise errors.keys_differ(error) from None
    if lazy_stack:
        return _lazily(tds, lock)
    columns = zip(first._leaves(), *(first._align(other, KEEP) for other in tds[1:]), strict=True)
    leaves = []
    made: dict[tuple[Any, ...], Tensor] = {}  # weights that every module ties stay tied
    for path, column in zip(first._leaf_keys(), columns, strict=True):
        try:
            if column not in made:
                made[column] = _stacked(column, path, expand_identical)
            leaves.append(made[column])
        except RuntimeError as error:
            error.add_note(f"while stacking the parameters under key {path!r}")
            raise
    td = _batched(tds, iter(leaves), Meta(torch.Size([len(tds)])))
    if as_module:
        return TensorDictParams(td, no_convert=True, lock=lock)
    return td.lock_() if lock else td


def _batched(tds: list[Any], leaves: Iterator[Tensor], meta: Meta) -> TensorDict:
    """Combine tensordicts of one structure, with stacked leaves; non-tensor values are stacked here."""
    entries: dict[str, Any] = {}
    for key in tds[0]._keys():
        values = [td._get(key) for td in tds]
        if is_leaf_tensor(values[0]):
            entries[key] = next(leaves)
        elif values[0]._is_non_tensor:
            entries[key] = torch.stack(values)
        else:
            inner = values[0].batch_size
            entries[key] = _batched(values, leaves, Meta(meta.batch_size[:1] + inner) if inner else meta)
    return dense(entries, meta)


def _lazily(tds: list[Any], lock: bool) -> Any:
    for path, leaf in zip(tds[0]._leaf_keys(), tds[0]._leaves(), strict=True):
        if is_lazy(leaf):
            raise errors.uninitialized(path)
    stacked = stack_lazily(tds, 0)
    return stacked.lock_() if lock else stacked
