"""Saving: plans the files of a tensordict, writes them in parallel and commits them in one transaction."""

from __future__ import annotations
