"""Containers as pytree nodes: ``torch.vmap``, ``torch.func``, ``torch.export`` and ``tree_map`` take tensordicts.

Flattening a tensordict gives its tensors; `FlattenContext` keeps the rest. Unflattening reads the batch size off the
leaves: it is what they share of their dimensions in front of the event rank. So a function of leaves may change sizes,
``vmap`` may remove or insert a batch dimension, and dynamic shapes stay dynamic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as registry

from tensordict_core.base.meta import Meta
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.predicates import TENSORS
from tensordict_core.base.rebuild import How
from tensordict_core.base.tracing import are_differentiated, mapped_dim, mapped_size, mapped_strides, transform_level
from tensordict_core.containers.collection import subclass_hooks
from tensordict_core.containers.custom import CustomContainer
from tensordict_core.containers.deferred import _Deferred
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.lazy import LazyStackedTensorDict
from tensordict_core.containers.nontensor.data import NonTensorData, NonTensorStack
from tensordict_core.containers.nontensor.metadata import MetaData
from tensordict_core.containers.reshaped import ReshapedView
from tensordict_core.containers.tensor_spec import TensorAttrs
from tensordict_core.containers.unbatched import UnbatchedTensor
from tensordict_core.containers.view import SubTensorDict
from tensordict_core.ops.io.to_python import of_class
from tensordict_core.torch_api.flatten_context import FlattenContext, Strides
from tensordict_core.torch_api.functorch import BatchDimChange, batch_dim_change, flattens_for_vmap
from tensordict_core.torch_api.vmap_plain import Mapped

Parts = tuple[str, Mapping[str, Any], Meta, Any]
"""The kind of a node, its entries, its metadata, and further data of its context."""

_VALUES: dict[str, type[Any]] = {cls.__name__: cls for cls in (NonTensorData, MetaData, TensorAttrs, NonTensorStack)}
_NO_SIZE = torch.Size(())


# flatten -------------------------------------------------------------------------------------------------------------


class _Flattening:
    """The leaves of a tree and their shapes, in order; plain tensordicts and values below the root are part of it.

    A pytree node for each of them would cost several microseconds a node each time a function is mapped.
    """

    __slots__ = ("context", "leaves", "level", "shapes", "size", "strides")

    def __init__(self, root: Any) -> None:
        self.leaves: list[Any] = []
        self.shapes: list[torch.Size | None] = []
        self.level = transform_level()
        self.size = None if self.level is None else mapped_size()  # of the vmap at that level
        self.strides: dict[int, Strides | None] = {}
        self.context = self.node(*_PARTS[type(root)](root))
        self.context.locked = root._locked and flattens_for_vmap()

    def node(self, kind: str, entries: Mapping[str, Any], meta: Meta, extra: Any) -> FlattenContext:
        """Return the context of a node, whose leaves are appended."""
        leaves, shapes, level, size = self.leaves, self.shapes, self.level, self.size
        below = {}
        for position, child in enumerate(entries.values()):
            cls = type(child)
            if cls in TENSORS:
                shape = child.shape
                if size is not None and level is not None and size in shape:
                    self.strides[len(leaves)] = mapped_strides(child, level)
                leaves.append(child)
                shapes.append(shape)
            elif cls is int:
                leaves.append(child)
                shapes.append(None)
            elif cls is TensorDict:
                below[position] = self.node("TensorDict", child._entries, child._meta, None)
            elif cls.__name__ in _VALUES and child._is_non_tensor:
                below[position] = self.node(*_value_parts(child))
            else:
                leaves.append(child)
                shapes.append(_shape(child))
        return FlattenContext(kind, tuple(entries), meta, extra, below or None, shapes, self.level, self.strides)


def flatten_node(root: Any) -> tuple[list[Any], FlattenContext]:
    """Return the leaves of a container and the context that makes a container of leaves again."""
    flattening = _Flattening(root)
    return flattening.leaves, flattening.context


def flatten_node_with_keys(root: Any) -> Any:
    """Return the entries of one node under their keys; torch flattens each node among them in turn."""
    return [(registry.MappingKey(key), child) for key, child in _PARTS[type(root)](root)[1].items()], None


def _shape(child: Any) -> torch.Size | None:
    """Return the shape of a tensor or the batch size of a node; ``None`` if no leaf determines it."""
    if type(child) is int:  # of a tree of numbers, such as the ``in_dims`` of vmap
        return None
    if isinstance(child, Node):
        return child._meta.batch_size if _has_leaves(child) else None
    return child.shape if is_leaf_tensor(child) else None


def _has_leaves(node: Any) -> bool:
    if type(node) is TensorDict and Tensor in map(type, node._entries.values()):
        return True
    if node._is_opaque:
        return False
    if (stack := node._lazy_stack) is not None:  # its entries need not stack
        return any(map(_has_leaves, stack.tensordicts))
    return any(not isinstance(value, Node) or _has_leaves(value) for value in node._entries.values())


def _dense_parts(td: Any) -> Parts:
    return "TensorDict", td._entries, td._meta, None


def _lazy_parts(td: Any) -> Parts:
    """Return the stacked entries, so dimensions count as those of the stack; the elements if entries cannot be stacked.

    The elements too where gradients are taken: a new stack would be another tensor each time.
    """
    wrappings = tuple(map(_wrapping, td.tensordicts))
    extra = (td.stack_dim, td.hook_out, td.hook_in, wrappings if any(wrappings) else ())
    if td.hook_out is None and td.tensordicts and not are_differentiated(td._leaves()):
        keys = tuple(td._keys())
        if all(len(list(element._keys())) == len(keys) for element in td.tensordicts):
            try:
                entries = {key: td._get(key) for key in keys}
            except RuntimeError:
                pass
            else:
                if not any(map(_is_ragged, entries.values())):
                    return "LazyStackedTensorDict", entries, td._meta, extra
    return "elements", {str(i): element for i, element in enumerate(td.tensordicts)}, td._meta, extra


def _is_ragged(child: Any) -> bool:
    stack = child._lazy_stack if isinstance(child, Node) else None
    return stack is not None and stack._is_ragged()


def _wrapping(element: Any) -> Any:
    """Return the type and the context of an element that wraps a tensordict; ``None`` where it does not."""
    if element._inmost() is element:
        return None
    kind = type(element)
    return kind, registry.SUPPORTED_NODES[kind].flatten_fn(element)[1]


def _value_parts(node: Any) -> Parts:
    kind = type(node).__name__
    values = list(node._flat_values()) if kind == "NonTensorStack" else (node._value, node._metadata)
    return kind, {}, node._meta, values


def _unbatched_parts(node: Any) -> Parts:
    tensor = node._tensor
    level = transform_level()
    mapped = level is not None and isinstance(tensor, Tensor) and mapped_dim(tensor, level) is not None
    if flattens_for_vmap() and not mapped:  # it is passed whole, and a tensor of its batch size is mapped in its place
        size = mapped_size()
        stand_in = torch.empty(()).expand((*(() if size is None else (size,)), *node._meta.batch_size))
        if size is not None and level is not None:  # torch (2.13) has no out_dims but 0 for tensors that are not mapped
            stand_in = torch._C._functorch._add_batch_dim(stand_in, 0, level)
        return "whole", {"": stand_in}, node._meta, (tensor,)
    return "UnbatchedTensor", {"": tensor}, node._meta, mapped


# unflatten -----------------------------------------------------------------------------------------------------------


class _Unflattening:
    """Puts the nodes of a tree together from its leaves."""

    __slots__ = ("change", "children", "context", "is_numbers", "is_plain", "leaves")

    def __init__(self, children: Iterable[Any], context: FlattenContext) -> None:
        self.children = list(children)
        self.leaves = iter(self.children)
        self.context = context
        kinds = {*map(type, self.children)}
        self.is_plain = kinds == {Tensor}
        self.is_numbers = kinds == {int}  # vmap asks for such a tree each time it flattens one
        self.change = None if self.is_numbers else batch_dim_change(self.children, context)

    def entries(self, context: FlattenContext) -> dict[str, Any]:
        """Return the entries of a node: the next leaves, and the nodes that were flattened with it."""
        below = context.below
        if below is None:
            return dict(zip(context.keys, self.leaves, strict=False))
        nodes = {i: _UNFLATTEN[node.kind] for i, node in below.items()}
        return {
            key: nodes[i](self, below[i]) if i in below else next(self.leaves) for i, key in enumerate(context.keys)
        }

    def dense(self, context: FlattenContext) -> Any:
        """Return a tensordict with the batch size that its leaves share."""
        old = context.meta
        dims = len(old.batch_size)
        change = None if self.change is None else self.change.within(dims)
        if change is not None:
            dims += 1 if change.gained else -1
            if change.gained and context is self.context:
                self.change = change  # no node has fewer batch dimensions than the root
        entries = self.entries(context)
        if self.is_numbers or (change is None and not dims):
            return TensorDict._make(entries, old)
        is_plain = self.is_plain and context.below is None and bool(entries)
        hollow = [] if is_plain else [k for k, v in entries.items() if isinstance(v, Node) and not _has_leaves(v)]
        if is_plain and change is not None and change.gained:
            size: torch.Size | None = change.resized(old.batch_size)  # every leaf was compared
        elif is_plain and not dims:
            size = _NO_SIZE
        else:
            size = _common_size(entries, dims, hollow)
        if size is None or (change is None and _same_size(size, old.batch_size)):
            return TensorDict._make(entries, old)
        if change is not None:
            names = change.renamed(old.names)
        else:
            names = old.names if old.names is not None and len(size) == dims and self._keeps_dims() else None
        for key in hollow:
            entries[key] = _fitted(entries[key], old.batch_size, size, change)
        return TensorDict._make(entries, Meta(size, old.device, names))

    def _keeps_dims(self) -> bool:
        """Return whether each leaf has as many dimensions as before, so that names keep their positions."""
        return all(
            shape is None or not isinstance(child, Tensor) or child.ndim == len(shape)
            for child, shape in zip(self.children, self.context.shapes, strict=False)
        )

    def lazy(self, context: FlattenContext) -> Any:
        """Return a lazy stack; a dense tensordict where ``vmap`` changed the batch dimensions."""
        result = self.dense(context)
        stack_dim, _, hook_in, wrappings = context.extra
        size = result._meta.batch_size
        if (
            self.change is not None
            or stack_dim >= len(size)
            or not size[stack_dim]
            or not all(isinstance(leaf, Tensor) for leaf in result._leaves())
            # vmap maps an unbatched tensor without a change of shape
            or any(len(node._meta.batch_size) < len(size) for node in result._nodes())
        ):
            return result
        elements = list(result.unbind(stack_dim))
        if len(elements) == len(wrappings):
            elements = [_wrapped(element, wrapping) for element, wrapping in zip(elements, wrappings, strict=True)]
        return _lazy_stack(elements, stack_dim, result._meta.names, stack_dim, None, hook_in)

    def elements(self, context: FlattenContext) -> Any:
        """Return a lazy stack of its elements."""
        stack_dim, hook_out, hook_in, _ = context.extra
        old, new, meta = stack_dim, stack_dim, context.meta
        change = self.change
        if change is not None:
            if max(change.dims) >= old + change.gained:
                raise RuntimeError(
                    f"vmap maps dimension {max(change.dims)} of a lazy stack whose elements differ, and it maps those "
                    f"before the stack dimension ({old}) and no other, because the entries do not stack; pad or "
                    "densify the stack first"
                )
            new += 1 if change.gained else -1
        entries = self.entries(context)
        if not all(isinstance(element, Node) for element in entries.values()):
            return TensorDict._make(entries, meta)
        if not entries:
            size = meta.batch_size
            return LazyStackedTensorDict(stack_dim=new, batch_size=size[:new] + size[new + 1 :], device=meta.device)
        below = context.below or {}
        pairs = [(below[i].meta.batch_size, element) for i, element in enumerate(entries.values()) if i in below]
        sizes = {size: element._meta.batch_size for size, element in pairs if _has_leaves(element)}
        for key, element in entries.items():  # of one without leaves, no leaf tells its new size
            size = element._meta.batch_size
            if type(element) is TensorDict and size in sizes and not _has_leaves(element):
                entries[key] = _fitted(element, size, sizes[size], change)
        return _lazy_stack(list(entries.values()), new, meta.names, old, hook_out, hook_in)

    def unbatched(self, context: FlattenContext) -> Any:
        """Return an unbatched tensor, which has one value for all examples."""
        (tensor,) = self.children
        if self.is_numbers:
            return tensor
        change = self.change
        if change is not None:
            if not change.gained:
                raise RuntimeError(
                    "an unbatched tensor belongs to the whole tensordict, so vmap cannot map it in a trace; take it "
                    "out and pass it with in_dims=None"
                )
            if context.extra:
                raise RuntimeError(
                    "an unbatched tensor has but one value, and vmap gives it another for each example; set a plain "
                    "tensor instead"
                )
            tensor = tensor.select(change.dims[0], 0)
        return tensor if type(tensor) is UnbatchedTensor else UnbatchedTensor._make(tensor, context.meta)

    def whole(self, context: FlattenContext) -> Any:
        """Return an unbatched tensor that goes into a function that ``vmap`` maps, or comes out of it."""
        (stand_in,) = self.children
        return stand_in if self.is_numbers else UnbatchedTensor._make(context.extra[0], Meta(stand_in.shape))

    def value(self, context: FlattenContext) -> Any:
        """Return non-tensor data with the batch size that they had."""
        if context.kind == "NonTensorStack":
            return NonTensorStack._make(context.extra, context.meta)
        value, metadata = context.extra
        return _VALUES[context.kind]._make(value, context.meta, metadata)


_UNFLATTEN: dict[str, Callable[[_Unflattening, FlattenContext], Any]] = {
    **dict.fromkeys(_VALUES, _Unflattening.value),
    "TensorDict": _Unflattening.dense,
    "LazyStackedTensorDict": _Unflattening.lazy,
    "elements": _Unflattening.elements,
    "UnbatchedTensor": _Unflattening.unbatched,
    "whole": _Unflattening.whole,
}


def unflatten_node(children: Iterable[Any], context: FlattenContext) -> Any:
    """Return a container of leaves; the inverse of `flatten_node`."""
    unflattening = _Unflattening(children, context)
    result = _UNFLATTEN[context.kind](unflattening, context)
    if context.locked and not unflattening.is_numbers and isinstance(result, Node):
        result.lock_()
    return result


def _common_size(entries: Mapping[str, Any], dims: int, hollow: Collection[str]) -> torch.Size | None:
    """Return the first ``dims`` sizes that all but hollow entries share; ``None`` if no entry determines them."""
    size: torch.Size | None = None
    seen: torch.Size | None = None
    for key, child in entries.items():
        if type(child) in TENSORS:
            shape = child.shape
        elif key in hollow:
            continue
        else:
            shape = child._meta.batch_size if isinstance(child, Node) else _shape(child)
        if shape is None or shape == seen:  # neighbouring leaves often have one shape
            continue
        seen, own = shape, shape[:dims]
        if size is None or size == own:
            size = own
            continue
        shared = 0
        while shared < min(len(size), len(own)) and size[shared] == own[shared]:
            shared += 1
        size = size[:shared]
    return size


def _same_size(a: torch.Size, b: torch.Size) -> bool:
    """Return whether two sizes are known to be equal; symbolic ones are not compared, because that would fix them."""
    return torch.SymInt not in {*map(type, a), *map(type, b)} and a == b


def _fitted(node: Any, old: torch.Size, new: torch.Size, change: BatchDimChange | None) -> Any:
    """Return a node without leaves, with the batch size of the node that holds it."""
    dims = len(old)
    if change is None and _same_size(node._meta.batch_size[: len(new)], new):
        return node
    how = How(size=lambda own: torch.Size((*new, *own[dims:])), names=None if change is None else change.renamed)
    if change is not None and node._is_non_tensor:
        return _value_in_vmap(node, change, how)
    if node._is_opaque:
        if type(node) is UnbatchedTensor and node._meta.batch_size[: len(new)] == new:
            return node
        return node._rebuild(iter(()) if node._is_non_tensor else iter((node._tensor,)), how)
    entries = {key: _fitted(value, old, new, change) for key, value in node._entries.items()}
    return TensorDict._make(entries, how.meta(node._meta))


def _value_in_vmap(node: Any, change: BatchDimChange, how: How) -> Any:
    """Return non-tensor data with the values along the mapped dimension in one `Mapped` list, or spread out again."""
    meta, dim = how.meta(node._meta), change.dims[0]
    if not change.gained and not node._is_shared:
        columns = zip(*(part._flat_values() for part in node._unbind(dim)), strict=True)
        return NonTensorStack._of(list(map(Mapped, columns)), meta)
    values = [node._value] if node._is_shared else node._flat_values()
    is_mapped = all(isinstance(value, Mapped) for value in values)
    if node._is_shared and not (change.gained and is_mapped):
        return node._at_positions(None, meta)
    if not is_mapped:
        values = [[value] * meta.batch_size[dim] for value in values]
    elif len(change.dims) > 1 and meta.batch_size[dim] != 1:  # of one row, the order is the same
        raise RuntimeError(
            f"vmap inserts a dimension into non-tensor data of batch size {list(node._meta.batch_size)}, and equal "
            "sizes leave open which one, so the order of non-tensor values is not known; take them out of the "
            "tensordict before"
        )
    parts = [NonTensorStack._make(list(column), node._meta) for column in zip(*values, strict=True)]
    return NonTensorStack._make(NonTensorStack._stack(parts, dim)._flat_values(), meta)


def _lazy_stack(elements: list[Any], stack_dim: int, names: Any, named: int, hook_out: Any, hook_in: Any) -> Any:
    lazy = LazyStackedTensorDict._make(elements, stack_dim, None if names is None else names[named])
    lazy.hook_out, lazy.hook_in = hook_out, hook_in
    return lazy


def _wrapped(element: Any, wrapping: Any) -> Any:
    """Return an element, in the type that was around it."""
    if wrapping is None:
        return element
    kind, context = wrapping
    return registry.SUPPORTED_NODES[kind].unflatten_fn([element], context)


# registration --------------------------------------------------------------------------------------------------------


def register_wrapper(
    cls: type[Any],
    name: str | None,
    take_apart: Callable[[Any], tuple[Any, Any]],
    put_together: Callable[[Any, Any], Any],
) -> None:
    """Make a type that wraps a tensordict a pytree node: ``vmap``, ``torch.func`` and ``torch.export`` follow it.

    Args:
        cls: The type.
        name: A stable name, for exported programs; ``None`` if no program with the type is exported.
        take_apart: A function that returns the tensordict of an instance, and the other data that ``put_together``
            needs; that data is compared with ``==``.
        put_together: A function that returns an instance, from a tensordict and the other data.

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
        td, _ = take_apart(node)
        paired: Any = registry.SUPPORTED_NODES[type(td)].flatten_with_keys_fn  # paths are keys of the tensordict
        return paired(td)

    def unflatten(children: Iterable[Any], rest: Any) -> Any:
        (td,) = children
        return put_together(td, rest) if isinstance(td, Node) else td

    registry.register_pytree_node(
        cls, flatten, unflatten, serialized_type_name=name, flatten_with_keys_fn=flatten_with_keys
    )


_PARTS: dict[type[Any], Callable[[Any], Parts]] = {
    TensorDict: _dense_parts,
    _Deferred: _dense_parts,  # a type of its own until its entries are read
    SubTensorDict: _dense_parts,
    ReshapedView: _dense_parts,
    LazyStackedTensorDict: _lazy_parts,
    **dict.fromkeys(_VALUES.values(), _value_parts),
    UnbatchedTensor: _unbatched_parts,
}


def register_nodes() -> None:
    """Register core's containers with ``torch.utils._pytree``; called once, when the package is imported."""
    for cls in _PARTS:
        registry.register_pytree_node(
            cls,
            flatten_node,
            unflatten_node,
            serialized_type_name=f"tensordict_core.{cls.__name__}",
            to_dumpable_context=FlattenContext.dump,
            from_dumpable_context=FlattenContext.parse,
            flatten_with_keys_fn=flatten_node_with_keys,
        )
    subclass_hooks.append(_register_subclass)


def _register_subclass(cls: type[Any]) -> None:
    """Register a container class of another package: subclasses keep their type, other containers become dense."""
    base = next((base for base in (TensorDict, LazyStackedTensorDict, CustomContainer) if issubclass(cls, base)), None)
    if base is None:
        return
    _PARTS[cls] = _PARTS.get(base, _dense_parts)

    def unflatten(children: Iterable[Any], context: FlattenContext) -> Any:
        return of_class(cls, unflatten_node(children, context))

    registry.register_pytree_node(cls, flatten_node, unflatten, flatten_with_keys_fn=flatten_node_with_keys)
