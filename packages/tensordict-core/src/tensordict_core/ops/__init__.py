"""Operations: one mixin for each family, each operation written once on top of the abstract node."""

from __future__ import annotations
