"""Topics of the reference: which page documents which name, and which guide explains it.

A name that is in no topic is documented on a page "More" of its package, so that the reference is always complete.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """A page of the reference.

    Args:
        slug: The name of its file.
        title: Its heading.
        about: What the page is about, in one sentence.
        names: Public names, or modules of core whose methods of `TensorDict` stand on the page.
        guide: The page that explains it.
    """

    slug: str
    title: str
    about: str
    names: tuple[str, ...]
    guide: str = ""


def topic(slug: str, title: str, about: str, names: str, guide: str = "") -> Topic:
    """Returns a topic from names that are separated by spaces."""
    return Topic(slug, title, about, tuple(names.split()), guide)


METHODS = (
    topic("entries", "Read and write entries", "Entries are read, set, updated, renamed and removed by key.",
          "ops.entries.access ops.entries.removal ops.entries.update ops.entries.update_inplace", "keys"),
    topic("select", "Select and flatten keys", "Results hold some of the entries, or the same ones under other keys.",
          "ops.entries.select ops.entries.flatten_keys", "keys"),
    topic("index", "Index, mask and sort", "Rows are chosen by position, by mask and by value.",
          "ops.indexing ops.masking", "indexing"),
    topic("shape", "Shape, split and stack", "These operations change the batch dimensions of all entries at once.",
          "ops.shape", "transforms"),
    topic("properties", "Properties and locks", "What a tensordict knows about itself, and who may change it.",
          "ops.properties ops.names base.lock ops.tensor_spec", "batch-size"),
    topic("arithmetic", "Arithmetic", "One call of torch for all leaves; a trailing underscore writes in place.",
          "ops.pointwise", "transforms"),
    topic("compare", "Compare", "Comparisons leaf by leaf.", "ops.compare", "transforms"),
    topic("reduce", "Reduce", "Sums, means, extremes and norms, over batch dimensions or over all of a leaf.",
          "ops.reduce", "transforms"),
    topic("cast", "Dtypes and devices", "Conversions of dtype and device, and copies between devices.",
          "ops.cast", "transforms"),
    topic("grad", "Gradients", "Autograd on all leaves.", "ops.grad", "parameters"),
    topic("apply", "Apply functions", "A function of tensors for every leaf, or a function of rows in processes.",
          "ops.apply ops.parallel.multiprocessing.map", "processes"),
    topic("construct", "Construct from others", "New tensordicts with the structure of an existing one.",
          "ops.creation", "getting-started"),
    topic("convert", "Convert", "From and to dictionaries, tuples, dataclasses, NumPy, state dicts and bytes.",
          "ops.io.to_python ops.io.schema ops.io.pickling ops.io.pack", "getting-started"),
    topic("save", "Save and load", "Files and folders on disk; tensordict-memmap does the work.",
          "ops.compat.memmap ops.compat.load", "saving"),
    topic("store", "Stores", "HDF5, zarr and Redis; tensordict-store does the work.", "ops.compat.stores", "stores"),
    topic("table", "Tables", "Arrow, Parquet, pandas, CSV and JSON; tensordict-store does the work.",
          "ops.compat.tables", "tables"),
    topic("module", "Parameters of modules", "Parameters as tensordicts; tensordict-nn does the work.",
          "ops.compat.modules", "parameters"),
    topic("process", "Shared memory and processes", "Tensordicts are shared between processes and sent to them.",
          "ops.parallel.multiprocessing.shared_memory ops.parallel.distributed", "processes"),
    topic("deprecated", "Deprecated names", "Names that older programs call.", "ops.compat.deprecated"),
)  # fmt: skip
"""The methods of containers, by the family of operations that defines them."""

FUNCTIONS = {
    "tensordict_core": (
        topic("core-construct", "Functions that construct", "Tensordicts from other structures.",
              "from_any from_dict from_list from_namedtuple from_pytree from_struct_array from_tuple fromkeys"
              " make_tensordict parse_tensor_dict_string", "getting-started"),
        topic("core-combine", "Functions that combine", "Several tensordicts become one.",
              "stack cat lazy_stack maybe_dense_stack merge_tensordicts", "lazy-stacks"),
        topic("core-collate", "Collate and pad", "Rows of different lengths become a batch, and a batch rows.",
              "collate dense_stack_tds pad pad_sequence unpad_sequence", "indexing"),
        topic("core-rows", "Rows by value", "Rows are grouped, found and aligned.",
              "group_by isin remove_duplicates expand_right expand_as_right", "indexing"),
        topic("core-keys", "Keys", "Nested keys are tuples of strings.",
              "unravel_key unravel_key_list unravel_key_to_tuple", "keys"),
        topic("core-predicates", "Predicates", "What an object is.",
              "default_is_leaf is_bool is_floating is_inexact is_integer is_leaf_nontensor is_non_tensor"
              " is_tensor_collection is_tensorclass", "nontensor"),
        topic("core-options", "Options", "Behaviour for a block or for the whole program.",
              "capture_non_tensor_stack get_defaults_to_none get_printoptions list_to_stack"
              " set_capture_non_tensor_stack set_get_defaults_to_none set_list_to_stack set_printoptions"
              " lazy_legacy set_lazy_legacy"),
        topic("core-testing", "Compare in tests", "Assertions with messages that name the entry.",
              "assert_close assert_allclose_td"),
    ),
    "tensordict_memmap": (
        topic("memmap-save", "Save", "Tensordicts are written to folders and files.",
              "save memmap memmap_ memmap_like to_safetensors consolidate is_consolidated lock_timeout", "saving"),
        topic("memmap-load", "Load", "Saved tensordicts are opened, not read.",
              "load load_memmap load_memmap_ load_into from_safetensors from_consolidated memmap_refresh_ is_memmap"
              " compare prefetch", "saving"),
        topic("memmap-checkpoints", "Checkpoints", "The whole state of a training run is saved, rotated and restored.",
              "save_checkpoint load_checkpoint latest save_delta", "checkpoints"),
        topic("memmap-entries", "Create on disk", "Entries and rows are added to a saved folder.",
              "make_memmap make_memmap_from_storage make_memmap_from_tensor append_memmap", "datasets"),
        topic("memmap-convert", "Archives and conversion", "One format becomes another.",
              "convert pack_memmap unpack_memmap is_memmap_archive refresh_archive_checksums print_directory_tree",
              "saving"),
    ),
    "tensordict_nn": (
        topic("nn-parameters", "Functions of parameters", "Parameters leave modules and come back.",
              "from_module from_modules to_module", "parameters"),
        topic("nn-functions", "Functions for modules", "Decorators, options and distributions.",
              "as_tensordict_module dispatch symbolic_trace add_custom_mapping mappings inv_softplus rand_one_hot"
              " composite_lp_aggregate set_composite_lp_aggregate interaction_type set_interaction_type"
              " skip_existing set_skip_existing", "modules"),
    ),
    "tensordict_class": (
        topic("class-functions", "Functions of tensorclasses", "Dataclasses and models become tensorclasses.",
              "tensorclass from_dataclass from_pydantic", "tensorclasses"),
    ),
    "tensordict_store": (
        topic("store-open", "HDF5, zarr and Redis", "Tensordicts are stored, and opened where they lie.",
              "from_h5 to_h5 from_zarr to_zarr to_store from_schema", "stores"),
        topic("store-tables", "Tables and shards", "Columns of tables become entries.",
              "from_arrow to_arrow from_pandas to_pandas from_parquet iter_parquet to_parquet from_csv to_csv from_json"
              " to_json to_mds", "tables"),
    ),
}  # fmt: skip
"""The functions of each package."""

GUIDES = {
    "TensorDict": "getting-started", "LazyStackedTensorDict": "lazy-stacks", "NonTensorData": "nontensor",
    "NonTensorStack": "nontensor", "MetaData": "nontensor", "UnbatchedTensor": "batch-size",
    "MemmapDataset": "datasets", "MemoryMappedTensor": "saving", "SaveFuture": "saving", "Report": "saving",
    "Checkpoint": "checkpoints", "RowSampler": "datasets", "RowStream": "datasets",
    "TensorDictReader": "distributed-checkpoints", "TensorDictWriter": "distributed-checkpoints",
    "TensorDictParams": "parameters", "TensorClass": "tensorclasses", "TypedTensorDict": "tensorclasses",
    "PersistentTensorDict": "stores", "TensorDictStore": "stores-redis", "LazyStackedTensorDictStore": "stores-redis",
    "TensorDictModule": "modules", "TensorDictSequential": "modules", "EnsembleModule": "tutorial-ensembles",
    "ProbabilisticTensorDictModule": "tutorial-policies", "ProbabilisticTensorDictSequential": "tutorial-policies",
    "TensorCollection": "extension",
}  # fmt: skip
"""The guide of a class."""

DATA = {
    "KEY_SEPARATOR": ('"."', "The separator between the levels of a flattened key, unless another one is passed.",
                      '>>> from tensordict_core import KEY_SEPARATOR, TensorDict\n'
                      '>>> TensorDict(a=TensorDict(b=1)).flatten_keys(KEY_SEPARATOR).sorted_keys\n[\'a.b\']'),
    "NO_DEFAULT": ("", "The default of ``get`` and ``pop`` that raises a `KeyError` for a missing entry, whatever the"
                   " options say.",
                   ">>> from tensordict_core import NO_DEFAULT, TensorDict\n"
                   ">>> try:\n...     TensorDict().get(\"a\", NO_DEFAULT)\n... except KeyError:\n...     \"missing\"\n"
                   "'missing'"),
    "DeviceType": ("", "A device, its name, or the number of an accelerator.",
                   ">>> from tensordict_core import TensorDict\n>>> TensorDict(device=\"cpu\").device\n"
                   "device(type='cpu')"),
    "IndexType": ("", "The values in the brackets of ``td[...]``: integers, slices, `None`, ``...``, masks, tensors,"
                  " arrays, lists, ranges, and tuples of them.",
                  ">>> import torch\n>>> from tensordict_core import TensorDict\n"
                  ">>> TensorDict(x=torch.zeros(3, 2), batch_size=[3])[1:, None].batch_size\ntorch.Size([2, 1])"),
}  # fmt: skip
"""Public values that carry no docstring of their own: value shown, text, example."""
