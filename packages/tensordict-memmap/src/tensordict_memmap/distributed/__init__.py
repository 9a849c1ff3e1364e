"""Distributed saves and loads: many ranks write one checkpoint in one pass, and each reads only its ranges.

Nothing here is imported before it is used. A save takes these steps, which other writers of the same files (a storage
of ``torch.distributed.checkpoint`` for instance) can take one by one:

1. ``plan = ShardPlan()``, and ``plan.add(name, dtype, shape, boxes)`` for each tensor of which this rank holds
   something (`plan`): a `Box` is the offset and the size of a part, per dimension of the whole tensor.
2. The plans go to the coordinator once (`rounds`), which checks that they fit together and cover each tensor, chooses
   one rank for each byte, and gives each rank its `Share`: the boxes that it writes. `assign` is that choice as a pure
   function of all plans, for callers that gather them themselves.
3. The coordinator assigns the tensors to positions in files (`layout`: `Layout` of one safetensors file, shards or a
tree), and creates the staged files inside a transaction of `storage`. 4. ``write_share(...)`` (`write`): each rank
writes its bytes at their final places, by the copy engine. 5. Outcomes go to the coordinator, which commits by one
rename, or removes the staged files; `RankError` names the
   rank and key of a failure on every other rank.

Loads need no messages: `read_ranges` reads boxes of saved tensors into memory (`reads`).
"""

from __future__ import annotations
