"""Distributions that build themselves from the entries of a tensordict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._lazy import serve

if TYPE_CHECKING:
    pass
else:
    __getattr__, __dir__ = serve(__name__)
