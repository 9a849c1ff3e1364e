"""Redis: tensordicts whose entries are values of a server; each operation is one pipeline."""

from __future__ import annotations
