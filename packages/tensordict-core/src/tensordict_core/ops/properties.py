"""Properties of a tensordict: batch size, device, dim names, dtype, memory."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Self, overload

import torch
from torch import Tensor

from tensordict_core.base import errors
from tensordict_core.base.meta import as_batch_size, as_device
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.predicates import in_shared_memory, is_leaf_nontensor
from tensordict_core.base.ragged import shape_of
from tensordict_core.base.registry.types import containers


class Properties(Node):
    """Batch size, device, names, and properties of the leaves."""

    __slots__ = ()

    @property
    def batch_size(self) -> torch.Size:
        """The leading dimensions that all entries share; it can be set to any shape that all entries start with.

        Raises:
            RuntimeError: On setting, an entry does not start with the new batch size.

        >>> td = TensorDict({"a": torch.zeros(3, 4)}, [3])
        >>> td.batch_size = [3, 4]
        >>> td.batch_size
        torch.Size([3, 4])
        """
        return self._meta.batch_size

    @batch_size.setter
    def batch_size(self, value: Sequence[int] | int) -> None:
        size = as_batch_size(value)
        if self._lazy_stack is not None and size != self._meta.batch_size:
            remedy = "make the lazy stack dense first with to_tensordict()"
            raise errors.fixed_batch_size(size, self._meta.batch_size, remedy)
        self._change_batch_size(size)

    def _change_batch_size(self, size: torch.Size) -> None:
        old = self._meta
        if size == old.batch_size:
            return
        dims = len(size)
        for key in self._keys():
            value = self._get(key)
            shape = value._meta.batch_size if isinstance(value, Node) else shape_of(value)
            if shape[:dims] != size and not (isinstance(value, Node) and len(shape) < dims):
                raise errors.batch_size_refused(key, type(value), shape, size)
        for node in self._nodes():
            own = node._meta.batch_size
            if own[:dims] != size or (own != size and isinstance(node, Tensor)):
                try:
                    node._change_batch_size(size)
                except RuntimeError as error:
                    error.add_note("while changing the batch size of the tensordict that holds it")
                    raise
        self._set_meta(old.fitted(size))

    @property
    def shape(self) -> torch.Size:
        """The batch size.

        >>> TensorDict({"a": torch.zeros(3, 4, 5)}, [3, 4]).shape
        torch.Size([3, 4])
        """
        return self._meta.batch_size

    @shape.setter
    def shape(self, size: Sequence[int]) -> None:
        self.batch_size = size

    @property
    def batch_dims(self) -> int:
        """The number of batch dimensions.

        >>> TensorDict({"a": torch.zeros(3, 4, 5)}, [3, 4]).batch_dims
        2
        """
        return len(self._meta.batch_size)

    @property
    def ndim(self) -> int:
        """The number of batch dimensions.

        >>> TensorDict({"a": torch.zeros(3, 4, 5)}, [3, 4]).ndim
        2
        """
        return len(self._meta.batch_size)

    def dim(self) -> int:
        """Return the number of batch dimensions.

        >>> TensorDict({"a": torch.zeros(3, 4, 5)}, [3, 4]).dim()
        2
        """
        return len(self._meta.batch_size)

    def ndimension(self) -> int:
        """Return the number of batch dimensions.

        >>> TensorDict({"a": torch.zeros(3, 4, 5)}, [3, 4]).ndimension()
        2
        """
        return len(self._meta.batch_size)

    @overload
    def size(self, dim: None = ...) -> torch.Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> Any:
        """Return the batch size, or the size of one batch dimension.

        >>> TensorDict({}, [3, 4]).size(-1)
        4
        """
        return self._meta.batch_size if dim is None else self._meta.batch_size[dim]

    def numel(self) -> int:
        """Return the number of positions of the batch (1 without batch dimensions, and where a size is -1).

        >>> TensorDict({}, [3, 4]).numel()
        12
        """
        size = self._meta.batch_size
        return 1 if -1 in size else size.numel()

    @property
    def device(self) -> torch.device | None:
        """The device of all entries, or ``None`` if entries may be on several devices.

        >>> TensorDict({"a": torch.zeros(3)}).device is None, TensorDict({"a": torch.zeros(3)}, device="cpu").device
        (True, device(type='cpu'))
        """
        return self._meta.device

    @device.setter
    def device(self, value: Any) -> None:
        raise RuntimeError(
            f"device cannot be set using {self._noun}.device = device; use {self._noun}.to({str(value)!r}) for a moved "
            "copy or clear_device_() to unset it"
        )

    def clear_device_(self) -> Self:
        """Unset the device of this and all nested tensordicts: entries stay on their devices, new ones are not moved.

        >>> TensorDict({"a": 1}, device="cpu").clear_device_().device is None
        True
        """
        self._set_meta(self._meta.moved(None))
        for node in self._nodes():
            node.clear_device_()
        return self

    def auto_device_(self) -> Self:
        """Set the device to the common device of all leaves, or unset it if they differ.

        >>> TensorDict({"a": 1}).auto_device_().device
        device(type='cpu')
        """
        devices = {leaf.device for leaf in self._leaves()}
        self._put_device(devices.pop() if len(devices) == 1 else None)
        return self

    def _put_device(self, device: torch.device | None) -> None:
        self._set_meta(self._meta.moved(as_device(device)))
        for node in self._nodes():
            node._put_device(device)

    def auto_batch_size_(self, batch_dims: int | None = None, keep_compliant_size: bool = False) -> Self:
        """Set the batch size to the longest that all entries share, nested tensordicts first.

        Args:
            batch_dims: The maximum number of batch dimensions.
            keep_compliant_size: Whether a batch size that has ``batch_dims`` dimensions already is kept.

        Raises:
            ValueError: ``batch_dims`` is not a number of dimensions.

        >>> td = TensorDict({"a": torch.zeros(3, 4), "b": torch.zeros(3, 5)})
        >>> td.auto_batch_size_().batch_size
        torch.Size([3])
        """
        is_number = type(batch_dims) is int or (isinstance(batch_dims, Integral) and type(batch_dims) is not bool)
        if batch_dims is not None and not (is_number and batch_dims >= 0):
            raise ValueError(f"batch_dims is a number of dimensions or None, got {batch_dims!r}; pass 0 or more")
        if keep_compliant_size and batch_dims is not None and self.batch_dims == batch_dims:
            return self
        for node in self._nodes():
            if not node._is_opaque:
                node.auto_batch_size_(batch_dims)
        new = _common_size(self)[:batch_dims]
        if new != self._meta.batch_size:
            self._set_meta(self._meta.fitted(new))
            for node in self._nodes():
                # a single value fits any batch size; values for each position fix the number of positions
                fits_any = node._is_opaque and not (node._is_non_tensor and node._holds_values)
                if fits_any or node._meta.batch_size[: len(new)] != new:
                    node._change_batch_size(new)
        return self

    def is_empty(self) -> bool:
        """Return whether the tree has no leaves and no non-tensor values.

        >>> TensorDict({"a": {}}).is_empty()
        True
        """
        for _, value in self._peek_items():
            if type(value) is Tensor or is_leaf_tensor(value) or not value.is_empty():
                return False
        return True

    def is_contiguous(self) -> bool:
        """Return whether every leaf is contiguous; lazy stacks and lists of values are not, without common memory.

        >>> TensorDict({"a": torch.zeros(3, 4).t()}, [4]).is_contiguous()
        False
        """
        if self._lazy_stack is not None:
            return False
        for _, value in self._items():
            if type(value) is not Tensor and isinstance(value, Node) and value._holds_values:
                return False
            if not value.is_contiguous():
                return False
        return True

    def is_floating_point(self) -> bool:
        """Return whether every leaf has a floating-point dtype.

        >>> TensorDict({"a": torch.zeros(3), "b": torch.arange(3)}, [3]).is_floating_point()
        False
        """
        return all(leaf.is_floating_point() for leaf in self._leaves())

    def is_shared(self) -> bool:
        """Return whether all leaves are in shared memory or on CUDA, which processes share; mapped files do not count.

        In compiled code, only tensors on CUDA count.

        Without tensors, whether all non-tensor values are; of an empty tensordict, whether ``share_memory_`` was called
        and it is locked since.

        >>> TensorDict({"a": torch.zeros(3)}).share_memory_().is_shared()
        True
        """
        leaves = self._leaves()
        if not leaves:
            values: list[Any] = self._leaves(is_leaf_nontensor)
            if values:
                return all(value.is_shared() for value in values)
            return self._locked and self._annotations is not None and bool(self._annotations.get("shared"))
        for leaf in leaves:
            if not (type(leaf) is Tensor or isinstance(leaf, Tensor)) or not (leaf.is_cuda or in_shared_memory(leaf)):
                return False
        return not self.is_memmap()

    def _in_shared_memory(self) -> bool:
        """Return ``is_shared()``, and whether the tensors are on the host, where processes have files for them."""
        return self.is_shared() and not any(leaf.is_cuda for leaf in self._leaves())

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a CUDA device.

        >>> TensorDict({"a": torch.zeros(3)}, device="cpu").is_cuda
        False
        """
        return self._meta.device is not None and self._meta.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the CPU.

        >>> TensorDict({"a": torch.zeros(3)}, device="cpu").is_cpu
        True
        """
        return self._meta.device is not None and self._meta.device.type == "cpu"

    @property
    def is_meta(self) -> bool:
        """Whether the device is the meta device.

        >>> TensorDict({"a": torch.zeros(3)}).to("meta").is_meta
        True
        """
        return self._meta.device is not None and self._meta.device.type == "meta"

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of all leaves, or ``None`` if they differ.

        >>> TensorDict({"a": 1.0, "b": 1}).dtype is None
        True
        """
        dtypes = {leaf.dtype for leaf in self._leaves()}
        return dtypes.pop() if len(dtypes) == 1 else None

    @property
    def requires_grad(self) -> bool:
        """Whether any leaf requires a gradient.

        >>> TensorDict({"a": torch.zeros(3), "b": torch.zeros(3, requires_grad=True)}, [3]).requires_grad
        True
        """
        return any(leaf.requires_grad for leaf in self._leaves())

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        for leaf in self._leaves():
            leaf.requires_grad_(value)

    @property
    def depth(self) -> int:
        """The number of levels of nested tensordicts below this one that hold a tensor.

        >>> TensorDict({"a": {"b": {"c": 1}}}).depth
        2
        """
        return max(_levels(self), 0)

    def bytes(self, *, count_duplicates: bool = True) -> int:
        """Return the size of all leaves in bytes, with their gradients and the offsets of nested tensors.

        Args:
            count_duplicates: Whether a leaf under several keys counts once for each key.

        >>> TensorDict({"a": torch.zeros(3)}).bytes()
        12
        """
        return sum(map(_bytes, self._counted(count_duplicates)))

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """Return the number of elements of all leaves.

        Args:
            count_duplicates: Whether a leaf under several keys counts once for each key.

        >>> TensorDict({"a": torch.zeros(3, 4)}).param_count()
        12
        """
        return sum(leaf.numel() for leaf in self._counted(count_duplicates))

    def _counted(self, count_duplicates: bool) -> list[Tensor]:
        leaves = self._leaves()
        return leaves if count_duplicates else list(dict.fromkeys(leaves))

    def data_ptr(self, *, storage: bool = False) -> Any:
        """Return the address of each leaf, as a plain tensordict of integers without batch dimensions.

        The elements of a lazy stack have the keys ``"0"``, ``"1"``, ...

        Args:
            storage: Whether to return the address of the storage, which views share, rather than of the first element.

        >>> td = TensorDict({"a": torch.zeros(3)}, [3])
        >>> (td[1:].data_ptr(storage=True) == td.data_ptr(storage=True)).all()
        True
        >>> sorted(TensorDict.lazy_stack([td, td]).data_ptr().keys(True, True))
        [('0', 'a'), ('1', 'a')]
        """
        return _addresses(self, storage)


def _levels(node: Any) -> int:
    """Return the number of levels below a node that hold a tensor or a value; -1 if it holds none itself."""
    if node._is_lazy_stack:
        return max(map(_levels, node.tensordicts), default=-1)
    levels = [
        0 if is_leaf_tensor(value) or value._is_opaque else _levels(value) + 1 or -1 for _, value in node._items()
    ]
    return max(levels, default=-1)


def _bytes(leaf: Tensor) -> int:
    """Return the size of a leaf and its gradient in bytes, with the offsets and lengths of a jagged tensor."""
    parts = [leaf]
    if leaf.is_nested and leaf.layout is torch.jagged:
        jagged: Any = leaf  # whose methods have no annotations
        parts = [part for part in (jagged.values(), jagged.offsets(), jagged.lengths()) if part is not None]
    grad = leaf.grad if leaf.is_leaf else None
    return sum(part.nbytes for part in parts) + (0 if grad is None else _bytes(grad))


def _common_size(node: Any) -> torch.Size:
    """Return the leading sizes that all entries of a node share; empty nodes count if there is nothing else."""
    shapes = [
        value.shape if isinstance(value, Node) else shape_of(value)
        for value in (node._get(key) for key in node._keys())
        if is_leaf_tensor(value) or (_has_size(value) if value._is_opaque else not value.is_empty())
    ]
    if not shapes:
        shapes = [one._meta.batch_size for one in node._nodes() if not one._is_opaque] or [node._meta.batch_size]
    size: list[int] = []
    for sizes in zip(*shapes, strict=False):
        if len(set(sizes)) > 1 or sizes[0] == -1:
            break
        size.append(sizes[0])
    return torch.Size(size)


def _has_size(value: Any) -> bool:
    """Return whether an opaque entry has a batch size of its own: non-tensor data that has batch dimensions."""
    return value._is_non_tensor and len(value._meta.batch_size) > 0


def _addresses(node: Any, storage: bool) -> Any:
    """Return the address of a tensor, or those of a node's leaves; ``None`` for non-tensor values."""
    if is_leaf_tensor(node):
        return torch.tensor(node.untyped_storage().data_ptr() if storage else node.data_ptr(), device="cpu")
    if node._is_opaque:
        return None if node._is_non_tensor else _addresses(node._tensor, storage)
    stack = node._lazy_stack
    items = node._items() if stack is None else ((str(i), td) for i, td in enumerate(stack.tensordicts))
    found = ((key, _addresses(value, storage)) for key, value in items)
    return containers.dense({key: address for key, address in found if address is not None}, device="cpu")
