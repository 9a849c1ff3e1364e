"""Drafts: their names tell whose they are, and nothing else has such a name."""

from __future__ import annotations

import pytest

from tensordict_memmap.drafts import drafts_among, new_draft


@pytest.mark.parametrize("target", ["run", "a.b", "(x)*", "", ".run.tensordict-0123456789abcdef"])
def test_drafts_of_one_target_are_told_from_all_else(target):
    mine = [new_draft(target) for _ in range(3)]
    assert len(set(mine)) == 3
    others = [new_draft(other) for other in ("rum", "aXb", "run2", "x")]
    near = [mine[0] + "0", mine[0][:-1], mine[0][1:], mine[0].upper(), mine[0] + "\n", target]
    assert drafts_among([*others, *mine, *near], target) == mine
