"""Operations on the shape of all entries: reshape, rearrange, split, stack, concatenate."""

from __future__ import annotations
