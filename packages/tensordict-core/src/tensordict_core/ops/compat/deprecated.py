"""Names of older documentation: each is what it became, in one line, so that older programs run.

They are not for new code, which is why the pages of the documentation show none of them.
"""

from __future__ import annotations

from typing import Any, Self

from tensordict_core.base.keys import NestedKey
from tensordict_core.base.node import Node
from tensordict_core.base.options import Setting, current

__all__ = ["DeprecatedNames", "lazy_legacy", "set_lazy_legacy"]


class DeprecatedNames(Node):
    """Methods under the names that they had."""

    __slots__ = ()

    def clear_device(self) -> Self:
        """``clear_device_`` under its older name.

        >>> TensorDict({"a": 1}, device="cpu").clear_device().device is None
        True
        """
        return self.clear_device_()

    def rename_key(self, old_key: NestedKey, new_key: NestedKey, safe: bool = False) -> Self:
        """``rename_key_`` under its older name: in place as well.

        >>> list(TensorDict({"a": 1}).rename_key("a", "b").keys())
        ['b']
        """
        return self.rename_key_(old_key, new_key, safe)

    def get_sub_tensordict(self, idx: Any) -> Any:
        """``view_at`` under its older name.

        >>> td = TensorDict({"a": torch.zeros(2)}, [2])
        >>> _ = td.get_sub_tensordict(0).set_("a", torch.ones(()))
        >>> td["a"]
        tensor([1., 0.])
        """
        return self.view_at(idx)


class set_lazy_legacy(Setting):
    """An option of older releases, which made shape operations lazy; it can be off, as it always is here.

    Args:
        mode: False.

    Raises:
        ValueError: ``mode`` is true.

    >>> with set_lazy_legacy(False):
    ...     lazy_legacy()
    False
    """

    _option = "lazy_legacy"

    def __init__(self, mode: bool) -> None:
        if mode:
            raise ValueError(
                "set_lazy_legacy() can turn the lazy mode of older releases off only, got True; use lazy_stack for a "
                "lazy stack and view_at for a view"
            )
        super().__init__(mode)


def lazy_legacy(allow_none: bool = False) -> bool:
    """Whether shape operations are lazy, as in older releases: they never are.

    Args:
        allow_none: Taken for compatibility.

    >>> lazy_legacy()
    False
    """
    return current.lazy_legacy
