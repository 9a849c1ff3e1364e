"""Oracles: what decides about a difference by running other programs, or by laws that every container satisfies."""
