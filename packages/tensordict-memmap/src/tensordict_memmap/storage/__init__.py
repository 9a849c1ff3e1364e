"""Storage: transactions, locks, manifests and recovery, which make saves atomic."""

from __future__ import annotations
