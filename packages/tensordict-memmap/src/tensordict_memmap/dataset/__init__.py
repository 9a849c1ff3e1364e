"""Datasets: saved folders that grow by rows while others read them."""

from __future__ import annotations
