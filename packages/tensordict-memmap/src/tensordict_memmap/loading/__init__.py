"""Loading: a schema is parsed from files, verified, and mapped; nothing on disk is changed."""

from __future__ import annotations
