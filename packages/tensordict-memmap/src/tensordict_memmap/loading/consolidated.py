"""Reading consolidated files: all leaves are views of one mapping."""

from __future__ import annotations

import os
from typing import Any

import torch

from tensordict_core.extension import annotate
from tensordict_memmap.formats.consolidated import open_consolidated
from tensordict_memmap.tensor.mapping import MODES, Mapping

__all__ = ["bytes_of", "from_consolidated"]


def from_consolidated(filename: str | os.PathLike[str], *, mode: str = "r") -> Any:
    """Opens a file that `consolidate` wrote, ours or the reference's, without a copy.

    Args:
        filename: the file.
        mode: ``"r"`` keeps writes to tensors in this process, ``"r+"`` writes them to the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or no consolidated file.

    >>> _ = TensorDict({"a": torch.arange(3)}).consolidate("three.bin")
    >>> from_consolidated("three.bin")["a"]
    tensor([0, 1, 2])
    """
    if mode not in MODES:
        raise ValueError(
            f"unknown mode {mode!r}; files are mapped with mode {', '.join(map(repr, MODES))}, and 'r+' writes to them"
        )
    where = os.path.abspath(filename)
    made, mapping = open_consolidated(where, mode)
    annotate(made, "consolidated", bytes_of(mapping))
    return made


def bytes_of(mapping: Mapping) -> torch.Tensor:
    """All of a mapping as one tensor of bytes."""
    if not mapping.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mapping.buffer, dtype=torch.uint8)
