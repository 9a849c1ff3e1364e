"""The dashboard: measures commits of the history, and builds the pages that show the results."""

from __future__ import annotations
