"""Datasets: saved folders to which rows are appended while other processes read them."""

from __future__ import annotations
