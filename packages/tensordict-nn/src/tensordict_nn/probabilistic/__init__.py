"""Probabilistic modules: make a distribution of entries of a tensordict, and write values of it."""

from __future__ import annotations
