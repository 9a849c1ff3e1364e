"""Probabilistic modules: build a distribution from entries of a tensordict, and write values of it."""

from __future__ import annotations
