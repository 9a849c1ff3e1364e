"""Tensorclasses and typed tensordicts pass the suite of core's containers, whatever they wrap."""

from __future__ import annotations

from typing import Any

import torch

from tensordict_class import TensorClass, TypedTensorDict
from tensordict_core import LazyStackedTensorDict
from tensordict_core.testing import ContainerSuite


class Nested(TensorClass, tensor_only=True):
    b: Any = None
    n: Any = None
    deep: Any = None
    more: Any = None
    bad: Any = None
    new: Any = None


class Record(TensorClass, tensor_only=True):
    """Has a field for every key that the suite uses; dictionaries become tensordicts, as the suite expects."""

    a: Any = None
    count: Any = None
    nested: Any = None
    text: Any = None
    words: Any = None
    new: Any = None
    deep: Any = None
    dict: Any = None
    list: Any = None
    value: Any = None
    number: Any = None
    made: Any = None
    own: Any = None
    bad: Any = None
    newer: Any = None
    other: Any = None


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
