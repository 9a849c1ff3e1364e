"""Base layer: the abstract node, keys, indices, metadata, locks and errors; imports no higher layer."""

from __future__ import annotations
