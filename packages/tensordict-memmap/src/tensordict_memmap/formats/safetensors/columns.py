"""Entries: what a record says of the tensors of a node, in columns like those themselves (``layout.py``).

Nearly always that is no more than the name in the file, which is the joined key. Thousands of such entries are written
as one text, and are dictionaries only where one of them says something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict_memmap.formats.safetensors.header import escaped
from tensordict_memmap.schema import nontensor as values

__all__ = ["Entries"]


class Entries:
    """The entries of tensors that have their joined keys for names, unless they are changed one by one.

    Args:
        names: the keys in the node; in ASCII, unless `each` is asked for.
        start: what stands before them in the file.

    Attributes:
        names: the keys.
        changed: what `each` gave; None where nobody asked for it.

    >>> entries = Entries(["a", "b"], "x.")
    >>> entries.text()
    b'{"a":{"tensor":"x.a"},"b":{"tensor":"x.b"}}'
    >>> entries.each()["b"]["dtype"] = "torch.complex128"
    >>> entries.text()
    b'{"a":{"tensor":"x.a"},"b":{"tensor":"x.b","dtype":"torch.complex128"}}'
    """

    __slots__ = ("_start", "changed", "names")

    def __init__(self, names: Sequence[str], start: str) -> None:
        self.names, self._start = names, start
        self.changed: dict[str, dict[str, Any]] | None = None

    def each(self) -> dict[str, dict[str, Any]]:
        """One by one: what is changed there is written so."""
        if self.changed is None:
            self.changed = {name: {"tensor": self._start + name} for name in self.names}
        return self.changed

    def text(self) -> bytes:
        """The JSON document."""
        if self.changed is not None or not self.names:
            return values.quick_dumps(self.each(), finite=True)
        names, (start,) = escaped(self.names), escaped([self._start])
        parts = [f'":{{"tensor":"{start}'] * (4 * len(names))
        parts[::4], parts[2::4], parts[3::4] = names, names, ['"},"'] * len(names)
        parts[-1] = '"}}'
        return f'{{"{"".join(parts)}'.encode()
