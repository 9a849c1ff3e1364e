"""Tensordicts: dictionaries of tensors that behave like a tensor."""

from __future__ import annotations

from tensordict_core.base.gc_paused import gc_paused

with gc_paused():  # a collection would traverse all objects of torch, which takes longer than these imports
    from tensordict_core.base.keys import KEY_SEPARATOR, NestedKey, unravel_key, unravel_key_list, unravel_key_to_tuple
    from tensordict_core.base.options import (
        capture_non_tensor_stack,
        get_defaults_to_none,
        get_printoptions,
        list_to_stack,
        set_capture_non_tensor_stack,
        set_get_defaults_to_none,
        set_list_to_stack,
        set_printoptions,
    )
    from tensordict_core.base.predicates import (
        default_is_leaf,
        is_bool,
        is_floating,
        is_inexact,
        is_integer,
        is_leaf_nontensor,
        is_non_tensor,
        is_tensor_collection,
        is_tensorclass,
    )
    from tensordict_core.base.rebuild import NO_DEFAULT
    from tensordict_core.containers.collection import TensorCollection, TensorDictBase
    from tensordict_core.containers.constructors import (
        from_any,
        from_dict,
        from_list,
        from_namedtuple,
        from_tuple,
        fromkeys,
        make_tensordict,
        merge_tensordicts,
        parse_tensor_dict_string,
    )
    from tensordict_core.containers.dense import TensorDict
    from tensordict_core.containers.lazy import LazyStackedTensorDict
    from tensordict_core.containers.nontensor.base import NonTensorDataBase
    from tensordict_core.containers.nontensor.data import NonTensorData, NonTensorStack
    from tensordict_core.containers.nontensor.metadata import MetaData
    from tensordict_core.containers.tensor_spec import TensorAttrs
    from tensordict_core.containers.unbatched import UnbatchedTensor
    from tensordict_core.containers.view import SubTensorDict
    from tensordict_core.ops.compat.deprecated import lazy_legacy, set_lazy_legacy
    from tensordict_core.ops.io.from_pytree import from_pytree
    from tensordict_core.ops.io.linked_list import LinkedList
    from tensordict_core.ops.io.pack import PackLayout
    from tensordict_core.ops.io.schema import from_struct_array
    from tensordict_core.ops.shape.combine import cat, lazy_stack, maybe_dense_stack, stack
    from tensordict_core.torch_api.closeness import assert_allclose_td, assert_close
    from tensordict_core.torch_api.collate import collate, dense_stack_tds
    from tensordict_core.torch_api.dispatch import register as _register_operations
    from tensordict_core.torch_api.functions import register as _register_functions
    from tensordict_core.torch_api.functorch import register as _register_vmap
    from tensordict_core.torch_api.losses import register as _register_losses
    from tensordict_core.torch_api.padding import pad, pad_sequence, unpad_sequence
    from tensordict_core.torch_api.pytree import register_nodes as _register_nodes
    from tensordict_core.torch_api.rows import (
        DeviceType,
        IndexType,
        expand_as_right,
        expand_right,
        group_by,
        isin,
        remove_duplicates,
    )
    from tensordict_core.torch_api.serialization import register as _register_pickles

__version__ = "0.1.0"

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
    "PackLayout",
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
    "from_struct_array",
    "from_tuple",
    "fromkeys",
    "get_defaults_to_none",
    "get_printoptions",
    "group_by",
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

_register_operations()
_register_functions()
_register_losses()
_register_vmap()
_register_nodes()
_register_pickles()


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
