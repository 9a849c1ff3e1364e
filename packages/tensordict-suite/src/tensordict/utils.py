"""Keys, checks of dtypes, options: the small functions that work on any container."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensordict._lazy import serve

if TYPE_CHECKING:
    from tensordict_core import *
else:
    __getattr__, __dir__ = serve(__name__)
