"""Operations, vmap and messages of core, beside the reference and plain torch."""

from __future__ import annotations
