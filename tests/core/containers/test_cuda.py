"""Containers on a GPU pass the container suite, with and without a device of their own."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import LazyStackedTensorDict
from tensordict_core.testing import ContainerSuite

pytestmark = pytest.mark.cuda


class OnGpu(ContainerSuite):
    """Its samples lie on the GPU, and so do new tensors that a test makes."""

    device = "cuda"

    @pytest.fixture(autouse=True)
    def make_tensors_there(self):
        with torch.device("cuda"):
            yield

    def sample(self, kind="mixed"):
        with torch.device("cpu"):  # the generator of the samples lies there
            td = super().sample(kind)
        return td.to("cuda")


class TestDense(OnGpu):
    pass


class TestWithoutDevice(OnGpu):
    def sample(self, kind="mixed"):
        return super().sample(kind).clear_device_()


class TestLazyStack(OnGpu):
    def wrap(self, td):
        return LazyStackedTensorDict(*td.unbind(0), stack_dim=0)


class TestNested(OnGpu):
    """A dense tensordict with a lazy stack in it."""

    def wrap(self, td):
        td["nested"] = LazyStackedTensorDict(*td["nested"].unbind(1), stack_dim=1)
        return td


class TestView(OnGpu):
    """A slice of a larger parent."""

    supports_lock = False

    def wrap(self, td):
        parent = torch.cat([td * 0, td], 0)
        return parent.view_at(slice(2, 4))
