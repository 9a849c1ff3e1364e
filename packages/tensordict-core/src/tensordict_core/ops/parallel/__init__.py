"""Multiprocessing and ``torch.distributed``: shared memory, worker pools, messages, collectives."""

from __future__ import annotations
