"""Registries: container classes, handlers of torch functions, names in pickles, and packages imported on first use."""

from __future__ import annotations
