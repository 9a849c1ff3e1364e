"""Public calls that save, load and compare, on top of the folders that do the work."""

from __future__ import annotations
