"""Training steps of a policy are compiled once, and learn what plain dictionaries learn."""

from __future__ import annotations

import pytest
import torch
from benchmarks.nn.policy import PROGRAMS, library, train

STEPS = 50


def losses(name, kind, backend="eager"):
    torch.manual_seed(0)
    program = PROGRAMS[name](library(kind))
    torch._dynamo.reset()
    step = train(program, backend)
    batch = program.batch()
    with torch._dynamo.config.patch(error_on_recompile=True):
        return torch.stack([step(batch if i % 2 else program.batch()) for i in range(STEPS)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_policy_is_compiled_once_and_trains_as_one_on_dictionaries(name):
    ours = losses(name, "ours")
    torch.testing.assert_close(ours, losses(name, "plain"))
    assert ours[-1] < ours[1]  # all odd steps have one batch


def test_these_tests_notice_a_recompilation():
    program = PROGRAMS["modules"](library("ours"))
    torch._dynamo.reset()
    step = train(program, "eager")
    step(program.batch())
    with (
        torch._dynamo.config.patch(error_on_recompile=True),
        pytest.raises(torch._dynamo.exc.RecompileError),
    ):
        step(program.batch()[:3])
