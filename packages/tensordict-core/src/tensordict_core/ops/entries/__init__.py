"""Operations on entries by key: read, write, update, remove, select, flatten."""

from __future__ import annotations
