"""Safetensors: header, structure and checksums of one-file saves."""

from __future__ import annotations
