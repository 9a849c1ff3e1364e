"""Modules that read and write tensordicts, and parameters of modules as tensordicts."""

from __future__ import annotations

from .functional import from_module, from_modules, to_module

__all__ = ["from_module", "from_modules", "to_module"]
