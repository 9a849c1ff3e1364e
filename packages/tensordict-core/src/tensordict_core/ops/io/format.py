"""``repr`` of a tensordict: one entry per line in alphabetical order, then the metadata; or one short line.

`set_printoptions` selects what is printed. A container overrides the text of an entry or of its metadata, not the
layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.options import PRINT_DEFAULTS, current
from tensordict_core.base.predicates import in_shared_memory
from tensordict_core.base.ragged import shape_of
from tensordict_core.ops.io import html

__all__ = ["Representation", "describe"]

_INDENT = " " * 4
_SHORT_DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def _indent(text: str) -> str:
    return text.replace("\n", "\n" + _INDENT)


def describe(value: Any) -> str:
    """Return the printed form of one entry.

    >>> describe(torch.zeros(2))
    'Tensor(shape=torch.Size([2]), device=cpu, dtype=torch.float32, is_shared=False)'
    """
    if not is_leaf_tensor(value):
        return repr(value)
    kind = type(value).__name__
    if current.printing is PRINT_DEFAULTS:
        shared = in_shared_memory(value)
        return f"{kind}(shape={shape_of(value)}, device={value.device}, dtype={value.dtype}, is_shared={shared})"
    return f"{kind}({', '.join(_properties(value, current.printing))})"


def _properties(value: Tensor, options: dict[str, Any]) -> list[str]:
    """Return the printed properties of a tensor that the print options select."""
    said = []
    if options["show_shape"]:
        said.append(f"shape={shape_of(value)}")
    if options["show_field_device"]:
        said.append(f"device={value.device}")
    if options["show_dtype"]:
        said.append(f"dtype={value.dtype}")
    if options["show_field_is_shared"]:
        said.append(f"is_shared={in_shared_memory(value)}")
    if options["show_grad"]:
        said.append(f"requires_grad={value.requires_grad}")
    if options["show_is_contiguous"]:
        said.append(f"is_contiguous={value.is_contiguous()}")
    if options["show_is_view"]:
        said.append(f"is_view={value._is_view()}")
    if options["show_storage_size"]:
        said.append(f"storage_size={value.untyped_storage().nbytes()}")
    if options["plain"] and value.numel() and value.dtype != torch.bool and not value.is_complex():
        numbers = value.detach().double()
        said.append(f"mean={numbers.mean().item():.4g}, std={numbers.std(correction=0).item():.4g}")
    return said


def _short_dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    letters = name.rstrip("0123456789")
    return _SHORT_DTYPES.get(letters, letters) + name[len(letters) :]


def _short(node: Any, key: str, dims: int) -> str:
    """Return one entry in the one-line form; shapes without the batch size."""
    try:
        value = node._get(key)
    except RuntimeError:  # the elements of a lazy stack have different shapes under this key
        return "ragged"
    if is_leaf_tensor(value):
        dtype = _short_dtype(value.dtype) if current.printing["show_dtype"] else ""
        return dtype + (str(list(shape_of(value)[dims:])) if current.printing["show_shape"] else "")
    if value._is_opaque:
        held = value._entry_value()
        return type(value if isinstance(held, list) else held).__name__
    own = value._meta.batch_size
    return (str(list(own[dims:])) if len(own) > dims else "") + _short_fields(value)


def _short_fields(node: Any) -> str:
    dims = len(node._meta.batch_size)
    return "{" + ", ".join(f"{key}: {_short(node, key, dims)}" for key in _ordered(node)) + "}"


def _ordered(node: Any) -> list[str]:
    order = current.printing["sort_keys"]
    if callable(order):
        return sorted(node._keys(), key=order)
    return sorted(node._keys()) if order == "alphabetical" else list(node._keys())


class Representation(Node):
    """``repr(td)``."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the entries and the metadata.

        >>> print(TensorDict({"a": torch.zeros(2)}, [2]))
        TensorDict(
            fields={
                a: Tensor(shape=torch.Size([2]), device=cpu, dtype=torch.float32, is_shared=False)},
            batch_size=torch.Size([2]),
            device=None,
            is_shared=False)
        """
        if current.printing["compact"]:
            return f"{type(self).__name__}({', '.join([*self._repr_short(), f'fields={_short_fields(self)}'])})"
        fields = ",\n".join(f"{key}: {self._describe(key)}" for key in _ordered(self))
        shown = _indent("\n" + fields) + "}" if fields else "}"
        lines = [f"fields={{{_indent(shown) if fields else shown}", *self._repr_meta()]
        return f"{type(self).__name__}(\n{_INDENT}" + f",\n{_INDENT}".join(lines) + ")"

    def _repr_html_(self) -> str | None:
        """Return the entries as folding tables for notebooks; ``None`` if the print options switch it off."""
        if not current.printing["html"]:
            return None
        return html.page(html.section(self, type(self).__name__, _ordered))

    def _ipython_key_completions_(self) -> list[Any]:
        """Return what IPython and notebooks offer after ``td["``: the keys, and the nested ones as tuples.

        >>> TensorDict({"a": torch.zeros(1), "b": {"c": torch.zeros(1)}})._ipython_key_completions_()
        ['a', 'b', ('b', 'c')]
        """
        return list(self.keys(include_nested=True))

    def _repr_short(self) -> list[str]:
        """Return the metadata in the one-line form."""
        meta, options = self._meta, current.printing
        said = [f"batch_size={list(meta.batch_size)}"] if options["show_batch_size"] else []
        if meta.device is not None and options["show_device"]:
            said.append(f"device={meta.device}")
        if meta.names is not None:
            said.append(f"names={list(meta.names)}")
        return said

    def _describe(self, key: str) -> str:
        """Return the printed form of one entry."""
        return describe(self._get(key))

    def _repr_meta(self) -> list[str]:
        """Return the lines after the entries."""
        options = current.printing
        said = {
            "show_batch_size": f"batch_size={self._meta.batch_size}",
            "show_device": f"device={self._meta.device}",
            "show_is_shared": f"is_shared={self.is_shared()}",
        }
        return [text for option, text in said.items() if options[option]]
