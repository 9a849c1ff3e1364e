"""Modules on tensordicts: the base class, modules of functions and tensorclasses, sequences, ensembles, dispatch."""

from __future__ import annotations
