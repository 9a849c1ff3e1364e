"""Leaves of parameters: which can be trained, conversion to parameters, and copies that keep weights tied."""

from __future__ import annotations

from torch import Tensor
from torch.nn.parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter, is_lazy

from tensordict_core import LazyStackedTensorDict
from tensordict_nn import errors


def can_be_trained(tensor: Tensor) -> bool:
    """Return whether a tensor can require gradients."""
    return tensor.is_floating_point() or tensor.is_complex()


def require_common_keys(stack: LazyStackedTensorDict) -> None:
    """Raise an error for a lazy stack whose elements have different keys."""
    common = {*stack._keys()}
    uncommon = [key for td in stack.tensordicts for key in td._keys() if key not in common]
    if uncommon:
        raise errors.uncommon_keys(dict.fromkeys(uncommon))
    for td in stack.tensordicts:
        if isinstance(td, LazyStackedTensorDict):
            require_common_keys(td)


def copy_tied(leaf: Tensor, made: dict[Tensor, Tensor]) -> Tensor:
    """Copy a tensor, and return the same copy each time, so that tied weights stay tied."""
    copied = made.get(leaf)
    if copied is None:
        if isinstance(leaf, Parameter) and not is_lazy(leaf):
            copied = Parameter(leaf.detach().clone(), requires_grad=leaf.requires_grad)
        else:
            copied = leaf.clone()
        made[leaf] = copied
    return copied


def as_buffer(tensor: Tensor) -> Tensor:
    """Convert a tensor to an ``nn.Buffer``, which shares its memory.

    >>> import torch
    >>> isinstance(as_buffer(torch.zeros(1)), Buffer)
    True
    """
    if isinstance(tensor, Buffer | UninitializedParameter | UninitializedBuffer):
        return tensor
    made: Tensor = Buffer(tensor)
    return made


def as_parameter(new: Tensor, old: Tensor) -> Parameter:
    """Convert a tensor to a parameter that requires gradients if ``old`` does."""
    return new if isinstance(new, Parameter) else Parameter(new.detach(), requires_grad=old.requires_grad)
