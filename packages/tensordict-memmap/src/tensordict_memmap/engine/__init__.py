"""Copy engine: write plans, jobs, worker threads and kernels that move bytes."""

from __future__ import annotations
