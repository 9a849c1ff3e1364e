"""``repr`` of a tensordict: one entry per line in alphabetical order, then the metadata; or one short line.

`set_printoptions` selects what is printed. A container overrides the text of an entry or of its metadata, not the
layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tensordict_core.base.node import Node
from tensordict_core.base.options import current
from tensordict_core.base.predicates import in_shared_memory
from tensordict_core.base.ragged import shape_of
from tensordict_core.ops.io import html
from tensordict_core.ops.io.compact import compact, ordered

_INDENT = " " * 4


def indented(text: str) -> str:
    """Return a text with all lines but the first indented."""
    return text.replace("\n", "\n" + _INDENT)


def in_braces(entries: Iterable[str]) -> str:
    """Return the entries of a tensordict in braces, one a line."""
    return "{" + (",".join(indented(f"\n{entry}") for entry in entries) or "\n") + "}"


def describe(value: Any, **known: Any) -> str:
    """Return the printed form of one entry.

    Args:
        value: The entry; of a lazy stack, that of the first element, as an example.
        **known: The ``shape``, ``dtype`` and ``is_shared`` to print, where they are not those of the value; further
            details are left out then.

    >>> describe(torch.zeros(2))
    'Tensor(shape=torch.Size([2]), device=cpu, dtype=torch.float32, is_shared=False)'
    """
    if isinstance(value, Node) and not isinstance(value, Tensor):
        return repr(value)
    return f"{type(value).__name__}({', '.join(_properties(value, current.printing, known))})"


_PROPERTIES: tuple[tuple[str, str, Callable[[Tensor], Any]], ...] = (
    ("show_shape", "shape", shape_of),
    ("show_field_device", "device", lambda value: value.device),
    ("show_dtype", "dtype", lambda value: value.dtype),
    ("show_field_is_shared", "is_shared", in_shared_memory),
    ("show_grad", "requires_grad", lambda value: value.requires_grad),
    ("show_is_contiguous", "is_contiguous", lambda value: value.is_contiguous()),
    ("show_is_view", "is_view", lambda value: value._is_view()),
    ("show_storage_size", "storage_size", lambda value: value.untyped_storage().nbytes()),
)
"""The print option, the name and the value of each property of a tensor."""

_FIRST = 4
"""The number of tensors that are printed of an entry that represents several."""


def _properties(value: Tensor, options: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """Return the printed properties of a tensor that the print options select."""
    said = [
        f"{name}={known[name] if name in known else read(value)}"
        for option, name, read in (_PROPERTIES[:_FIRST] if known else _PROPERTIES)
        if options[option]
    ]
    return [*said, _summary(value.detach())] if options["plain"] and not known else said


def _summary(value: Tensor) -> str:
    """Return the mean and the standard deviation of numbers, the limits of integers and bools."""
    if not value.numel():
        return "[]"
    if value.is_floating_point() or value.is_complex():
        numbers = value.to(torch.complex128 if value.is_complex() else torch.float64)
        spread = numbers.std().item() if value.numel() > 1 else math.nan  # torch warns of one number
        return f"mean={numbers.mean().item():.4g}, std={spread:.4g}"
    return f"min={value.min().item()}, max={value.max().item()}"


class Representation(Node):
    """``repr(td)``."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the entries and the metadata, in the long or in the compact form.

        >>> from tensordict_core import set_printoptions
        >>> with set_printoptions(compact=True):
        ...     print(TensorDict({"a": torch.zeros(2, 3), "b": {"c": torch.ones(2)}}, [2]))
        TensorDict(batch_size=[2], fields={a: f32[3], b: {c: f32[]}})
        >>> TensorDict({"a": torch.zeros(2)}, [2])
        TensorDict(
            fields={
                a: Tensor(shape=torch.Size([2]), device=cpu, dtype=torch.float32, is_shared=False)},
            batch_size=torch.Size([2]),
            device=None,
            is_shared=False)
        """
        return self._repr_as(type(self).__name__)

    def _repr_as(self, name: str) -> str:
        if current.printing["compact"]:
            return compact(self, name)
        entries = []
        for key in ordered(self):  # a generator would take more of the stack at each level of nesting
            entries.append(f"{key}: {self._describe(key)}")
        lines = [f"fields={in_braces(entries)}", *self._repr_meta()]
        return f"{name}(" + indented("\n" + ",\n".join(lines)) + ")"

    def _kind_in(self, parent: Any) -> str:
        """Return the text that the compact form of ``parent`` prints in front of the entries of this node."""
        name = type(self).__name__
        return "" if name == "TensorDict" else name

    def _unset_fields(self) -> list[str]:
        """Return the names of fields without an entry, which are printed too."""
        return []

    def _repr_html_(self) -> str | None:
        """Return the entries as folding tables for notebooks; ``None`` if the print options switch it off."""
        if not current.printing["html"]:
            return None
        return html.page(html.section(self, type(self).__name__, ordered))

    def _ipython_key_completions_(self) -> list[Any]:
        """Return the completions of IPython and notebooks after ``td["``: the keys, and the nested ones as tuples.

        >>> TensorDict({"a": torch.zeros(1), "b": {"c": torch.zeros(1)}})._ipython_key_completions_()
        ['a', 'b', ('b', 'c')]
        """
        return list(self.keys(include_nested=True))

    def _repr_short(self) -> list[str]:
        """Return the metadata in the title of the HTML form."""
        meta, options = self._meta, current.printing
        said = [f"batch_size={list(meta.batch_size)}"] if options["show_batch_size"] else []
        if meta.device is not None and options["show_device"]:
            said.append(f"device={meta.device}")
        if meta.names is not None:
            said.append(f"names={list(meta.names)}")
        return said

    def _describe(self, key: str) -> str:
        """Return the printed form of one entry."""
        value = self._get(key)
        nested = isinstance(value, Node) and not isinstance(value, Tensor)
        return repr(value) if nested else describe(value)  # few calls for each level of nesting

    def _repr_meta(self) -> list[str]:
        """Return the lines after the entries."""
        options = current.printing
        said = {
            "show_batch_size": f"batch_size={self._meta.batch_size}",
            "show_device": f"device={self._meta.device}",
            "show_is_shared": f"is_shared={self.is_shared()}",
        }
        return [text for option, text in said.items() if options[option]]
