"""The module of `MemoryMappedTensor`; the attribute ``tensordict.memmap`` is the function of that name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._serve.lazy import serve

if TYPE_CHECKING:
    from tensordict_memmap import MemoryMappedTensor as MemoryMappedTensor
else:
    __getattr__, __dir__ = serve(__name__)
