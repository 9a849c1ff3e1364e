"""`Descriptor`: an open file or folder that is closed with its last reference, also if an exception interrupts.

Python delivers signals between any two calls. A ``KeyboardInterrupt`` that arrives when ``os.open`` returns is raised
before the result is assigned, so no ``finally`` knows the number to close: the file stays open, and locked if the call
was to lock it. The same holds right before a ``finally`` closes it. Here each step is one call of a function written in
C, which nothing interrupts: one opens and stores the number, another takes it out and closes it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

_NOTHING = itertools.repeat(None)
_chain: Any = itertools.chain.__new__


class Descriptor(itertools.chain[None]):
    """A file descriptor that is closed by `close`, at the end of a ``with`` block, or when nothing refers to it.

    Args:
        make: The function that returns the number, such as ``os.open``. It has to be written in C.
        arguments: Its arguments.

    Raises:
        OSError: The function fails.

    >>> with open("some.txt", "w") as file:
    ...     _ = file.write("hello")
    >>> with Descriptor(os.open, "some.txt", os.O_RDONLY) as file:
    ...     os.read(file.fileno(), 5)
    b'hello'
    >>> file.fileno()
    -1
    """

    __slots__ = ("__weakref__", "_number")

    _number: list[Any]

    def __new__(cls, make: Callable[..., int], *arguments: Any) -> Self:
        """Call the function and store the number."""
        number: list[Any] = [None]
        # The first item of this iterator closes the descriptor if it is open, and all others do nothing.
        made: Self = _chain(cls, map(os.close, iter(number.pop, None)), _NOTHING)
        made._number = number
        number.extend(itertools.starmap(make, (arguments,)))
        return made

    def fileno(self) -> int:
        """Return the number; -1 once it is closed."""
        return self._number[1] if len(self._number) > 1 else -1

    def close(self) -> None:
        """Close the descriptor; do nothing if it is closed.

        Raises:
            OSError: The system reports an error of an earlier write. The descriptor is closed.
        """
        next(self)

    __del__ = itertools.chain.__next__  # not a function of Python, which could be interrupted before it closes

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        next(self)
