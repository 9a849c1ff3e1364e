"""Extension interface: for authors of containers and of packages that build on core.

A container subclasses `CustomContainer`, defines how entries are stored, and inherits all operations. A package uses
operation records, registers its types under stable names, implements ``torch`` functions, defines writes to its own
types of leaves, and uses the tracing checks. The methods that a container defines start with an underscore, because
users of the container do not call them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from tensordict_core.base.entry import to_entry
from tensordict_core.base.gc_paused import gc_paused
from tensordict_core.base.index import Index
from tensordict_core.base.json_form import DTYPES, JSON_TAG, NoJsonForm, decode_value, encode_value
from tensordict_core.base.meta import Meta, as_batch_size, as_device, as_dtype, as_names
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.rebuild import KEEP, SAME, UNLOCKED, How, IsLeaf
from tensordict_core.base.registry.pickle_names import register_pickle_names
from tensordict_core.base.registry.torch_functions import implements
from tensordict_core.base.registry.types import ENTRY_POINT_GROUP, find_type, register_type, type_name
from tensordict_core.base.shape_op import ShapeOp
from tensordict_core.base.signature import check_options, with_options
from tensordict_core.base.tracing import constant_when_traced, in_functorch, is_compiling, may_fuse
from tensordict_core.base.write_plan import Writer, register_writer
from tensordict_core.containers.collection import TensorCollection, TensorDictBase, is_tensordict
from tensordict_core.containers.custom import CustomContainer
from tensordict_core.containers.deferred import deferred, is_deferred
from tensordict_core.containers.delegating import Delegating
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.nontensor.base import ValueWriter, register_value_writer
from tensordict_core.containers.nontensor.shared import share_values
from tensordict_core.ops.compat.options import (
    ConsolidateOptions,
    LoadOptions,
    MemmapLikeOptions,
    MemmapOptions,
    RankSaveOptions,
    SaveOptions,
)
from tensordict_core.ops.factories.spec import OpSpec, operations
from tensordict_core.ops.indexing import Rows
from tensordict_core.ops.io.from_python import BuildOptions
from tensordict_core.ops.io.html import table as html_table
from tensordict_core.ops.parallel.multiprocessing.shared_memory import annotate_empty
from tensordict_core.ops.shape.combine import common_container
from tensordict_core.torch_api.pytree import register_wrapper

__all__ = [
    "DTYPES",
    "ENTRY_POINT_GROUP",
    "JSON_TAG",
    "KEEP",
    "SAME",
    "UNLOCKED",
    "BuildOptions",
    "ConsolidateOptions",
    "CustomContainer",
    "Delegating",
    "How",
    "Index",
    "IsLeaf",
    "LoadOptions",
    "MemmapLikeOptions",
    "MemmapOptions",
    "Meta",
    "NoJsonForm",
    "Node",
    "OpSpec",
    "Primitives",
    "RankSaveOptions",
    "Rows",
    "SaveOptions",
    "ShapeOp",
    "TensorCollection",
    "TensorDictBase",
    "ValueWriter",
    "Writer",
    "add_node",
    "annotate",
    "annotate_empty",
    "annotation",
    "as_batch_size",
    "as_device",
    "as_dtype",
    "as_names",
    "check_options",
    "common_container",
    "constant_when_traced",
    "decode_value",
    "deferred",
    "dense",
    "dense_locked",
    "encode_value",
    "entries",
    "find_type",
    "gc_paused",
    "html_table",
    "implements",
    "in_functorch",
    "is_compiling",
    "is_deferred",
    "is_leaf_tensor",
    "is_tensordict",
    "may_fuse",
    "on_exit",
    "operations",
    "register_pickle_names",
    "register_type",
    "register_value_writer",
    "register_wrapper",
    "register_writer",
    "share_values",
    "to_entry",
    "type_name",
    "with_options",
    "writes_to",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)


Primitives = Node
"""Deprecated name of `Node`."""


def dense(entries: dict[str, Any], meta: Meta) -> TensorDict:
    """Return a tensordict that owns a dictionary of entries, which must be valid for ``meta`` and are not checked.

    >>> dense({"a": torch.zeros(3, 4)}, Meta(torch.Size([3]))).batch_size
    torch.Size([3])
    """
    return TensorDict._make(entries, meta)


def dense_locked(entries: dict[str, Any], meta: Meta, nodes: Sequence[TensorDict]) -> TensorDict:
    """Return the tensordict of `dense`, locked.

    Args:
        entries: The entries.
        meta: The metadata.
        nodes: The nodes among the entries; each is new, locked, and in no other tensordict.

    >>> dense_locked({"a": torch.zeros(3)}, Meta(torch.Size([3])), []).is_locked
    True
    """
    td = TensorDict._make(entries, meta)
    td._locked = True
    if nodes:
        holder = weakref.ref(td)
        for node in nodes:
            node._holders = [holder]
    return td


def add_node(td: TensorDict, key: str) -> TensorDict:
    """Add an empty node with the same metadata to a new tensordict, which may be locked.

    >>> td = dense_locked({}, Meta(torch.Size([3])), ())
    >>> add_node(td, "a").is_locked, td["a"].batch_size
    (True, torch.Size([3]))
    """
    node = td._entries[key] = TensorDict._make({}, td._meta)
    if td._locked:
        node._locked = True
        node._holders = [weakref.ref(td)]
    return node


entries: Callable[[TensorDict], dict[str, Any]] = attrgetter("_entries")
"""Return the live dictionary of entries of a dense node, for reads on hot paths."""


def writes_to(tensor: Any) -> str | None:
    """Return the file that in-place changes of a tensor reach; ``None`` if they stay in memory.

    A tensor type that maps files for writing has a property of this name.

    >>> writes_to(torch.zeros(1)) is None
    True
    """
    file: str | None = getattr(tensor, "writes_to", None)
    return file


def annotate(td: TensorCollection, name: str, value: Any) -> None:
    """Attach an annotation to a node; results of operations do not have it.

    >>> td = TensorDict({})
    >>> annotate(td, "origin", "sensor 3")
    >>> annotation(td, "origin")
    'sensor 3'
    """
    if td._annotations is None:
        td._annotations = {}
    td._annotations[name] = value


def annotation(td: TensorCollection, name: str, default: Any = None) -> Any:
    """Return an annotation of a node.

    >>> annotation(TensorDict({}), "origin", "unknown")
    'unknown'
    """
    return default if td._annotations is None else td._annotations.get(name, default)


def on_exit(td: TensorCollection, undo: Callable[[TensorCollection], None] | None) -> None:
    """Set a function that runs at the end of the next ``with td:`` block, even if its body raises; ``None``: none.

    >>> td = TensorDict({"a": 0})
    >>> on_exit(td, lambda td: td.set("a", 1))
    >>> with td:
    ...     pass
    >>> td["a"]
    tensor(1)
    """
    td._set_exit(undo)
