"""Optimizers built before `to_module`: a warning when one steps that holds replaced parameters.

A permanent ``to_module`` replaces the parameters of a module, and an optimizer that was built earlier still updates the
replaced ones. The call itself cannot detect this: it returns before it is known whether it is used as a ``with`` block,
and a parameter has no reference to its optimizers. Therefore each swap plan keeps weak references to the parameters
that it replaced, and a hook that `torch.optim` calls before each step compares them with those of the optimizer.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import Parameter
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from tensordict_core.extension import annotation, is_compiling

NOTED: Callable[[], None] = lambda: None  # noqa: E731  # in place of the dead reference of a permanent call
"""The `Replaced.swap` of a module whose parameters were replaced permanently and recorded."""

_records: weakref.WeakSet[Replaced] = weakref.WeakSet()


class Replaced:
    """The parameters that one swap plan replaced.

    Args:
        module: The module of the plan.
        paths: The path of each leaf.
        parameters: The positions of leaves that replace parameters.
        held: The values that the module holds.
        read: A method that returns the values that it holds later, ``None`` if the module changed. Its object is not
            kept alive.

    Attributes:
        swap: A reference to what the last call returned; ``None`` if each call was undone. What a permanent call
            returned is dropped, or kept outside of a ``with`` block.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> record = Replaced(model, [("weight",)], [0], [model.weight], model.parameters)
    >>> record.is_permanent()
    False
    """

    __slots__ = ("__weakref__", "_clear", "_module", "_parameters", "_paths", "_read", "_refs", "swap")

    def __init__(
        self,
        module: nn.Module,
        paths: Sequence[tuple[str, ...]],
        parameters: Sequence[int],
        held: Sequence[Any],
        read: Callable[[], list[Any] | None],
    ) -> None:
        self.swap: Callable[[], Any] | None = None
        self._module = type(module).__name__
        self._paths = paths
        self._parameters = parameters
        self._read = weakref.WeakMethod(read)
        self._refs: list[tuple[int, weakref.ref[Parameter]]] = []
        # the optimizers that hold no replaced parameter, and the `swap` for which that was found
        self._clear: weakref.WeakKeyDictionary[Optimizer, Any] = weakref.WeakKeyDictionary()
        self.note(held)
        if parameters:
            if not _records:
                _register()
            _records.add(self)

    def note(self, held: Sequence[Any]) -> Callable[[], None]:
        """Note the parameters that are about to be replaced; return `NOTED`.

        >>> model = nn.Linear(1, 1, bias=False)
        >>> Replaced(model, [("weight",)], [0], [model.weight], model.parameters).note([model.weight]) is NOTED
        True
        """
        now = [(i, weakref.ref(held[i])) for i in self._parameters if isinstance(held[i], Parameter)]
        known = {id(one) for _, ref in now if (one := ref()) is not None}
        self._refs = [pair for pair in self._refs if (one := pair[1]()) is not None and id(one) not in known] + now
        return NOTED

    def is_permanent(self) -> bool:
        """Return whether the last call was no ``with`` block, or one whose block has not begun."""
        if self.swap is None:
            return False
        swap = self.swap()
        return swap is None or not annotation(swap, "exits")

    def warn(self, optimizer: Optimizer) -> None:
        """Warn if an optimizer holds a replaced parameter without gradient, and not the trained one in its place."""
        if self._clear.get(optimizer) is self.swap:
            return
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        replaced = [(i, one) for i, ref in self._refs if (one := ref()) is not None and id(one) in own]
        read = self._read()
        now = None if read is None else read()
        if now is None:
            return
        if all(now[i] is one for i, one in replaced):
            self._clear[optimizer] = self.swap
            return
        for i, one in replaced:
            new = now[i]
            # a replaced parameter with a gradient is trained by other means, such as blocks over its tensordict
            trained = isinstance(new, Parameter) and new.is_leaf and new.grad is not None
            if one.grad is None and trained and id(new) not in own:
                self._refs.clear()  # one warning for each call
                warnings.warn(
                    f"{type(optimizer).__name__} does not train the parameter {'.'.join(self._paths[i])!r} of "
                    f"{self._module}: to_module replaced the one that the optimizer was built with; build the "
                    "optimizer after to_module, or write values into the existing parameters with inplace=True",
                    stacklevel=4,
                )
                return


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Check the modules whose parameters were replaced permanently; a hook of optimizers."""
    if is_compiling():
        return
    for record in list(_records):
        if record.is_permanent():
            record.warn(optimizer)


_is_registered = False


def _register() -> None:
    """Register the hook, once in a process."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        register_optimizer_step_pre_hook(_before_step)
