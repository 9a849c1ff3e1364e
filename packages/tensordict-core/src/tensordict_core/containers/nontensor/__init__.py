"""Non-tensor data: Python values carried beside the tensors of a tensordict."""

from __future__ import annotations
