"""Setting that sums the log-probabilities of the parts of a composite distribution."""

from __future__ import annotations

import os

from tensordict_nn.settings import Block, Setting

_aggregate: Setting[bool] = Setting(os.environ.get("COMPOSITE_LP_AGGREGATE", "0").lower() in ("1", "true", "yes"))


def composite_lp_aggregate(nowarn: bool = False) -> bool:
    """Return whether a `CompositeDistribution` sums its log-probabilities and entropies; False by default.

    Args:
        nowarn: Accepted for compatibility.

    >>> with set_composite_lp_aggregate(True):
    ...     composite_lp_aggregate()
    True
    """
    return _aggregate.get()


class set_composite_lp_aggregate(Block):
    """Context manager and decorator in which `composite_lp_aggregate` is ``mode``.

    Args:
        mode: The value.
        thread_local: Whether the value is set for this thread only.

    >>> with set_composite_lp_aggregate(True), set_composite_lp_aggregate(False):
    ...     composite_lp_aggregate()
    False
    """

    setting = _aggregate

    def __init__(self, mode: bool = True, *, thread_local: bool = False) -> None:
        super().__init__(bool(mode), thread_local)
        self.mode = mode

    def set(self) -> None:
        """Begin without a block.

        >>> setting = set_composite_lp_aggregate(True)
        >>> setting.set()
        >>> composite_lp_aggregate()
        True
        >>> setting.unset()
        """
        self.__enter__()

    def unset(self) -> None:
        """End the effect of `set`.

        >>> setting = set_composite_lp_aggregate(True)
        >>> setting.set()
        >>> setting.unset()
        >>> composite_lp_aggregate()
        False
        """
        self.__exit__()
