"""Saves, rows, updates and datasets of tensordict-memmap, beside the reference, torch and safetensors."""

from __future__ import annotations
