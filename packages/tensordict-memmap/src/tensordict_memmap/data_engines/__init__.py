"""Engines for data: datasets as sources and sinks of Ray Data and Dask, each in a module that imports its engine."""

from __future__ import annotations
