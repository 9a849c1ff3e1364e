"""Whether the log-probabilities of several parts are summed: one setting, read by distributions and modules."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Self

from ..settings import Setting

__all__ = ["composite_lp_aggregate", "set_composite_lp_aggregate"]

_aggregate: Setting[bool] = Setting(os.environ.get("COMPOSITE_LP_AGGREGATE", "0").lower() in ("1", "true", "yes"))


def composite_lp_aggregate(nowarn: bool = False) -> bool:
    """Whether a `CompositeDistribution` sums its log-probabilities and entropies to one tensor (default: no).

    Args:
        nowarn: Accepted for compatibility.

    >>> with set_composite_lp_aggregate(True):
    ...     composite_lp_aggregate()
    True
    """
    return _aggregate.get()


class set_composite_lp_aggregate:
    """A block (or a decorated function) in which `composite_lp_aggregate` is ``mode``.

    Args:
        mode: The value.
        thread_local: Whether it is for this thread only.

    >>> with set_composite_lp_aggregate(True), set_composite_lp_aggregate(False):
    ...     composite_lp_aggregate()
    False
    """

    def __init__(self, mode: bool = True, *, thread_local: bool = False) -> None:
        self.mode = mode
        self.thread_local = thread_local
        self._tokens: list[Any] = []

    def set(self) -> None:
        """Begin, without a block."""
        self.__enter__()

    def unset(self) -> None:
        """End what `set` began."""
        self.__exit__()

    def __enter__(self) -> Self:
        self._tokens.append(_aggregate.enter(self.mode, thread_local=self.thread_local))
        return self

    def __exit__(self, *exc: Any) -> None:
        _aggregate.leave(self._tokens.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside
