"""Tensordicts: dictionaries of tensors that behave like a tensor."""

from __future__ import annotations

from ._base import TensorCollection, TensorDictBase
from ._build import (
    from_any,
    from_dict,
    from_list,
    from_namedtuple,
    from_tuple,
    fromkeys,
    make_tensordict,
    merge_tensordicts,
)
from ._closeness import assert_allclose_td, assert_close
from ._keys import KEY_SEPARATOR, NestedKey, unravel_key, unravel_key_list, unravel_key_to_tuple
from ._linked import LinkedList
from ._older import lazy_legacy, set_lazy_legacy
from ._options import (
    capture_non_tensor_stack,
    get_defaults_to_none,
    get_printoptions,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_get_defaults_to_none,
    set_list_to_stack,
    set_printoptions,
)
from ._parse import parse_tensor_dict_string
from ._predicates import (
    default_is_leaf,
    is_bool,
    is_floating,
    is_inexact,
    is_integer,
    is_leaf_nontensor,
    is_tensor_collection,
    is_tensorclass,
)
from ._pytree import register_nodes as _register_nodes
from ._pytrees import from_pytree
from ._rebuild import NO_DEFAULT
from ._rows import DeviceType, IndexType, expand_as_right, expand_right, isin, remove_duplicates
from ._state import trust as _trust
from ._torch.collate import collate, dense_stack_tds
from ._torch.combine import cat, lazy_stack, maybe_dense_stack, stack
from ._torch.padding import pad, pad_sequence, unpad_sequence
from .lazy import LazyStackedTensorDict
from .nontensor import MetaData, NonTensorData, NonTensorDataBase, NonTensorStack, is_non_tensor
from .subtensordict import SubTensorDict, _again
from .tensorattrs import Attrs as _Attrs
from .tensorattrs import TensorAttrs
from .tensordict import TensorDict
from .unbatched import UnbatchedTensor

__all__ = [
    "KEY_SEPARATOR",
    "NO_DEFAULT",
    "DeviceType",
    "IndexType",
    "LazyStackedTensorDict",
    "LinkedList",
    "MetaData",
    "NestedKey",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "SubTensorDict",
    "TensorAttrs",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "UnbatchedTensor",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "cat",
    "collate",
    "default_is_leaf",
    "dense_stack_tds",
    "expand_as_right",
    "expand_right",
    "from_any",
    "from_dict",
    "from_list",
    "from_namedtuple",
    "from_pytree",
    "from_tuple",
    "fromkeys",
    "get_defaults_to_none",
    "get_printoptions",
    "is_bool",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_leaf_nontensor",
    "is_non_tensor",
    "is_tensor_collection",
    "is_tensorclass",
    "isin",
    "lazy_legacy",
    "lazy_stack",
    "list_to_stack",
    "make_tensordict",
    "maybe_dense_stack",
    "merge_tensordicts",
    "pad",
    "pad_sequence",
    "parse_tensor_dict_string",
    "remove_duplicates",
    "set_capture_non_tensor_stack",
    "set_get_defaults_to_none",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "stack",
    "unpad_sequence",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]

_register_nodes()
_trust(
    TensorDict,
    LazyStackedTensorDict,
    SubTensorDict,
    NonTensorData,
    MetaData,
    NonTensorStack,
    UnbatchedTensor,
    TensorAttrs,
    _Attrs,
    _again,
)
