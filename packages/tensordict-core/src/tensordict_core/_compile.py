"""Tracing checks: the one place that knows whether code is being traced, and by what.

Eager code takes short cuts that tracers cannot follow: ``torch._foreach_*`` has no batching rule, so it gives way under
``vmap``, and weak references break Dynamo, so lock holders are not recorded while it traces. Nothing else in the
project asks PyTorch these questions.
"""

from __future__ import annotations

import torch

__all__ = ["in_functorch", "is_compiling", "may_fuse"]

_peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack


def is_compiling() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` is tracing the caller (Dynamo folds this to a constant).

    >>> is_compiling()
    False
    """
    return torch.compiler.is_compiling()


def in_functorch() -> bool:
    """Whether the caller runs inside a ``torch.func`` transform (``vmap``, ``grad``, ``jvp``).

    >>> in_functorch()
    False
    """
    return _peek_interpreter_stack() is not None


def may_fuse() -> bool:
    """Whether ``torch._foreach_*`` may stand for a loop over leaves: plain eager code only.

    >>> may_fuse()
    True
    """
    return not torch.compiler.is_compiling() and _peek_interpreter_stack() is None
