"""Packing: all leaves as the features of one tensor, and the layout that takes them apart again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import NestedKey, unravel_key, unravel_key_to_tuple
from tensordict_core.base.node import Node
from tensordict_core.base.registry.types import containers


@dataclass(frozen=True)
class PackLayout:
    """The position of each leaf in a tensor that `TensorDictBase.pack` returned; hashable, and compared by value.

    Args:
        keys: The keys of the leaves, in the order of their columns.
        shapes: For each leaf its shape behind the batch dimensions.
        dim: The packed dimension, counted from the end.
        nested: For each nested tensordict its key, its batch size behind the batch dimensions of the root, and its
            class if it is a tensorclass.
        device: The device of the packed tensordict.
        cls: The class of the packed tensordict, if it is a tensorclass.

    Attributes:
        offsets: The first column of each leaf.
        numel: The number of columns.

    Raises:
        ValueError: The numbers of keys and shapes differ.

    >>> flat, layout = TensorDict({"p": torch.zeros(5), "v": torch.ones(5, 3)}, [5]).pack()
    >>> layout.keys, layout.offsets, layout.numel, flat.shape
    (('p', 'v'), (0, 1), 4, torch.Size([5, 4]))
    >>> layout.unpack(flat[:2])["v"].shape
    torch.Size([2, 3])
    """

    keys: tuple[NestedKey, ...]
    shapes: tuple[torch.Size, ...]
    dim: int = -1
    nested: tuple[tuple[NestedKey, torch.Size, type | None], ...] = ()
    device: torch.device | None = None
    cls: type | None = None
    offsets: tuple[int, ...] = field(init=False)
    numel: int = field(init=False)

    def __post_init__(self) -> None:
        """Convert shapes, and find the columns."""
        shapes = tuple(map(torch.Size, self.shapes))
        if len(shapes) != len(self.keys):
            raise ValueError(f"a layout has {len(self.keys)} keys and {len(shapes)} shapes; give a shape for each key")
        nested = tuple((key, torch.Size(size), cls) for key, size, cls in self.nested)
        offsets, numel = [], 0
        for shape in shapes:
            offsets.append(numel)
            numel += math.prod(shape)
        for name, value in (("shapes", shapes), ("nested", nested), ("offsets", tuple(offsets)), ("numel", numel)):
            object.__setattr__(self, name, value)  # the dataclass is frozen

    def unpack(self, flat: Tensor) -> Any:
        """Return the tensordict of a packed tensor; its leaves are views of the tensor.

        Args:
            flat: A tensor with ``numel`` entries along ``dim``. Its other dimensions are the batch size of the result,
                which need not be that of the packed tensordict.

        Raises:
            ValueError: The tensor has another number of columns, or too few dimensions.

        >>> flat, layout = TensorDict({"p": torch.zeros(2), "n": {"v": torch.ones(2, 3)}}, [2]).pack()
        >>> td = layout.unpack(flat)
        >>> td["n", "v"].shape, td["p"].data_ptr() == flat[:, 3].data_ptr()
        (torch.Size([2, 3]), True)
        """
        if not -flat.ndim <= self.dim < flat.ndim:
            raise ValueError(f"a tensor of {flat.ndim} dimensions has no dim {self.dim}; pass one that pack() returned")
        if flat.shape[self.dim] != self.numel:
            raise ValueError(
                f"the packed tensor has {flat.shape[self.dim]} entries along dim {self.dim}, and the layout has "
                f"{self.numel}; pass a tensor of this layout"
            )
        flat = flat.movedim(self.dim, -1)
        size = flat.shape[:-1]
        device = None if self.device is None else flat.device
        made: dict[tuple[str, ...], Any] = {(): containers.dense(batch_size=size, device=device)}
        for key, extra, _ in self.nested:
            made[unravel_key_to_tuple(key)] = containers.dense(batch_size=(*size, *extra), device=device)
        for key, shape, start in zip(self.keys, self.shapes, self.offsets, strict=True):
            *parent, name = unravel_key_to_tuple(key)
            leaf = flat[..., start : start + math.prod(shape)].reshape((*size, *shape))
            path = tuple(parent)
            if path in made:
                made[path].set(name, leaf)
            else:  # a layout that was written by hand need not list nested tensordicts
                made[()].set(key, leaf)
        # the inner ones first: a tensordict that is stored may be copied
        for key, _, cls in sorted(self.nested, key=lambda entry: -len(unravel_key_to_tuple(entry[0]))):
            path = unravel_key_to_tuple(key)
            node = made[path]
            parent_node = made.get(path[:-1])
            value = node if cls is None else _instance(cls, node)
            if parent_node is None:
                made[()].set(key, value)
            else:
                parent_node.set(path[-1], value)
        return made[()] if self.cls is None else _instance(self.cls, made[()])


def _instance(cls: Any, td: Any) -> Any:
    return cls.from_tensordict(td)


def _class_of(value: Any) -> type | None:
    """Return the class of a tensorclass instance; ``None`` for other containers."""
    return type(value) if getattr(type(value), "_is_tensorclass_instance", False) else None


class Packing(Node):
    """``pack``."""

    __slots__ = ()

    def pack(self, dim: int = -1, *, layout: PackLayout | None = None) -> tuple[Tensor, PackLayout]:
        """Return all leaves as the features of one contiguous tensor, and the layout that takes them apart again.

        Args:
            dim: The position of the features among the batch dimensions, as for `torch.stack`.
            layout: A layout whose order of leaves is used; by default leaves are in alphabetical order of their keys.

        Returns:
            A tensor of the batch size and one dimension more, and the layout.

        Raises:
            IndexError: ``dim`` is out of range.
            TypeError: An entry is non-tensor data, or leaves differ in dtype or device.
            KeyError: The leaves are not those of ``layout``.
            ValueError: A shape or ``dim`` is not that of ``layout``.

        >>> td = TensorDict({"b": torch.zeros(2, 3), "a": torch.ones(2)}, [2])
        >>> flat, layout = td.pack()
        >>> flat, layout.keys
        (tensor([[1., 0., 0., 0.],
                [1., 0., 0., 0.]]), ('a', 'b'))
        """
        size = self._meta.batch_size
        dims = len(size)
        if not -dims - 1 <= dim <= dims:
            raise IndexError(
                f"dim {dim} is out of range for {dims} batch dimensions and the packed one; use a dim from "
                f"{-dims - 1} to {dims}"
            )
        at = dim if dim < 0 else dim - dims - 1
        items = list(self.items(True, sort=True))
        leaves = _packable([((), self), *items])
        shapes = {key: leaf.shape[dims:] for key, leaf in leaves.items()}
        if layout is None:
            nested = tuple(
                (key, value.batch_size[dims:], _class_of(value)) for key, value in items if isinstance(value, Node)
            )
            layout = PackLayout(tuple(leaves), tuple(shapes.values()), at, nested, self.device, _class_of(self))
            keys: Iterable[Any] = leaves
        else:
            _check_layout(layout, shapes, at)
            keys = map(unravel_key, layout.keys)
        columns = [
            leaves[key] if len(shapes[key]) == 1 else leaves[key].reshape((*size, math.prod(shapes[key])))
            for key in keys
        ]
        flat = torch.cat(columns, -1) if columns else torch.zeros((*size, 0), device=self.device)
        return flat if at == -1 else flat.movedim(-1, at).contiguous(), layout


def _packable(items: Iterable[tuple[Any, Any]]) -> dict[Any, Tensor]:
    """Return the leaves among the entries of all levels, by key."""
    leaves: dict[Any, Tensor] = {}
    first: Tensor | None = None
    for key, value in items:
        if not isinstance(value, Node):
            first = value if first is None else first
            if value.dtype is not first.dtype or value.device != first.device:
                raise TypeError(
                    f"key {key!r} is {value.dtype} on {value.device}, and the leaves before it are {first.dtype} on "
                    f"{first.device}; cast or move the tensordict first"
                )
            leaves[key] = value
        elif exclusive := value._inmost()._exclusive_keys():
            raise errors.StackError(
                f"the elements of the lazy stack{f' {key!r}' if key else ''} have different keys, and pack() needs the "
                f"same in all of them: only some have {sorted(set().union(*exclusive.values()))}; select the common "
                "keys"
            )
        elif value._is_opaque:
            raise TypeError(
                f"key {key!r} is a {type(value).__name__}, and pack() takes tensors; leave it out with exclude() "
                "or filter_non_tensor_data()"
            )
    return leaves


def _check_layout(layout: PackLayout, shapes: dict[Any, torch.Size], dim: int) -> None:
    if not isinstance(layout, PackLayout):
        raise TypeError(f"layout is a PackLayout, got {type(layout).__name__}; pass one that pack() returned")
    expected: Iterable[Any] = map(unravel_key, layout.keys)
    wanted = dict(zip(expected, layout.shapes, strict=True))
    if wanted.keys() != shapes.keys():
        raise KeyError(
            f"the leaves {list(shapes)} are not those of the layout, {list(wanted)}; select them, or pack without a "
            "layout"
        )
    for key, shape in wanted.items():
        if shapes[key] != shape:
            raise ValueError(
                f"key {key!r} has the shape {list(shapes[key])} behind the batch dimensions, and {list(shape)} in the "
                "layout; reshape it, or pack without a layout"
            )
    if layout.dim != dim:
        raise ValueError(f"dim {dim}, counted from the end, is not that of the layout, {layout.dim}; pass the same dim")
