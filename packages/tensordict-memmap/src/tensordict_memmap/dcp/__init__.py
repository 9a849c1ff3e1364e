"""Storage of ``torch.distributed.checkpoint``: its planners save to the files of ``save`` and load from them.

Nothing here is imported before it is used. A save takes these steps:

1. Each rank hands its plan to the coordinator, through DCP (`writer`).
2. The coordinator makes shard plans of them (`items`), lays out the files as for any distributed save, makes the staged
   ones, and tells each rank where its items belong (`coordinate`).
3. Each rank writes its items at their final places, and hands the coordinator its non-tensor values as JSON (`values`).
4. The coordinator completes the header or the small files with the values, and renames the staged file or folder.

A load (`reader`) describes the save at a path, in any format, as DCP's metadata: one chunk for each whole tensor, of
which each rank reads the boxes in its plan.
"""

from __future__ import annotations
