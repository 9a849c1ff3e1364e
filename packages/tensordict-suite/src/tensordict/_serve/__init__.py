"""Lookup of the public names: tables of owners and aliases, and the lazy import that reads them."""

from __future__ import annotations
