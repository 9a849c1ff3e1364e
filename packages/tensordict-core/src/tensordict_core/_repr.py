"""How a tensordict prints: its entries one a line, in alphabetical order, then its metadata."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._primitives import Primitives

__all__ = ["Representation", "describe"]

_INDENT = " " * 4


def _indent(text: str) -> str:
    return text.replace("\n", "\n" + _INDENT)


def describe(value: Any) -> str:
    """One entry as it is printed.

    >>> describe(torch.zeros(2))
    'Tensor(shape=torch.Size([2]), device=cpu, dtype=torch.float32, is_shared=False)'
    """
    if isinstance(value, Tensor):
        try:
            shared: Any = value.is_shared()
        except Exception:  # fake, functorch and other wrapped tensors have no storage to ask
            shared = False
        kind = type(value).__name__
        return f"{kind}(shape={value.shape}, device={value.device}, dtype={value.dtype}, is_shared={shared})"
    return repr(value)


class Representation(Primitives):
    """``repr(td)``."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The entries and the metadata.

        >>> print(TensorDict({"a": torch.zeros(2)}, [2]))
        TensorDict(
            fields={
                a: Tensor(shape=torch.Size([2]), device=cpu, dtype=torch.float32, is_shared=False)},
            batch_size=torch.Size([2]),
            device=None,
            is_shared=False)
        """
        fields = ",\n".join(f"{key}: {self._describe(key)}" for key in sorted(self._keys()))
        shown = _indent("\n" + fields) + "}" if fields else "}"
        lines = [f"fields={{{_indent(shown) if fields else shown}", *self._repr_meta()]
        return f"{type(self).__name__}(\n{_INDENT}" + f",\n{_INDENT}".join(lines) + ")"

    def _describe(self, key: str) -> str:
        """One entry as it is printed."""
        return describe(self._get(key))

    def _repr_meta(self) -> list[str]:
        """What is printed behind the entries."""
        return [
            f"batch_size={self._meta.batch_size}",
            f"device={self._meta.device}",
            f"is_shared={self.is_shared()}",  # type: ignore[attr-defined]
        ]
