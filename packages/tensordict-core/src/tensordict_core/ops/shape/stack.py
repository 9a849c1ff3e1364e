"""Methods that stack and concatenate tensordicts, convert between lazy and dense stacks, and make views."""

from __future__ import annotations

import operator
from typing import Any, Self

import torch
from torch import Tensor

from tensordict_core.base.index import Index
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import UNLOCKED
from tensordict_core.base.shape_op import normal_dim
from tensordict_core.ops.shape import combine


def _canonical(leaf: Tensor) -> Tensor:
    """Return a leaf with the strides of a new tensor of its shape; a copy of others."""
    if leaf.stride() == torch.empty(leaf.shape, device="meta").stride():
        return leaf.contiguous()
    return leaf.clone(memory_format=torch.contiguous_format)


class Stacking(Node):
    """``stack``, ``cat``, their lazy forms, and conversions between dense and lazy stacks."""

    __slots__ = ()

    stack = staticmethod(combine.stack)
    cat = staticmethod(combine.cat)
    lazy_stack = staticmethod(combine.lazy_stack)
    maybe_dense_stack = staticmethod(combine.maybe_dense_stack)

    def to_lazystack(self, dim: int = 0) -> Any:
        """Return the slices along a batch dimension as a lazy stack that shares their memory.

        A lazy stack along that dimension is returned unchanged.

        Args:
            dim: The batch dimension.

        Raises:
            RuntimeError: There is no batch dimension.

        >>> td = TensorDict({"a": torch.zeros(3)}, [3]).to_lazystack()
        >>> type(td).__name__, len(td.tensordicts)
        ('LazyStackedTensorDict', 3)
        """
        at = normal_dim(dim, self._meta.batch_size) if self._meta.batch_size else dim
        if (stack := self._lazy_stack) is not None and stack.stack_dim == at:
            return self
        parts = self.unbind(dim)
        return type(parts[0])._lazy(parts, at) if parts else self

    def densify(self, layout: torch.layout = torch.strided) -> Any:
        """Combine the lazy stacks of this tree: entries of one shape are stacked, ragged ones become nested tensors.

        Args:
            layout: The layout of the nested tensors.

        >>> ragged = TensorDict.lazy_stack([TensorDict({"a": torch.zeros(n)}) for n in (1, 2)])
        >>> [len(part) for part in ragged.densify(layout=torch.jagged)["a"].unbind()]
        [1, 2]
        """
        out = None
        for key, value in self._items():
            if isinstance(value, Node):
                dense = value.densify(layout=layout)
                if dense is not value:
                    out = self._clone(False) if out is None else out
                    out._set(key, dense)
        return self if out is None else out

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Self:
        """Return this tree with contiguous leaves: other leaves are copied, and lazy stacks become dense.

        Args:
            canonical: Whether a leaf must have the strides of a new tensor of its shape, dimensions of size 1
                included.
            inplace: Whether the copies replace the leaves of this tensordict, which is returned.

        Raises:
            RuntimeError: It is locked and ``inplace``, or entries of a lazy stack do not stack.

        >>> td = TensorDict({"a": torch.zeros(4, 3).T}, [3])
        >>> td.is_contiguous(), td.contiguous().is_contiguous()
        (False, True)
        """
        result = self._solid()
        old = result._leaves()
        leaves = [_canonical(leaf) if canonical else leaf.contiguous() for leaf in old]
        if inplace and result is self and all(map(operator.is_, leaves, old)):  # which a locked tensordict allows
            return self
        return self._in_place(result._rebuild(iter(leaves), UNLOCKED), inplace)

    def view_at(self, index: Any) -> Any:
        """Return a live view of the part of every entry that ``index`` selects.

        Reading it indexes the entries of this tensordict, and writing to it writes into them. A new key is added to the
        whole tensordict.

        Args:
            index: As in ``td[index]``.

        Raises:
            IndexError: The index does not fit the batch size.

        >>> td = TensorDict({"a": torch.zeros(3)}, [3])
        >>> view = td.view_at(torch.tensor([0, 2]))
        >>> view["a"] = torch.ones(2)
        >>> td["a"]
        tensor([1., 0., 1.])
        """
        return self._view_at(Index(index, self._meta.batch_size))

    def _get_sub_tensordict(self, idx: Any) -> Any:
        """Return a live view, as ``view_at``; existing programs use this name."""
        return self.view_at(idx)
