"""Files and servers of tensordict-store, beside the reference."""

from __future__ import annotations
