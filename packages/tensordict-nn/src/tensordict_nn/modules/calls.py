"""Fast calls: call ``forward`` directly where ``nn.Module.__call__`` would do nothing else.

``nn.Module.__call__`` looks for hooks, which takes two frames and longer than reading and writing an entry. A module is
*bare* if it has no hook, was not compiled by its ``compile`` and inherits ``__call__``; then its ``forward`` is called.
No module is called directly while global hooks exist (``torch.nn.modules.module.register_module_forward_hook`` and
others), or while a tool replaces ``nn.Module.__call__``, as ``torch.fx`` does when it traces.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as registry

from tensordict_core.extension import Node, constant_when_traced

CALL: Any = nn.Module.__call__

# torch changes these dictionaries in place and never replaces them
_forward_pre = registry._global_forward_pre_hooks
_forward = registry._global_forward_hooks
_backward_pre = registry._global_backward_pre_hooks
_backward = registry._global_backward_hooks


def has_global_hooks() -> bool:
    """Return whether there are global hooks, or ``nn.Module.__call__`` is replaced.

    >>> has_global_hooks()
    False
    """
    return bool(_forward_pre or _forward or _backward_pre or _backward) or nn.Module.__call__ is not CALL


# Dynamo checks no hooks when a compiled function is called, and a check here would slow down each of these calls
constant_when_traced(has_global_hooks)


def has_no_hooks(own: dict[str, Any]) -> bool:
    """Return whether a module, given by its ``__dict__``, has no hook and was not compiled by its ``compile``.

    >>> layer = torch.nn.Linear(1, 1)
    >>> has_no_hooks(layer.__dict__)
    True
    >>> _ = layer.register_forward_hook(print)
    >>> has_no_hooks(layer.__dict__)
    False
    """
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "_compiled_call_impl" in own
    )


def may_call_forward(module: Any, forward: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a call only passes one container to ``forward``, which is given as that of the class.

    >>> layer = torch.nn.Linear(1, 1)
    >>> may_call_forward(layer, torch.nn.Linear.forward, (TensorDict({}),))
    True
    >>> may_call_forward(layer, torch.nn.Linear.forward, (torch.zeros(1),))
    False
    >>> layer.forward = abs
    >>> may_call_forward(layer, torch.nn.Linear.forward, (TensorDict({}),))
    False
    """
    if len(args) != 1 or not isinstance(args[0], Node) or has_global_hooks():
        return False
    return only_forwards(module, forward)


def may_trace_forward(module: Any, tensordict: Any) -> bool:
    """Return whether a call with a container runs no hooks, in code that Dynamo traces.

    >>> layer = torch.nn.Linear(1, 1)
    >>> may_trace_forward(layer, TensorDict({})), may_trace_forward(layer, torch.zeros(1))
    (True, False)
    """
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    # Dynamo guards types that several modules read at each compiled call, so only this module reads it
    return not hooks and isinstance(tensordict, Node) and not has_global_hooks()


def has_selected_keys(module: Any) -> bool:
    """Return whether a hook selects output keys; the read makes Dynamo guard against a later selection.

    >>> has_selected_keys(torch.nn.Linear(1, 1))
    False
    """
    return getattr(module, "_out_keys_source", None) is not None


def only_forwards(module: Any, forward: Any) -> bool:
    """Return whether a plain call of a module only calls ``forward``, which is given as that of the class.

    >>> only_forwards(torch.nn.Linear(1, 1), torch.nn.Linear.forward)
    True
    """
    own = module.__dict__
    return type(module).forward is forward and "forward" not in own and has_no_hooks(own)
