"""``MemoryMappedTensor``: a tensor whose memory is a file, or shared memory, that several processes can use.

Operations see a plain ``torch.Tensor``: they run at full speed and return plain tensors. Only views by position
(indexing with integers and slices, ``unbind``, ``split``, ``chunk``, ``detach``) stay memory-mapped and know where they
are in the file; every other view shares the memory as a plain tensor. Row indexing (``indexing.py``) and large copies
(``update.py``) have fast paths. A tensor with a file is pickled by the name and identity of the file (``pickling.py``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from multiprocessing.reduction import ForkingPickler
from types import EllipsisType
from typing import Any, Self, cast

import torch

from tensordict_core.extension import register_writer
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.engine.tuning import FILE_WRITE_MIN, ROW_COPY_MIN
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.storage.staging import replacing
from tensordict_memmap.tensor import pickling
from tensordict_memmap.tensor.constructors import Filled, check_device
from tensordict_memmap.tensor.indexing import gather_rows, scatter_rows
from tensordict_memmap.tensor.mapping import Mapping
from tensordict_memmap.tensor.update import copy_into, write_leaves

_BASIC = (int, slice, EllipsisType, type(None))


class MemoryMappedTensor(Filled, torch.Tensor):
    """A tensor over a file, or over shared memory where it has no file.

    Writing to it in place writes to the file. ``clone()`` and arithmetic give plain tensors.

    Args:
        source: a tensor, array or nested list of numbers, which is copied.
        dtype: the dtype to convert to.
        shape: the shape to broadcast to.
        index: an index of the result to keep.
        device: the CPU, which is where files are mapped.
        handler: memory that is mapped already, as another tensor's ``handler``; ``source`` is None then.
        filename: the file to make; None uses shared memory, freed with its last owner.

    >>> x = MemoryMappedTensor([[1, 2], [3, 4]])
    >>> x[0] = 7
    >>> x
    MemoryMappedTensor([[7, 7],
                        [3, 4]])
    >>> type(x[1]).__name__, type(x + 1).__name__
    ('MemoryMappedTensor', 'Tensor')
    """

    # As in torch.nn.Parameter: operations take no detour through Python and return plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # a method

    _mapping: Mapping
    _index: Any
    _parent_shape: torch.Size

    def __new__(
        cls,
        source: Any = None,
        *,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        index: Any = None,
        device: torch.device | str | None = None,
        handler: Mapping | None = None,
        filename: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Copies ``source``, or takes over ``handler``."""
        check_device(device)
        if handler is not None:
            if dtype is None or shape is None:
                raise TypeError("handler has neither dtype nor shape; pass both")
            return cls.from_handler(handler, dtype, shape, index)
        tensor = source if isinstance(source, torch.Tensor) else torch.as_tensor(source)
        if dtype is not None:
            tensor = tensor.to(dtype)
        made = cls.from_tensor(tensor, filename=filename, shape=shape)
        return made if index is None else cast(Self, made[index])

    # --- making one

    @classmethod
    def from_tensor(
        cls,
        input: torch.Tensor,
        *,
        filename: str | os.PathLike[str] | None = None,
        existsok: bool = False,
        copy_existing: bool = False,
        copy_data: bool = True,
        shape: Sequence[int] | None = None,
    ) -> Self:
        """Copies a tensor into a new file, or into shared memory.

        Args:
            input: the tensor, on any device and of any layout of strides.
            filename: the file to make. It appears whole or not at all.
            existsok: whether a file of that name may be replaced. Existing mappings of the old file keep its content.
            copy_existing: whether a tensor that has a file already is copied to another one.
            copy_data: whether to copy the values; False leaves zeros, and takes no disk space yet.
            shape: broadcasts to this shape.

        Returns:
            The new tensor, or ``input`` itself where it is already what is asked for.

        Raises:
            TypeError: ``input`` is no tensor.
            RuntimeError: ``input`` requires gradients, the file exists and ``existsok`` is False, or ``input`` has
                another file already and ``copy_existing`` is False.
            OSError: The disk is full.

        >>> x = MemoryMappedTensor.from_tensor(torch.arange(3), filename="x.memmap")
        >>> os.path.basename(x.filename), os.path.getsize(x.filename)
        ('x.memmap', 24)
        """
        if not isinstance(input, torch.Tensor):
            raise TypeError(
                f"{type(input).__name__} is no torch.Tensor, which from_tensor takes; use torch.as_tensor first"
            )
        if isinstance(input, cls) and shape is None:
            mapped = input._mapping.filename
            if filename is None or (mapped == os.path.abspath(filename) and input._is_whole()):
                return input
            if mapped is not None and not copy_existing:
                raise RuntimeError(
                    f"the tensor is in {mapped} already and stays there; pass copy_existing=True to copy it to "
                    f"{os.fspath(filename)}"
                )
        if input.requires_grad:
            raise RuntimeError("the tensor requires gradients, and a file holds only values; pass x.detach()")
        source = input if shape is None else input.expand(tuple(shape))
        return cls._make(source.shape, source.dtype, filename, existsok, source if copy_data else None)

    @classmethod
    def _make(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        filename: str | os.PathLike[str] | None,
        existsok: bool,
        source: torch.Tensor | None,
    ) -> Self:
        nbytes = prod(shape) * dtype.itemsize
        if filename is None:
            made = cls._over(Mapping.anonymous(nbytes), dtype, shape)
            if source is not None:
                copy_into(made, source)
            return made
        path = os.path.abspath(filename)
        if not existsok and os.path.exists(path):
            raise RuntimeError(f"{path} exists, and a new tensor gets a new file; pass existsok=True to replace it")
        if nbytes == 0:  # files of the tree format are never empty
            if os.path.exists(path):
                os.unlink(path)
            return cls._over(Mapping.nothing(path), dtype, shape)
        folder, name = os.path.split(path)
        os.stat(folder)  # an error where it is absent: writing would make it
        with replacing(path, existsok=existsok) as staged:
            write_files([FileWrite(staged, [] if source is None else [FileRange(name, source)], size=nbytes)])
            # before others can put another file there; elsewhere a mapped file cannot be renamed
            mapping = Mapping.open(staged, nbytes, mode="r+") if syscalls.POSIX else None
        if mapping is None:
            mapping = Mapping.open(path, nbytes, mode="r+")
        mapping.filename = path
        return cls._over(mapping, dtype, shape)

    @classmethod
    def _over(
        cls,
        mapping: Mapping,
        dtype: torch.dtype,
        shape: Sequence[int],
        *,
        offset: int = 0,
        stride: Sequence[int] | None = None,
        index: Any = None,
    ) -> Self:
        """A tensor over a mapping, from a byte of it on."""
        count = _reach(shape, stride)
        if count == 0:
            plain = torch.empty(tuple(shape), dtype=dtype)
        else:
            flat = torch.frombuffer(mapping.buffer, dtype=dtype, count=count, offset=offset)
            if stride is not None:
                plain = flat.as_strided(tuple(shape), tuple(stride))
            else:
                plain = flat if len(shape) == 1 else flat.view(tuple(shape))
        self = plain.as_subclass(cls)
        self._mapping = mapping
        self._index = None
        self._parent_shape = plain.shape
        return self if index is None else cast(Self, self[index])

    @classmethod
    def from_filename(
        cls,
        filename: str | os.PathLike[str],
        dtype: torch.dtype,
        shape: Sequence[int],
        index: Any = None,
        mode: str | None = None,
        *,
        offset: int = 0,
    ) -> Self:
        """Maps a file, without changing or reading it.

        Args:
            filename: the path.
            dtype: the dtype of the values in the file.
            shape: their shape. A tensor without elements needs no file.
            index: an index of the tensor to keep.
            mode: ``"r+"`` writes to the file, ``"r"`` and ``"c"`` keep writes in this process; None is ``"r+"`` where
                the file may be written to, else ``"r"``.
            offset: the byte where the tensor starts.

        Raises:
            ValueError: The file is shorter than the tensor.
            OSError: The file cannot be opened.
        """
        nbytes = prod(shape) * dtype.itemsize
        if nbytes == 0:
            return cls._over(Mapping.nothing(os.path.abspath(filename), mode or "r+"), dtype, shape, index=index)
        return cls._over(Mapping.open(os.fspath(filename), nbytes, offset=offset, mode=mode), dtype, shape, index=index)

    @classmethod
    def from_handler(
        cls,
        handler: Mapping,
        dtype: torch.dtype,
        shape: Sequence[int],
        index: Any = None,
        *,
        offset: int = 0,
        stride: Sequence[int] | None = None,
    ) -> Self:
        """A tensor over memory that is mapped already.

        Args:
            handler: the mapping, as ``MemoryMappedTensor.handler`` gives it.
            dtype: the dtype of its values.
            shape: their shape.
            index: an index of the tensor to keep.
            offset: the byte of the mapping where the tensor starts.
            stride: the strides in elements; contiguous if None.

        Raises:
            ValueError: The mapping is too short.

        >>> x = MemoryMappedTensor.zeros(2, 3)
        >>> y = MemoryMappedTensor.from_handler(x.handler, torch.float32, (6,))
        >>> y[4] = 5
        >>> x[1].tolist()
        [0.0, 5.0, 0.0]
        """
        needed = offset + _reach(shape, stride) * dtype.itemsize
        if offset < 0 or needed > handler.nbytes:
            raise ValueError(
                f"the tensor ends at byte {needed} of a mapping of {handler.nbytes} bytes; pass a smaller shape"
            )
        return cls._over(handler, dtype, shape, offset=offset, stride=stride, index=index)

    @classmethod
    def from_storage(
        cls,
        storage: torch.UntypedStorage | torch.TypedStorage,
        *,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        index: Any = None,
        filename: str | os.PathLike[str] | None = None,
        handler: Mapping | None = None,
    ) -> Self:
        """A tensor over a storage of torch that maps a file, as ``torch.UntypedStorage.from_file`` makes.

        Args:
            storage: the storage.
            shape: the shape; None is one dimension.
            dtype: the dtype; None is the storage's, or bytes.
            device: the CPU.
            index: an index of the tensor to keep.
            filename: the file that the storage maps; None asks the storage.
            handler: memory that is mapped already, instead of the storage's.
        """
        check_device(device)
        if dtype is None:
            dtype = storage.dtype if isinstance(storage, torch.TypedStorage) else torch.uint8
        untyped = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
        path = filename if filename is not None else untyped.filename
        mapping = handler or Mapping.over(untyped, None if path is None else os.path.abspath(path))
        return cls.from_handler(mapping, dtype, (mapping.nbytes // dtype.itemsize,) if shape is None else shape, index)

    # --- where it is

    @property
    def filename(self) -> str:
        """The absolute path of the file.

        Raises:
            RuntimeError: The tensor is in anonymous shared memory, where ``handler.filename`` is None.
        """
        if self._mapping.filename is None:
            raise RuntimeError("the tensor has no file: it is in shared memory; pass filename when making it")
        return self._mapping.filename

    @property
    def handler(self) -> Mapping:
        """The mapping that holds the memory; pass it to :meth:`from_handler` to make another tensor over it."""
        return self._mapping

    @property
    def index(self) -> Any:
        """The index that gave this tensor, of a tensor of shape ``parent_shape``; None if there was none."""
        return self._index

    @property
    def parent_shape(self) -> torch.Size:
        """The shape of the tensor that was indexed to get this one, or the shape of this one."""
        return self._parent_shape

    @property
    def offset(self) -> int:
        """The byte of the file where the first element starts."""
        if self.numel() == 0:
            return self._mapping.offset
        return self._mapping.offset + self.data_ptr() - self._mapping.address

    def flush(self) -> None:
        """Waits until in-place changes are on the disk."""
        self._mapping.flush()

    def is_shared(self) -> bool:
        """Whether other processes see in-place changes: True, unless the mode of the mapping is ``"r"``."""
        return self._mapping.mode == "r+"

    def share_memory_(self) -> Self:
        """Returns the tensor, whose memory is shared already."""
        return self

    def _is_whole(self) -> bool:
        return self.nbytes == self._mapping.nbytes and self.is_contiguous()

    # --- views and writes

    def _view(self, plain: torch.Tensor, index: Any) -> Self:
        view = plain.as_subclass(type(self))
        view._mapping = self._mapping
        view._index = index
        view._parent_shape = self.shape
        return view

    def __getitem__(self, index: Any) -> torch.Tensor:
        plain: torch.Tensor
        if type(index) in _BASIC or (type(index) is tuple and all(type(part) in _BASIC for part in index)):
            plain = super().__getitem__(index)
            return self._view(plain, index)
        rows = self._rows(index)
        if rows is not None:
            return gather_rows(self, rows)
        plain = super().__getitem__(index)
        return plain

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if type(index) in _BASIC:
                target = super().__getitem__(index)
                if target.nbytes >= FILE_WRITE_MIN:
                    copy_into(self._view(target, index), value)
                    return
            else:
                rows = self._rows(index)
                if rows is not None and not value.requires_grad:
                    scatter_rows(self, rows, value)
                    return
        super().__setitem__(index, value)

    def _rows(self, index: Any) -> torch.Tensor | None:
        """The index as integers of rows, where copying rows as runs of bytes pays; else None."""
        rows: torch.Tensor
        if isinstance(index, torch.Tensor):
            rows = index
        elif type(index) is list and index and all(type(row) is int for row in index):
            rows = torch.tensor(index)
        else:
            return None
        if rows.dtype.is_floating_point or rows.dtype.is_complex or rows.dtype in (torch.bool, torch.uint8):
            return None
        if self.ndim == 0 or self.requires_grad or rows.numel() * self.stride(0) * self.itemsize < ROW_COPY_MIN:
            return None
        return rows

    def copy_(self, src: torch.Tensor, non_blocking: bool = False) -> Self:
        """Copies a tensor into this one's file; large ones on several threads."""
        if self.nbytes >= FILE_WRITE_MIN and isinstance(src, torch.Tensor):
            copy_into(self, src)
        else:
            super().copy_(src, non_blocking)
        return self

    def unbind(self, dim: int = 0) -> tuple[torch.Tensor, ...]:
        """Like ``torch.unbind``; each part stays memory-mapped."""
        before = (slice(None),) * (dim % max(self.ndim, 1))
        return tuple(
            self._view(part, (*before, number) if before else number) for number, part in enumerate(super().unbind(dim))
        )

    def split(self, split_size: Any, dim: int = 0) -> tuple[torch.Tensor, ...]:
        """Like ``torch.split``; each part stays memory-mapped."""
        return self._parts(super().split(split_size, dim), dim)  # type: ignore[no-untyped-call]  # torch's

    def chunk(self, chunks: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
        """Like ``torch.chunk``; each part stays memory-mapped."""
        return self._parts(super().chunk(chunks, dim), dim)

    def _parts(self, parts: Sequence[torch.Tensor], dim: int) -> tuple[torch.Tensor, ...]:
        before = (slice(None),) * (dim % max(self.ndim, 1))
        first, views = 0, []
        for part in parts:
            here = slice(first, first + part.shape[dim])
            views.append(self._view(part, (*before, here) if before else here))
            first = here.stop
        return tuple(views)

    def __iter__(self) -> Any:
        return iter(self.unbind(0))

    def detach(self) -> Self:
        """The same memory without gradients."""
        view = self._view(super().detach(), self._index)
        view._parent_shape = self._parent_shape
        return view

    # --- copies and pickles

    def __copy__(self) -> Self:
        view = self.detach()
        view.requires_grad_(self.requires_grad)
        return view

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """A plain tensor with the same values: two tensors cannot own one file."""
        copied: torch.Tensor = super().detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles the name and identity of the file; the values where there is no file that holds them."""
        return pickling.reduce(self, self._mapping, self.offset, protocol)


def _reduce_between_processes(tensor: MemoryMappedTensor) -> Any:
    return pickling.reduce_between_processes(tensor, tensor.handler, tensor.offset)


ForkingPickler.register(MemoryMappedTensor, _reduce_between_processes)
register_writer(MemoryMappedTensor, write_leaves)


def _reach(shape: Sequence[int], stride: Sequence[int] | None) -> int:
    """The number of elements from the first of a tensor to its last."""
    if stride is None or 0 in shape:
        return prod(shape)
    return sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
