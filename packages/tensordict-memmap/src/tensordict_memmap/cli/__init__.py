"""Conversion, and the implementation of the commands of `tensordict_memmap_cli` with the complete readers."""

from __future__ import annotations
