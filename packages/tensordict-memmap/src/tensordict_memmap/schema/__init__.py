"""Schema: the one description of a tensordict that every format writes and parses."""

from __future__ import annotations
