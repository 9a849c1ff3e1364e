"""Putting pytree nodes together again: batch sizes are read off the leaves, and what ``vmap`` did to them is found out.

``vmap`` takes a dimension from each leaf on the way in and adds one on the way out. Nobody says which: shapes before
and after tell, and where equal sizes leave it open, strides. Batch size, names, lazy stacks and values follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as registry

from tensordict_core.base.meta import Meta
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import How
from tensordict_core.base.tracing import is_compiling, mapped_dim, mapped_size, transform_level
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.lazy import LazyStackedTensorDict
from tensordict_core.containers.nontensor.data import MetaData, NonTensorData, NonTensorStack
from tensordict_core.containers.tensor_spec import TensorAttrs
from tensordict_core.containers.unbatched import UnbatchedTensor
from tensordict_core.torch_api.flatten_context import GAINED, LOST, TENSORS, Change, Layout, Mapped

__all__ = ["VALUES", "unflatten"]


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
        if type(child) is not Tensor and isinstance(child, Node) and child._annotations is not None:
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
        return LOST[dim] if dim < len(LOST) else Change(dim, gained=False)
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
        if type(child) in TENSORS:
            shape = child.shape
            if shape == seen:  # neighbouring leaves often have one shape
                continue
            seen, own = shape, shape[:dims]
        elif isinstance(child, int):  # a tree of numbers, such as the ``in_dims`` of vmap
            continue
        elif isinstance(child, Tensor):
            own = child.shape[:dims]
        elif isinstance(child, Node) and _has_leaves(child):
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
    stack = node._inmost()
    if isinstance(stack, LazyStackedTensorDict):  # its entries need not stack
        return any(map(_has_leaves, stack.tensordicts))
    return any(not isinstance(value, Node) or _has_leaves(value) for value in node._entries.values())


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
                inside._annotations = {"vmap": LOST[0]}
                return inside
        elif level is not None and not is_compiling():
            count = mapped_size()
            outside = None if count is None else _with_front(iter(children), layout, level, count)
            if outside is not None:
                outside._annotations = {"vmap": GAINED}
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
            if isinstance(child, Node) and not _has_leaves(child):
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
    stack_dim: int
    stack_dim, _, hook_in, wrappings = layout.extra
    if change is not None:
        if not change.gained and change.dim == stack_dim:
            return result
        stack_dim += (1 if change.gained else -1) if change.dim <= stack_dim else 0
    size = result._meta.batch_size
    if stack_dim >= len(size) or not size[stack_dim] or not _all_tensors(result):
        return result
    names, elements = result._meta.names, list(result.unbind(stack_dim))
    if len(elements) == len(wrappings):
        elements = [_wrapped(element, wrapping) for element, wrapping in zip(elements, wrappings, strict=True)]
    lazy = LazyStackedTensorDict._make(elements, stack_dim, None if names is None else names[stack_dim])
    lazy.hook_in = hook_in
    if change is not None:
        lazy._annotations = {"vmap": change}
    return lazy


def _wrapped(element: Any, wrapping: Any) -> Any:
    """An element, in what was around it."""
    if wrapping is None:
        return element
    kind, rest = wrapping
    return registry.SUPPORTED_NODES[kind].unflatten_fn([element], rest)


def _all_tensors(td: Any) -> bool:
    return all(isinstance(leaf, Tensor) for leaf in td._leaves())


def _unflatten_elements(children: Iterable[Any], layout: Layout) -> Any:
    elements = list(children)
    stack_dim, hook_out, hook_in, _ = layout.extra
    name = None if layout.meta.names is None else layout.meta.names[stack_dim]
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
    if not all(isinstance(element, Node) for element in elements):
        return TensorDict._make(dict(zip(layout.keys, elements, strict=True)), layout.meta)
    if not elements:
        return LazyStackedTensorDict(stack_dim=stack_dim, batch_size=layout.meta.batch_size, device=layout.meta.device)
    lazy = LazyStackedTensorDict._make(elements, stack_dim, name)
    lazy.hook_out, lazy.hook_in = hook_out, hook_in
    return lazy


def _unflatten_value(children: Iterable[Any], layout: Layout) -> Any:
    value, metadata = layout.extra
    return VALUES[layout.kind]._make(value, layout.meta, metadata)


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


def unflatten(children: Iterable[Any], layout: Layout) -> Any:
    return _UNFLATTEN[layout.kind](children, layout)


VALUES: dict[str, type[NonTensorData]] = {cls.__name__: cls for cls in (NonTensorData, MetaData, TensorAttrs)}

_UNFLATTEN: dict[str, Callable[[Iterable[Any], Layout], Any]] = {
    **dict.fromkeys(VALUES, _unflatten_value),
    "TensorDict": _unflatten_dense,
    "LazyStackedTensorDict": _unflatten_lazy,
    "elements": _unflatten_elements,
    "NonTensorStack": _unflatten_values,
    "UnbatchedTensor": _unflatten_unbatched,
}
