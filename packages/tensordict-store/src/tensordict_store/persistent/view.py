"""Views: ``td[index]`` of a persistent tensordict, which reads from the file when it is used and writes into it.

Pieces of ``split``, ``chunk``, ``tensor_split`` and ``narrow`` are copies: a program that changes a batch does not
expect that the file changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tensordict_core import SubTensorDict
from tensordict_core.extension import Index, Node


class PiecesAreCopies(Node if TYPE_CHECKING else object):  # type: ignore[misc]  # the base is a constant for mypy
    """Mixin of containers whose indices are views of a file: reads consecutive pieces into memory.

    >>> td = TensorDict({"x": torch.zeros(4)}, [4]).to_h5("pieces.h5")
    >>> [type(piece).__name__ for piece in td.split(2)], td.close()
    (['TensorDict', 'TensorDict'], None)
    """

    __slots__ = ()

    def narrow(self, dim: int, start: int | Tensor, length: int) -> Any:
        """Return a copy of ``length`` slices along a batch dimension, beginning at ``start``.

        >>> td = TensorDict({"x": torch.arange(4)}, [4]).to_h5("narrow.h5")
        >>> td.narrow(0, 1, 2)["x"], td.close()
        (tensor([1, 2]), None)
        """
        part = super().narrow(dim, start, length)._now()
        return part.lock_() if self._locked else part

    def _split(self, sizes: list[int], dim: int) -> Sequence[Any]:
        return [piece._now() for piece in super()._split(sizes, dim)]

    def _cut_at(self, indices: Any, dim: int) -> tuple[Any, ...]:
        return tuple(piece._now() for piece in super()._cut_at(indices, dim))


class PersistentView(PiecesAreCopies, SubTensorDict):
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
