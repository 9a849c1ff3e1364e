"""Distributed saves and loads: many ranks write one checkpoint in one pass, and each reads only its ranges.

Nothing here is imported before it is used. A save (`save`) takes these steps, which the storage writer of
``torch.distributed.checkpoint`` (``dcp/``) takes one by one:

1. Each rank plans the parts of the tensors that it holds (`local_parts`) in a `ShardPlan` (`plan`): a `Box` is the
   offset and the size of a part, for each dimension of the whole tensor.
2. The ranks connect (`rendezvous`), and the plans go to the coordinator once (`collectives`). It checks that they fit
   together and cover each tensor, and chooses one rank for each byte: `assign` returns the `Share` of each rank, the
   boxes that it writes.
3. The coordinator assigns the tensors to positions in files (`layout`: one safetensors file, shards or a tree), and
   creates the staged files in a transaction of ``storage/``.
4. Each rank writes its share at the final positions: `write` converts it to ranges of the files for the copy engine.
   Saves to S3 upload parts instead (`upload`).
5. Each rank reports its outcome to the coordinator, which commits by one rename or removes the staged files. A
   `RankError` names the rank and the key of a failure on every other rank.

Loads (`load`) need no messages: `read_ranges` reads boxes of saved tensors into memory (`reads`).
"""

from __future__ import annotations
