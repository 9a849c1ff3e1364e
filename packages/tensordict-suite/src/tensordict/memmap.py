"""The memory-mapped tensor. The function ``tensordict.memmap`` is another thing under the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._lazy import serve

if TYPE_CHECKING:
    from tensordict_memmap import MemoryMappedTensor as MemoryMappedTensor
else:
    __getattr__, __dir__ = serve(__name__)
