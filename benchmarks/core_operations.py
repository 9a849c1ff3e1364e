"""The cost of operations, beside the reference and beside the same on plain dictionaries."""

from __future__ import annotations

import tensordict as reference
import tensordict_core
from benchmarks.operations import OPERATIONS, Operands

BY_NAME = {operation.name: operation for operation in OPERATIONS}


class Operations:
    """Every operation, on ten leaves of 3 x 4."""

    params: tuple[tuple[object, ...], ...] = (tuple(BY_NAME),)
    param_names: tuple[str, ...] = ("operation",)

    def setup(self, operation: str, leaves: int = 10) -> None:
        self.operation = BY_NAME[operation]
        self.ours = Operands(tensordict_core, leaves)
        self.reference = Operands(reference, leaves)

    def time_operation(self, operation: str, leaves: int = 10) -> None:
        self.operation.run(self.ours)

    def time_operation_reference(self, operation: str, leaves: int = 10) -> None:
        self.operation.run(self.reference)

    def time_operation_plain(self, operation: str, leaves: int = 10) -> None:
        if self.operation.plain is not None:
            self.operation.plain(self.ours)


class Leaves(Operations):
    """What an operation costs as leaves become more."""

    params = (("construct", "td[0]", "td + 1", "td + td", "apply(sin)", "stack 8"), (1, 100, 1000))
    param_names = ("operation", "leaves")


class Depth:
    """Two levels to five, ten leaves each."""

    params = (1, 2, 3, 4, 5)
    param_names = ("depth",)

    def setup(self, depth: int) -> None:
        self.ours = Operands(tensordict_core, depth=depth).td
        self.reference = Operands(reference, depth=depth).td

    def time_index(self, depth: int) -> None:
        self.ours[0]

    def time_index_reference(self, depth: int) -> None:
        self.reference[0]

    def time_add(self, depth: int) -> None:
        self.ours + self.ours

    def time_add_reference(self, depth: int) -> None:
        self.reference + self.reference
