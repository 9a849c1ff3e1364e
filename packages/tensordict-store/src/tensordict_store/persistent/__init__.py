"""Persistent tensordicts: the container over groups of arrays, and the functions that make and open one."""

from __future__ import annotations
