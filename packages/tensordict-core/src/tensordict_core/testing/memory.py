"""Tests of memory: operations that are views in torch are views in every container."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from tensordict_core.testing.container import ContainerCase


def _behind(x: Any) -> Any:
    """Return the sizes behind the batch, which a leaf has and a container has not."""
    return x.shape[2:] if isinstance(x, Tensor) else ()


VIEW_OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "an integer": lambda x: x[1],
    "an integer behind": lambda x: x[:, 1],
    "a slice": lambda x: x[1:],
    "a slice behind": lambda x: x[:, 1:],
    "a step behind": lambda x: x[:, ::2],
    "None": lambda x: x[None],
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "transpose": lambda x: x.transpose(0, 1),
    "expand": lambda x: x.expand(4, 2, 3, *_behind(x)),
    "unbind": lambda x: x.unbind(0)[1],
    "unbind behind": lambda x: x.unbind(1)[2],
    "split": lambda x: x.split(1)[1],
    "split behind": lambda x: x.split(2, 1)[0],
    "chunk": lambda x: x.chunk(2)[1],
    "narrow": lambda x: x.narrow(1, 1, 2),
}


class MemoryTests(ContainerCase):
    """Views share the memory of the container, at the place and with the strides that views of its leaves have.

    >>> MemoryTests().test_views_copy_nothing("a slice")
    """

    @pytest.mark.parametrize("name", VIEW_OPERATIONS)
    def test_views_copy_nothing(self, name: str) -> None:
        if not self.shares_slices:
            pytest.skip("entries are copies")
        td, operate = self.make("floating"), VIEW_OPERATIONS[name]
        result = operate(td)
        held = {leaf.untyped_storage().data_ptr() for leaf in td._leaves()}
        assert {leaf.untyped_storage().data_ptr() for leaf in result._leaves()} <= held
        for path in () if self.ragged else self.dense("floating")._leaf_keys():
            leaf, again = td[path], td[path]
            if leaf.data_ptr() != again.data_ptr():
                continue  # a lazy stack combines it anew for each reader; its elements were compared above
            expected, got = operate(leaf), result[path]
            assert (got.data_ptr(), got.stride()) == (expected.data_ptr(), expected.stride())
