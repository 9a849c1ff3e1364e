"""Parameters of modules as tensordicts: `TensorDictParams`, reading and setting them, and stacks of them."""

from __future__ import annotations
