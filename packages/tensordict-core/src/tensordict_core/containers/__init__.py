"""Containers: what users hold; each implements the abstract node and inherits every operation."""

from __future__ import annotations
