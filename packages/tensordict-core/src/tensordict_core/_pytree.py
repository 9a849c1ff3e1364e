"""Containers as pytree nodes: what ``torch.vmap``, ``torch.func``, ``torch.export`` and ``tree_map`` see of them.

A node's children are its entries. Its context holds the number of batch dimensions rather than their sizes: the batch
size of a node that is put together again is read off its leaves, so a function of leaves may change it and dynamic
shapes stay dynamic. ``vmap`` takes a dimension from each leaf on the way in and adds one on the way out; the leaves say
which, so batch size, names, lazy stacks and non-tensor values follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as registry

from ._compile import is_compiling, mapped_dim, mapped_size, mapped_strides, transform_level
from ._meta import Meta, Names
from ._primitives import Primitives
from ._rebuild import How
from .lazy import LazyStackedTensorDict
from .nontensor import MetaData, NonTensorData, NonTensorStack
from .subtensordict import SubTensorDict
from .tensorattrs import TensorAttrs
from .tensordict import TensorDict
from .unbatched import UnbatchedTensor

__all__ = ["Mapped", "register_nodes", "register_wrapper"]


class Change(NamedTuple):
    """A batch dimension that ``vmap`` took (``gained`` false) or added."""

    dim: int
    gained: bool
    unsure: bool = False
    """Whether equal sizes leave open which of several dimensions it is."""

    def size(self, size: torch.Size, count: int | None) -> torch.Size:
        """The batch size after the change; ``count`` is the size of a dimension that was added."""
        if not self.gained:
            return torch.Size((*size[: self.dim], *size[self.dim + 1 :]))
        return torch.Size((*size[: self.dim], count, *size[self.dim :]))  # type: ignore[arg-type]

    def names(self, names: Names) -> Names:
        """The names after the change; none where they might stand at the wrong dimension."""
        if names is None or self.unsure:
            return None
        rest = (None, *names[self.dim :]) if self.gained else names[self.dim + 1 :]
        new = (*names[: self.dim], *rest)
        return new if any(name is not None for name in new) else None


_LOST = tuple(Change(dim, gained=False) for dim in range(4))  # made once: every node of a tree that vmap maps asks
_GAINED = Change(0, gained=True)


class Mapped(list[Any]):
    """Non-tensor values along a dimension that ``vmap`` took: a function inside sees all; they come out again."""


class Layout:
    """The context of a node: everything but its children.

    Two layouts are equal where their trees can be exchanged: sizes are not compared, because leaves have their own.
    """

    __slots__ = ("extra", "keys", "kind", "level", "meta", "shapes", "strides")

    def __init__(
        self,
        kind: str,
        keys: tuple[str, ...],
        meta: Meta,
        extra: Any = None,
        shapes: tuple[torch.Size | None, ...] = (),
        level: int | None = None,
        strides: Sequence[tuple[int, tuple[int, ...]] | None] | None = None,
    ) -> None:
        self.kind = kind
        self.keys = keys
        self.meta = meta
        self.extra = extra
        self.shapes = shapes
        self.level = level
        self.strides = strides

    def _compared(self) -> tuple[Any, ...]:
        meta = self.meta
        return (self.kind, self.keys, len(meta.batch_size), meta.device, meta.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout) or self._compared() != other._compared():
            return False
        return _same_extra(self.extra, other.extra)

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        return f"{self.kind}(keys={list(self.keys)}, batch_dims={len(self.meta.batch_size)})"


def _same_extra(a: Any, b: Any) -> bool:
    try:
        return a is b or bool(a == b)
    except (RuntimeError, ValueError, TypeError):  # values that cannot be compared, such as arrays in a list
        return False


_TENSORS = (Tensor, torch.nn.Parameter)
_NO_TENSORS = (TensorDict, int)


# taking apart --------------------------------------------------------------------------------------------------------


def _record(kind: str, keys: tuple[str, ...], children: Sequence[Any], meta: Meta, extra: Any = None) -> Layout:
    # (``isinstance(child, Tensor)`` runs Tensor's metaclass, which costs more than all else here for parameters)
    shapes = [
        child.shape
        if type(child) in _TENSORS or (type(child) not in _NO_TENSORS and isinstance(child, Tensor))
        else None
        for child in children
    ]
    level = transform_level()
    if level is None:
        return Layout(kind, keys, meta, extra, tuple(shapes))
    count = mapped_size()
    strides = None
    if count is not None and any(shape is not None and count in shape for shape in shapes):
        # sizes will not tell where a dimension is put among others of its size, strides will
        strides = [
            mapped_strides(child, level) if shape is not None and count in shape else None
            for child, shape in zip(children, shapes, strict=True)
        ]
    return Layout(kind, keys, meta, extra, tuple(shapes), level, strides)


def _flatten_dense(td: Any) -> tuple[list[Any], Layout]:
    if type(td) is TensorDict:
        leaves: list[Any] = []
        layout = _flatten_tree(td, leaves)
        if layout is not None:
            return leaves, layout
    return _flatten_node(td)


def _flatten_node(td: Any) -> tuple[list[Any], Layout]:
    """The entries of one node, nested ones as nodes of their own."""
    entries = td._entries if type(td) is TensorDict else dict(td._items())
    children = list(entries.values())
    return children, _record("TensorDict", tuple(entries), children, td._meta)


def _flatten_tree(td: TensorDict, leaves: list[Any]) -> Layout | None:
    """The leaves of plain tensordicts all the way down, taken at once; ``None`` where there is anything else.

    The registry does for each node what costs more than a tensordict of parameters does, several times a ``vmap``.
    """
    entries = td._entries
    shapes: list[torch.Size | None] = []
    below = {}
    for position, child in enumerate(entries.values()):
        kind = type(child)
        if kind in _TENSORS:
            leaves.append(child)
            shapes.append(child.shape)
        elif kind is TensorDict:
            layout = _flatten_tree(child, leaves)
            if layout is None:
                return None
            below[position] = layout
            shapes.append(None)
        elif kind is int:  # of a tree of numbers, such as the ``in_dims`` of vmap
            leaves.append(child)
            shapes.append(None)
        elif isinstance(child, Primitives) or kind in registry.SUPPORTED_NODES:
            return None
        else:
            leaves.append(child)
            shapes.append(child.shape if isinstance(child, Tensor) else None)
    return Layout("TensorDict", tuple(entries), td._meta, below or None, tuple(shapes), transform_level())


def _flatten_lazy(td: Any) -> tuple[list[Any], Layout]:
    """Stacked entries, so that dimensions count as those of the stack; elements where entries cannot be stacked."""
    extra = (td.stack_dim, td.hook_out, td.hook_in)
    if td.hook_out is None and td.tensordicts:
        keys = tuple(td._keys())
        if all(len(list(element._keys())) == len(keys) for element in td.tensordicts):
            try:
                children = [td._get(key) for key in keys]
            except RuntimeError:
                pass
            else:
                return children, _record("LazyStackedTensorDict", keys, children, td._meta, extra)
    elements = list(td.tensordicts)
    keys = tuple(str(i) for i in range(len(elements)))
    return elements, _record("elements", keys, elements, td._meta, extra)


def _flatten_value(node: Any) -> tuple[list[Any], Layout]:
    return [], Layout(type(node).__name__, (), node._meta, (node._value, node._metadata))


def _flatten_values(node: Any) -> tuple[list[Any], Layout]:
    return [], Layout("NonTensorStack", (), node._meta, list(node._flat))


def _flatten_unbatched(node: Any) -> tuple[list[Any], Layout]:
    tensor, level = node._tensor, transform_level()
    mapped = level is not None and isinstance(tensor, Tensor) and mapped_dim(tensor, level) is not None
    return [tensor], _record("UnbatchedTensor", ("",), [tensor], node._meta, mapped)


# putting together ----------------------------------------------------------------------------------------------------


def _lost(children: Sequence[Any], layout: Layout, level: int) -> set[int]:
    """The dimensions that ``vmap`` took from the tensors among the children on the way in."""
    if layout.level == level:
        return set()
    dims = set()
    for child, shape in zip(children, layout.shapes, strict=True):
        if shape is not None and (type(child) is Tensor or isinstance(child, Tensor)):
            dim = mapped_dim(child, level)
            if dim is not None and child.ndim == len(shape) - 1:
                dims.add(dim)
    return dims


def _added(children: Sequence[Any], layout: Layout, level: int) -> set[int] | None:
    """Where ``vmap`` may have put its dimension in the tensors among the children on the way out; ``None``: nowhere."""
    count = mapped_size() if layout.level == level else None
    if count is None:
        return None
    found: set[int] | None = None
    fits: set[int] = set()
    seen = None
    compiling = is_compiling()
    for i, (child, shape) in enumerate(zip(children, layout.shapes, strict=True)):
        if shape is None or not (type(child) is Tensor or isinstance(child, Tensor)):
            continue
        new = child.shape
        if seen != (new, shape):  # neighbouring leaves often have one shape
            seen = (new, shape)
            fits = {p for p in range(len(new)) if new[p] == count and (*new[:p], *new[p + 1 :]) == tuple(shape)}
        # (a trace cannot ask a tensor that depends on a gradient; a shape that fits is taken for vmap's there)
        if not fits or (not compiling and mapped_dim(child, level) is not None):
            return None
        told = fits
        strides = None if len(fits) == 1 or layout.strides is None else layout.strides[i]
        if strides is not None:
            # vmap only moves its dimension to where it goes, so its stride is found there
            own, others = strides
            told = {p for p in fits if child.stride() == (*others[:p], own, *others[p:])} or fits
        found = told if found is None else found & told
    return found


def _find_change(children: Sequence[Any], layout: Layout) -> Change | None:
    """What ``vmap`` did to the batch dimensions of a node.

    Raises:
        RuntimeError: Leaves lost different batch dimensions, or gained one behind the batch dimensions.
    """
    level = transform_level()
    if level is None:
        return None
    dims = len(layout.meta.batch_size)
    inside = layout.level == level  # what was taken apart inside of the transform comes out of it; other things go in
    lost = set() if inside else _lost(children, layout, level)
    added = _added(children, layout, level) if inside else None
    for child in children:
        if type(child) is not Tensor and isinstance(child, Primitives) and child._annotations is not None:
            change = child._annotations.pop("vmap", None)
            if change is not None and change.gained:
                fits = {p for p in range(len(child._meta.batch_size)) if change.unsure or p == change.dim}
                added = fits if added is None else added & fits
            elif change is not None:
                lost.add(change.dim)
    taken = {dim for dim in lost if dim < dims}
    if taken and len(lost) > 1:
        raise RuntimeError(
            f"vmap takes the dimensions {sorted(lost)} from the leaves of one tensordict of batch size "
            f"{list(layout.meta.batch_size)}, "
            "because a negative in_dims is counted for each leaf; count it from the front"
        )
    if taken:
        dim = taken.pop()
        return _LOST[dim] if dim < len(_LOST) else Change(dim, gained=False)
    if not added and added is None:
        return None
    allowed = sorted(p for p in added or () if p <= dims)
    if not allowed:
        raise RuntimeError(
            f"vmap puts its dimension behind the {dims} batch dimensions of a tensordict, so leaves do not share "
            "it; use out_dims from 0 "
            f"to {dims}"
        )
    return Change(allowed[0], gained=True, unsure=len(allowed) > 1)


def _common_size(children: Sequence[Any], dims: int) -> torch.Size | None:
    """The first ``dims`` sizes as far as all children share them; ``None`` where no child tells."""
    size: torch.Size | None = None
    seen: torch.Size | None = None
    for child in children:
        if type(child) in _TENSORS:
            shape = child.shape
            if shape == seen:  # neighbouring leaves often have one shape
                continue
            seen, own = shape, shape[:dims]
        elif isinstance(child, int):  # a tree of numbers, such as the ``in_dims`` of vmap
            continue
        elif isinstance(child, Tensor):
            own = child.shape[:dims]
        elif isinstance(child, Primitives) and _has_leaves(child):
            own = child._meta.batch_size[:dims]
        else:
            continue
        if size is None or size == own:
            size = own
            continue
        shared = 0
        while shared < min(len(size), len(own)) and size[shared] == own[shared]:
            shared += 1
        size = size[:shared]
    return size


def _same_size(a: torch.Size, b: torch.Size) -> bool:
    """Whether two sizes are known to be equal; a symbolic one is not asked, because the answer would fix it."""
    return torch.SymInt not in {*map(type, a), *map(type, b)} and a == b


def _has_leaves(node: Any) -> bool:
    if node._is_opaque:
        return False
    return any(not isinstance(value, Primitives) or _has_leaves(value) for value in node._entries.values())


_NO_SIZE = torch.Size(())


def _new_meta(children: Sequence[Any], layout: Layout, change: Change | None) -> Meta:
    old = layout.meta
    dims = len(old.batch_size)
    if change is not None:
        dims += 1 if change.gained else -1
    if not dims and not layout.meta.batch_size:
        return layout.meta
    size = _common_size(children, dims) if dims else _NO_SIZE
    if change is None:
        if size is None or _same_size(size, old.batch_size):
            return old
        same = all(
            shape is None or not isinstance(child, Tensor) or child.ndim == len(shape)
            for child, shape in zip(children, layout.shapes, strict=False)
        )
        names = old.names if same and len(size) == dims else None
        return Meta(size, old.device, names)
    if size is None:
        size = change.size(old.batch_size, mapped_size())
    return Meta(size, old.device, change.names(old.names))


def _unflatten_dense(children: Iterable[Any], layout: Layout) -> Any:
    children = list(children)
    kinds = {*map(type, children)}
    if kinds == {int}:  # a tree of numbers, such as the ``in_dims`` of vmap, which asks for one a call
        return _with_numbers(iter(children), layout)
    if kinds == {Tensor}:
        level = transform_level()
        if level is not None and layout.level != level:
            inside = _with_rows(iter(children), layout, level)
            if inside is not None:
                inside._annotations = {"vmap": _LOST[0]}
                return inside
        elif level is not None and not is_compiling():
            count = mapped_size()
            outside = None if count is None else _with_front(iter(children), layout, level, count)
            if outside is not None:
                outside._annotations = {"vmap": _GAINED}
                return outside
    return _unflatten_node(iter(children), layout)


def _unflatten_node(leaves: Iterator[Any], layout: Layout) -> Any:
    """A node of the next leaves, and those below that were taken apart with it."""
    below = layout.extra
    if below is None:
        children = list(islice(leaves, len(layout.keys)))
    else:
        children = [_unflatten_node(leaves, below[i]) if i in below else next(leaves) for i in range(len(layout.keys))]
    return _dense(children, layout, _find_change(children, layout))


def _with_numbers(leaves: Iterator[Any], layout: Layout) -> TensorDict:
    below = layout.extra
    if below is None:
        return TensorDict._make(dict(zip(layout.keys, leaves, strict=False)), layout.meta)
    entries = {
        key: _with_numbers(leaves, below[i]) if i in below else next(leaves) for i, key in enumerate(layout.keys)
    }
    return TensorDict._make(entries, layout.meta)


def _with_rows(leaves: Iterator[Any], layout: Layout, level: int) -> TensorDict | None:
    """The node inside of a ``vmap`` that takes the first and only batch dimension of all; ``None`` where it does not.

    What `_find_change` finds out for any node: stacked parameters of an ensemble are put together at each call.
    """
    meta, below = layout.meta, layout.extra or {}
    if len(meta.batch_size) != 1 or meta.names is not None or not layout.shapes:
        return None
    entries: dict[str, Any] = {}
    for position, (key, shape) in enumerate(zip(layout.keys, layout.shapes, strict=True)):
        if shape is not None:
            child = next(leaves)
            if mapped_dim(child, level) != 0 or child.ndim != len(shape) - 1:
                return None
        elif position in below:
            child = _with_rows(leaves, below[position], level)
            if child is None:
                return None
        else:
            return None
        entries[key] = child
    return TensorDict._make(entries, meta.resized(_NO_SIZE))


def _with_front(leaves: Iterator[Any], layout: Layout, level: int, count: int) -> TensorDict | None:
    """The node that comes out of a ``vmap`` that adds the only batch dimension; ``None`` where something is unclear.

    What `_find_change` finds out for any node: a node without batch dimensions has room for one in front alone.
    """
    meta, below = layout.meta, layout.extra or {}
    if meta.batch_size or not layout.shapes:
        return None
    entries: dict[str, Any] = {}
    for position, (key, shape) in enumerate(zip(layout.keys, layout.shapes, strict=True)):
        if shape is not None:
            child = next(leaves)
            new = child.shape
            if not new or new[0] != count or new[1:] != shape or mapped_dim(child, level) is not None:
                return None
        elif position in below:
            child = _with_front(leaves, below[position], level, count)
            if child is None:
                return None
        else:
            return None
        entries[key] = child
    return TensorDict._make(entries, meta.resized(torch.Size((count,))))


def _dense(children: list[Any], layout: Layout, change: Change | None) -> Any:
    meta = _new_meta(children, layout, change)
    entries = dict(zip(layout.keys, children, strict=True))
    if meta is not layout.meta:
        for key, child in entries.items():
            if isinstance(child, Primitives) and not _has_leaves(child):
                entries[key] = _fitted(child, layout.meta.batch_size, meta.batch_size, change)
    result = TensorDict._make(entries, meta)
    if change is not None:
        result._annotations = {"vmap": change}
    return result


def _fitted(node: Any, old: torch.Size, new: torch.Size, change: Change | None) -> Any:
    """A node without leaves, with the batch size of the node that holds it."""
    dims = len(old)
    if _same_size(node._meta.batch_size[: len(new)], new) and (change is None or len(node._meta.batch_size) != dims):
        return node
    how = How(size=lambda own: torch.Size((*new, *own[dims:])), names=None if change is None else change.names)
    if isinstance(node, NonTensorStack) and change is not None and not change.gained:
        return _without_dim(node, change.dim, how)
    if node._is_non_tensor and change is not None and change.gained:
        return _with_dim(node, change, how)
    if node._is_opaque:
        return node._rebuild(iter((node._tensor,)) if not node._is_non_tensor else iter(()), how)
    entries = {key: _fitted(value, old, new, change) for key, value in node._entries.items()}
    return TensorDict._make(entries, how.meta(node._meta))


def _without_dim(node: Any, dim: int, how: How) -> Any:
    """Values of their own with one dimension put away in each of them."""
    size = node._meta.batch_size
    n, inner = size[dim], math.prod(size[dim + 1 :])
    starts = [outer * n * inner + k for outer in range(math.prod(size[:dim])) for k in range(inner)]
    values = [Mapped([node._flat[start + i * inner] for i in range(n)]) for start in starts]
    meta = how.meta(node._meta)
    return NonTensorStack._make(values, meta) if meta.batch_size else NonTensorData._make(values[0], meta)


def _with_dim(node: Any, change: Change, how: How) -> Any:
    """Values with the dimension that was put away in them back in its place."""
    meta = how.meta(node._meta)
    one = isinstance(node, NonTensorData)
    values = [node._value] if one else node._flat
    if not all(isinstance(value, Mapped) for value in values):
        if one:
            return NonTensorData._make(node._value, meta, node._metadata)
        values = [[value] * meta.batch_size[change.dim] for value in values]
    elif change.unsure:
        raise RuntimeError(
            f"vmap adds a dimension to batch size {list(node._meta.batch_size)} where equal sizes leave open "
            "which one it "
            "is, so the order of non-tensor values is not known; take them out of the tensordict before"
        )
    count = meta.batch_size[change.dim]
    own = node._meta.batch_size
    outer, inner = math.prod(own[: change.dim]), math.prod(own[change.dim :])
    flat = [values[o * inner + k][i] for o in range(outer) for i in range(count) for k in range(inner)]
    return NonTensorStack._make(flat, meta)


def _unflatten_lazy(children: Iterable[Any], layout: Layout) -> Any:
    children = list(children)
    change = _find_change(children, layout)
    result = _dense(children, layout, change)
    stack_dim: int | None = layout.extra[0]
    if change is not None and stack_dim is not None:
        if not change.gained and change.dim == stack_dim:
            return result
        stack_dim += (1 if change.gained else -1) if change.dim <= stack_dim else 0
    size = result._meta.batch_size
    if stack_dim is None or stack_dim >= len(size) or not size[stack_dim] or not _all_tensors(result):
        return result
    lazy = LazyStackedTensorDict.lazy_stack(list(result.unbind(stack_dim)), stack_dim)
    if change is not None:
        lazy._annotations = {"vmap": change}
    return lazy


def _all_tensors(td: Any) -> bool:
    return all(isinstance(leaf, Tensor) for leaf in td._leaves())


def _unflatten_elements(children: Iterable[Any], layout: Layout) -> Any:
    elements = list(children)
    stack_dim, hook_out, hook_in = layout.extra
    changes = [element._annotations.pop("vmap", None) for element in elements if getattr(element, "_annotations", None)]
    if changes and changes[0] is not None:
        change = changes[0]
        if any(other != change for other in changes) or change.dim >= stack_dim + change.gained:
            raise RuntimeError(
                f"vmap maps the dimensions before the stack dimension ({stack_dim}) of a lazy stack whose "
                "elements differ, and no other, "
                "because its entries do not stack; pad or densify it first"
            )
        stack_dim += 1 if change.gained else -1
    if not all(isinstance(element, Primitives) for element in elements):
        return TensorDict._make(dict(zip(layout.keys, elements, strict=True)), layout.meta)
    if not elements:
        return LazyStackedTensorDict(stack_dim=stack_dim, batch_size=layout.meta.batch_size, device=layout.meta.device)
    lazy = LazyStackedTensorDict.lazy_stack(elements, stack_dim)
    lazy.hook_out, lazy.hook_in = hook_out, hook_in
    return lazy


def _unflatten_value(children: Iterable[Any], layout: Layout) -> Any:
    value, metadata = layout.extra
    return _VALUES[layout.kind]._make(value, layout.meta, metadata)


def _unflatten_values(children: Iterable[Any], layout: Layout) -> Any:
    return NonTensorStack._make(layout.extra, layout.meta)


def _unflatten_unbatched(children: Iterable[Any], layout: Layout) -> Any:
    (tensor,) = children
    level = transform_level()
    if level is not None and isinstance(tensor, Tensor):
        if _lost([tensor], layout, level):
            raise RuntimeError(
                "vmap would map an unbatched tensor, which belongs to the whole; take it out of the tensordict "
                "and pass it with "
                "in_dims=None"
            )
        added = _added([tensor], layout, level)
        if added:
            if layout.extra:
                raise RuntimeError(
                    "vmap gives an unbatched tensor another value for each example, and it can have but one; set "
                    "a plain tensor instead"
                )
            tensor = tensor.select(min(added), 0)
    return UnbatchedTensor._make(tensor, layout.meta)


# registration --------------------------------------------------------------------------------------------------------


def _with_keys(flatten: Callable[[Any], tuple[list[Any], Layout]]) -> Callable[[Any], Any]:
    def flatten_with_keys(node: Any) -> Any:
        children, layout = flatten(node)
        return [(registry.MappingKey(key), child) for key, child in zip(layout.keys, children, strict=True)], layout

    return flatten_with_keys


def _unflatten(children: Iterable[Any], layout: Layout) -> Any:
    return _UNFLATTEN[layout.kind](children, layout)


_VALUES: dict[str, type[NonTensorData]] = {cls.__name__: cls for cls in (NonTensorData, MetaData, TensorAttrs)}

_UNFLATTEN: dict[str, Callable[[Iterable[Any], Layout], Any]] = {
    **dict.fromkeys(_VALUES, _unflatten_value),
    "TensorDict": _unflatten_dense,
    "LazyStackedTensorDict": _unflatten_lazy,
    "elements": _unflatten_elements,
    "NonTensorStack": _unflatten_values,
    "UnbatchedTensor": _unflatten_unbatched,
}


def _dump(layout: Layout) -> Any:
    """A layout as plain data, for exported programs that are saved."""
    meta = layout.meta
    extra = layout.extra
    if layout.kind == "TensorDict":
        extra = None if extra is None else [[position, _dump(below)] for position, below in extra.items()]
    elif layout.kind == "NonTensorStack":
        extra = list(extra)
    elif layout.kind in ("LazyStackedTensorDict", "elements"):
        extra = extra[0]
    elif layout.kind == "TensorAttrs":
        value = extra[0]
        extra = [
            None if value.tgt_device is None else str(value.tgt_device),
            None if value.tgt_dtype is None else str(value.tgt_dtype).removeprefix("torch."),
            None if value.tgt_shape is None else list(value.tgt_shape),
        ]
    device = None if meta.device is None else str(meta.device)
    return [layout.kind, list(layout.keys), list(meta.batch_size), device, meta.names, extra]


def _load(data: Any) -> Layout:
    kind, keys, size, device, names, extra = data
    meta = Meta(
        torch.Size(size), None if device is None else torch.device(device), None if names is None else tuple(names)
    )
    if kind == "TensorDict":
        extra = None if extra is None else {position: _load(below) for position, below in extra}
    elif kind == "NonTensorStack":
        extra = list(extra)
    elif kind == "TensorAttrs":
        device_name, dtype, shape = extra
        extra = (TensorAttrs(device_name, None if dtype is None else getattr(torch, dtype), shape)._value, None)
    elif kind in _VALUES:
        extra = tuple(extra)
    elif kind in ("LazyStackedTensorDict", "elements"):
        extra = (extra, None, None)
    return Layout(kind, tuple(keys), meta, extra)


def register_wrapper(
    cls: type[Any], name: str, take_apart: Callable[[Any], tuple[Any, Any]], put_together: Callable[[Any, Any], Any]
) -> None:
    """Make a type that wraps a tensordict a pytree node: ``vmap``, ``torch.func`` and ``torch.export`` follow it.

    Args:
        cls: The type.
        name: A stable name, for exported programs.
        take_apart: From an instance, its tensordict and whatever else it needs; that must compare with ``==``.
        put_together: From a tensordict and that, an instance.

    >>> class Box:
    ...     def __init__(self, td): self.td = td
    >>> register_wrapper(Box, "docs.Box", lambda box: (box.td, None), lambda td, _: Box(td))
    >>> torch.utils._pytree.tree_map(lambda x: x + 1, Box(TensorDict({"a": 1}))).td["a"]
    tensor(2)
    """

    def flatten(node: Any) -> tuple[list[Any], Any]:
        td, rest = take_apart(node)
        return [td], rest

    def flatten_with_keys(node: Any) -> Any:
        td, rest = take_apart(node)
        return [(registry.GetAttrKey("td"), td)], rest

    def unflatten(children: Iterable[Any], rest: Any) -> Any:
        (td,) = children
        return put_together(td, rest) if isinstance(td, Primitives) else td

    registry.register_pytree_node(
        cls, flatten, unflatten, serialized_type_name=name, flatten_with_keys_fn=flatten_with_keys
    )


def register_nodes() -> None:
    """Make core's containers known to ``torch.utils._pytree``; called once, when the package is imported."""
    nodes: tuple[tuple[type[Any], Callable[[Any], tuple[list[Any], Layout]]], ...] = (
        (TensorDict, _flatten_dense),
        (SubTensorDict, _flatten_dense),
        (LazyStackedTensorDict, _flatten_lazy),
        *((cls, _flatten_value) for cls in _VALUES.values()),
        (NonTensorStack, _flatten_values),
        (UnbatchedTensor, _flatten_unbatched),
    )
    for cls, flatten in nodes:
        registry.register_pytree_node(
            cls,
            flatten,
            _unflatten,
            serialized_type_name=f"tensordict_core.{cls.__name__}",
            to_dumpable_context=_dump,
            from_dumpable_context=_load,
            flatten_with_keys_fn=_with_keys(_flatten_node if flatten is _flatten_dense else flatten),
        )
