"""State dicts: a tree as an ordered dictionary of tensors, and back.

Keys are joined with dots as in modules, so the state dict of a module's parameters loads in the module. Batch sizes,
devices and dim names are in the attribute ``_metadata``, as those of modules; without it, a tensordict that is loaded
into keeps its own. Non-tensor values and the stack dimension of a ragged lazy stack have entries under reserved names,
which tools that keep only entries, such as checkpointing libraries, keep.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import unravel_key
from tensordict_core.base.meta import Meta, as_names
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.registry.types import containers
from tensordict_core.base.tracing import is_compiling
from tensordict_core.base.write_plan import WritePlan

BATCH_SIZE: Final = "__batch_size"
NAMES: Final = "__names"
VALUE: Final = "__value"
VALUES: Final = "__values"
UNBATCHED: Final = "__unbatched"
"""The entry of an `UnbatchedTensor` in state dicts that have one of its own, under the empty key; older ones do."""
STACK_DIM: Final = "__stack_dim"
RESERVED: Final = frozenset({BATCH_SIZE, NAMES, VALUE, VALUES, UNBATCHED, STACK_DIM, "__device"})


# writing -------------------------------------------------------------------------------------------------------------


def new_state() -> OrderedDict[str, Any]:
    """Return a state dict without entries, with the attribute that describes the nodes."""
    out: OrderedDict[str, Any] = OrderedDict()
    if not is_compiling():  # state dicts of compiled functions do not describe the nodes (`_description`)
        vars(out)["_metadata"] = {}  # as in the state dicts of modules
    return out


def _description(state: Mapping[str, Any]) -> Any:
    """Return the attribute that describes the nodes, or ``None`` if the dictionary has none.

    Dynamo does not trace attributes of dictionaries: state dicts of compiled functions do not describe the nodes.
    """
    if is_compiling():
        return {} if isinstance(state, OrderedDict) else None
    return getattr(state, "_metadata", None)


def _collision(name: str) -> KeyError:
    return KeyError(
        f"two entries have the key {name!r} in the state dict; rename one, or pass flatten=False to keep nested keys "
        "apart"
    )


def _add(out: dict[str, Any], name: str, value: Any) -> None:
    if name in out:
        raise _collision(name)
    out[name] = value


def put(
    node: Any, out: dict[str, Any], prefix: str, keep_vars: bool, flatten: bool, outer: torch.Size, root: bool
) -> None:
    """Put the state of a node into ``out``; ``outer`` is the batch size of the node that holds it."""
    stack = node._lazy_stack
    if stack is not None:
        node = _dense_or_lazy(stack)
    meta = node._meta
    inner = meta.batch_size
    entries: Iterable[tuple[str, Any]] = ()
    if node._is_lazy_stack:
        entries = [(str(i), td) for i, td in enumerate(node.tensordicts)]
        _add(out, prefix + STACK_DIM, node.stack_dim)
        inner = inner[: node.stack_dim] + inner[node.stack_dim + 1 :]
    elif not node._is_opaque:
        entries = node._items()
        if not RESERVED.isdisjoint(node._keys()):
            reserved = next(key for key in node._keys() if key in RESERVED)
            raise KeyError(f"the key {reserved!r} is reserved in state dicts; rename it first")
    described = _description(out)
    if described is not None:
        _describe(meta, described, prefix)
    else:
        holds = node.tensordicts if node._is_lazy_stack else root or node._is_opaque or list(node._keys())
        _put_meta(meta, out, prefix, sized=not holds or meta.batch_size != outer)  # nothing else records an empty node
    if node._is_opaque:
        _put_opaque(node, out, prefix, keep_vars)
    for key, value in entries:
        name = prefix + key
        if type(value) is Tensor or is_leaf_tensor(value):
            if name in out:
                raise _collision(name)
            out[name] = value if keep_vars else value.detach()
        elif isinstance(value, containers.unbatched):
            _add(out, name, value if keep_vars else value.detach())
        elif flatten:
            put(value, out, name + ".", keep_vars, True, inner, False)
        else:
            nested = new_state()
            put(value, nested, "", keep_vars, False, inner, False)
            _add(out, name, nested)


def _describe(meta: Meta, described: dict[str, Any], prefix: str) -> None:
    """Describe a node in the attribute of the state dict."""
    facts: dict[str, Any] = {"batch_size": meta.batch_size, "device": meta.device}
    if meta.names is not None:
        facts["names"] = list(meta.names)
    name = prefix.removesuffix(".")
    described[name] = {**described[name], **facts} if name in described else facts


def _put_meta(meta: Meta, out: dict[str, Any], prefix: str, *, sized: bool) -> None:
    """Describe a node by entries of the caller's dictionary, which has no attribute."""
    if sized:
        _add(out, prefix + BATCH_SIZE, meta.batch_size)
    if meta.names is not None:
        _add(out, prefix + NAMES, list(meta.names))


def _put_opaque(node: Any, out: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """Put the value or the values of a node of non-tensor data, or the tensor of an unbatched one."""
    if not node._is_non_tensor:
        _add(out, prefix + UNBATCHED, node.tensor if keep_vars else node.tensor.detach())
    elif node._holds_values:
        _add(out, prefix + VALUES, node.tolist())
    else:
        _add(out, prefix + VALUE, node._entry_value())


def _dense_or_lazy(stack: Any) -> Any:
    """Return the dense form of a lazy stack whose elements have the same keys and shapes; of others, the stack."""
    if len({frozenset(td._leaf_keys()) for td in stack.tensordicts}) != 1:
        return stack
    try:
        return stack._solid()
    except errors.StackError:
        return stack


# reading -------------------------------------------------------------------------------------------------------------


def _flat(state: Mapping[str, Any], prefix: str, out: dict[str, Any]) -> None:
    """Collect the entries of a (nested) state dict under flat keys, and the metadata of its ``_metadata``."""
    for key, value in state.items():
        name = prefix + key
        if isinstance(value, Mapping) and key.rpartition(".")[2] not in RESERVED:
            _flat(value, name + ".", out)
        else:
            out[name] = value
    described = _description(state)
    if described:
        _add_metadata(described, prefix, out)


def _add_metadata(described: Mapping[str, Any], prefix: str, out: dict[str, Any]) -> None:
    """Add entries for batch sizes, nodes without entries and non-tensor values that ``_metadata`` records."""
    nodes: set[str] = set()
    for name in out:
        parent = name.rpartition(".")[0]
        while parent not in nodes:
            nodes.add(parent)
            parent = parent.rpartition(".")[0]
    for path, info in described.items():
        if not (isinstance(info, Mapping) and "batch_size" in info):
            continue
        node = (prefix + path).removesuffix(".")
        outer = described.get(path.rpartition(".")[0], {}).get("batch_size", ()) if path else ()
        at = node + "." if node else ""
        if info["batch_size"] != outer or (node and node not in nodes):
            out.setdefault(at + BATCH_SIZE, info["batch_size"])
        if info.get("names") is not None:
            out.setdefault(at + NAMES, info["names"])
        values = info.get("_non_tensor", {})
        if info.get("_type") == "NonTensorData":
            out.setdefault(at + VALUE, values["data"])
        else:  # fields of a tensorclass
            for key, value in values.items():
                if value is not None:
                    out.setdefault(f"{at}{key}.{VALUE}", value)


def _group(saved: Mapping[str, Any], template: Any, split: bool) -> dict[str, Any]:
    """Return the entries grouped by the first level of their keys: a leaf, or the state of a node.

    The first level is the longest part of the key, up to a dot or the end, that the template has as a key.
    """
    own = frozenset(() if template is None else template._keys())
    groups: dict[str, Any] = {}
    for name, value in saved.items():
        key, dot = name, "."
        while dot and key not in own:
            key, dot, _ = key.rpartition(".")
        if not dot:
            key = name.partition(".")[0] if split or name.rpartition(".")[2] in RESERVED else name
        if name == key:
            groups[key] = value
        else:
            groups.setdefault(key, {})
            if not isinstance(groups[key], dict):
                raise errors.keys_collide("load_state_dict", key, key, name)
            groups[key][name[len(key) + 1 :]] = value
    return groups


def restore(saved: dict[str, Any], template: Any, split: bool, outer: torch.Size, sized: bool) -> Any:
    """Return the tree of a flat state; ``template`` is the node that it will be loaded into, if any.

    If ``sized``, the state has the batch size of each node that differs from that of its parent; otherwise it has none,
    and those of the template hold.
    """
    if not sized and template is not None:
        outer = template._meta.batch_size
    saved = dict(saved)
    size = torch.Size(saved.pop(BATCH_SIZE, outer))
    names = saved.pop(NAMES, None)
    saved.pop("__device", None)  # entries are moved to the device of the target
    meta = Meta(size, None, None if names is None else as_names(names, len(size)))
    if VALUE in saved:
        return containers.non_tensor._make(saved[VALUE], meta)
    if VALUES in saved:
        return containers.non_tensor_stack.from_list(saved[VALUES], batch_size=size)
    if UNBATCHED in saved:
        return containers.unbatched._make(saved[UNBATCHED], meta)
    if STACK_DIM in saved:
        return _restore_stack(saved, template, split, size, names, sized)
    node = containers.dense._make({}, meta)
    for key, value in _group(saved, template, split).items():
        below = None if template is None else template._peek(key)
        if isinstance(value, dict):
            value = restore(value, below if isinstance(below, Node) else None, split, size, sized)
        elif not isinstance(value, Tensor):
            value = containers.non_tensor._make(value, Meta(size))
        elif isinstance(value, containers.unbatched) or isinstance(below, containers.unbatched):
            value = containers.unbatched(value)
        node._set(key, value)
    return node


def _restore_stack(saved: dict[str, Any], template: Any, split: bool, size: torch.Size, names: Any, sized: bool) -> Any:
    dim = saved.pop(STACK_DIM)
    parts = _group(saved, None, True)
    like = None if template is None else template._lazy_stack
    items = [] if like is None else list(like.tensordicts)
    templates = [*items, *[template] * (len(parts) - len(items))]
    inner = size[:dim] + size[dim + 1 :] if len(size) > dim else size
    tds = [restore(parts[str(i)], templates[i], split, inner, sized) for i in range(len(parts))]
    stack = containers.lazy._make(tds, dim) if tds else containers.lazy(batch_size=inner, stack_dim=dim)
    if names is not None:
        stack.names = names
    return stack


def _paths(node: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all leaves and non-tensor entries; the elements of a ragged lazy stack share theirs."""
    for key, value in node._peek_items():
        if isinstance(value, Tensor) or value._is_opaque:
            yield (*prefix, key)
        else:
            yield from _paths(value, (*prefix, key))


def _sized(saved: Mapping[str, Any]) -> bool:
    return any(name.rpartition(".")[2] == BATCH_SIZE for name in saved)


def load(target: Any, state_dict: Mapping[str, Any], strict: bool, assign: bool, from_flatten: bool | None) -> None:
    """Load a state dict into a tensordict; if the keys do not match, nothing is changed."""
    saved: dict[str, Any] = {}
    _flat(state_dict, "", saved)
    sized = _sized(saved)
    outer = torch.Size([]) if BATCH_SIZE in saved or STACK_DIM in saved else target._meta.batch_size
    source = restore(saved, target, from_flatten is not False, outer, sized)
    if source._is_lazy_stack and target._lazy_stack is None:
        source = source.to_tensordict()
    if target.is_empty():
        if target._locked:
            raise errors.locked("load_state_dict would add entries")
        meta = source._meta
        target._change_batch_size(meta.batch_size)
        if meta.names is not None:
            target._name_dims(meta.names)
    elif strict:
        have, got = set(_paths(target)), set(_paths(source))
        if have != got:
            missing, unexpected = sorted(have - got), sorted(got - have)
            raise errors.state_mismatch(map(unravel_key, missing), map(unravel_key, unexpected))
    with torch.no_grad():
        plan = WritePlan()
        _assign(target, source, assign, sized, plan, ())
        plan.run()


def _pairs_of_elements(target: Any, source: Any) -> Iterator[tuple[Any, Any]]:
    """Return the elements of two lazy stacks in pairs.

    Raises:
        RuntimeError: They differ in the number of elements or the stack dim.
    """
    if source.stack_dim != target.stack_dim or len(source.tensordicts) != len(target.tensordicts):
        shapes = [(len(td.tensordicts), td.stack_dim) for td in (source, target)]
        raise RuntimeError(
            f"a lazy stack of {shapes[0][0]} elements along dim {shapes[0][1]} cannot be loaded into one of "
            f"{shapes[1][0]} along dim {shapes[1][1]}; load it into an empty tensordict"
        )
    return zip(target.tensordicts, source.tensordicts, strict=True)


def _assign(target: Any, source: Any, assign: bool, sized: bool, plan: WritePlan, prefix: tuple[str, ...]) -> None:
    """Store the entries of ``source`` in ``target``, or plan to write them; it gets the structure of ``source``."""
    size = source._meta.batch_size
    stack = target._lazy_stack
    if source._is_lazy_stack and stack is not None:
        for own, new in _pairs_of_elements(stack, source):
            _assign(own, new, assign, sized, plan, prefix)
        return
    if sized and assign and size != target._meta.batch_size:
        target._change_batch_size(torch.Size([]))
    for key, value in source._items():
        own = target._get(key)
        nodes = isinstance(own, Node) and isinstance(value, Node)
        if nodes and not own._is_opaque and not value._is_opaque:
            _assign(own, value, assign, sized, plan, (*prefix, key))
        elif not assign and (type(own) is type(value) if nodes else is_leaf_tensor(own) and is_leaf_tensor(value)):
            target._plan_entry(key, None, value, plan, prefix)
        else:
            target._store(key, value)
    if sized and size != target._meta.batch_size:
        target._change_batch_size(size)
    if source._meta.names is not None and source._meta.names != target._meta.names:
        target._name_dims(source._meta.names)
