"""The tree format: a folder for each node with its ``meta.json``, and a raw file for each leaf.

Saving names the files of a planned schema and describes each node; ``parse_tree`` is the inverse. Nothing here reads or
writes a file. The layout is that of the reference, class strings included.
"""

from __future__ import annotations

from typing import Any

from tensordict_memmap.formats.names import LEAF, META, SHAPES, FileNames, encode_key
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.node import Leaf, Node, Parts, Value, leaves, show
from tensordict_memmap.schema.plan import LAZY, check_source, memory_of

FORMAT_VERSION = 1
DENSE = "<class 'tensordict._td.TensorDict'>"
METADATA = "<class 'tensordict.tensorclass.MetaData'>"
NON_TENSOR = "<class 'tensordict.tensorclass.NonTensorData'>"
NON_TENSOR_STACK = "<class 'tensordict.tensorclass.NonTensorStack'>"
OTHER_PICKLE = "other.pickle"
STACK_PICKLE = "pickle.pkl"
"""Files with values that have no JSON form, of `NonTensorData` and `NonTensorStack`."""


# --- the names of files and the stored forms of values


def name_files(node: Node, *, tie: bool = True, check: bool = True) -> Node:
    """Give each leaf of a planned schema its file, each node its folder, and each value its stored form.

    Args:
        node: The schema, which is changed and returned.
        tie: Whether tensors that are the same memory share a file.
        check: Whether to refuse tensors whose values a file cannot hold.

    Raises:
        TypeError: An entry has no place in a folder; the error names its key.

    Warns:
        UserWarning: A value has no JSON form, so it is pickled.

    >>> from tensordict_core import TensorDict
    >>> from tensordict_memmap.schema.node import leaves
    >>> from tensordict_memmap.schema.plan import plan
    >>> td = TensorDict({"a": torch.zeros(2), "b": {"c d": torch.ones(1)}})
    >>> [leaf.file for leaf in leaves(name_files(plan(td)))]
    ['a.memmap', 'b/c%20d.memmap']
    """
    for leaf in leaves(node) if check else ():
        check_source(leaf, like=True)
    _name_node(node, "", (), {} if tie else None)
    return node


def _name_node(node: Node, folder: str, around: tuple[int, ...], first_files: dict[Any, str] | None) -> None:
    node.folder = folder
    prefix = folder + "/" if folder else ""
    if isinstance(node, Value):
        node.files = _value_files(node, around)
    elif isinstance(node, Parts):
        for name, part in node.parts.items():
            _name_node(part, prefix + name, (), first_files)
    else:
        names = FileNames()
        for name, entry in node.entries.items():
            if isinstance(entry, Leaf):
                stem = names.leaf(name) if entry.layout == "strided" else names.nested(name)
                _name_leaf(entry, f"{prefix}{stem}{LEAF}", first_files)
            else:
                stem = names.node(name)
                _name_node(entry, prefix + stem, node.batch_size, first_files)
            if stem[:1] == "%" and stem != encode_key(name):
                node.escaped[name] = stem


def _name_leaf(leaf: Leaf, file: str, first_files: dict[Any, str] | None) -> None:
    if leaf.unbatched:
        raise nontensor.NoPlace(
            f"key {show(leaf.key)} is an UnbatchedTensor, and only a safetensors file has a place for one; convert or "
            "remove it first, or save to a path that ends with .safetensors"
        )
    leaf.file = file
    if leaf.layout != "strided":
        leaf.shapes_file = file.removesuffix(LEAF) + SHAPES
    if first_files is not None and leaf.layout == "strided" and leaf.source is not None:
        # plain memory is known from its address, without a look at the tensor
        memory = (leaf.address, leaf.dtype, leaf.shape) if leaf.address else memory_of(leaf.source)
        first = file if memory is None else first_files.setdefault(memory, file)
        leaf.alias = None if first == file else first


def _value_files(node: Value, around: tuple[int, ...]) -> dict[str, bytes]:
    """Return the files in the folder of non-tensor data, by name."""
    value, files = node.content(), {}
    node.value = value
    extra: dict[str, Any] = {}
    if node.stack or node.batch_size != around:
        extra["shape"] = list(node.batch_size)
    record: dict[str, Any] = {}
    try:
        record["data"], exact = nontensor.to_forms(value)
        if exact is not None:
            extra["exact"] = exact
    except nontensor.NoJsonForm as reason:
        where = f"key {show(node.key)}" if node.key else "the value"
        # a single value is in a dictionary of the fields without a JSON form, by name
        content = value if node.stack else {"data": value}
        files[STACK_PICKLE if node.stack else OTHER_PICKLE] = nontensor.pickled(content, value, where, reason)
        if node.stack:
            record["data"] = STACK_PICKLE
    if node.stack:
        head: dict[str, Any] = {
            "_type": NON_TENSOR_STACK,
            "_format_version": FORMAT_VERSION,
            "_class": "tensordict:NonTensorStack",
            "stack_dim": 0,
            "device": None,
        }
        files[META] = nontensor.dumps({**head, **record, **extra})
    else:
        # the reference refuses unknown fields here, and takes anything as metadata
        tail = {"_metadata": extra or None, "_is_non_tensor": True}
        files[META] = nontensor.dumps({"_type": METADATA if node.metadata else NON_TENSOR, **record, **tail})
    return files


# --- to files


def describe(node: Node) -> dict[str, bytes]:
    """Return the small files in the folder of a node, by name: its ``meta.json`` and those of non-tensor data.

    >>> from tensordict_core import TensorDict
    >>> from tensordict_memmap.schema.plan import plan
    >>> describe(name_files(plan(TensorDict({"a": torch.zeros(2)}, [2]))))["meta.json"][:80]
    b'{"a":{"device":"cpu","shape":[2],"dtype":"torch.float32","is_nested":false},"sha'
    """
    if isinstance(node, Value):
        return node.files
    if isinstance(node, Parts):
        if node.class_string == LAZY:
            head = {"_type": LAZY, "_format_version": FORMAT_VERSION, "_class": "tensordict:LazyStackedTensorDict"}
            return {META: nontensor.quick_dumps({**head, **node.facts, "_count": len(node.parts)})}
        return {META: nontensor.quick_dumps({"_type": node.class_string, **node.facts})}
    record: dict[str, Any] = {}
    elsewhere: dict[str, Any] = {}
    for name, entry in node.entries.items():
        about = _leaf_record(entry) if isinstance(entry, Leaf) else {"type": entry.type_name}
        stem = node.escaped.get(name)
        if stem is None:
            record[name] = about
        else:
            elsewhere[name] = {**about, "file": stem}
    record["shape"] = list(node.batch_size)
    record["device"] = "cpu"
    record["_type"] = DENSE
    record["_format_version"] = FORMAT_VERSION
    record["_class"] = "tensordict:TensorDict"
    if node.names is not None:
        record["_names"] = list(node.names)
    if elsewhere:
        record["_entries"] = elsewhere
        record["_key_order"] = list(node.entries)
    if node.owner is not None:
        record["_owner"] = node.owner
    return {META: nontensor.quick_dumps(record)}


def _leaf_record(leaf: Leaf) -> dict[str, Any]:
    record: dict[str, Any] = {
        "device": "cpu",
        "shape": list(leaf.shape),
        "dtype": str(leaf.dtype),
        "is_nested": leaf.layout != "strided",
    }
    if leaf.layout == "jagged":
        record["layout"] = "torch.jagged"
        record["ragged"] = leaf.ragged
    return record
