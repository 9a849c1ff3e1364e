"""Tensordicts: dictionaries of tensors that behave like a tensor."""

from __future__ import annotations

from ._base import TensorCollection, TensorDictBase
from ._keys import NestedKey, unravel_key, unravel_key_list, unravel_key_to_tuple
from ._torch.combine import cat, lazy_stack, maybe_dense_stack, stack
from .lazy import LazyStackedTensorDict
from .nontensor import NonTensorData, NonTensorDataBase, NonTensorStack, is_non_tensor
from .subtensordict import SubTensorDict
from .tensordict import TensorDict
from .unbatched import UnbatchedTensor

__all__ = [
    "LazyStackedTensorDict",
    "NestedKey",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "SubTensorDict",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "UnbatchedTensor",
    "cat",
    "is_non_tensor",
    "lazy_stack",
    "maybe_dense_stack",
    "stack",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]
