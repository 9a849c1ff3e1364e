"""Containers as pytree nodes: what ``torch.vmap``, ``torch.func``, ``torch.export`` and ``tree_map`` see of them.

A node's children are its entries. Here they are taken apart and registered; `_layout` is the context that is kept, and
`_unflatten` puts nodes together again. The batch size is then read off the leaves, so a function of leaves may change
it and dynamic shapes stay dynamic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as registry

from tensordict_core.base.meta import Meta
from tensordict_core.base.node import Node
from tensordict_core.base.tracing import are_differentiated, mapped_dim, mapped_size, mapped_strides, transform_level
from tensordict_core.containers.deferred import _Deferred
from tensordict_core.containers.dense import TensorDict
from tensordict_core.containers.lazy import LazyStackedTensorDict
from tensordict_core.containers.nontensor.data import NonTensorStack
from tensordict_core.containers.tensor_spec import TensorAttrs
from tensordict_core.containers.unbatched import UnbatchedTensor
from tensordict_core.containers.view import SubTensorDict
from tensordict_core.torch_api.flatten_context import TENSORS, Layout
from tensordict_core.torch_api.functorch import VALUES, unflatten

__all__ = ["register_nodes", "register_wrapper"]

_NO_TENSORS = (TensorDict, int)


# taking apart --------------------------------------------------------------------------------------------------------


def _record(kind: str, keys: tuple[str, ...], children: Sequence[Any], meta: Meta, extra: Any = None) -> Layout:
    # (``isinstance(child, Tensor)`` runs Tensor's metaclass, which costs more than all else here for parameters)
    shapes = [
        child.shape
        if type(child) in TENSORS or (type(child) not in _NO_TENSORS and isinstance(child, Tensor))
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
        if kind in TENSORS:
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
        elif isinstance(child, Node) or kind in registry.SUPPORTED_NODES:
            return None
        else:
            leaves.append(child)
            shapes.append(child.shape if isinstance(child, Tensor) else None)
    return Layout("TensorDict", tuple(entries), td._meta, below or None, tuple(shapes), transform_level())


def _flatten_lazy(td: Any) -> tuple[list[Any], Layout]:
    """Stacked entries, so that dimensions count as those of the stack; elements where entries cannot be stacked.

    Elements too where gradients are taken: a stack made anew would be another tensor each time.
    """
    wrappings = tuple(map(_wrapping, td.tensordicts))
    extra = (td.stack_dim, td.hook_out, td.hook_in, wrappings if any(wrappings) else ())
    if td.hook_out is None and td.tensordicts and not are_differentiated(td._leaves()):
        keys = tuple(td._keys())
        if all(len(list(element._keys())) == len(keys) for element in td.tensordicts):
            try:
                children = [td._get(key) for key in keys]
            except RuntimeError:
                pass
            else:
                if not any(map(_is_ragged, children)):
                    return children, _record("LazyStackedTensorDict", keys, children, td._meta, extra)
    elements = list(td.tensordicts)
    keys = tuple(str(i) for i in range(len(elements)))
    return elements, _record("elements", keys, elements, td._meta, extra)


def _is_ragged(child: Any) -> bool:
    stack = child._inmost() if isinstance(child, Node) else None
    return isinstance(stack, LazyStackedTensorDict) and stack._is_ragged()


def _wrapping(element: Any) -> Any:
    """What puts an element together again around a tensordict, where it wraps one; ``None`` where it does not."""
    if element._inmost() is element:
        return None
    kind = type(element)
    return kind, registry.SUPPORTED_NODES[kind].flatten_fn(element)[1]


def _flatten_value(node: Any) -> tuple[list[Any], Layout]:
    return [], Layout(type(node).__name__, (), node._meta, (node._value, node._metadata))


def _flatten_values(node: Any) -> tuple[list[Any], Layout]:
    return [], Layout("NonTensorStack", (), node._meta, list(node._flat))


def _flatten_unbatched(node: Any) -> tuple[list[Any], Layout]:
    tensor, level = node._tensor, transform_level()
    mapped = level is not None and isinstance(tensor, Tensor) and mapped_dim(tensor, level) is not None
    return [tensor], _record("UnbatchedTensor", ("",), [tensor], node._meta, mapped)


# registration --------------------------------------------------------------------------------------------------------


def _with_keys(flatten: Callable[[Any], tuple[list[Any], Layout]]) -> Callable[[Any], Any]:
    def flatten_with_keys(node: Any) -> Any:
        children, layout = flatten(node)
        return [(registry.MappingKey(key), child) for key, child in zip(layout.keys, children, strict=True)], layout

    return flatten_with_keys


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
    # sizes of a trace are nothing to save; those of the leaves count
    size = [n if type(n) is int else 0 for n in meta.batch_size]
    return [layout.kind, list(layout.keys), size, device, meta.names, extra]


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
    elif kind in VALUES:
        extra = tuple(extra)
    elif kind in ("LazyStackedTensorDict", "elements"):
        extra = (extra, None, None, ())
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
        return put_together(td, rest) if isinstance(td, Node) else td

    registry.register_pytree_node(
        cls, flatten, unflatten, serialized_type_name=name, flatten_with_keys_fn=flatten_with_keys
    )


def register_nodes() -> None:
    """Make core's containers known to ``torch.utils._pytree``; called once, when the package is imported."""
    nodes: tuple[tuple[type[Any], Callable[[Any], tuple[list[Any], Layout]]], ...] = (
        (TensorDict, _flatten_dense),
        (_Deferred, _flatten_dense),  # a type of its own until somebody looks at it
        (SubTensorDict, _flatten_dense),
        (LazyStackedTensorDict, _flatten_lazy),
        *((cls, _flatten_value) for cls in VALUES.values()),
        (NonTensorStack, _flatten_values),
        (UnbatchedTensor, _flatten_unbatched),
    )
    for cls, flatten in nodes:
        registry.register_pytree_node(
            cls,
            flatten,
            unflatten,
            serialized_type_name=f"tensordict_core.{cls.__name__}",
            to_dumpable_context=_dump,
            from_dumpable_context=_load,
            flatten_with_keys_fn=_with_keys(_flatten_node if flatten is _flatten_dense else flatten),
        )
