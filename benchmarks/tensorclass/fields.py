"""Tensorclasses: fields compared with a hand-written property and the reference, operations with the tensordict."""

from __future__ import annotations

import torch

import tensordict as reference
import tensordict_class
from benchmarks.operations import Operation

NAMES = tuple(f"field{i}" for i in range(10))
MODES = ("default", "autocast", "nocast", "tensor_only")


class ByHand:
    """A class with properties over a dictionary, without a tensordict."""

    def __init__(self, batch_size: object = None, **fields: torch.Tensor) -> None:
        self.batch_size = batch_size
        self.fields = fields

    @property
    def field3(self) -> torch.Tensor:
        return self.fields["field3"]

    @field3.setter
    def field3(self, value: torch.Tensor) -> None:
        self.fields["field3"] = value


def body() -> type:
    """Makes the plain class of ten tensor fields."""
    return type("Record", (), {"__annotations__": dict.fromkeys(NAMES, torch.Tensor), "__module__": __name__})


def record(library: object, mode: str = "default") -> type:
    flags = {} if mode == "default" else {mode: True}
    return library.tensorclass(**flags)(body())


class Fields:
    """Reads, writes and makes instances of ten fields."""

    params = (MODES,)
    param_names = ("mode",)

    def setup(self, mode: str) -> None:
        self.values = {name: torch.randn(3, 4) for name in NAMES}
        self.value = torch.randn(3, 4)
        self.by_hand = ByHand(**self.values)
        self.cls = record(tensordict_class, mode)
        self.reference_cls = record(reference, mode)
        self.ours = self.cls(**self.values, batch_size=[3])
        self.reference = self.reference_cls(**self.values, batch_size=[3])

    def time_read(self, mode: str) -> torch.Tensor:
        return self.ours.field3

    def time_read_reference(self, mode: str) -> torch.Tensor:
        return self.reference.field3

    def time_read_by_hand(self, mode: str) -> torch.Tensor:
        return self.by_hand.field3

    def time_write(self, mode: str) -> None:
        self.ours.field3 = self.value

    def time_write_reference(self, mode: str) -> None:
        self.reference.field3 = self.value

    def time_construct(self, mode: str) -> None:
        self.cls(**self.values, batch_size=[3])

    def time_construct_reference(self, mode: str) -> None:
        self.reference_cls(**self.values, batch_size=[3])


OPERATIONS = {
    operation.name: operation.run
    for operation in (
        Operation("x[0]", lambda x: x[0]),
        Operation("x[:2]", lambda x: x[:2]),
        Operation("x + 1", lambda x: x + 1),
        Operation("x + x", lambda x: x + x),
        Operation("stack 8", lambda x: torch.stack([x] * 8)),
        Operation("cat 8", lambda x: torch.cat([x] * 8)),
        Operation("unbind", lambda x: x.unbind(0)),
        Operation("clone", lambda x: x.clone()),
    )
}


class Operations:
    """Operations on an instance, on the tensordict that it wraps, and on an instance of the reference."""

    params = (tuple(OPERATIONS),)
    param_names = ("operation",)

    def setup(self, operation: str) -> None:
        values = {name: torch.randn(3, 4) for name in NAMES}
        self.run = OPERATIONS[operation]
        self.ours = record(tensordict_class)(**values, batch_size=[3])
        self.reference = record(reference)(**values, batch_size=[3])
        self.within = self.ours.to_tensordict()

    def time_operation(self, operation: str) -> None:
        self.run(self.ours)

    def time_operation_tensordict(self, operation: str) -> None:
        self.run(self.within)

    def time_operation_reference(self, operation: str) -> None:
        self.run(self.reference)


class Definition:
    """Decorates a class of ten fields."""

    def time_decorate(self) -> None:
        record(tensordict_class)

    def time_decorate_reference(self) -> None:
        record(reference)
