"""Owners of public names: one table per module of ``tensordict``, one row per module that owns names.

A name may be listed before its package has it; until then it raises ``AttributeError`` and is not in ``__all__``.
"""

from __future__ import annotations

from collections.abc import Mapping

# module of `tensordict` -> module that owns -> the names, separated by blanks
OWNERS: Mapping[str, Mapping[str, str]] = {
    "tensordict": {
        "tensordict_core": """
            DeviceType IndexType KEY_SEPARATOR LazyStackedTensorDict LinkedList MetaData NO_DEFAULT NestedKey
            NonTensorData NonTensorDataBase NonTensorStack PackLayout SubTensorDict TensorAttrs TensorCollection
            TensorDict TensorDictBase UnbatchedTensor assert_allclose_td assert_close capture_non_tensor_stack cat
            collate default_is_leaf dense_stack_tds expand_as_right expand_right from_any from_dict from_list
            from_namedtuple from_pytree from_struct_array from_tuple fromkeys get_defaults_to_none get_printoptions
            group_by is_bool is_floating is_inexact is_integer is_leaf_nontensor is_non_tensor is_tensor_collection
            is_tensorclass isin lazy_legacy lazy_stack list_to_stack make_tensordict maybe_dense_stack merge_tensordicts
            pad pad_sequence parse_tensor_dict_string remove_duplicates set_capture_non_tensor_stack
            set_get_defaults_to_none set_lazy_legacy set_list_to_stack set_printoptions stack unpad_sequence unravel_key
            unravel_key_list
        """,
        "tensordict_core.compat": "unravel_key_to_tuple",
        "tensordict_memmap": """
            MemmapDataset MemoryMappedTensor append_memmap compare convert from_consolidated from_safetensors
            is_memmap_archive load load_into load_memmap memmap pack_memmap refresh_archive_checksums save
            to_safetensors unpack_memmap
        """,
        "tensordict_nn": """
            TensorClassModuleBase TensorClassModuleWrapper TensorDictParams as_tensordict_module from_module
            from_modules
        """,
        "tensordict_class": "TensorClass TypedTensorDict from_dataclass from_pydantic tensorclass",
        "tensordict_store": """
            LazyStackedTensorDictStore PersistentTensorDict TensorDictStore from_arrow from_csv from_h5 from_json
            from_pandas from_parquet from_zarr to_arrow
        """,
    },
    "tensordict.base": {
        "tensordict_core": """
            NO_DEFAULT TensorDictBase from_any from_dict from_namedtuple from_struct_array from_tuple
            get_defaults_to_none is_tensor_collection set_get_defaults_to_none
        """,
        "tensordict_store": "from_csv from_h5 from_json from_pandas from_parquet from_zarr",
    },
    "tensordict.memmap": {"tensordict_memmap": "MemoryMappedTensor"},
    "tensordict.nn": {
        "tensordict_core": "make_tensordict",
        "tensordict_nn": """
            AddStateIndependentNormalScale CompositeDistribution CudaGraphModule EnsembleModule InteractionType
            NormalParamExtractor OneHotCategorical ProbabilisticTensorDictModule ProbabilisticTensorDictSequential
            TensorClassModuleBase TensorClassModuleWrapper TensorDictModule TensorDictModuleBase
            TensorDictModuleWrapper TensorDictParams TensorDictSequential TruncatedNormal WrapModule
            add_custom_mapping as_tensordict_module biased_softplus composite_lp_aggregate dispatch interaction_type
            inv_softplus mappings rand_one_hot set_composite_lp_aggregate set_interaction_type set_skip_existing
            skip_existing
        """,
    },
    "tensordict.nn.distributions": {
        "tensordict_nn.distributions": """
            AddStateIndependentNormalScale CompositeDistribution Delta InteractionType NormalParamExtractor
            OneHotCategorical TruncatedNormal add_custom_mapping mappings rand_one_hot
        """,
        "tensordict_nn": "set_interaction_type",
    },
    "tensordict.prototype": {
        "tensordict_class": "tensorclass",
        "tensordict_nn": "symbolic_trace",
    },
    "tensordict.prototype.fx": {"tensordict_nn": "TDGraphModule symbolic_trace"},
    "tensordict.tensorclass": {
        "tensordict_class": "TensorClass from_dataclass tensorclass",
        "tensordict_core": """
            MetaData NonTensorData NonTensorDataBase NonTensorStack TensorAttrs is_non_tensor is_tensorclass
        """,
    },
    "tensordict.utils": {
        "tensordict_core": """
            DeviceType IndexType KEY_SEPARATOR LinkedList NestedKey assert_allclose_td assert_close
            capture_non_tensor_stack
            expand_as_right expand_right get_printoptions is_bool is_floating is_inexact is_integer is_non_tensor
            is_tensorclass isin lazy_legacy list_to_stack parse_tensor_dict_string remove_duplicates
            set_capture_non_tensor_stack set_lazy_legacy set_list_to_stack set_printoptions unravel_key
            unravel_key_list
        """,
        "tensordict_core.compat": "unravel_key_to_tuple",
        "tensordict_memmap": "print_directory_tree",
    },
}

# Names of older releases, and the name that each has now.
RENAMED: Mapping[str, Mapping[str, str]] = {"tensordict": {"MemmapTensor": "MemoryMappedTensor"}}

# The submodules that `dir` of a package lists. The other modules of `OWNERS` are attributes of their package without
# having been imported, too, except `memmap` and `tensorclass`: in `tensordict`, these names are functions.
SUBMODULES: Mapping[str, tuple[str, ...]] = {"tensordict": ("nn",), "tensordict.nn": ("distributions",)}
