"""Skipping: modules do not run if their outputs exist.

`set_skip_existing` is a context manager and a decorator. Modules call `may_skip`, which takes two comparisons, and
`skips` only while a block is open.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tensordict_core import NestedKey, unravel_key
from tensordict_core.extension import is_compiling
from tensordict_nn import errors
from tensordict_nn.settings import Block, Setting

Mode = bool | Sequence[NestedKey]
MODE: Setting[Any] = Setting(False)


def skip_existing() -> Mode:
    """Return the mode of the enclosing `set_skip_existing` block: ``False`` (outside of all), ``True``, or keys.

    >>> with set_skip_existing(["a"]):
    ...     skip_existing()
    ['a']
    """
    mode: Mode = MODE.get()
    return mode


def may_skip() -> bool:
    """Return whether a block is open, for this thread or another.

    >>> may_skip()
    False
    """
    # only this module reads it: Dynamo guards objects that several modules read at each compiled call
    return MODE.value is not False or MODE.threads > 0


def skips(in_keys: Sequence[Any], out_keys: Sequence[Any], td: Any, mode: Mode | None = None) -> bool:
    """Return whether a module with these keys need not run on a tensordict.

    >>> td = TensorDict({"x": 0, "y": 1})
    >>> skips(["x"], ["y"], td), skips(["x"], ["y"], td, True)
    (False, True)
    """
    mode = MODE.get() if mode is None else mode
    if mode is False or not out_keys:
        return False
    if mode is not True and not {unravel_key(key) for key in out_keys} <= {unravel_key(key) for key in mode}:
        return False
    # a module that changes an entry must run each time
    return not any(key in in_keys for key in out_keys) and all(key in td for key in out_keys)


class set_skip_existing(Block):
    """Context manager in which modules do not run if their ``out_keys`` exist; or a decorator for ``forward``.

    Args:
        mode: ``True`` skips modules whose ``out_keys`` exist, ``False`` skips none. With keys, a module is skipped if
            all its ``out_keys`` are among them. ``None``, for decorators only, means the mode of the enclosing block.
        in_key_attr: For decorators, the attribute of the input keys.
        out_key_attr: For decorators, the attribute of the output keys.
        thread_local: Whether the block affects this thread only.

    Raises:
        RuntimeError: A block is entered with ``None``, or while ``torch.compile`` traces.

    >>> from tensordict_nn import TensorDictModule
    >>> module = TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["y"])
    >>> td = TensorDict({"x": torch.zeros(()), "y": torch.zeros(())})
    >>> with set_skip_existing():
    ...     module(td)["y"]
    tensor(0.)
    >>> module(td)["y"]
    tensor(1.)
    """

    setting = MODE

    def __init__(
        self,
        mode: Mode | None = True,
        in_key_attr: str = "in_keys",
        out_key_attr: str = "out_keys",
        *,
        thread_local: bool = False,
    ) -> None:
        super().__init__(mode, thread_local)
        self.mode = mode
        self.in_key_attr = in_key_attr
        self.out_key_attr = out_key_attr

    def _begin(self) -> Any:
        if self.mode is None:
            raise errors.no_mode()
        if self.mode is not False and is_compiling():
            raise errors.skipping_compiled()
        return super()._begin()

    def __call__(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate ``forward(self, tensordict, ...)``.

        Raises:
            RuntimeError: The first argument after ``self`` has another name.
        """
        names = list(inspect.signature(forward).parameters)
        if names[1:2] != ["tensordict"]:
            raise errors.not_dispatchable(forward, names, "set_skip_existing")

        @functools.wraps(forward)
        def skipping(module: Any, tensordict: Any, *args: Any, **kwargs: Any) -> Any:
            in_keys, out_keys = getattr(module, self.in_key_attr), getattr(module, self.out_key_attr)
            if skips(in_keys, out_keys, tensordict, self.mode):
                return tensordict
            return forward(module, tensordict, *args, **kwargs)

        return skipping
