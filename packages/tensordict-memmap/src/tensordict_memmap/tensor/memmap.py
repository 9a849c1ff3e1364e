"""``MemoryMappedTensor``: a tensor whose memory is a mapped file, or shared memory, that several processes can use.

Torch operations treat it as a plain ``torch.Tensor``: they have no overhead and return plain tensors. Only indexing
with integers and slices, ``unbind``, ``split``, ``chunk`` and ``detach`` return memory-mapped views that know their
position in the file; other views are plain tensors, which share the memory (``storage.py``). Row indexing
(``indexing.py``) and large copies (``update.py``) have fast paths. A tensor with a file is pickled by the name and
identity of the file (``pickling.py``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from multiprocessing.reduction import ForkingPickler
from types import EllipsisType
from typing import Any, Self, cast

import torch

from tensordict_core.extension import as_dtype, register_writer
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.engine.tuning import FILE_WRITE_MIN, ROW_WRITE_MIN
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.schema.dtypes import QUANTIZED, check_dtype, reach
from tensordict_memmap.schema.nested import count_of, shape_of, values
from tensordict_memmap.storage.staging import refuse_special, replacing
from tensordict_memmap.tensor import pickling
from tensordict_memmap.tensor.constructors import Filled, check_device
from tensordict_memmap.tensor.indexing import gather_rows, rows_to_copy, scatter_rows
from tensordict_memmap.tensor.mapping import Mapping
from tensordict_memmap.tensor.storage import keep_mapped
from tensordict_memmap.tensor.update import copy_into, write_leaves
from tensordict_memmap.tensor.views import Views

_BASIC = (int, slice, EllipsisType, type(None))


class MemoryMappedTensor(Filled, Views):
    """A tensor over a mapped file, or over shared memory if it has no file.

    In-place operations write to the file. ``clone()`` and arithmetic return plain tensors.

    Args:
        source: A tensor, array or nested list of numbers, which is copied; a tensor that is mapped already is returned.
        dtype: The dtype to convert to.
        shape: The shape to broadcast to.
        index: An index to apply to the result.
        device: Must be the CPU or None.
        handler: An existing mapping, such as the ``handler`` of another tensor, instead of ``source``.
        filename: The file to create; None uses shared memory, which is freed once nothing maps it.

    >>> x = MemoryMappedTensor([[1, 2], [3, 4]])
    >>> x[0] = 7
    >>> x
    MemoryMappedTensor([[7, 7],
                        [3, 4]])
    >>> type(x[1]).__name__, type(x + 1).__name__
    ('MemoryMappedTensor', 'Tensor')
    """

    # As in torch.nn.Parameter: operations have no Python overhead and return plain tensors.
    def __new__(
        cls,
        source: Any = ...,
        *,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        index: Any = None,
        device: torch.device | str | None = None,
        handler: Mapping | None = None,
        filename: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Copy ``source``, or make a tensor over ``handler``."""
        check_device(device)
        if handler is not None:
            if dtype is None or shape is None:
                raise TypeError("handler has neither dtype nor shape; pass both")
            return cls.from_handler(handler, dtype, shape, index)
        if source is ...:
            raise TypeError("missing 1 required positional argument: 'source'; pass a tensor, or handler=")
        tensor = source if isinstance(source, torch.Tensor) else torch.as_tensor(source, device="cpu")
        if dtype is not None:
            tensor = tensor.to(dtype)
        made: torch.Tensor = tensor
        if not isinstance(tensor, cls) or filename is not None or shape is not None:
            made = cls.from_tensor(tensor, filename=filename, shape=shape)
        return cast(Self, made if index is None else made[index])

    # --- constructors

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
        """Copy a tensor into a new file, or into shared memory.

        Args:
            input: The tensor, on any device and with any strides. The components of a strided nested tensor are stored
                one after the other; the result is a nested tensor over them.
            filename: The file to create, in one step; None uses shared memory.
            existsok: Whether an existing file may be replaced. Existing mappings of it keep its content.
            copy_existing: Whether a tensor that already has a file is copied to another one.
            copy_data: Whether to copy the values; if False the file holds zeros, which take no disk space.
            shape: The shape to broadcast to.

        Returns:
            The new tensor, or ``input`` itself if it is in this file, or in shared memory without a file.

        Raises:
            TypeError: ``input`` is not a tensor, or is sparse or a jagged nested tensor.
            RuntimeError: ``input`` requires gradients, the file exists and ``existsok`` is False, or ``input`` has
                another file and ``copy_existing`` is False.
            OSError: The disk is full.

        >>> x = MemoryMappedTensor.from_tensor(torch.arange(3), filename="x.memmap")
        >>> os.path.basename(x.filename), os.path.getsize(x.filename)
        ('x.memmap', 24)
        """
        if not isinstance(input, torch.Tensor):
            raise TypeError(
                f"MemoryMappedTensor.from_tensor takes a torch.Tensor, got {type(input).__name__}: Convert input to "
                "torch.Tensor before, with torch.as_tensor"
            )
        if isinstance(input, cls) and shape is None:
            mapped = input._mapping.filename
            is_whole = input.nbytes == input._mapping.nbytes and input.is_contiguous()
            if mapped == filename or (filename is not None and mapped == os.path.abspath(filename) and is_whole):
                return input
            if mapped is not None and filename is not None and not copy_existing:
                raise RuntimeError(
                    f"A filename was provided but the tensor already has a file associated ({mapped}); pass "
                    f"copy_existing=True to copy it to {os.fspath(filename)}"
                )
        if input.requires_grad:
            raise RuntimeError(
                "MemoryMappedTensor.from_tensor is incompatible with tensor.requires_grad, because a file holds no "
                "gradients; pass x.detach()"
            )
        if input.is_nested and shape is not None:
            raise ValueError("a nested tensor does not broadcast, and shape= was passed; leave it out")
        source = input if shape is None else input.expand(tuple(shape))
        return cls._make(shape_of(source), source.dtype, filename, existsok, source if copy_data else None)

    @classmethod
    def _make(
        cls,
        shape: Sequence[int] | torch.Tensor,
        dtype: torch.dtype,
        filename: str | os.PathLike[str] | None,
        existsok: bool,
        source: torch.Tensor | None,
    ) -> Self:
        if isinstance(shape, torch.Tensor):
            flat = cls._make((count_of(shape),), dtype, filename, existsok, None if source is None else values(source))
            return flat._nested(shape)
        nbytes = prod(shape) * check_dtype(dtype).itemsize
        if filename is None:
            made = cls._over(Mapping.anonymous(nbytes), dtype, shape)
            if source is not None:
                copy_into(made, source)
            return made
        path = os.path.abspath(filename)
        if not existsok and os.path.exists(path):
            raise RuntimeError(
                f"The file {path} already exists, and existsok=False creates a new one; existsok=True replaces it"
            )
        if nbytes == 0:  # files of the tree format are never empty
            refuse_special(path)
            if os.path.exists(path):
                os.unlink(path)
            return cls._over(Mapping.nothing(path), dtype, shape)
        folder, name = os.path.split(path)
        os.stat(folder)  # raises if the folder is absent, which write_files would create
        with replacing(path, existsok=existsok) as staged:
            write_files([FileWrite(staged, [] if source is None else [FileRange(name, source)], size=nbytes)])
            # mapped before another process can replace the file; Windows cannot rename mapped files
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
        """Make a tensor over a mapping, from a byte offset on."""
        count = reach(shape, stride)
        if dtype in QUANTIZED:
            check_dtype(dtype)
        if count == 0:
            plain = torch.empty(tuple(shape), dtype=dtype, device="cpu")
        else:
            flat = keep_mapped(torch.frombuffer(mapping.buffer, dtype=dtype, count=count, offset=offset), mapping)
            if stride is not None:
                plain = flat.as_strided(tuple(shape), tuple(stride))
            else:
                plain = flat if len(shape) == 1 else torch.reshape(flat, tuple(shape))
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
        shape: Sequence[int] | torch.Tensor,
        index: Any = None,
        mode: str | None = None,
        *,
        offset: int = 0,
    ) -> Self:
        """Map a file, without changing or reading it.

        Args:
            filename: The path.
            dtype: The dtype of the values in the file.
            shape: The shape of the tensor. A tensor without elements needs no file. For a nested tensor, a 2D integer
                tensor with the shape of one component in each row.
            index: An index to apply to the tensor.
            mode: With ``"r+"`` writes change the file, with ``"r"`` or ``"c"`` they are private to this process; the
                default is ``"r+"`` if the file is writable, otherwise ``"r"``.
            offset: The offset of the tensor in the file, in bytes.

        Raises:
            ValueError: The file is shorter than the tensor.
            OSError: The file cannot be opened.

        >>> _ = MemoryMappedTensor.ones(3, filename="x.memmap")
        >>> MemoryMappedTensor.from_filename("x.memmap", torch.float32, (3,))
        MemoryMappedTensor([1., 1., 1.])
        """
        if isinstance(shape, torch.Tensor):
            made = cls.from_filename(filename, dtype, (count_of(shape),), mode=mode, offset=offset)._nested(shape)
            return made if index is None else cast(Self, made[index])
        dtype = as_dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        if nbytes == 0:
            return cls._over(Mapping.nothing(os.path.abspath(filename), mode or "r+"), dtype, shape, index=index)
        return cls._over(Mapping.open(os.fspath(filename), nbytes, offset=offset, mode=mode), dtype, shape, index=index)

    @classmethod
    def from_handler(
        cls,
        handler: Mapping,
        dtype: torch.dtype,
        shape: Sequence[int] | torch.Tensor,
        index: Any = None,
        *,
        offset: int = 0,
        stride: Sequence[int] | None = None,
    ) -> Self:
        """Make a tensor over an existing mapping.

        Args:
            handler: The mapping, such as the ``handler`` of another `MemoryMappedTensor`.
            dtype: The dtype of the tensor.
            shape: The shape of the tensor; for a nested tensor as of `from_filename`.
            index: An index to apply to the tensor.
            offset: The offset of the tensor in the mapping, in bytes.
            stride: The strides in elements; contiguous if None.

        Raises:
            ValueError: The mapping is too short.

        >>> x = MemoryMappedTensor.zeros(2, 3)
        >>> y = MemoryMappedTensor.from_handler(x.handler, torch.float32, (6,))
        >>> y[4] = 5
        >>> x[1].tolist()
        [0.0, 5.0, 0.0]
        """
        if isinstance(shape, torch.Tensor):
            made = cls.from_handler(handler, dtype, (count_of(shape),), offset=offset)._nested(shape)
            return made if index is None else cast(Self, made[index])
        needed = offset + reach(shape, stride) * dtype.itemsize
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
        shape: Sequence[int] | torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        index: Any = None,
        filename: str | os.PathLike[str] | None = None,
        handler: Mapping | None = None,
    ) -> Self:
        """Make a tensor over a torch storage that maps a file, such as one from ``torch.UntypedStorage.from_file``.

        Args:
            storage: The storage.
            shape: The shape; None is one dimension. That of a nested tensor is as for `from_filename`.
            dtype: The dtype; None is that of the storage, or ``torch.uint8`` for an untyped one.
            device: Must be the CPU or None.
            index: An index to apply to the tensor.
            filename: The file that the storage maps; None takes it from the storage.
            handler: An existing mapping to use instead of the storage.

        >>> storage = torch.UntypedStorage.from_file("x.bin", shared=True, nbytes=8)
        >>> MemoryMappedTensor.from_storage(storage, dtype=torch.float32).fill_(1)
        MemoryMappedTensor([1., 1.])
        """
        check_device(device)
        if dtype is None:
            dtype = storage.dtype if isinstance(storage, torch.TypedStorage) else torch.uint8
        untyped = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
        path = filename if filename is not None else untyped.filename
        if filename is not None and untyped.filename and os.path.abspath(filename) != os.path.abspath(untyped.filename):
            raise RuntimeError(
                f"the storage has the associated filename {untyped.filename}, which differs from {filename}; leave "
                "filename out, or pass that one"
            )
        mapping = handler or Mapping.over(untyped, None if path is None else os.path.abspath(path))
        return cls.from_handler(mapping, dtype, (mapping.nbytes // dtype.itemsize,) if shape is None else shape, index)

    # --- properties of the mapping

    @property
    def filename(self) -> str:
        """The absolute path of the file.

        Raises:
            RuntimeError: The tensor is in anonymous shared memory; ``handler.filename`` is None then.

        >>> MemoryMappedTensor.ones(3, filename="x.memmap").filename.endswith("x.memmap")
        True
        """
        if self._mapping.filename is None:
            raise RuntimeError(
                "The MemoryMappedTensor has no file associated, as it is in shared memory; pass filename to make one"
            )
        return self._mapping.filename

    @property
    def writes_to(self) -> str | None:
        """The file that in-place writes change; None if they change only this process or shared memory.

        >>> MemoryMappedTensor.ones(3).writes_to is None
        True
        """
        return self._mapping.filename if self._mapping.mode == "r+" else None

    @property
    def handler(self) -> Mapping:
        """The mapping that holds the memory; pass it to :meth:`from_handler` to make another tensor over it.

        >>> MemoryMappedTensor.ones(3).handler.nbytes
        12
        """
        return self._mapping

    # published programs read these: the mapping of shared memory, and the path or None
    _handler = property(lambda self: self._mapping if self._mapping.filename is None else None)
    _filename = property(lambda self: self._mapping.filename)

    @property
    def index(self) -> Any:
        """The index that produced this tensor from one of shape ``parent_shape``; None if it was not indexed."""
        return self._index

    @property
    def parent_shape(self) -> torch.Size:
        """The shape of the tensor that was indexed to get this one, or the shape of this one.

        That of a nested tensor is its number of components.

        >>> MemoryMappedTensor.ones(3, 2)[1].parent_shape
        torch.Size([3, 2])
        """
        return self._parent_shape

    @property
    def offset(self) -> int:
        """The offset of the first element in the file, in bytes.

        >>> MemoryMappedTensor.ones(3, 2)[1].offset
        8
        """
        if self.numel() == 0:
            return self._mapping.offset
        return self._mapping.offset + self.data_ptr() - self._mapping.address

    def flush(self) -> None:
        """Sync in-place changes to disk.

        >>> MemoryMappedTensor.ones(3, filename="x.memmap").add_(1).flush()
        """
        self._mapping.flush()

    def is_shared(self) -> bool:
        """Return whether the tensor maps a file that its writes reach, so that processes which map the file see them.

        >>> MemoryMappedTensor.ones(3).is_shared(), MemoryMappedTensor.ones(3, filename="x.memmap").is_shared()
        (False, True)
        """
        return self.writes_to is not None

    def share_memory_(self) -> Self:
        """Return the tensor itself, whose memory is already shared."""
        return self

    # --- views and writes

    def __getitem__(self, index: Any) -> torch.Tensor:
        plain: torch.Tensor
        if type(index) in _BASIC or (type(index) is tuple and all(type(part) in _BASIC for part in index)):
            plain = super().__getitem__(index)
            return self._view(plain, index)
        rows = rows_to_copy(self, index)
        if rows is not None:
            return gather_rows(self, rows)
        plain = super().__getitem__(index)
        return plain

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if type(index) in _BASIC:
                if self.nbytes >= FILE_WRITE_MIN:
                    target = super().__getitem__(index)
                    if target.nbytes >= FILE_WRITE_MIN:
                        copy_into(self._view(target, index), value)
                        return
            else:
                rows = rows_to_copy(self, index, ROW_WRITE_MIN * self.itemsize)
                if rows is not None and not value.requires_grad:
                    scatter_rows(self, rows, value)
                    return
        super().__setitem__(index, value)

    def copy_(self, src: torch.Tensor, non_blocking: bool = False) -> Self:
        """Copy a tensor into this one in place; large ones on several threads.

        >>> MemoryMappedTensor.zeros(2).copy_(torch.arange(2))
        MemoryMappedTensor([0., 1.])
        """
        if self.nbytes >= FILE_WRITE_MIN and not self.is_nested and isinstance(src, torch.Tensor):
            copy_into(self, src)
        else:
            super().copy_(src, non_blocking)
        return self

    # --- copies and pickles

    def __copy__(self) -> Self:
        view = self._again()
        view.requires_grad_(self.requires_grad)
        return view

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Return a plain tensor or parameter of the same values, since two independent copies cannot share one file."""
        copied: torch.Tensor = super().detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the name and identity of the file; the values if no file holds them, or if this is detached."""
        if self._by_value:
            return pickling.reduce_plain(self, protocol)
        if self.is_nested:
            return pickling.reduce_nested(self, self._mapping, self.offset)
        return pickling.reduce(self, self._mapping, self.offset, protocol)


def _reduce_between_processes(tensor: MemoryMappedTensor) -> Any:
    if tensor.is_nested:
        return pickling.reduce_nested(tensor, tensor.handler, tensor.offset)
    return pickling.reduce_between_processes(tensor, tensor.handler, tensor.offset)


ForkingPickler.register(MemoryMappedTensor, _reduce_between_processes)
register_writer(MemoryMappedTensor, write_leaves)
