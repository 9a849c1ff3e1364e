"""Creation: ``new_zeros``, ``new_full``, ... return tensordicts with the keys and dtypes of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import unravel_key
from tensordict_core.base.meta import Meta, as_batch_size, as_device, names_or_none
from tensordict_core.base.node import Node, has_entries, is_leaf_tensor
from tensordict_core.base.rebuild import KEEP, How
from tensordict_core.base.registry.types import containers
from tensordict_core.base.signature import check_options, with_options
from tensordict_core.ops.factories.reduction import batched

N = TypeVar("N", bound=Node)


class NewOptions(TypedDict, total=False):
    """The options of ``new_zeros``, ``new_ones``, ``new_empty`` and ``new_full``."""

    dtype: torch.dtype | None
    device: torch.device | str | int | None
    requires_grad: bool
    layout: torch.layout
    pin_memory: bool | None
    empty_lazy: bool


def _as_size(size: tuple[Any, ...]) -> torch.Size:
    if len(size) == 1 and not isinstance(size[0], int | torch.SymInt):
        size = tuple(size[0])
    return as_batch_size(size)


def _blank_values(result: Any, source: Any) -> None:
    """Replace each `NonTensorStack` of a new tensordict by one of ``None``: its positions have no values yet."""
    for key in source._keys():
        value = source._get(key)
        if isinstance(value, Node) and value._holds_values:
            result._set(key, containers.non_tensor_stack._full(None, result._get(key)._meta))
        elif has_entries(value) and value._lazy_stack is None:
            _blank_values(result._get(key), value)


def _hollow(td: Any, size: torch.Size, dims: int) -> Any:
    """Return the nested tensordicts of a tree without their tensors and values, over a batch size."""
    meta = Meta(torch.Size((*size, *td._meta.batch_size[dims:])), td._meta.device)
    nested = {key: value for key, value in td._items() if has_entries(value)}
    return _typed(td, {key: _hollow(value, size, dims) for key, value in nested.items()}, meta)


def _without_slices(td: Any, size: torch.Size, dims: int) -> Any:
    """Return the tree with its lazy stacks replaced by empty ones of the new batch size."""
    if (stack := td._lazy_stack) is not None:
        new = torch.Size((*size, *td._meta.batch_size[dims:]))
        at = stack.stack_dim
        if at >= len(new):
            raise RuntimeError(
                f"empty_lazy=True keeps the stack dimension {at}, which the new batch size {list(new)} does not "
                "have; add that dimension"
            )
        rest = torch.Size((*new[:at], *new[at + 1 :]))
        elements = stack.tensordicts[:1] * new[at]
        items = [_hollow(element, rest, len(element._meta.batch_size)) for element in elements]
        return containers.lazy.lazy_stack(items, at) if items else td._new({}, Meta(new))
    entries = {}
    for key in td._keys():
        value = td._get(key)
        entries[key] = value if not isinstance(value, Node) or value._is_opaque else _without_slices(value, size, dims)
    return _typed(td, entries, td._meta)


def _typed(td: Any, entries: dict[str, Any], meta: Meta) -> Any:
    """Return a node of the type of ``td``, which may be a tensorclass, with other entries and metadata."""
    made = td._new(entries, meta)
    if type(made) is type(td) or td._lazy_stack is not None:
        return made
    typed = td.empty(batch_size=meta.batch_size, device=meta.device, names=meta.names)
    for key, value in entries.items():
        typed._set(key, value)
    return typed


def _named_from_the_end(names: tuple[str | None, ...], dims: int) -> tuple[str | None, ...]:
    """Return the names of the last dimensions; further ones in front have none."""
    return (None,) * (dims - len(names)) + names[max(len(names) - dims, 0) :]


def _sized(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method of torch as a function of a shape; it parses separate sizes in half the time of a tuple."""
    return lambda leaf, shape, **kwargs: method(leaf, *shape or ((),), **kwargs)


def _new(name: str, td: N, size: torch.Size, create: Callable[..., Tensor], options: NewOptions) -> N:
    """Return the tree with new leaves over the batch size ``size``, each made by ``create(leaf, shape, **options)``."""
    check_options(name, options, NewOptions)
    if any(n < 0 for n in size):
        raise errors.SizeError(f"the size {list(size)} of {name}() has a negative number; pass sizes of 0 or more")
    dims = len(td._meta.batch_size)
    asked = options.get("device", KEEP)
    device = td._meta.device if asked is KEEP else as_device(asked)
    # torch takes time for each option, so defaults are left out
    kwargs: dict[str, Any] = {} if asked is KEEP else {"device": device}
    kwargs |= {key: options[key] for key in ("dtype", "layout") if options.get(key) is not None}
    if options.get("pin_memory"):
        kwargs["pin_memory"] = True
    requires_grad = options.get("requires_grad", False)

    def new(leaf: Tensor, shape: torch.Size) -> Tensor:
        made = create(leaf, shape, **kwargs)
        return made.requires_grad_() if requires_grad else made

    if options.get("empty_lazy"):
        return cast(N, _new_without_slices(td, size, new, device))
    td = td._solid()
    flags = batched(td)
    leaves = [
        new(leaf, size + leaf.shape[dims:] if has_batch else leaf.shape)
        for leaf, has_batch in zip(td._leaves(), flags, strict=True)
    ]
    how = _resized(size, dims, device)
    # an unbatched tensor keeps its values when the batch size changes, so it is replaced first
    renewed = td if all(flags) else td._rebuild(iter(leaves), How(device=device))
    result = renewed._rebuild(iter(leaves), how)
    if size != td._meta.batch_size:
        _blank_values(result, td)
    return result


def _resized(size: torch.Size, dims: int, device: Any) -> How:
    """Return how nodes are rebuilt whose first ``dims`` sizes are replaced; the names of the last of them stay."""
    return How(
        size=lambda own: torch.Size((*size, *own[dims:])),
        names=lambda own: own and _named_from_the_end(own, len(own) - dims + len(size)),
        device=device,
    )


def _new_without_slices(td: Any, size: torch.Size, new: Callable[[Tensor, torch.Size], Tensor], device: Any) -> Any:
    dims = len(td._meta.batch_size)
    emptied = _without_slices(td, size, dims)
    if td._lazy_stack is not None:
        return emptied
    entries: dict[str, Any] = {}
    for key in td._keys():
        value = td._get(key)
        if is_leaf_tensor(value):
            entries[key] = new(value, size + value.shape[dims:])
        elif value._is_opaque:
            entries[key] = value._rebuild(iter(value._leaves()), _resized(size, dims, device))
        else:
            nested = torch.Size((*size, *value._meta.batch_size[dims:]))
            entries[key] = _new_without_slices(value, nested, new, device)
    names = td._meta.names and _named_from_the_end(td._meta.names, len(size))
    result = _typed(td, entries, Meta(size, device, names_or_none(names)))
    _blank_values(result, td)
    return result


class Creation(Node):
    """``new_zeros``, ``new_ones``, ``new_empty``, ``new_full`` and ``new_tensor``."""

    __slots__ = ()

    @with_options(NewOptions)
    def new_zeros(self, *size: Any, **options: Unpack[NewOptions]) -> Self:
        """Return zeros of another batch size: a leaf of shape ``[*batch_size, *own]`` becomes ``[*size, *own]``.

        Args:
            *size: The batch size, as integers or as one sequence.
            dtype: The dtype of all leaves; by default each keeps its own.
            device: The device of all leaves; by default each keeps its own.
            requires_grad: Whether autograd records operations on the leaves.
            layout: The layout of the leaves.
            pin_memory: Whether they are in pinned memory.
            empty_lazy: Whether lazy stacks of the result have no entries.

        >>> TensorDict({"a": torch.ones(3, 4)}, [3]).new_zeros(2)["a"].shape
        torch.Size([2, 4])
        """
        return _new("new_zeros", self, _as_size(size), _sized(Tensor.new_zeros), options)

    @with_options(NewOptions)
    def new_ones(self, *size: Any, **options: Unpack[NewOptions]) -> Self:
        """Return ones of another batch size; arguments are those of ``new_zeros``.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).new_ones(2)["a"]
        tensor([1., 1.])
        """
        return _new("new_ones", self, _as_size(size), _sized(Tensor.new_ones), options)

    @with_options(NewOptions)
    def new_empty(self, *size: Any, **options: Unpack[NewOptions]) -> Self:
        """Return uninitialized leaves of another batch size; arguments are those of ``new_zeros``.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).new_empty(2, 2)["a"].shape
        torch.Size([2, 2])
        """
        return _new("new_empty", self, _as_size(size), _sized(Tensor.new_empty), options)

    @with_options(NewOptions)
    def new_full(self, size: Any, fill_value: float | bool, **options: Unpack[NewOptions]) -> Self:
        """Return leaves of another batch size, filled with one number.

        Args:
            size: The batch size, an integer or a sequence.
            fill_value: The number.
            dtype: The dtype of all leaves; by default each keeps its own.
            device: The device of all leaves; by default each keeps its own.
            requires_grad: Whether autograd records operations on the leaves.
            layout: The layout of the leaves.
            pin_memory: Whether they are in pinned memory.
            empty_lazy: Whether lazy stacks of the result have no entries.

        >>> TensorDict({"a": torch.zeros(3)}, [3]).new_full([2], 7)["a"]
        tensor([7., 7.])
        """

        def full(leaf: Tensor, shape: torch.Size, **kwargs: Any) -> Tensor:
            return leaf.new_full(shape, fill_value, **kwargs)

        return _new("new_full", self, _as_size((size,)), full, options)

    def new_tensor(
        self,
        data: Any,
        *,
        dtype: torch.dtype | None = None,
        device: Any = KEEP,
        requires_grad: bool = False,
        pin_memory: bool | None = None,
    ) -> Self:
        """Return a copy of ``data`` for each leaf, in its dtype.

        Args:
            data: A tensor, array, number or list, whose shape is the batch size of the result; or a tensordict, whose
                entries are matched by key.
            dtype: The dtype of all leaves; by default each keeps its own.
            device: The device of all leaves; by default that of ``data``.
            requires_grad: Whether autograd records operations on the leaves.
            pin_memory: Whether they are in pinned memory.

        Raises:
            KeyError: ``data`` is a tensordict that lacks a key.

        >>> TensorDict({"a": torch.zeros(3), "b": torch.zeros(3, dtype=torch.int64)}, [3]).new_tensor([1, 2])["b"]
        tensor([1, 2])
        """
        td = self._solid()
        leaves = td._leaves()
        if isinstance(data, Node):
            sources = td._align(data, KEEP)
            size, source_device = data._meta.batch_size, data._meta.device
            for key, source in zip(td._leaf_keys(), sources, strict=True):
                if not isinstance(source, Tensor):
                    raise TypeError(
                        f"key {unravel_key(key)!r} holds a {type(source).__name__} in the data of new_tensor, and a "
                        "tensor here; give data of the same structure"
                    )
        else:
            tensor = torch.as_tensor(data)
            sources, size, source_device = [tensor] * len(leaves), tensor.shape, tensor.device
        target = source_device if device is KEEP else as_device(device)
        copies = []
        for leaf, source in zip(leaves, sources, strict=True):
            copy = source.detach().to(
                device=source.device if device is KEEP else target,
                dtype=leaf.dtype if dtype is None else dtype,
                copy=True,
            )
            copies.append((copy.pin_memory() if pin_memory else copy).requires_grad_(requires_grad))
        dims = len(td._meta.batch_size)
        how = How(
            size=lambda own: torch.Size((*size, *own[dims:])) if isinstance(data, Node) else size,
            device=None if device is KEEP and td._meta.device is None else target,
        )
        result = td._rebuild(iter(copies), how)
        if size != td._meta.batch_size:
            _blank_values(result, td)
        return result
