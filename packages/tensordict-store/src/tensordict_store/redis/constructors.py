"""Constructors: class methods that store a tensordict on a server or open one that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from tensordict_core import TensorDict, is_tensorclass
from tensordict_core.extension import CustomContainer, Meta, Node, as_batch_size, as_device, find_type, with_options
from tensordict_store.nodes import around, inside
from tensordict_store.redis.options import DEFAULTS, ServerOptions, StoreOptions, tree_at
from tensordict_store.redis.tree import Change, Path, Tree
from tensordict_store.redis.writes import add_zeros


class Constructors:
    """``from_tensordict``, ``from_dict``, ``from_store`` and ``from_schema``."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, **arguments: Any) -> None: ...
        @classmethod
        def _at(cls, tree: Tree, path: Path, meta: Meta, allow_pickle: bool) -> Self: ...
        def _create(self, change: Change) -> None: ...
        def _add_node(self, path: Path, node: Any, change: Change, facts: dict[str, Any]) -> None: ...

    @classmethod
    @with_options(StoreOptions, DEFAULTS)
    def from_tensordict(
        cls,
        td: Any,
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Store a tensordict on a server, in one request.

        Args:
            td: The tensordict.
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            device: The device of tensors that are read; by default the device of the tensordict.
            **options: More options of the constructor.

        Raises:
            ConnectionError: The server does not answer.
            TypeError: An entry cannot be stored; the error names its key.

        >>> from tensordict_store import TensorDictStore
        >>> TensorDictStore.from_tensordict(TensorDict({"a": torch.arange(3)}, [3]))[1:]["a"]
        tensor([1, 2])
        """
        tree = tree_at(options)
        if is_tensorclass(td):
            td = inside(td)
        own = td._meta
        meta = Meta(own.batch_size, as_device(options.get("device")) or own.device, own.names)
        self = cls._at(tree, (), meta, bool(options.get("allow_pickle")))
        change = Change()
        self._add_node((), td._now() if isinstance(td, CustomContainer) else td._solid(), change, {})
        self._create(change)
        return self

    @classmethod
    @with_options(StoreOptions, DEFAULTS)
    def from_dict(
        cls,
        input_dict: Any,
        *,
        auto_batch_size: bool = False,
        batch_size: Sequence[int] | int | None = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Store a dictionary on a server, in one request.

        Args:
            input_dict: The dictionary, which may be nested.
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            auto_batch_size: Whether the batch size is the longest common prefix of all shapes.
            batch_size: The batch size; by default none.
            device: The device of tensors that are read.
            batch_dims: The maximum number of batch dimensions with ``auto_batch_size``.
            names: A name for each batch dimension.
            **options: More options of the constructor.

        >>> from tensordict_store import TensorDictStore
        >>> TensorDictStore.from_dict({"a": torch.arange(3)}, batch_size=[3])[1:]["a"]
        tensor([1, 2])
        """
        td = input_dict if isinstance(input_dict, Node) else TensorDict(input_dict, batch_size, names=names)
        if auto_batch_size:
            td = td._clone(False).auto_batch_size_(batch_dims)
        return cls.from_tensordict(td, **options)

    @classmethod
    @with_options(ServerOptions, DEFAULTS)
    def from_store(
        cls,
        *,
        td_id: str,
        tensorclass_cls: type | str | None = None,
        **options: Unpack[ServerOptions],
    ) -> Any:
        """Open a tensordict that is stored on a server.

        Args:
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            td_id: The id of the tensordict.
            device: The device of tensors that are read.
            tensorclass_cls: The tensorclass of the result, or its registered name.
            **options: More options of the constructor.

        Raises:
            KeyError: The server has no tensordict with this id.
            ConnectionError: The server does not answer.

        >>> from tensordict_store import TensorDictStore
        >>> stored = TensorDictStore.from_dict({"a": torch.arange(3)}, batch_size=[3])
        >>> TensorDictStore.from_store(td_id=stored.td_id)[1:]["a"]
        tensor([1, 2])
        """
        store = cls(td_id=td_id, **options)
        chosen: Any = find_type(tensorclass_cls) if isinstance(tensorclass_cls, str) else tensorclass_cls
        if tensorclass_cls is not None and (chosen is None or not is_tensorclass(chosen)):
            raise TypeError(f"tensorclass_cls={tensorclass_cls!r} is not a tensorclass; pass the class itself")
        return store if chosen is None else around(chosen, store)

    @classmethod
    @with_options(StoreOptions, DEFAULTS)
    def from_schema(
        cls,
        schema: Mapping[Any, Any],
        *,
        batch_size: Sequence[int] | int | None = None,
        **options: Unpack[StoreOptions],
    ) -> Self:
        """Make a tensordict of zeros on a server; the zeros are not sent.

        Args:
            schema: For each key the shape behind the batch dimensions and the dtype; a dictionary nests.
            batch_size: The batch size; by default none.
            backend: This and the following arguments are those of the constructor.
            host: The host of the server.
            port: The port of the server.
            db: The number of the database.
            unix_socket_path: The socket of a server on this machine.
            prefix: The first part of all names on the server.
            device: The device of tensors that are read.
            **options: More options of the constructor.

        >>> from tensordict_store import TensorDictStore
        >>> buffer = TensorDictStore.from_schema({"a": ([2], torch.float32)}, batch_size=[1000])
        >>> buffer[3]["a"]
        tensor([0., 0.])
        """
        size = as_batch_size(batch_size)
        td = TensorDict.from_schema(schema, batch_size=size, device="meta")
        tree = tree_at(options)
        self = cls._at(tree, (), Meta(size, as_device(options.get("device"))), bool(options.get("allow_pickle")))
        change = Change()
        add_zeros((), td, change)
        self._create(change)
        return self
