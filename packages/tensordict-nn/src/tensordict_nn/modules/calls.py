"""Fast calls: call ``forward`` directly where ``nn.Module.__call__`` would do nothing else.

``nn.Module.__call__`` looks for hooks, which takes two frames and longer than reading and writing an entry. A module is
*bare* if it has no hook, was not compiled by its ``compile`` and inherits ``__call__``; then its ``forward`` is called.
`watched` is true while global hooks exist (``torch.nn.modules.module.register_module_forward_hook`` and others), or
while a tool replaces ``nn.Module.__call__``, as ``torch.fx`` does when it traces; then no module is called directly.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as registry

from tensordict_core.extension import Node, constant_when_traced

__all__ = ["CALL", "goes_straight", "is_bare", "only_forwards", "selects", "traces_straight", "watched"]

CALL: Any = nn.Module.__call__

# torch changes these dictionaries in place and never replaces them
_forward_pre = registry._global_forward_pre_hooks
_forward = registry._global_forward_hooks
_backward_pre = registry._global_backward_pre_hooks
_backward = registry._global_backward_hooks


def watched() -> bool:
    """Whether there are global hooks, or ``nn.Module.__call__`` is replaced.

    >>> watched()
    False
    """
    return bool(_forward_pre or _forward or _backward_pre or _backward) or nn.Module.__call__ is not CALL


# Dynamo checks no hooks when a compiled function is called, and a check here would slow down each of these calls
constant_when_traced(watched)


def is_bare(own: dict[str, Any]) -> bool:
    """Whether a module, given by its ``__dict__``, has no hook of its own and was not compiled by its ``compile``.

    >>> layer = torch.nn.Linear(1, 1)
    >>> is_bare(layer.__dict__)
    True
    >>> _ = layer.register_forward_hook(print)
    >>> is_bare(layer.__dict__)
    False
    """
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "_compiled_call_impl" in own
    )


def goes_straight(module: Any, forward: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call only passes one container to ``forward``, which is given as that of the class.

    >>> layer = torch.nn.Linear(1, 1)
    >>> goes_straight(layer, torch.nn.Linear.forward, (TensorDict({}),))
    True
    >>> goes_straight(layer, torch.nn.Linear.forward, (torch.zeros(1),))
    False
    >>> layer.forward = abs
    >>> goes_straight(layer, torch.nn.Linear.forward, (TensorDict({}),))
    False
    """
    if len(args) != 1 or not isinstance(args[0], Node) or watched():
        return False
    return only_forwards(module, forward)


def traces_straight(module: Any, tensordict: Any) -> bool:
    """Whether a call with a container runs no hooks, in code that Dynamo traces.

    >>> traces_straight(torch.nn.Linear(1, 1), TensorDict({})), traces_straight(torch.nn.Linear(1, 1), torch.zeros(1))
    (True, False)
    """
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    # Dynamo guards types that several modules read at each compiled call, so only this module reads it
    return not hooks and isinstance(tensordict, Node) and not watched()


def selects(module: Any) -> bool:
    """Whether a hook selects output keys; the read makes Dynamo guard against a later selection.

    >>> selects(torch.nn.Linear(1, 1))
    False
    """
    return getattr(module, "_out_keys_source", None) is not None


def only_forwards(module: Any, forward: Any) -> bool:
    """Whether a plain call of a module only calls ``forward``, which is given as that of the class.

    >>> only_forwards(torch.nn.Linear(1, 1), torch.nn.Linear.forward)
    True
    """
    own = module.__dict__
    return type(module).forward is forward and "forward" not in own and is_bare(own)
