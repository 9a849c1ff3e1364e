"""Parameters and modules, beside the reference and torch."""

from __future__ import annotations
