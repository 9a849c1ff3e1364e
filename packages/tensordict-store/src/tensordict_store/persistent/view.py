"""Views: ``td[index]`` of a persistent tensordict, which reads from the file when it is used and writes into it."""

from __future__ import annotations

from typing import Any

from tensordict_core import SubTensorDict
from tensordict_core.extension import Index

__all__ = ["PersistentView"]


class PersistentView(SubTensorDict):
    """A live view of the part of a persistent tensordict that an index selects; an index of it is a view too.

    ``to_tensordict()`` reads the part of all entries at once, ``view["key"]`` the part of one.

    >>> td = TensorDict({"x": torch.zeros(3, 2)}, [3]).to_h5("views.h5")
    >>> td[1:][0].fill_("x", 1.0)["x"], td["x"].sum()
    (tensor([1., 1.]), tensor(2.))
    >>> td.close()
    """

    __slots__ = ()

    def _now(self) -> Any:
        return self._named(self._parent._fetched(self._part))

    def _fetched(self, index: Index) -> Any:
        part = self._parent._fetched(self._within(index))
        part._put_names(index.names(self._meta.names))
        return part

    def _index(self, index: Index) -> Any:
        return self._view_at(index)

    def _view_at(self, index: Index) -> Any:
        return PersistentView._make(self, index)
