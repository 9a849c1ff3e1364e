"""Several processes: shared memory, worker pools and ``torch.distributed``."""

from __future__ import annotations
