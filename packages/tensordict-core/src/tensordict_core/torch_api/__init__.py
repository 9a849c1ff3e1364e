"""PyTorch integration: ``__torch_function__``, pytrees, ``vmap``, collation, and functions of the same names."""

from __future__ import annotations
