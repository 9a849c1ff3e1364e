"""Tensorclasses and typed tensordicts pass the suite of core's containers, whatever they wrap."""

from __future__ import annotations

import torch

from tensordict_class import TensorClass, TypedTensorDict
from tensordict_core import LazyStackedTensorDict
from tensordict_core.testing import ContainerSuite


class Nested(TensorClass, tensor_only=True):
    b: torch.Tensor = None
    n: torch.Tensor = None
    deep: torch.Tensor = None
    more: torch.Tensor = None
    bad: torch.Tensor = None
    new: torch.Tensor = None


class Record(TensorClass, tensor_only=True):
    """Has a field for every key that the suite uses; dictionaries become tensordicts, as the suite expects."""

    a: torch.Tensor = None
    count: torch.Tensor = None
    nested: torch.Tensor = None
    text: torch.Tensor = None
    words: torch.Tensor = None
    new: torch.Tensor = None
    deep: torch.Tensor = None
    dict: torch.Tensor = None
    list: torch.Tensor = None
    value: torch.Tensor = None
    number: torch.Tensor = None
    made: torch.Tensor = None
    own: torch.Tensor = None
    bad: torch.Tensor = None
    newer: torch.Tensor = None
    other: torch.Tensor = None


class Typed(TypedTensorDict):
    count: torch.Tensor = None


class TestTensorClass(ContainerSuite):
    def wrap(self, td):
        return Record.from_tensordict(td)


class TestTensorClassInTensorClass(ContainerSuite):
    def wrap(self, td):
        td["nested"] = Nested.from_tensordict(td["nested"])
        return Record.from_tensordict(td)


class TestTensorClassOfLazyStack(ContainerSuite):
    def wrap(self, td):
        return Record.from_tensordict(LazyStackedTensorDict(*td.unbind(0), stack_dim=0))


class TestTensorClassOfView(ContainerSuite):
    supports_lock = False

    def wrap(self, td):
        parent = torch.cat([td * 0, td], 0)
        return Record.from_tensordict(parent.view_at(slice(2, 4)))


class TestTypedTensorDict(ContainerSuite):
    def wrap(self, td):
        return Typed.from_tensordict(td)
