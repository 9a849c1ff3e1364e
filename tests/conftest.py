"""How long laws are tested: a short run with every change, a long one before a release (HYPOTHESIS_PROFILE=long).

`left_to_the_collector` finds memory that is not freed with its last name.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Shared machines stall: a deadline an example would make tests fail for no reason of theirs.
settings.register_profile("short", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


@pytest.fixture
def left_to_the_collector() -> Callable[[Callable[[], Any]], list[str]]:
    """A function that runs another, and names the tensors, modules and tensordicts that cycles of references keep.

    Without cycles they are freed with their last name; with them, memory stays in use until the collector runs.
    """
    import torch  # not above: tests of the dashboard run without torch

    from tensordict_core import TensorCollection

    def left(function: Callable[[], Any]) -> list[str]:
        function()  # fills caches
        gc.collect()
        gc.freeze()  # what other tests left, such as graphs of a compiler, is not looked at
        gc.disable()
        try:
            function()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = (torch.Tensor, torch.nn.Module, TensorCollection)
            return sorted({type(one).__name__ for one in gc.garbage if isinstance(one, kinds)})
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
            gc.enable()

    return left
