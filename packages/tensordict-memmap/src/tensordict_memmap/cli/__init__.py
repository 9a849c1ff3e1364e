"""Command line: ``python -m tensordict_memmap``."""

from __future__ import annotations
