"""Sampling rules: which value of a distribution is used, and how log-probabilities of a composite are combined."""

from __future__ import annotations
