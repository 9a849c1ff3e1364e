"""Conversion, and what the commands of `tensordict_memmap_cli` do with the complete readers."""

from __future__ import annotations
