"""Deprecated names: aliases that keep older programs running.

The documentation does not show them.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import torch

from tensordict_core.base.keys import NestedKey
from tensordict_core.base.node import Node
from tensordict_core.base.options import Setting, current
from tensordict_core.ops.cast import CastFilter


class DeprecatedNames(Node):
    """Deprecated names of methods."""

    __slots__ = ()

    def clear_device(self) -> Self:
        """Call ``clear_device_``; this is a deprecated alias.

        >>> TensorDict({"a": 1}, device="cpu").clear_device().device is None
        True
        """
        return self.clear_device_()

    def rename_key(self, old_key: NestedKey, new_key: NestedKey, safe: bool = False) -> Self:
        """Call ``rename_key_``, in place as well; this is a deprecated alias.

        >>> list(TensorDict({"a": 1}).rename_key("a", "b").keys())
        ['b']
        """
        return self.rename_key_(old_key, new_key, safe)

    def clear_refs_for_compile_(self) -> Self:
        """Return the tensordict; there are no references to clear before ``torch.compile``.

        >>> TensorDict({"a": 1}).clear_refs_for_compile_()["a"]
        tensor(1)
        """
        return self

    def qint8(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Call ``to(torch.qint8)``, which raises an error of torch: `torch.quantize_per_tensor` takes a scale.

        >>> TensorDict({}).qint8().is_empty()
        True
        """
        return self.to(torch.qint8, cast_filter=cast_filter)

    def quint8(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Call ``to(torch.quint8)``, which raises an error of torch: `torch.quantize_per_tensor` takes a scale.

        >>> TensorDict({}).quint8().is_empty()
        True
        """
        return self.to(torch.quint8, cast_filter=cast_filter)

    def qint32(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Call ``to(torch.qint32)``, which raises an error of torch: `torch.quantize_per_tensor` takes a scale.

        >>> TensorDict({}).qint32().is_empty()
        True
        """
        return self.to(torch.qint32, cast_filter=cast_filter)

    def quint4x2(self, *, cast_filter: CastFilter | None = None) -> Self:
        """Call ``to(torch.quint4x2)``, which raises an error of torch: `torch.quantize_per_tensor` takes a scale.

        >>> TensorDict({}).quint4x2().is_empty()
        True
        """
        return self.to(torch.quint4x2, cast_filter=cast_filter)

    def get_sub_tensordict(self, idx: Any) -> Any:
        """Call ``view_at``; this is a deprecated alias.

        >>> td = TensorDict({"a": torch.zeros(2)}, [2])
        >>> _ = td.get_sub_tensordict(0).set_("a", torch.ones(()))
        >>> td["a"]
        tensor([1., 0.])
        """
        return self.view_at(idx)


class set_lazy_legacy(Setting):
    """Choose whether stacks and views are lazy, as in older releases.

    In this mode ``stack`` and ``torch.stack`` return lazy stacks, and ``view``, ``permute``, ``transpose``,
    ``unsqueeze`` and ``squeeze`` return live views, through which new keys reach the source.

    Args:
        mode: Whether they are lazy; ``True`` warns that the mode is deprecated.

    >>> with set_lazy_legacy(False):
    ...     lazy_legacy()
    False
    """

    _option = "lazy_legacy"

    def __init__(self, mode: bool) -> None:
        if mode:
            warnings.warn(
                "The legacy lazy mode, turned on with set_lazy_legacy(True), is deprecated; use lazy_stack for a lazy "
                "stack, and a with block over td.view(...) to write through a view",
                DeprecationWarning,
                stacklevel=2,
            )
        super().__init__(mode)


def lazy_legacy(allow_none: bool = False) -> bool:
    """Return whether ``set_lazy_legacy`` makes stacks and views lazy.

    Args:
        allow_none: Accepted for compatibility.

    >>> lazy_legacy()
    False
    """
    return current.lazy_legacy
