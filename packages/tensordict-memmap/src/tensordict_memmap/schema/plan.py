"""Plan: converts a tensordict to its schema; saves, comparisons and selections use the same traversal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tensordict_core import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorCollection,
    UnbatchedTensor,
    is_non_tensor,
)
from tensordict_memmap.schema.node import WRAPPED, Dense, Leaf, Node, Parts, Path, Value, registered_name, show

LAZY = "<class 'tensordict._lazy.LazyStackedTensorDict'>"
"""The class string of lazy stacks."""


MOST_NODES = 200
"""The maximum nesting depth of a save: each level is a folder, and loads traverse the levels by recursion."""


def plan(td: Any, key: Path = ()) -> Node:
    """Return the schema of a tensordict, lazy stack, tensorclass or non-tensor data, with its tensors and nodes.

    Files get no names and values no stored form here: that is for the format that stores them.

    Args:
        td: The tensordict.
        key: Its nested key.

    Raises:
        TypeError: An entry is of a kind that cannot be saved; the error names its key.

    >>> from tensordict_core import TensorDict
    >>> plan(TensorDict({"a": torch.zeros(2, 3)}, [2])).entries["a"].shape
    torch.Size([2, 3])
    """
    if is_non_tensor(td):
        return _plan_value(td, key)
    if isinstance(td, LazyStackedTensorDict):
        names = td.names
        facts = {"stack_dim": td.stack_dim, "stack_dim_name": names[td.stack_dim] if names else None}
        parts = {str(number): plan(part, (*key, str(number))) for number, part in enumerate(td.tensordicts)}
        return Parts(key, "", LazyStackedTensorDict, LAZY, facts, parts, td)
    if not isinstance(td, TensorCollection) or td._is_opaque:
        raise TypeError(
            f"{'key ' + show(key) if key else 'the argument'} is a {type(td).__name__}, and a saved tensordict holds "
            "tensors, tensordicts, tensorclasses and non-tensor data; convert or remove it first"
        )
    form = td._disk_form()
    if form is None:
        return _plan_dense(td, key)
    if isinstance(form, TensorCollection):  # saved as the container that it wraps
        return plan(form, key)
    facts, content = form
    made = Parts(key, "", type(td), str(type(td)), facts, origin=td)
    for name, part in content.items():
        # the content of a tensorclass has no key of its own: its entries are under the key of the tensorclass
        made.parts[name] = plan(part, key if name == WRAPPED else (*key, name))
    wrapped = made.parts.get(WRAPPED)
    if isinstance(wrapped, Dense):
        wrapped.owner = registered_name(made)
    return made


def plan_to_save(td: Any) -> Node:
    """Return the schema of a tensordict to save, after a check that it is not nested too deeply.

    Raises:
        TypeError: An entry is of a kind that cannot be saved; the error names its key.
        ValueError: It is nested more than 200 levels deep; the error names the start of the key.

    >>> from tensordict_core import TensorDict
    >>> list(plan_to_save(TensorDict({"a": torch.zeros(2)})).entries)
    ['a']
    """
    try:
        schema = plan(td)
    except RecursionError:
        raise too_deep() from None
    check_depth(schema)
    return schema


def check_depth(schema: Node) -> None:
    """Refuse a schema that is nested more deeply than a load can traverse.

    Raises:
        ValueError: It has more than 200 levels.
    """
    level: list[Node] = [schema]
    for _ in range(MOST_NODES):
        level = [part for node in level for part in _inside(node)]
        if not level:
            return
    raise too_deep(level[0].key)


def _inside(node: Node) -> Iterable[Node]:
    if isinstance(node, Dense):
        return [entry for entry in node.entries.values() if not isinstance(entry, Leaf)]
    return node.parts.values() if isinstance(node, Parts) else ()


def too_deep(key: Path = ()) -> ValueError:
    """Return the error for a tensordict that is nested too deeply."""
    start = f"the key that starts with {show(key[:3])}" if key else "the tensordict"
    return ValueError(
        f"{start} is nested more than {MOST_NODES} levels deep, which a save cannot hold; flatten it with "
        "flatten_keys() and call unflatten_keys() after the load"
    )


def check_source(leaf: Leaf, *, like: bool = False) -> None:
    """Refuse a tensor whose values a file cannot hold.

    Args:
        leaf: The planned leaf.
        like: Whether only its shape and dtype are stored.

    Raises:
        TypeError: The tensor is quantized, not strided, on the meta device, or jagged without components; the error
            names its key.

    >>> check_source(Leaf(("a",), "", torch.float32, (2,), source=torch.zeros(2)))
    """
    source = leaf.source
    if source is None:
        return
    if leaf.layout != "strided":
        if leaf.layout == "jagged" and not leaf.shape[0]:
            raise TypeError(
                f"key {show(leaf.key)} is a jagged tensor without components, and a file holds the sizes of components "
                "only; leave it out, or consolidate it to a file, which holds its values as they are"
            )
        return
    if source.is_quantized:
        raise TypeError(
            f"key {show(leaf.key)} is a quantized tensor of {source.dtype}, and a file holds neither its scale nor its "
            "zero point; save q.int_repr(), q.q_scale() and q.q_zero_point() as entries, or q.dequantize()"
        )
    if source.layout is not torch.strided or (source.is_meta and not like):
        raise TypeError(
            f"key {show(leaf.key)} is a {source.layout} tensor of {source.dtype} on {source.device}, and a saved "
            "tensor has values in strided memory; make it dense first"
        )


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _plan_dense(td: Any, key: Path) -> Dense:
    meta = td._meta
    node = Dense(key, "", tuple(meta.batch_size), meta.names, origin=td)
    entries = node.entries
    last, is_complex = None, False
    for name, value in td._items():
        path = key + (name,)  # noqa: RUF005  # half the time of unpacking
        kind = type(value)
        if kind is UnbatchedTensor:
            tensor = value.tensor
            entries[name] = Leaf(path, "", tensor.dtype, tensor.shape, tensor, unbatched=True)
        elif kind in _PLAIN or isinstance(value, torch.Tensor):
            if value.is_nested:
                entries[name] = _plan_nested(value, path)
                continue
            dtype, address = value.dtype, 0
            if dtype is not last:
                last, is_complex = dtype, dtype.is_complex
            try:  # as plain_address, without a call for each of thousands of leaves
                conj = is_complex and value.is_conj()
                if value.is_cpu and value.is_contiguous() and not (conj or value.is_neg()):
                    address = value.data_ptr()
            except RuntimeError:  # a tensor that is not strided, or has no memory of its own
                pass
            entries[name] = Leaf(path, name, dtype, value.shape, value, address)
        else:
            entries[name] = plan(value, path)
    return node


def plain_address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor whose bytes in the memory of the CPU are those of a file; 0 for others.

    >>> plain_address(torch.ones(2, 3).T)
    0
    """
    try:
        plain = tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj())
        return tensor.data_ptr() if plain and tensor.numel() else 0
    except RuntimeError:  # a tensor that is not strided, or has no memory of its own
        return 0


def _plan_nested(tensor: torch.Tensor, key: Path) -> Leaf:
    jagged = tensor.layout is torch.jagged
    # components that are ragged in another dimension are stored with that one first, which keeps them one run of bytes
    ragged = next(dim for dim in range(1, tensor.dim()) if not isinstance(tensor.shape[dim], int)) if jagged else 1
    source = tensor.transpose(1, ragged) if ragged != 1 else tensor
    shape = (tensor.size(0), tensor.dim() - 1)
    return Leaf(key, "", tensor.dtype, shape, source, layout="jagged" if jagged else "nested", ragged=ragged)


def _plan_value(td: Any, key: Path) -> Value:
    stack = isinstance(td, NonTensorStack)
    if not stack and not isinstance(td, NonTensorData):
        raise TypeError(
            f"{'key ' + show(key) if key else 'the argument'} is a {type(td).__name__}, and non-tensor data is saved "
            "as NonTensorData or NonTensorStack; convert it first"
        )
    return Value(key, "", tuple(td.batch_size), stack, origin=td, metadata=isinstance(td, MetaData))


def memory_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return a key that two tensors share if they are the same memory, read in the same way; None for empty tensors.

    >>> weight = torch.ones(2, 3)
    >>> memory_of(weight) == memory_of(weight.view(2, 3)), memory_of(weight) == memory_of(weight[:1])
    (True, False)
    """
    try:
        address = tensor.data_ptr() if tensor.layout is torch.strided and tensor.numel() else 0
    except RuntimeError:  # a tensor without memory of its own
        return None
    if not address:
        return None
    form = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (address, tensor.device, *form)
