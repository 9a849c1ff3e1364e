"""Every container of core passes the container suite."""

from __future__ import annotations

import warnings
from typing import get_args, get_origin

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorStack, TensorDict, TensorDictBase, set_lazy_legacy
from tensordict_core.testing import ContainerSuite


class TestDense(ContainerSuite):
    pass


class TestLazyStack(ContainerSuite):
    def wrap(self, td):
        return LazyStackedTensorDict(*td.unbind(0), stack_dim=0)


class TestLazyStackOfLastDim(ContainerSuite):
    fills_rows = False

    def wrap(self, td):
        return LazyStackedTensorDict(*td.unbind(1), stack_dim=1)


class TestLazyStackOfLazyStacks(ContainerSuite):
    fills_rows = False

    def wrap(self, td):
        return LazyStackedTensorDict(
            *(LazyStackedTensorDict(*part.unbind(0), stack_dim=0) for part in td.unbind(0)), stack_dim=0
        )


class TestRaggedLazyStack(ContainerSuite):
    """Elements whose entries differ in shape, and of which one has a key of its own."""

    ragged = True

    fills_rows = False

    def make(self, kind="mixed"):
        elements = []
        generator = torch.Generator().manual_seed(1)
        for i, td in enumerate(self.sample(kind).unbind(0)):
            key = self.tensor_key(self.sample("floating")) if kind != "integral" else "count"
            td[key] = torch.rand(3, i + 1, generator=generator) * 0.6 + 0.2
            if kind == "integral":
                td[key] = (td[key] * 10).long()
            if i:
                td["own"] = td[key] + 1
            elements.append(td)
        return LazyStackedTensorDict(*elements, stack_dim=0)


class TestView(ContainerSuite):
    """A slice of a larger parent."""

    supports_lock = False

    def wrap(self, td):
        parent = torch.cat([td * 0, td], 0)
        return parent.view_at(slice(2, 4))


class TestViewOfPositions(ContainerSuite):
    """Rows chosen by number from a larger parent, so reading makes copies."""

    supports_lock = False
    copies_shallowly = False
    shares_slices = False
    compiles = False  # where a value goes depends on the numbers in a tensor, which a graph does not know

    def wrap(self, td):
        parent = torch.cat([td, td * 0], 0)
        return parent.view_at(torch.tensor([0, 1]))


class TestReshapedView(ContainerSuite):
    """A live view, in the order of the suite, of a tensordict with its batch dimensions exchanged."""

    def wrap(self, td):
        order = list(reversed(range(td.ndim)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            mode = set_lazy_legacy(True)
        source = td.permute(order)
        with mode:
            return source.permute(order)


class TestNested(ContainerSuite):
    """A dense tensordict with a lazy stack in it."""

    def wrap(self, td):
        td["nested"] = LazyStackedTensorDict(*td["nested"].unbind(1), stack_dim=1)
        return td


def test_the_suite_covers_non_tensor_stacks():
    assert isinstance(TestDense().make().get("words"), NonTensorStack)


@pytest.mark.parametrize("container", [TensorDictBase, TensorDict, LazyStackedTensorDict])
def test_a_container_takes_types_of_keys_and_values_in_annotations(container):
    alias = container[str, torch.Tensor]
    assert get_origin(alias) is container and get_args(alias) == (str, torch.Tensor)
