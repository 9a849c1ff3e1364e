"""Command line of tensordict-memmap, in a package of its own so that it starts without importing torch."""

from __future__ import annotations
