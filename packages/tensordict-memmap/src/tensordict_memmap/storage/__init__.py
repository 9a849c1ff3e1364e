"""Storage: transactions, locks, manifests and recovery, so that a save is all or nothing."""

from __future__ import annotations
