"""Saving: a tensordict is planned as a schema and written by the engine under a transaction."""

from __future__ import annotations
