"""Operations, compared with the reference and with plain dictionaries."""

from __future__ import annotations

import sys

import tensordict as reference
import tensordict_core
from benchmarks.operations import OPERATIONS, Operands

BY_NAME = {operation.name: operation for operation in OPERATIONS}
GROWING = tuple(operation.name for operation in OPERATIONS if operation.grows)


class Operations:
    """Every operation, on ten leaves of 3 x 4."""

    params: tuple[tuple[object, ...], ...] = (tuple(BY_NAME),)
    param_names: tuple[str, ...] = ("operation",)
    # asv's default settings take half a second for each of hundreds of cells
    rounds = 1
    warmup_time = 0.02

    def setup(self, operation: str, leaves: int = 10, depth: int = 1) -> None:
        self.operation = BY_NAME[operation]
        self.ours = Operands(tensordict_core, leaves, depth)
        self.reference = Operands(reference, leaves, depth)

    def time_operation(self, operation: str, leaves: int = 10, depth: int = 1) -> None:
        self.operation.run(self.ours)

    def time_operation_reference(self, operation: str, leaves: int = 10, depth: int = 1) -> None:
        self.operation.run(self.reference)

    def time_operation_plain(self, operation: str, leaves: int = 10, depth: int = 1) -> None:
        if self.operation.plain is not None:
            self.operation.plain(self.ours)


class Leaves(Operations):
    """Operations by the number of leaves."""

    params = (GROWING, (1, 10, 100, 1000))
    param_names = ("operation", "leaves")


class Depth(Operations):
    """Operations by the number of levels, of ten leaves each."""

    params = (GROWING, (10,), (1, 2, 3, 4, 5))
    param_names = ("operation", "leaves", "depth")


class Memory:
    """Memory of an empty tensordict."""

    unit = "bytes"

    def track_empty(self) -> int:
        td = tensordict_core.TensorDict()
        return sys.getsizeof(td) + sys.getsizeof(td._entries)
