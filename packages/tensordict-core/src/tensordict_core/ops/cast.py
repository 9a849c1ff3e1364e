"""Casts to another device or dtype: `to`, `type`, and a method for each dtype (``float()``, ``int8()``, ...).

Leaves that need no change are shared with the source, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias, cast

import torch
from torch import Tensor

from tensordict_core.base.meta import CONSOLIDATED, as_batch_size, as_device, as_dtype
from tensordict_core.base.node import Node, is_leaf_tensor
from tensordict_core.base.rebuild import KEEP, SAME, UNLOCKED, How
from tensordict_core.base.tracing import is_compiling
from tensordict_core.base.write_back import WriteBack
from tensordict_core.ops.factories.owner import owns_methods
from tensordict_core.ops.factories.spec import OpSpec, record
from tensordict_core.ops.factories.typed import CastMethod
from tensordict_core.ops.tensor_spec import as_described, describes

CastFilter: TypeAlias = "Callable[[tuple[str, ...], Any], bool]"
"""Predicate on the key and the value of a leaf: whether its dtype is cast."""

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
"""The types of leaves that `as_tensor` keeps."""


_CONVERT: dict[torch.dtype, Callable[[Tensor], Tensor]] = {
    torch.float64: Tensor.double,
    torch.float32: Tensor.float,
    torch.float16: Tensor.half,
    torch.bfloat16: Tensor.bfloat16,
    torch.int64: Tensor.long,
    torch.int32: Tensor.int,
    torch.int16: Tensor.short,
    torch.int8: Tensor.char,
    torch.uint8: Tensor.byte,
    torch.bool: Tensor.bool,
}
"""Methods that do the same as ``to`` for one dtype and take half as long to call."""


def _cast_leaves(
    td: Any, leaves: list[Tensor], dtype: Any, cast_filter: CastFilter | None, *, by_to: bool = False
) -> list[Tensor]:
    """Return ``leaves`` cast to a dtype, except those whose leaf of ``td`` the filter rejects.

    With ``by_to``, leaves of a subclass of `torch.Tensor` are cast by `to`, in which some classes keep their type.
    """
    convert: Callable[[Tensor], Any] = _CONVERT.get(dtype) or partial(Tensor.type, dtype=dtype)
    if by_to and not _PLAIN.issuperset(map(type, leaves)):
        convert = partial(Tensor.to, dtype=dtype)
    if cast_filter is None:
        return [convert(leaf) for leaf in leaves]
    chosen = [cast_filter(*pair) for pair in zip(td._leaf_keys(), td._leaves(), strict=True)]
    return [convert(leaf) if is_cast else leaf for leaf, is_cast in zip(leaves, chosen, strict=True)]


class _Uncast(WriteBack):
    """Write-back of a cast: entries return to the device and dtype that they have in the source."""

    __slots__ = ()

    copies = True

    def back(self, value: Any, old: Any) -> Any:
        if is_leaf_tensor(value):
            return value.to(old.device, old.dtype) if is_leaf_tensor(old) else value
        if value._is_opaque or old is None or is_leaf_tensor(old):
            return value
        pairs = zip(value._leaf_keys(), value._leaves(), strict=True)
        leaves = [self.back(leaf, old.get(key, None)) for key, leaf in pairs]
        return value._rebuild(iter(leaves), How(device=old._meta.device))


def _cast_from(source: Any, result: Any) -> Any:
    """Return the result of a cast, prepared to write back to its source at the end of a ``with`` block."""
    if result is source:
        source._set_exit(None)
        return source
    write_back = _Uncast()
    write_back.remember(source)
    result._set_exit(write_back)
    return result


def cast_to(name: str, dtype: torch.dtype) -> CastMethod:
    """Return the method ``name`` that casts every leaf to ``dtype``."""

    def method(self: Any, *, cast_filter: CastFilter | None = None) -> Any:
        leaves = _cast_leaves(self, self._leaves(), dtype, cast_filter)
        return _cast_from(self, self._rebuild(iter(leaves), SAME))

    example = f'>>> TensorDict({{"a": torch.ones(1)}}).{name}().dtype\n    {dtype}'
    if dtype is torch.complex32:  # torch warns that this dtype is experimental, so the example converts no tensor
        example = ">>> TensorDict({}).complex32().is_empty()\n    True"
    method.__doc__ = f"""Return every leaf cast to `{dtype}`; leaves that have it are shared.

    Args:
        cast_filter: A function that is called with the key (a tuple) and the leaf; leaves for which it is false keep
            their dtype.

    {example}
    """
    record(OpSpec(name, "cast", lambda tensor: tensor.to(dtype)))
    return cast(CastMethod, method)


class Target(NamedTuple):
    """The device, dtype and blocking mode in the arguments of ``to``; ``None`` for those not given."""

    device: torch.device | None
    dtype: torch.dtype | None
    non_blocking: bool | None


def _read_target(args: tuple[Any, ...], device: Any, dtype: Any, non_blocking: bool | None) -> Target:
    """Return the target in the arguments, which have the forms of `torch.Tensor.to`."""
    rest: list[Any] = [as_dtype(value) for value in args]
    dtype = as_dtype(dtype)
    if rest:
        first = rest.pop(0)
        if isinstance(first, torch.dtype):
            dtype = first
        elif isinstance(first, Tensor):
            device, dtype = first.device, first.dtype
        elif isinstance(first, Node):
            return Target(first.device, first.dtype, non_blocking)
        elif first is None or isinstance(first, str | int | torch.device):
            device = first
            if rest and (rest[0] is None or isinstance(rest[0], torch.dtype)):
                dtype = rest.pop(0)
        else:
            raise TypeError(
                f"to() takes a device, a dtype, a tensor or a tensordict, got {type(first).__name__}; pass other "
                "options by name"
            )
    if rest and isinstance(rest[0], bool):
        non_blocking = rest.pop(0)
    if rest:
        raise TypeError(f"to() got the unexpected argument {rest[0]!r}; pass options by name")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype={dtype!r} is not a torch.dtype, which to() takes; pass one, such as torch.float32")
    return Target(as_device(device), dtype, non_blocking)


def pinned(leaves: list[Tensor], num_threads: int | None) -> list[Tensor]:
    """Return the leaves in pinned memory; those that are there, or on an accelerator, are shared."""

    def pin(leaf: Tensor) -> Tensor:
        return leaf if leaf.device.type != "cpu" or leaf.is_pinned() else leaf.pin_memory()

    if not num_threads or len(leaves) < 2:
        return [pin(leaf) for leaf in leaves]
    with ThreadPoolExecutor(min(num_threads, len(leaves))) as pool:
        return list(pool.map(pin, leaves))


def _shared_bytes(leaves: list[Tensor]) -> Tensor | None:
    """Return the bytes of the storage that plain leaves share, if they take up most of it; else ``None``.

    Such leaves, of a consolidated tensordict or the results of ``unbind``, move in one copy and share memory there too.
    """
    if len(leaves) < 2 or not (_is_plain(leaves[0]) and _is_plain(leaves[1])):
        return None
    try:
        storage = leaves[0].untyped_storage()
        start = storage.data_ptr()
        if not start or leaves[1].untyped_storage().data_ptr() != start:  # the most common case by far
            return None
        if not all(_is_plain(leaf) and leaf.untyped_storage().data_ptr() == start for leaf in leaves):
            return None
    except (NotImplementedError, RuntimeError):  # within vmap they have no storage
        return None
    if storage.nbytes() > 2 * sum(leaf.nbytes for leaf in leaves):
        return None
    return _bytes_of(leaves[0])


def _is_plain(leaf: Tensor) -> bool:
    """Return whether a leaf is a strided tensor of unconjugated, non-negated numbers that requires no gradient."""
    if type(leaf) is not Tensor or leaf.layout != torch.strided or leaf.requires_grad:
        return False
    return not (leaf.is_nested or leaf.is_quantized or leaf.is_conj() or leaf.is_neg())


def _bytes_of(leaf: Tensor) -> Tensor:
    """Return the bytes of a leaf's whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=leaf.device).set_(leaf.untyped_storage())


def _views_of(whole: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return views of the copied bytes of a storage that are as the leaves are of the storage."""
    typed: dict[torch.dtype, Tensor] = {}
    views = []
    for leaf in leaves:
        items = typed.get(leaf.dtype)
        if items is None:
            items = typed[leaf.dtype] = whole[: len(whole) // leaf.itemsize * leaf.itemsize].view(leaf.dtype)
        views.append(items.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset()))
    return views


def _move(leaves: list[Tensor], device: torch.device, non_blocking: bool | None) -> list[Tensor]:
    """Return the leaves on another device, copied side by side and waited for once where that is safe."""
    if is_compiling():
        return [leaf.to(device, non_blocking=bool(non_blocking)) for leaf in leaves]
    devices = {leaf.device for leaf in leaves}
    if devices <= {device}:
        return leaves
    whole = _shared_bytes(leaves)
    if whole is not None:
        return _views_of(whole.to(device, non_blocking=bool(non_blocking)), leaves)
    if non_blocking is not None:
        return [leaf.to(device, non_blocking=non_blocking) for leaf in leaves]
    moved = [leaf if leaf.device == device else leaf.to(device, non_blocking=True) for leaf in leaves]
    if device.type == "cpu":
        # results on the host are read without a stream that orders the copies before them
        for source in devices:
            if source.type not in ("meta", "cpu"):  # "cpu:0" is not "cpu", and needs no wait
                torch.accelerator.synchronize(source)
    return moved


@owns_methods
class DtypeCasts(Node):
    """A cast for each dtype, in a separate class because names such as ``int`` would hide Python's types."""

    __slots__ = ()

    bool = cast_to("bool", torch.bool)
    uint8 = cast_to("uint8", torch.uint8)
    uint16 = cast_to("uint16", torch.uint16)
    uint32 = cast_to("uint32", torch.uint32)
    uint64 = cast_to("uint64", torch.uint64)
    int8 = cast_to("int8", torch.int8)
    int16 = cast_to("int16", torch.int16)
    int32 = cast_to("int32", torch.int32)
    int64 = cast_to("int64", torch.int64)
    short = cast_to("short", torch.int16)
    int = cast_to("int", torch.int32)
    long = cast_to("long", torch.int64)
    float16 = cast_to("float16", torch.float16)
    float32 = cast_to("float32", torch.float32)
    float64 = cast_to("float64", torch.float64)
    half = cast_to("half", torch.float16)
    bfloat16 = cast_to("bfloat16", torch.bfloat16)
    float = cast_to("float", torch.float32)
    double = cast_to("double", torch.float64)
    complex32 = cast_to("complex32", torch.complex32)
    complex64 = cast_to("complex64", torch.complex64)
    complex128 = cast_to("complex128", torch.complex128)


class Casting(DtypeCasts):
    """``to``, ``cpu``, ``cuda``, ``type`` and the casts."""

    __slots__ = ()

    def to(
        self,
        *args: Any,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        other: Any = None,
        non_blocking: bool | None = None,
        memory_format: torch.memory_format | None = None,
        batch_size: Sequence[int] | int | None = None,
        cast_filter: CastFilter | None = None,
        non_blocking_pin: bool = False,
        num_threads: int | None = None,
        inplace: bool = False,
    ) -> Self:
        """Return this tensordict on another device, with another dtype, or with another batch size.

        If nothing changes, the result is this tensordict. Otherwise it is a new one, which shares the leaves that need
        no change and is locked if this one is. As a context manager, it casts the entries that the block adds or
        replaces back and stores them in this tensordict.

        Args:
            *args: A device, a device and a dtype, a dtype, or a tensor or tensordict whose device and dtype are used
                (the dtype only if all its leaves have the same), as in `torch.Tensor.to`; then ``non_blocking``. With
                the result of ``attrs()``, each leaf gets the device and dtype described under its key.
            device: The device, by name.
            dtype: The dtype, by name.
            other: A tensor or a tensordict whose device and dtype are used.
            non_blocking: If true, copies between devices are asynchronous and the call does not wait for them. By
                default they are asynchronous too, and the call waits once for copies to the host.
            memory_format: The memory format of leaves with four or five dimensions.
            batch_size: The batch size of the result; without other arguments it is set on this tensordict.
            cast_filter: A function that is called with the key (a tuple) and the leaf; leaves for which it is false
                keep their dtype.
            non_blocking_pin: Whether leaves on the host are copied to pinned memory first.
            num_threads: The number of threads that pin memory; by default the calling thread only.
            inplace: Whether the new leaves replace those of this tensordict, which is returned.

        Raises:
            TypeError: The first argument is neither a device nor a dtype, or arguments contradict each other.
            RuntimeError: ``inplace`` on a locked tensordict.

        >>> td = TensorDict({"a": torch.ones(2)})
        >>> td.to(torch.float64)["a"].dtype, td.to("cpu").device
        (torch.float64, device(type='cpu'))
        """
        if memory_format is not None and not isinstance(memory_format, torch.memory_format):
            raise TypeError(
                f"memory_format={memory_format!r} is not a torch.memory_format, which to() takes; pass one, such as "
                "torch.channels_last"
            )
        if other is not None:
            if args or device is not None or dtype is not None:
                raise TypeError("to(other=...) takes device and dtype from other; leave them out")
            args = (other,)
        if args and isinstance(args[0], Node) and describes(args[0]):
            if len(args) > 1 or any(given is not None for given in (device, dtype, cast_filter, memory_format)):
                raise TypeError(
                    "to(attrs) takes device and dtype of each leaf from attrs and allows no other device, dtype, "
                    "filter or memory format; call to() again for those"
                )
            leaves, common = as_described(self, args[0], non_blocking)
            result = self._rebuild(iter(leaves), How(device=common, lock=True))
        else:
            target = _read_target(args, device, dtype, non_blocking)
            result = self._moved(target, memory_format, cast_filter, non_blocking_pin, num_threads)
        if inplace and result is not self:
            if self._locks_with_parent:
                raise TypeError(
                    f"Cannot send a {type(self).__name__} instance to device/dtype inplace, as its entries are parts "
                    "of those of its parent; call to() on the parent, or leave out inplace=True"
                )
            result = self._in_place(result, True)
        if batch_size is not None:
            if result is self and self._locks_with_parent:  # the size of a view is that of its index
                result = self._clone(False)
            result._change_batch_size(as_batch_size(batch_size))
        return cast(Self, _cast_from(self, result))

    def _moved(
        self,
        target: Target,
        memory_format: torch.memory_format | None,
        cast_filter: CastFilter | None,
        pin: bool,
        num_threads: int | None,
    ) -> Any:
        device, dtype, non_blocking = target
        if device == self._meta.device:
            device = None
        if device is None and dtype is None and memory_format is None:
            return self
        leaves = self._leaves()
        is_consolidated = False
        if device is not None:
            if self._annotations is not None and CONSOLIDATED in self._annotations and not is_compiling():
                is_consolidated = device.type != "meta" and _shared_bytes(leaves) is not None
            if pin and device.type not in ("cpu", "meta"):
                leaves = pinned(leaves, num_threads)
            leaves = _move(leaves, device, non_blocking)
        if dtype is not None:
            leaves = _cast_leaves(self, leaves, dtype, cast_filter, by_to=True)
        if memory_format is not None:
            leaves = [leaf.to(memory_format=memory_format) if leaf.ndim in (4, 5) else leaf for leaf in leaves]
        moved = self._rebuild(iter(leaves), How(device=KEEP if device is None else device, lock=True))
        if is_consolidated and dtype is None:
            moved._annotations = {**(moved._annotations or {}), CONSOLIDATED: _bytes_of(leaves[0])}
        return moved

    def cpu(self, **kwargs: Any) -> Self:
        """Return this tensordict on the CPU; options are those of ``to``.

        >>> TensorDict({"a": 1}).cpu().device
        device(type='cpu')
        """
        return self.to("cpu", **kwargs)

    def cuda(self, device: int | str | torch.device | None = None, **kwargs: Any) -> Self:
        """Return this tensordict on a CUDA device, by default the current one; options are those of ``to``.

        Raises:
            RuntimeError: ``device`` is not a CUDA device.

        >>> TensorDict({"a": 1}).cuda("cpu")
        Traceback (most recent call last):
        RuntimeError: cuda() moves to a CUDA device, got cpu; use to('cpu')
        """
        if device is None:
            return self.to("cuda", **kwargs)
        if isinstance(device, str) and device.isdigit():
            device = int(device)
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if found.type != "cuda":
            raise RuntimeError(f"cuda() moves to a CUDA device, got {found}; use to({str(found)!r})")
        return self.to(found, **kwargs)

    def type(self, dst_type: torch.dtype | str, *, cast_filter: CastFilter | None = None) -> Self:
        """Return every leaf cast to a dtype, which may be given as the name of a tensor type.

        Args:
            dst_type: The dtype, or a name such as ``"torch.IntTensor"``.
            cast_filter: A function that is called with the key (a tuple) and the leaf; leaves for which it is false
                keep their dtype.

        Raises:
            TypeError: There is no dtype.

        >>> TensorDict({"a": 1.5}).type("torch.IntTensor")["a"]
        tensor(1, dtype=torch.int32)
        """
        if dst_type is None:
            raise TypeError("type() takes a dtype or the name of a tensor type, got None; read dtypes with td.dtype")
        leaves = _cast_leaves(self, self._leaves(), dst_type, cast_filter)
        return cast(Self, _cast_from(self, self._rebuild(iter(leaves), UNLOCKED)))

    def as_tensor(self) -> Self:
        """Return the same entries with every leaf as a plain tensor, without a copy.

        Subclasses of `torch.Tensor` (memory-mapped tensors, ...) become views of their data; parameters stay.

        >>> class Image(torch.Tensor): ...
        >>> td = TensorDict({"a": torch.zeros(2).as_subclass(Image), "w": torch.nn.Parameter(torch.zeros(2))})
        >>> [type(leaf).__name__ for leaf in td.as_tensor().values()]
        ['Tensor', 'Parameter']
        """
        leaves = [leaf if type(leaf) in _PLAIN else leaf.as_subclass(Tensor) for leaf in self._leaves()]
        return self._rebuild(iter(leaves), SAME)
