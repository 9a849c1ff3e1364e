"""`Node`: the abstract base class of all containers.

A container is a tree of *nodes*; an entry of a node is a *leaf* (a tensor) or another node (a nested tensordict, a lazy
stack, a tensorclass, non-tensor data). A container implements the abstract methods of `Node`. Every operation is
written once, in a family of operations that inherits from `Node`; `TensorCollection` combines the families.

`Node` has no metaclass: ``isinstance(value, Node)`` runs for every entry, and is slower with `abc.ABCMeta`.
`Node._check_complete` does what the metaclass would do, when a class is created.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeGuard

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.index import Index
from tensordict_core.base.meta import Meta
from tensordict_core.base.ragged import shape_of
from tensordict_core.base.rebuild import KEEP, SAME, How, IsLeaf
from tensordict_core.base.views import Lookup

Place: TypeAlias = tuple[tuple[str, ...], torch.Size]
"""The path of a leaf, and the batch size of the node that holds it; empty for an unbatched tensor."""


class Node:
    """The abstract base class of containers: abstract methods, and default implementations of others.

    `TensorCollection` refuses to create a container class that lacks one of the abstract methods.
    """

    if not TYPE_CHECKING:
        # hidden from type checkers, which would report attributes that the slots of containers define
        __slots__ = ()

    _is_complete = False
    """Whether the class, or a base of it, implements all abstract methods."""

    _noun = "tensordict"
    """The noun for an instance in error messages."""

    _is_non_tensor = False
    """Whether instances are non-tensor data."""

    _is_opaque = False
    """Whether instances have no entries of their own: non-tensor data and unbatched tensors."""

    _holds_values = False
    """Whether instances are non-tensor data with a value for each position of the batch."""

    _is_lazy_stack = False
    """Whether instances keep their elements apart, in ``tensordicts``, and stack entries when they are read."""

    _locks_with_parent = False
    """Whether the lock is that of another tensordict, as of a view."""

    _makes_entries = False
    """Whether entries are computed when they are read, so that an in-place write to one does not change this node."""

    if TYPE_CHECKING:
        _meta: Meta
        """Batch size, device and names of this node."""
        _locked: bool
        """Whether entries may not be added, replaced or removed."""
        _holders: list[Any] | None
        """Weak references to the locked nodes that hold this one."""
        _annotations: dict[str, Any] | None
        """Facts that satellites attach to this node by name, such as where it was saved."""

        def _entry_value(self, holder: Any = None, key: str = "") -> Any:
            """Return the result of ``td[key]`` for an entry that is this node."""

        _last_exit: Any
        """A function of this node, or a `WriteBack`, that runs at the end of a ``with`` block over it; or ``None``."""

        def _split(self, sizes: list[int], dim: int) -> Sequence[Any]: ...

        def _adopt_names(self, entry: Any) -> None: ...
        def _take_batch_size(self, source: Any, chosen: Any) -> None: ...
        def _take_batch_sizes(self, source: Any, chosen: Any, inplace: bool) -> None: ...

        # Operations that other families call; the family that defines one gives its signature.
        batch_size: Any
        names: Any
        apply: Callable[..., Any]
        auto_batch_size_: Callable[..., Any]
        broadcast: Callable[..., Any]
        bytes: Callable[..., int]
        clear_device_: Callable[..., Self]
        del_: Callable[..., Any]
        densify: Callable[..., Any]
        device: Any
        dtype: Any
        detach: Callable[..., Self]
        empty: Callable[..., Self]
        exclude: Callable[..., Self]
        expand: Callable[..., Self]
        filter_empty_: Callable[..., Self]
        filter_non_tensor_data: Callable[..., Self]
        from_dict_instance: Callable[..., Any]
        get: Callable[..., Any]
        irecv: Callable[..., Any]
        is_memmap: Callable[..., bool]
        is_shared: Callable[..., bool]
        items: Callable[..., Any]
        keys: Callable[..., Any]
        lock_: Callable[..., Self]
        rename_key_: Callable[..., Self]
        replace: Callable[..., Self]
        select: Callable[..., Self]
        send: Callable[..., Any]
        set: Callable[..., Self]
        to: Callable[..., Self]
        to_dict: Callable[..., Any]
        to_lazystack: Callable[..., Any]
        to_namedtuple: Callable[..., Any]
        tolist: Callable[..., Any]
        unbind: Callable[..., tuple[Self, ...]]
        unlock_: Callable[..., Self]
        update_: Callable[..., Self]
        view_at: Callable[..., Any]
        where: Callable[..., Self]
        _index_put: Callable[..., None]
        shape: Any
        _change_batch_size: Callable[..., None]
        _find_parent: Callable[..., Any]
        _flat_values: Callable[..., list[Any]]
        _get_path_value: Callable[..., Any]
        _in_place: Callable[..., Self]
        _in_shared_memory: Callable[..., bool]
        _lazy: Callable[..., Any]
        _peek_entry: Callable[..., tuple[Any, str, Any]]
        _plain_value: Callable[..., Any]
        _plan_entry: Callable[..., None]
        _plan_set: Callable[..., Any]
        _plan_value: Callable[..., None]
        _plan_write: Callable[..., None]
        _put_device: Callable[..., None]
        _put_entry: Callable[..., None]
        _put_names: Callable[..., None]
        _select_rows: Callable[..., Any]
        _view_at: Callable[..., Any]
        _with_values: Callable[..., dict[Any, Any]]

        def _new(self, entries: dict[str, Any], meta: Meta) -> Self:
            """Return a `TensorDict` of valid entries for any container."""

        def __enter__(self) -> Self: ...
        def __exit__(self, *error: Any) -> None: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __contains__(self, key: Any) -> bool: ...

    @classmethod
    def _check_complete(cls) -> None:
        """Check that a container class implements all abstract methods.

        Raises:
            TypeError: An abstract method is not implemented.

        >>> Node._check_complete()
        Traceback (most recent call last):
        ...
        TypeError: the container Node lacks _cat, _clone, _del, ...
        """
        if cls._is_complete:
            return  # subclasses may declare further abstract methods for their own subclasses
        names = {name for base in cls.__mro__ for name, member in vars(base).items() if _is_abstract(member)}
        missing = sorted(name for name in names if _is_abstract(getattr(cls, name)))
        if missing:
            raise errors.incomplete_container(cls, missing)
        cls._is_complete = True

    # entries ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _keys(self) -> Iterable[str]:
        """Return the names of the entries of this node in order; a live view if the container has one."""

    @abstractmethod
    def _get(self, key: str) -> Any:
        """Return the stored entry, a tensor or a node; ``None`` if the key is missing."""

    @abstractmethod
    def _set(self, key: str, value: Tensor | Node) -> None:
        """Store or replace an entry of valid shape and device. The caller has checked the lock."""

    @abstractmethod
    def _del(self, key: str) -> None:
        """Remove an entry that exists."""

    # leaves ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _rebuild(self, leaves: Iterator[Any], how: How) -> Self:
        """Return this structure with new leaves in the order of ``_collect``; a ``None`` drops its entry.

        Decides the type of the result, and each node's new batch size and names by ``how.meta``.
        """

    # shape -----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _index(self, index: Index) -> Self:
        """Index the batch dimensions of the root."""

    @abstractmethod
    def _reshape(self, op: Any) -> Self:
        """Apply a `ShapeOp`, an operation on the batch dimensions of the root."""

    @classmethod
    @abstractmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        """Stack nodes of one key set and batch size along a new batch dimension ``dim`` (not negative)."""

    @classmethod
    @abstractmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        """Concatenate nodes of one key set along the batch dimension ``dim`` (not negative)."""

    # life ------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _clone(self, recurse: bool) -> Self:
        """Copy the nodes; the tensors too if ``recurse``."""

    # default implementations; a container with a faster way, or one that wraps another, overrides them -----------

    def _start(self, meta: Meta) -> None:
        """Set the attributes that every node has: the metadata given, unlocked."""
        self._meta = meta
        self._locked = False
        self._holders = None
        self._annotations = None
        self._last_exit = None

    def _set_meta(self, meta: Meta) -> None:
        """Replace the metadata of this node (not of nested ones); the caller has checked the new batch size."""
        self._meta = meta

    def _set_locked(self, locked: bool) -> None:
        """Set the lock of this node (not of nested ones)."""
        self._locked = locked

    def _set_exit(self, undo: Any) -> None:
        """Set the function that runs at the end of a ``with`` block over this node."""
        self._last_exit = undo

    def _items(self) -> Iterable[tuple[str, Any]]:
        """Return the names and stored entries of this node in order."""
        return [(key, self._get(key)) for key in self._keys()]

    def _nodes(self) -> Iterable[Node]:
        """Return the nodes directly below this one."""
        return [value for _, value in self._items() if type(value) is not Tensor and isinstance(value, Node)]

    def _rename(self, old: str, new: str) -> None:
        """Rename an entry that exists and move it to the end of the order."""
        value = self._get(old)
        self._del(old)
        self._set(new, value)

    def _unbind(self, dim: int) -> tuple[Self, ...]:
        """Return the slices along the batch dimension ``dim`` (not negative)."""
        size, before = self._meta.batch_size, (slice(None),) * dim
        return tuple(self._index(Index((*before, i), size)) for i in range(size[dim]))

    @property
    def _entries(self) -> Mapping[str, Any]:
        """A live, read-only mapping of the stored entries; the dictionary itself if the container keeps one."""
        return Lookup(self)

    def _storing(self) -> Callable[[Iterable[tuple[str, Tensor]]], None] | None:
        """Return a function that stores many valid tensors at once; ``None`` if each needs a check."""
        return None

    # reads and writes of a part of an entry; containers whose reads copy override them

    if TYPE_CHECKING:

        @property
        def _reads_copy(self) -> bool: ...  # a property of containers that stand on others
    else:
        _reads_copy = False
        """Whether reads copy, from a file or a server, so that a write into the result does not reach the entry."""

    def _peek(self, key: str) -> Any:
        """Return the entry, or a stand-in if reading it would copy; ``None`` if the key is missing.

        A container whose reads copy returns a tensor on the device ``"meta"`` with the shape and dtype of the entry. A
        container that wraps another one forwards the call.
        """
        return self._get(key)

    _indexes_entries = False
    """Whether ``_read`` and ``_write`` of copies take an index of all dimensions of an entry, not of the batch only."""
    _copies_exist = False
    """Whether a container whose reads copy was ever defined; until then no operation looks for one."""

    def _copies_below(self) -> bool:
        """Return whether reads copy in this node or in one below it."""
        return self._reads_copy or any(node._copies_below() for node in self._nodes())

    def _changed(self, leaves: Iterable[Tensor]) -> Self:
        """Return this node after an operation changed its leaves in place; copies of entries are written back."""
        if self._reads_copy or (Node._copies_exist and self._copies_below()):
            self._write_back(self._rebuild(iter(leaves), SAME))
        return self

    def _write_back(self, changed: Any) -> None:
        """Write the values of a changed copy into the entries."""
        self.update_(changed)

    def _shape_of(self, key: str) -> torch.Size:
        """Return the shape of an entry that exists, without reading it."""
        entry = self._peek(key)
        shape: torch.Size = shape_of(entry) if is_leaf_tensor(entry) else entry.shape
        return shape

    def _read(self, key: str, index: Index | None) -> Any:
        """Return the part of an entry that an index of the batch dimensions selects; all of it if ``None``."""
        value = self._get(key)
        if index is None:
            return value
        return value._index(index) if isinstance(value, Node) else value[index.idx]

    def _write(self, key: str, index: Index | None, value: Tensor) -> None:
        """Write a tensor into the part of a leaf that an index selects; into all of it if ``None``.

        Only called if reads copy. The value has the shape of the part and the dtype of the leaf.
        """
        raise NotImplementedError(f"{type(self).__name__} has reads that copy and defines no _write; define it")

    def _shared_store(self) -> Any:
        """Return the object that identifies the store of this node; nodes of one store are written together."""
        return self

    def _write_all(self, parts: Sequence[tuple[Any, str, Index | None, Tensor]]) -> None:
        """Write into several leaves, which one operation changes; by default one after the other.

        Args:
            parts: A node of this store, and the arguments of its ``_write``, for each leaf.
        """
        for node, key, index, value in parts:
            node._write(key, index, value)

    def _peek_path(self, path: Iterable[str]) -> Any:
        """Return the result of ``_peek`` at the end of a path; ``None`` if there is no entry."""
        node: Any = self
        for name in path:
            node = node._peek(name) if isinstance(node, Node) else None
        return node

    def _peek_items(self) -> Iterable[tuple[str, Any]]:
        """Return the names and the results of ``_peek``, in order."""
        return [(key, self._peek(key)) for key in self._keys()] if self._reads_copy else self._items()

    def _inmost(self) -> Any:
        """Return the node that keeps the entries: this one, or the wrapped one of a wrapper."""
        return self

    @property
    def _lazy_stack(self) -> Any:
        """The lazy stack that this node is, or that a wrapper wraps; ``None`` for other nodes."""
        inmost = self._inmost()
        return inmost if inmost._is_lazy_stack else None

    def _exclusive_keys(self) -> dict[int, list[str]]:
        """Return for each element of a lazy stack the keys that others lack, if it has some; none for other nodes."""
        return {}

    def _solid(self, nested: bool = True) -> Self:
        """Return this tree with dense lazy stacks, so that every leaf starts with the root's batch size.

        Without ``nested``, only a root that is a lazy stack is made dense. Returns this tree itself if it has no lazy
        stacks. A container that wraps another one forwards the call.
        """
        out = None
        for key, value in self._items() if nested else ():
            if type(value) is not Tensor and isinstance(value, Node):
                solid = value._solid()
                if solid is not value:
                    out = self._clone(False) if out is None else out
                    out._set(key, solid)
        return self if out is None else out

    def _get_ragged(self, key: str, default: Any = None, **options: Any) -> Any:
        """Return the entry of a key; ``options`` choose how a lazy stack combines tensors of different shapes."""
        value = self._get(key)
        return default if value is None else value

    def _collect(self, out: list[Any], is_leaf: IsLeaf | None) -> None:
        """Append the leaves below this node to ``out``, depth first, in the order that ``_rebuild`` consumes them."""
        for _, value in self._items():
            if type(value) is Tensor or not isinstance(value, Node) or (is_leaf is not None and is_leaf(type(value))):
                out.append(value)
            else:
                value._collect(out, is_leaf)

    def _collect_places(self, out: list[Place], prefix: tuple[str, ...], is_leaf: IsLeaf | None) -> None:
        """Append the place of each leaf to ``out``, in the order of ``_collect``."""
        size = self._meta.batch_size
        for key, value in self._items():
            if type(value) is Tensor or not isinstance(value, Node) or (is_leaf is not None and is_leaf(type(value))):
                out.append(((*prefix, key), size))
            else:
                value._collect_places(out, (*prefix, key), is_leaf)

    def _collect_aligned(
        self, other: Any, out: list[Any], missing: Any, is_leaf: IsLeaf | None, prefix: tuple[str, ...]
    ) -> None:
        """Append to ``out``, in the order of ``_collect``, the leaves of ``other`` under the same keys.

        ``missing`` replaces a missing leaf; if it is ``KEEP``, a missing leaf is a ``KeyError``.
        """
        get = getattr(other, "_entries", {}).get  # none of a leaf
        for key, value in self._items():
            found = get(key)
            if found is None and missing is KEEP and _holds_leaves(value, is_leaf):
                raise errors.unmatched_key((*prefix, key) if prefix else key, other)
            if type(value) is Tensor or not isinstance(value, Node) or (is_leaf is not None and is_leaf(type(value))):
                out.append(missing if found is None else found)
            else:
                value._collect_aligned(found, out, missing, is_leaf, (*prefix, key))

    def _line_up(self, operand: Tensor, dims: int, out: list[Tensor]) -> None:
        """Append ``operand`` for each leaf, aligned with the last of its first ``dims`` dimensions, as ``_collect``."""
        wider: dict[int, Tensor] = {}  # by the number of further dimensions; most leaves have the same
        for _, value in self._items():
            if isinstance(value, Node):
                value._line_up(operand, dims, out)
                continue
            further = max(value.ndim - dims, 0) if operand.ndim else value.ndim  # a split tensor is no number
            if further not in wider:
                wider[further] = torch.reshape(operand, operand.shape + (1,) * further)
            out.append(wider[further])

    def _leaves(self, is_leaf: IsLeaf | None = None) -> list[Any]:
        """Return the leaves of this tree in a fixed order, without non-tensor data."""
        out: list[Any] = []
        self._collect(out, is_leaf)
        return out

    def _leaf_keys(self, is_leaf: IsLeaf | None = None) -> list[tuple[str, ...]]:
        """Return the paths of the leaves in the order of ``_leaves``."""
        return [path for path, _ in self._leaf_places(is_leaf)]

    def _leaf_places(self, is_leaf: IsLeaf | None = None) -> list[Place]:
        """Return the places of the leaves in the order of ``_leaves``."""
        out: list[Place] = []
        self._collect_places(out, (), is_leaf)
        return out

    def _pairs(self, other: Any) -> tuple[list[Tensor], list[Tensor]] | None:
        """Return the matched leaves of two trees of plain tensors; ``None`` for others.

        A fast path for the usual operands: ``_align`` takes as long as an addition.
        """
        return None

    def _align(self, other: Any, missing: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
        """Return the leaves of ``other`` matched by key to those of this tree, in the order of ``_leaves``."""
        out: list[Any] = []
        self._collect_aligned(other, out, missing, is_leaf, ())
        return out


def _is_abstract(member: Any) -> bool:
    return getattr(member, "__isabstractmethod__", False) is True


def _holds_leaves(value: Any, is_leaf: IsLeaf | None) -> bool:
    """Return whether an entry has leaves and so needs an operand; non-tensor data and empty nodes have none."""
    if not isinstance(value, Node) or (is_leaf is not None and is_leaf(type(value))):
        return True
    return bool(value._leaves(is_leaf))


def is_leaf_tensor(value: Any) -> bool:
    """Return whether an entry is a tensor and no node: an unbatched tensor is both.

    >>> is_leaf_tensor(torch.zeros(2)), is_leaf_tensor(TensorDict({}))
    (True, False)
    """
    return not isinstance(value, Node) and isinstance(value, Tensor)


def has_entries(value: Any) -> TypeGuard[Node]:
    """Return whether a value is a tensordict or tensorclass, and no tensor, non-tensor data or unbatched tensor.

    >>> from tensordict_core import NonTensorData
    >>> has_entries(TensorDict({})), has_entries(torch.zeros(2)), has_entries(NonTensorData("a"))
    (True, False, False)
    """
    return isinstance(value, Node) and not value._is_opaque
