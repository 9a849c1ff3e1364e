"""The compact form of ``repr``: one line, or one entry a line where the line would be longer than 80 characters.

An entry is its dtype and its own dimensions, ``f32[4]``; a nested tensordict is its entries in braces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from tensordict_core.base.node import is_leaf_tensor
from tensordict_core.base.options import current
from tensordict_core.base.registry.types import containers

_WIDTH = 80
_INDENT = 4
_SHORT_DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def compact(node: Any, name: str) -> str:
    """Return the compact form of a tensordict.

    Args:
        node: The tensordict.
        name: The text in front.

    >>> compact(TensorDict({"a": torch.zeros(3, 4), "n": {"b": torch.ones(3)}}, [3]), "TensorDict")
    'TensorDict(batch_size=[3], fields={a: f32[4], n: {b: f32[]}})'
    """
    meta, options = node._meta, current.printing
    device = meta.device or torch.device("cpu")
    said = [f"batch_size={_sizes(meta.batch_size)}"] if options["show_batch_size"] else []
    if meta.device is not None and options["show_device"]:
        said.append(f"device={meta.device}")
    exclusive: dict[str, Any] = {}
    if node._is_lazy_stack:
        said.append(f"stack_dim={node.stack_dim}")
        common = set(node._keys())
        for i, td in enumerate(node.tensordicts):
            if own := {key: _entry(td, key, device) for key in ordered(td) if key not in common}:
                exclusive[str(i)] = "", own
    text = f"{name}({', '.join([*said, 'fields='])}"
    between = ", exclusive_fields="
    # on the last line of the entries follows the end, or the beginning of what only some elements have
    text += _block(_fields(node, device), len(text), len(between) + 1 if exclusive else 1, 0)
    if exclusive:
        text += between
        text += _block(exclusive, len(text.rpartition("\n")[2]), 1, 0)
    return text + ")"


def ordered(node: Any) -> list[str]:
    """Return the keys of a node in the order in which they are printed."""
    order = current.printing["sort_keys"]
    if callable(order):
        return sorted(node._keys(), key=order)
    # the printed lines are sorted, in which a colon follows the key
    return sorted(node._keys(), key="{}:".format) if order == "alphabetical" else list(node._keys())


def _fields(node: Any, device: torch.device) -> dict[str, Any]:
    """Return the output for each entry: a text, or the text before the braces and the entries in them."""
    return {
        **{key: _entry(node, key, device) for key in ordered(node)},
        **dict.fromkeys(node._unset_fields(), "None"),
    }


def _entry(node: Any, key: str, device: torch.device) -> Any:
    stack = node._lazy_stack
    # of a lazy stack the first element shows the kind of entry: the entries of all may not stack
    value = (node if stack is None else stack.tensordicts[0])._peek(key)
    if stack is not None and (kinds := mixed(td._peek(key) for td in stack.tensordicts)):
        return kinds
    if is_leaf_tensor(value):
        at = device if node._reads_copy else value.device  # a stand-in is on the device "meta"
        return _leaf(value, _own_shape(node, key, value), f"@{at}" if at.type != device.type else "")
    if isinstance(value, Tensor):  # an unbatched one
        return _leaf(value, value.shape, "")
    if value._is_opaque:
        held = value._entry_value() if type(value) is containers.non_tensor else value
        return type(held).__name__
    kind = value._kind_in(node)
    if stack is not None:
        try:
            value = node._get(key)
        except RuntimeError:  # the nodes differ in batch size
            return f"mixed({type(value).__name__})"
    size = value._meta.batch_size[len(node._meta.batch_size) :]
    return kind + (_sizes(size) if size else ""), _fields(value, device)


def mixed(column: Iterable[Any]) -> str:
    """Return the text for an entry that is of another kind in other elements of a lazy stack; empty if it is not.

    >>> mixed([torch.zeros(1), TensorDict()])
    'mixed(Tensor, TensorDict)'
    """
    entries = list(column)
    kinds = {
        "tensor" if isinstance(entry, Tensor) else "value" if entry._is_opaque else type(entry).__name__
        for entry in entries
    }
    return f"mixed({', '.join(sorted({type(entry).__name__ for entry in entries}))})" if len(kinds) > 1 else ""


def _own_shape(node: Any, key: str, value: Tensor) -> Any:
    """Return the dimensions of an entry after those of the batch; ``None`` if the elements of a stack disagree."""
    if is_lazy(value):
        return (-1,)
    try:
        shape = node._shape_of(key)
    except RuntimeError:  # not even the numbers of dimensions agree
        return None
    return shape[len(node._meta.batch_size) :]


def _leaf(value: Tensor, shape: Any, elsewhere: str) -> str:
    options = current.printing
    if shape is None:
        return "ragged"
    dtype = _short_dtype(value.dtype) if options["show_dtype"] else ""
    return dtype + (_sizes(shape) if options["show_shape"] else "") + elsewhere


def _sizes(shape: Any) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _short_dtype(dtype: torch.dtype) -> str:
    name, _, form = str(dtype).removeprefix("torch.").partition("_")
    letters = name.rstrip("0123456789")
    return _SHORT_DTYPES.get(letters, letters) + name[len(letters) :] + (form and f"_{form}")


def _inline(fields: dict[str, Any]) -> str:
    texts = {key: value if isinstance(value, str) else value[0] + _inline(value[1]) for key, value in fields.items()}
    return "{" + ", ".join(f"{key}: {text}" for key, text in texts.items()) + "}"


def _block(fields: dict[str, Any], column: int, tail: int, indent: int) -> str:
    """Return entries in braces, which begin at ``column`` and before ``tail`` further characters on their last line."""
    line = _inline(fields)
    if not fields or column + len(line) + tail <= _WIDTH:
        return line
    indent += _INDENT
    lines = []
    for i, (key, value) in enumerate(fields.items()):
        start = f"{' ' * indent}{key}: "
        if isinstance(value, str):
            lines.append(start + value)
        else:
            start += value[0]
            behind = 1 + tail if i == len(fields) - 1 else 1
            lines.append(start + _block(value[1], len(start), behind, indent))
    return "{\n" + ",\n".join(lines) + "}"
