"""Settings: values that context managers change, for the process or for one thread.

Calls read the settings for skipping modules, taking values of distributions and summing log-probabilities, so a read
is one attribute access while no thread has its own value. Blocks of several threads may end in any order: the end of a
block reverts only its own change.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from tensordict_core.extension import is_compiling

T = TypeVar("T")

_NONE: Final = object()


class _Own(threading.local):
    """The value for one thread only; `_NONE` outside of its blocks."""

    def __init__(self) -> None:
        self.value: Any = _NONE


class _Change:
    """One change of a setting for all threads."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


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
        self._own = _Own()
        self._changes = [_Change(value)]  # the changes for all threads, the latest last

    def get(self) -> T:
        """Return the value for this thread."""
        if self.threads and self._own.value is not _NONE:
            own: T = self._own.value
            return own
        return self.value

    def enter(self, value: T, *, thread_local: bool) -> tuple[bool, Any]:
        """Begin a block; inside a block for one thread, every block is for that thread.

        Returns:
            The token for `leave`.
        """
        before = self._own.value
        if thread_local or before is not _NONE:
            self._own.value = value
            self.threads += 1
            return True, before
        if is_compiling():  # Dynamo would compile again for each list of changes
            before = self.value
            self.value = value
            return False, before
        change = _Change(value)
        self._changes.append(change)
        self.value = value
        return False, change

    def leave(self, token: tuple[bool, Any]) -> None:
        """End a block."""
        local, before = token
        if local:
            self.threads -= 1
            self._own.value = before
        elif isinstance(before, _Change):
            self._changes.remove(before)
            latest = None
            while latest is not self._changes[-1]:  # another thread began or ended a block meanwhile
                latest = self._changes[-1]
                self.value = latest.value
        else:
            self.value = before


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
