"""Compatibility: deprecated names, and the methods that other distributions implement."""

from __future__ import annotations
