"""Probabilistic modules: from entries of a tensordict to a distribution, and from it to a value."""

from __future__ import annotations
