"""Sampling rules: how a value is taken from a distribution, and how log-probabilities of parts are combined."""

from __future__ import annotations
