"""Tensorclasses, beside the reference and plain Python."""

from __future__ import annotations
