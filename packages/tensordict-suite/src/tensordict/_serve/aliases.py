"""Aliases: module paths and private names that published programs import, each with its public name.

``MODULES`` lists the module paths below the public ones and where their names are looked up. ``PRIVATE`` lists private
names; the modules of ``ANSWER`` and those of ``MODULES`` serve them. An alias is in no ``__all__`` and no ``dir``.
"""

from __future__ import annotations

from collections.abc import Mapping

SUITE_VERSION = "0.1.0"
"""The version of the distribution tensordict-suite; `tools/set_version.py` writes it."""

RELEASE = "0.15.3"
"""The release of the reference that the suite stands in for; ``tensordict.__version__`` answers with it."""

# module path -> modules whose names it has
MODULES: Mapping[str, tuple[str, ...]] = {
    "tensordict._C": ("tensordict.utils",),
    "tensordict._reductions": ("tensordict",),
    "tensordict._contextlib": ("tensordict.utils",),
    "tensordict._lazy": ("tensordict",),
    "tensordict._nestedkey": ("tensordict.utils",),
    "tensordict._pytree": ("tensordict",),
    "tensordict._td": ("tensordict",),
    "tensordict._tensorcollection": ("tensordict",),
    "tensordict._torch_func": ("tensordict",),
    "tensordict._unbatched": ("tensordict",),
    "tensordict.functional": ("tensordict",),
    "tensordict.persistent": ("tensordict",),
    "tensordict.store": ("tensordict",),
    "tensordict.tabular": ("tensordict",),
    "tensordict.tensordict": ("tensordict", "tensordict.utils"),
    "tensordict.testing": ("tensordict",),
    "tensordict.typedtensordict": ("tensordict",),
    "tensordict.nn.common": ("tensordict.nn", "tensordict"),
    "tensordict.nn.cudagraphs": ("tensordict.nn",),
    "tensordict.nn.ensemble": ("tensordict.nn",),
    "tensordict.nn.functional_modules": ("tensordict.nn",),
    "tensordict.nn.params": ("tensordict.nn", "tensordict"),
    "tensordict.nn.probabilistic": ("tensordict.nn", "tensordict.nn.distributions"),
    "tensordict.nn.sequence": ("tensordict.nn",),
    "tensordict.nn.tensorclass_module": ("tensordict.nn",),
    "tensordict.nn.utils": ("tensordict.nn",),
    "tensordict.nn.distributions.composite": ("tensordict.nn.distributions", "tensordict.nn"),
    "tensordict.nn.distributions.continuous": ("tensordict.nn.distributions",),
    "tensordict.nn.distributions.discrete": ("tensordict.nn.distributions",),
    "tensordict.nn.distributions.truncated_normal": ("tensordict.nn.distributions",),
}

# public modules that answer to private names
ANSWER = ("tensordict.base", "tensordict.utils", "tensordict.tensorclass", "tensordict.nn")

# private names that the package itself answers to
AT_THE_TOP = ("List", "implement_for", "is_batchedtensor")

# private name -> module that owns the public one, and its name
PRIVATE: Mapping[str, tuple[str, str]] = {
    "Buffer": ("torch.nn", "Buffer"),
    "BufferLegacy": ("torch.nn", "Buffer"),
    "CompatibleType": ("tensordict_core.compat", "EntryType"),
    "List": ("typing", "List"),
    "NestedKey": ("tensordict_core", "NestedKey"),
    "PYTREE_REGISTERED_LAZY_TDS": ("tensordict_core.compat", "PYTREE_LAZY_TYPES"),
    "PYTREE_REGISTERED_TDS": ("tensordict_core.compat", "PYTREE_TYPES"),
    "TensorDictFuture": ("tensordict_memmap", "SaveFuture"),
    "TruncatedStandardNormal": ("tensordict_nn.compat", "TruncatedStandardNormal"),
    "_ACCEPTED_CLASSES": ("tensordict_core.compat", "ENTRY_TYPES"),
    "_CustomOpTensorDict": ("tensordict_core.compat", "ReshapedView"),
    "_DecoratorContextManager": ("torch.utils._contextlib", "_DecoratorContextManager"),
    "_GENERIC_NESTED_ERR": ("tensordict_core.compat", "KEY_TYPE_ERROR"),
    "_KEY_ERROR": ("tensordict_core.compat", "KEY_ERROR"),
    "_LOCK_ERROR": ("tensordict_core.compat", "LOCK_ERROR"),
    "_NESTED_TENSORS_AS_LISTS": ("tensordict_core.compat", "NESTED_TENSORS_AS_LISTS"),
    "_NESTED_TENSORS_AS_LISTS_NONTENSOR": ("tensordict_core.compat", "NESTED_TENSORS_AS_LISTS"),
    "_NON_STR_KEY_ERR": ("tensordict_core.compat", "KEY_TYPE_ERROR"),
    "_PermutedTensorDict": ("tensordict_core.compat", "ReshapedView"),
    "_SqueezedTensorDict": ("tensordict_core.compat", "ReshapedView"),
    "_TransposedTensorDict": ("tensordict_core.compat", "ReshapedView"),
    "_TensorClassMeta": ("tensordict_class.compat", "TensorClassMeta"),
    "_TensorDictKeysView": ("tensordict_core.compat", "KeysView"),
    "_UnsqueezedTensorDict": ("tensordict_core.compat", "ReshapedView"),
    "_ViewedTensorDict": ("tensordict_core.compat", "ReshapedView"),
    "_BatchedUninitializedBuffer": ("tensordict_nn.compat", "BatchedUninitializedBuffer"),
    "_BatchedUninitializedParameter": ("tensordict_nn.compat", "BatchedUninitializedParameter"),
    "_DTYPE2STRDTYPE": ("tensordict_core.compat", "DTYPES"),
    "_STRDTYPE2DTYPE": ("tensordict_core.compat", "DTYPES"),
    "_SubTensorDict": ("tensordict_core", "SubTensorDict"),
    "_cat": ("tensordict_core", "cat"),
    "_has_h5": ("tensordict_core.compat", "HAS_H5"),
    "_infer_size_impl": ("tensordict_core.compat", "inferred_size"),
    "_pass_through": ("tensordict_core.compat", "passes_through"),
    "_reduce_td": ("tensordict_core.compat", "reduced"),
    "_stack": ("tensordict_core", "stack"),
    "_add_suffix": ("tensordict_nn.compat", "add_suffix"),
    "_default_is_leaf": ("tensordict_core", "default_is_leaf"),
    "_dispatch_td_nn_modules": ("tensordict_nn.compat", "dispatches"),
    "_exclude_td_from_pytree": ("tensordict_nn.compat", "whole_in_pytrees"),
    "_eq": ("tensordict_class.compat", "equal_fields"),
    "_getitem": ("tensordict_class.compat", "item_of"),
    "_getitem_batch_size": ("tensordict_core.compat", "batch_size_after"),
    "_is_leaf_nontensor": ("tensordict_core", "is_leaf_nontensor"),
    "_is_nested_key": ("tensordict_core.compat", "is_key"),
    "_is_non_tensor": ("tensordict_core.compat", "is_non_tensor_type"),
    "_is_seq_of_nested_key": ("tensordict_core.compat", "is_key_or_keys"),
    "_is_tensor_collection": ("tensordict_core", "is_tensor_collection"),
    "_is_tensorclass": ("tensordict_core", "is_tensorclass"),
    "_maybe_correct_neg_dim": ("tensordict_core.compat", "wrap_dim"),
    "_register_lazy_td_node": ("tensordict_core.compat", "check_pytree_node"),
    "_register_td_node": ("tensordict_core.compat", "check_pytree_node"),
    "_register_tensor_class": ("tensordict_core.extension", "register_type"),
    "_set_dispatch_td_nn_modules": ("tensordict_nn.compat", "set_dispatch"),
    "_set_skip_existing_None": ("tensordict_nn.compat", "set_skip_existing_of_block"),
    "_shape": ("tensordict_core.compat", "shape_of"),
    "_strtobool": ("tensordict_core.compat", "as_bool"),
    "_td_flatten_with_keys": ("tensordict_core.compat", "flatten_node_with_keys"),
    "_tensordict_flatten": ("tensordict_core.compat", "flatten_node"),
    "_tensordict_unflatten": ("tensordict_core.compat", "unflatten_node"),
    "_unravel_key_to_tuple": ("tensordict_core.compat", "unravel_key_to_tuple"),
    "_use_generator": ("tensordict_nn.compat", "use_generator"),
    "_zip_strict": ("tensordict_core.compat", "zip_strict"),
    "convert_ellipsis_to_idx": ("tensordict_core.compat", "without_ellipsis"),
    "infer_size_impl": ("tensordict_core.compat", "inferred_size"),
    "is_batchedtensor": ("tensordict_core.compat", "is_batched"),
    "is_compiling": ("torch.compiler", "is_compiling"),
    "is_namedtuple": ("tensordict_core.compat", "is_namedtuple"),
    "expln": ("tensordict_nn.compat", "expln"),
    "get_json_backend": ("tensordict_core.compat", "get_json_backend"),
    "implement_for": ("tensordict_core.compat", "implement_for"),
    "is_nested_key": ("tensordict_core.compat", "is_key"),
    "is_seq_of_nested_key": ("tensordict_core.compat", "is_key_or_keys"),
    "is_tensor_collection": ("tensordict_core", "is_tensor_collection"),
    "json_dumps": ("tensordict_core.compat", "json_dumps"),
    "logger": ("tensordict_core.compat", "logger"),
    "prod": ("math", "prod"),
    "set_json_backend": ("tensordict_core.compat", "set_json_backend"),
    "strtobool": ("tensordict_core.compat", "as_bool"),
    "timeit": ("tensordict_core.compat", "timeit"),
    "unravel_keys": ("tensordict_core", "unravel_key"),
}
