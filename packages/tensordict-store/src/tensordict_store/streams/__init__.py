"""Streams: tensordicts over TCP connections, message by message."""

from __future__ import annotations
