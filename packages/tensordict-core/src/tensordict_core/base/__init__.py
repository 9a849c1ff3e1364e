"""Base: the abstract node, its records and its rules; imports nothing from the layers above."""

from __future__ import annotations
