"""Memory-mapped tensors: construction, indexing, in-place updates and pickling."""

from __future__ import annotations
