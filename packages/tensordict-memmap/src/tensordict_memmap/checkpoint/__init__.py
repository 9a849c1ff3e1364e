"""Checkpoints: whole training states in one save, rotation of saves, and saves of differences."""

from __future__ import annotations
