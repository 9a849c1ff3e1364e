"""`TensorCollection`: the base class of containers, which combines all families of operations.

Every container inherits from it and implements the abstract methods of `Node`; every operation is defined once, in its
family. `TensorDictBase` is the base class of the containers that are dictionaries of entries; non-tensor data and
tensorclasses are collections, but not dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from types import GenericAlias
from typing import Any, Self, TypeGuard

import torch
from torch._ops import HigherOrderOperator

from tensordict_core.base.index import Index
from tensordict_core.base.lock import Locking
from tensordict_core.base.meta import Meta
from tensordict_core.base.registry.torch_functions import find_handler
from tensordict_core.base.registry.types import containers
from tensordict_core.base.write_back import Block, WriteBack
from tensordict_core.ops.apply import Applying
from tensordict_core.ops.cast import Casting
from tensordict_core.ops.compare import Comparison
from tensordict_core.ops.compat.deprecated import DeprecatedNames
from tensordict_core.ops.compat.load import LoadStubs
from tensordict_core.ops.compat.memmap import MemmapStubs
from tensordict_core.ops.compat.modules import ModuleStubs
from tensordict_core.ops.compat.private_names import PrivateNames
from tensordict_core.ops.compat.stores import StoreStubs
from tensordict_core.ops.compat.tables import TableStubs
from tensordict_core.ops.creation import Creation
from tensordict_core.ops.entries.flatten_keys import KeyFlattening
from tensordict_core.ops.entries.removal import Removal
from tensordict_core.ops.entries.select import KeySelection
from tensordict_core.ops.entries.update import Updating
from tensordict_core.ops.grad import Autograd
from tensordict_core.ops.indexing import Indexing
from tensordict_core.ops.io.format import Representation
from tensordict_core.ops.io.pack import Packing
from tensordict_core.ops.io.pickling import Serialization
from tensordict_core.ops.io.schema import Schemas
from tensordict_core.ops.io.to_python import Conversion
from tensordict_core.ops.masking import Masking
from tensordict_core.ops.names import DimNames
from tensordict_core.ops.parallel.distributed.collectives import Collectives
from tensordict_core.ops.parallel.distributed.point_to_point import PointToPoint
from tensordict_core.ops.parallel.distributed.remote_init import RemoteInit
from tensordict_core.ops.parallel.multiprocessing.map import ProcessMapping
from tensordict_core.ops.parallel.multiprocessing.shared_memory import SharedMemory
from tensordict_core.ops.pointwise import Pointwise
from tensordict_core.ops.properties import Properties
from tensordict_core.ops.reduce import Reduction
from tensordict_core.ops.shape.rearrange import Rearrangement
from tensordict_core.ops.shape.split import Splitting
from tensordict_core.ops.shape.stack import Stacking
from tensordict_core.ops.tensor_spec import TensorSpecs

subclass_hooks: list[Callable[[type[Any]], None]] = []
"""Called with every container class that is defined from then on, to register it with PyTorch."""


class TensorCollection(
    Removal,
    Updating,
    KeySelection,
    Indexing,
    Rearrangement,
    Splitting,
    Stacking,
    Pointwise,
    Comparison,
    Reduction,
    Masking,
    Casting,
    Autograd,
    Creation,
    Applying,
    KeyFlattening,
    Conversion,
    Serialization,
    Schemas,
    Packing,
    ProcessMapping,
    SharedMemory,
    PointToPoint,
    Collectives,
    RemoteInit,
    LoadStubs,
    MemmapStubs,
    ModuleStubs,
    StoreStubs,
    TableStubs,
    Locking,
    DimNames,
    Properties,
    TensorSpecs,
    Representation,
    DeprecatedNames,
    PrivateNames,
):
    """The base class of containers of tensors that behave like one tensor of their batch size.

    >>> from tensordict_core import NonTensorData, TensorCollection
    >>> isinstance(TensorDict(), TensorCollection), isinstance(NonTensorData("text"), TensorCollection)
    (True, True)
    """

    __slots__ = ("__weakref__",)

    __array_ufunc__ = None
    """Makes NumPy use the operators of tensordicts: ``numpy.float64(2) * td`` is ``td * 2``."""

    _combines_others = False
    """Whether this container's ``_stack`` and ``_cat`` accept other containers among the items."""

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        """Check that a new container class implements the abstract methods of `Node`.

        A class with abstract methods of its own has no instances, as a class with the metaclass `abc.ABCMeta`.

        Args:
            abstract: Whether the class is a base of containers and may leave some to its subclasses.
            **kwargs: Arguments of other base classes.

        Raises:
            TypeError: An abstract method is not implemented.
        """
        super().__init_subclass__(**kwargs)
        if not abstract:
            cls._check_complete()
            cls._note_abstract_methods()
        for register in subclass_hooks:
            register(cls)

    @classmethod
    def _note_abstract_methods(cls) -> None:
        """Set ``__abstractmethods__``, for which ``object.__new__`` refuses a class, as `abc.ABCMeta` does."""
        inherited = {name for base in cls.__bases__ for name in getattr(base, "__abstractmethods__", ())}
        own = {name for name, member in vars(cls).items() if getattr(member, "__isabstractmethod__", False)}
        if own or inherited:
            left = {name for name in inherited if getattr(getattr(cls, name), "__isabstractmethod__", False)}
            type.__setattr__(cls, "__abstractmethods__", frozenset(own | left))

    # methods that containers may override besides those of Node --------------------------------------------------

    def _new(self, entries: dict[str, Any], meta: Meta) -> Any:
        """Return a `TensorDict` of valid entries for any container."""
        return containers.dense._make(entries, meta)

    def _entry_value(self, holder: Any = None, key: str = "") -> Any:
        """Return the result of ``td[key]`` for an entry that is this node.

        With the container and the key that it was read from, writes to the result change the entry of the container.
        """
        return self

    def _unwritten(self, size: torch.Size) -> Any:
        """Return the node of batch size ``size`` that an indexed write of this node adds, before it is written."""
        return self._new({}, Meta(size, self._meta.device))

    @classmethod
    def _lazy(cls, items: Sequence[Any], dim: int) -> Any:
        """Stack nodes of this type lazily; a tensorclass wraps the lazy stack of its tensordicts."""
        return containers.lazy._make(items, dim)

    def _view_at(self, index: Index) -> Any:
        """Return a live view of the part that ``index`` selects; a tensorclass wraps the view of its tensordict."""
        return containers.view._make(self, index)

    def _disk_form(self) -> tuple[dict[str, Any], dict[str, Any]] | TensorCollection | None:
        """Return the state that a save stores for a container that is not a dictionary: JSON values and nodes.

        ``None`` means that the container is a dictionary of entries, and a container that it is saved as that one. A
        tensorclass returns ``({}, {"_tensordict": td})`` with its tensordict. The nodes are not copies, so that entries
        can be replaced in place.
        """
        return None

    def _mapped(self, result: Any) -> Any:
        """Return the mapped tensordict of a save of this container, as an instance of this class."""
        return result

    @classmethod
    def _from_mapped(cls, result: Any) -> Any:
        """Return a tensordict that was loaded by this class, as an instance of it."""
        return result

    @classmethod
    def _from_disk_form(cls, facts: dict[str, Any], parts: dict[str, Any]) -> Any:
        """Return the container with the state that ``_disk_form`` returned."""
        raise TypeError(f"{cls.__name__} is a dictionary of entries and has no other state")

    # torch functions and with blocks ----------------------------------------------------------------------------------

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the handler of a ``torch`` function; a function without a handler raises a ``TypeError``.

        Operators of higher order, into which Dynamo turns calls such as ``torch.utils.checkpoint.checkpoint``, take
        tensordicts as trees of tensors.
        """
        handler = find_handler(func)
        if handler is None and isinstance(func, HigherOrderOperator):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if handler is None:
            return NotImplemented  # so that torch raises
        return handler(*args, **kwargs) if kwargs else handler(*args)

    def __enter__(self) -> Self:
        """Start a block whose end undoes the operation that returned this tensordict (``lock_``, ``to_module``, ...).

        If the operation returned a view or a copy (``view``, ``squeeze``, ``flatten_keys``, ``to``, ...), the end
        writes entries that were added or replaced in the block back to the source, unless the block raises. Entries
        that were deleted in the block stay in the source.

        >>> td = TensorDict({"a": torch.zeros(2, 3)}, [2, 3])
        >>> with td.view(-1) as flat:
        ...     flat["index"] = torch.arange(6)
        >>> td["index"]
        tensor([[0, 1, 2],
                [3, 4, 5]])
        """
        if self._annotations is None:
            self._annotations = {}
        undo = self._last_exit
        self._annotations.setdefault("exits", []).append(Block(undo, self) if isinstance(undo, WriteBack) else undo)
        self._set_exit(None)
        return self

    def __exit__(self, kind: Any = None, *error: Any) -> None:
        """End the block."""
        annotations: Any = self._annotations  # __enter__ has set "exits"
        undo = annotations["exits"].pop()
        if undo is not None and (kind is None or not isinstance(undo, Block)):
            undo(self)


def _hold_inherited(cls: type[Any]) -> None:
    """Put the members of the families into the class that combines them, where lookups find the same objects earlier.

    At each call, a compiled function checks that no class in front of the one that defines a method overrides it. With
    forty families, these checks would take longer than all others.
    """
    for base in cls.__mro__[1:-1]:
        for name, member in vars(base).items():
            if name not in _OF_ONE_CLASS and name not in vars(cls):
                setattr(cls, name, member)


_OF_ONE_CLASS = {"__annotations__", "__dict__", "__doc__", "__module__", "__slots__", "__weakref__"}

_hold_inherited(TensorCollection)


class TensorDictBase(TensorCollection, abstract=True):
    """The base class of all tensordicts: dense ones, lazy stacks, views and parameters.

    ``isinstance(x, TensorDictBase)`` tests for a tensordict of any kind.

    >>> from tensordict_core import NonTensorData, TensorDictBase
    >>> isinstance(TensorDict(), TensorDictBase), isinstance(NonTensorData("text"), TensorDictBase)
    (True, False)
    """

    __slots__ = ()

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        """Return an alias for annotations, such as ``TensorDict[str, Tensor]``."""
        return GenericAlias(cls, item)


def is_tensordict(value: Any) -> TypeGuard[TensorDictBase]:
    """Return whether a value is a tensordict of any kind with entries, and no tensorclass or stack of values.

    >>> from tensordict_core import NonTensorStack
    >>> is_tensordict(TensorDict()), is_tensordict(NonTensorStack("a", "b"))
    (True, False)
    """
    return isinstance(value, TensorDictBase) and not value._is_opaque


MutableMapping.register(TensorDictBase)  # type: ignore[type-abstract]  # a virtual base
