"""Settings: values that context managers change, for the process or for one thread.

Calls read the settings for skipping modules, taking values of distributions and summing log-probabilities, so a read
is one attribute access while no thread has its own value.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeVar

T = TypeVar("T")


class Setting(Generic[T]):
    """A value that context managers change.

    Args:
        value: The value outside of all blocks.

    >>> speed = Setting(1)
    >>> token = speed.enter(2, thread_local=False)
    >>> speed.get()
    2
    >>> speed.leave(token)
    >>> speed.get()
    1
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self.threads = 0  # the number of open blocks for one thread only
        self._local = threading.local()

    def get(self) -> T:
        """Return the value for this thread."""
        if self.threads:
            own: T = getattr(self._local, "value", self.value)
            return own
        return self.value

    def enter(self, value: T, *, thread_local: bool) -> tuple[bool, Any]:
        """Begin a block; inside a block for one thread, every block is for that thread.

        Returns:
            The token for `leave`.
        """
        if thread_local or (self.threads and hasattr(self._local, "value")):
            token = (True, self._local.__dict__.get("value", self))
            self._local.value = value
            self.threads += 1
            return token
        token = (False, self.value)
        self.value = value
        return token

    def leave(self, token: tuple[bool, Any]) -> None:
        """End a block."""
        local, before = token
        if not local:
            self.value = before
            return
        self.threads -= 1
        if before is self:
            del self._local.value
        else:
            self._local.value = before


class Block:
    """Context manager and decorator that change a setting; a subclass names the setting.

    Args:
        value: The value.
        thread_local: Whether the value is set for this thread only.

    >>> speed = Setting(1)
    >>> class set_speed(Block):
    ...     setting = speed
    >>> with set_speed(2, False):
    ...     speed.get()
    2
    >>> set_speed(3, False)(speed.get)()
    3
    """

    setting: ClassVar[Setting[Any]]

    def __init__(self, value: Any, thread_local: bool) -> None:
        self._value = value
        self.thread_local = thread_local
        self._tokens: list[Any] = []

    def _begin(self) -> Any:
        """Begin the block and return its token."""
        return self.setting.enter(self._value, thread_local=self.thread_local)

    def __enter__(self) -> Self:
        self._tokens.append(self._begin())
        return self

    def __exit__(self, *exc: Any) -> None:
        self.setting.leave(self._tokens.pop())

    def clone(self) -> Self:
        """Return another block with the same value, which has not begun.

        >>> from tensordict_nn import interaction_type, set_interaction_type
        >>> with set_interaction_type("mode").clone():
        ...     print(interaction_type())
        mode
        """
        new = copy.copy(self)
        new._tokens = []
        return new

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            token = self._begin()  # not the stack of tokens: several threads may run the function
            try:
                return function(*args, **kwargs)
            finally:
                self.setting.leave(token)

        return inside
