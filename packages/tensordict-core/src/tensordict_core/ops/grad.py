"""Autograd on all leaves at once: ``detach``, ``backward``, ``grad``, ``data``, ``requires_grad_``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.keys import unravel_key
from tensordict_core.base.node import Node
from tensordict_core.base.rebuild import SAME, How
from tensordict_core.ops.factories.operands import match


class Autograd(Node):
    """``detach``, ``backward``, ``grad`` and ``requires_grad_``."""

    __slots__ = ()

    def detach(self) -> Self:
        """Return every leaf detached from the graph, sharing its storage.

        >>> td = TensorDict({"a": torch.ones(1, requires_grad=True)})
        >>> td.detach()["a"].requires_grad
        False
        """
        return self._rebuild(iter([leaf.detach() for leaf in self._leaves()]), SAME)

    def detach_(self) -> Self:
        """Detach every leaf in place.

        >>> TensorDict({"a": torch.ones(1, requires_grad=True) * 2}).detach_()["a"].requires_grad
        False
        """
        if not self._reads_copy:  # entries of a file or a server have no graph
            for leaf in self._leaves():
                leaf.detach_()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether autograd records operations on the leaves.

        Raises:
            RuntimeError: A leaf has no floating-point or complex dtype.

        >>> TensorDict({"a": torch.ones(1)}).requires_grad_()["a"].requires_grad
        True
        """
        leaves = self._leaves()
        for i, leaf in enumerate(leaves if requires_grad else ()):
            # all leaves are checked first, so a refused call changes nothing
            if not (leaf.is_floating_point() or leaf.is_complex()):
                raise RuntimeError(
                    f"only Tensors of floating point dtype can require gradients, or of complex dtype, and the key "
                    f"{unravel_key(self._leaf_keys()[i])!r} has dtype {leaf.dtype}; select those that can"
                )
        for leaf in leaves:
            leaf.requires_grad_(requires_grad)
        return self

    @property
    def data(self) -> Self:
        """The data of every leaf, detached and sharing its storage; assignment sets the data of the leaves.

        Raises:
            KeyError: On assignment, the keys differ.

        >>> td = TensorDict({"a": torch.ones(1, requires_grad=True)})
        >>> td.data.zero_()["a"], td["a"].item()
        (tensor([0.]), 0.0)
        """
        return self._rebuild(iter([leaf.data for leaf in self._leaves()]), SAME)

    @data.setter
    def data(self, other: Any) -> None:
        leaves = self._leaves()
        matched, _ = match("data", self, leaves, other)
        for leaf, new in zip(leaves, matched, strict=True):
            leaf.data = new

    @property
    def grad(self) -> Self | None:
        """A tensordict with the gradients of the leaves that have one; ``None`` if no leaf has a gradient.

        Assigning sets the gradients that the other tensordict has; existing gradients are overwritten in place.

        Raises:
            KeyError: On assignment, the other tensordict has a key that this one lacks.

        >>> td = TensorDict({"a": torch.ones(1, requires_grad=True), "b": torch.ones(1)})
        >>> td["a"].sum().backward()
        >>> td.grad["a"], "b" in td.grad
        (tensor([1.]), False)
        """
        grads = [leaf.grad for leaf in self._leaves()]
        if all(grad is None for grad in grads):
            return None
        return cast("Self | None", self._rebuild(iter(grads), How(lock=True, prune=True)))

    @grad.setter
    def grad(self, other: Any) -> None:
        if other is None:
            self.zero_grad()
            return
        aligned = self._align(other, None)
        if sum(new is not None for new in aligned) != len(other._leaves()):
            raise errors.keys_mismatch((), set(other._leaf_keys()) - set(self._leaf_keys()))
        for leaf, new in zip(self._leaves(), aligned, strict=True):
            if new is not None and leaf.grad is not None:
                leaf.grad.copy_(new)
            elif new is not None:
                leaf.grad = new

    def zero_grad(self, set_to_none: bool = True) -> Self:
        """Clear the gradients of all leaves, or fill them with zeros.

        Args:
            set_to_none: Whether gradients are set to ``None`` rather than to zeros.

        >>> td = TensorDict({"a": torch.ones(1, requires_grad=True)})
        >>> td["a"].sum().backward()
        >>> td.zero_grad().grad is None
        True
        """
        for leaf in self._leaves():
            if set_to_none:
                leaf.grad = None
            elif leaf.grad is not None:
                leaf.grad.zero_()
        return self

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Run `torch.autograd.backward` once, from all leaves that require gradients.

        Args:
            gradient: A tensordict with the gradient of each of those leaves; by default 1, for leaves of one element.
            retain_graph: Whether the graph is kept.
            create_graph: Whether the graph of the gradients is built.
            inputs: A tensordict or tensors; gradients are accumulated into these only.

        Raises:
            RuntimeError: No leaf requires gradients, or one has several elements and there is no ``gradient``.
            KeyError: A leaf has no ``gradient``.
            TypeError: ``gradient`` is not a tensordict.

        >>> x = torch.ones(3, requires_grad=True)
        >>> TensorDict({"actor": x.sum(), "critic": x.pow(2).sum()}).backward()
        >>> x.grad
        tensor([3., 3., 3.])
        """
        leaves, keys = self._leaves(), self._leaf_keys()
        chosen = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
        if not chosen:
            raise RuntimeError(
                "backward() needs a leaf that requires gradients, and none does; call requires_grad_() before "
                "the computation"
            )
        grads: Sequence[Tensor] | None = None
        if gradient is None:
            for i in chosen:
                if leaves[i].numel() != 1:
                    raise RuntimeError(
                        f"key {unravel_key(keys[i])!r} has shape {list(leaves[i].shape)}, and backward() supplies the "
                        "gradient of leaves of one element only; pass gradient="
                    )
        else:
            grads = self._gradients(gradient, chosen, leaves, keys)
        if isinstance(inputs, Node):
            inputs = inputs._leaves()
        torch.autograd.backward(
            [leaves[i] for i in chosen], grads, retain_graph=retain_graph, create_graph=create_graph, inputs=inputs
        )

    def _gradients(self, gradient: Any, chosen: list[int], leaves: list[Tensor], keys: list[Any]) -> list[Tensor]:
        if not isinstance(gradient, Node):
            raise TypeError(
                f"gradient is a tensordict with an entry for each leaf that requires gradients, got "
                f"{type(gradient).__name__}; wrap it in a TensorDict under the keys of those leaves"
            )
        found = self._align(gradient, None)
        for i in chosen:
            key, grad = unravel_key(keys[i]), found[i]
            if grad is None:
                raise KeyError(
                    f"gradient has no entry for key {key!r}, which requires gradients; add one, of zeros if need be"
                )
            if grad.shape != leaves[i].shape:
                raise RuntimeError(
                    f"the gradient of key {key!r} has shape {list(grad.shape)}, but the leaf has shape "
                    f"{list(leaves[i].shape)}; expand it"
                )
        return [found[i] for i in chosen]

    def record_stream(self, stream: Any) -> Self:
        """Tell the allocator that a stream uses the leaves, so that it does not reuse their memory too early.

        Args:
            stream: A ``torch.cuda.Stream``.

        Raises:
            RuntimeError: ``stream`` is not a stream.

        >>> TensorDict({}).record_stream(None).is_empty()
        True
        """
        for leaf in self._leaves():
            leaf.record_stream(stream)
        return self
