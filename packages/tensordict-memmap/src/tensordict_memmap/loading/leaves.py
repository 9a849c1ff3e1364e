"""Leaf files: each is checked against its description, then mapped, and never changed.

A file that is missing, too short or too long raises an error that names the key. So does a file that is not a regular
file, because a link could lead out of the folder and reading a pipe would block.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import warnings
from collections.abc import Callable
from math import prod
from typing import Any

import torch

from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.schema.build import check_on_meta
from tensordict_memmap.schema.dtypes import is_possible
from tensordict_memmap.schema.nested import nested_of
from tensordict_memmap.schema.node import Leaf, show
from tensordict_memmap.tensor.mapping import Mapping, open_file
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

_MANY = 10_000
"""The number of files from which the limit of mappings is checked."""


def check_mappable(count: int, root: str) -> None:
    """Refuse to map more files than a process may map, since memory allocations would fail afterwards.

    Raises:
        RuntimeError: There are more files than mappings.
    """
    most = syscalls.most_mappings() if count >= _MANY else None
    if most is not None and count > 0.95 * most:
        raise RuntimeError(
            f"{root} has {count:,} leaves, each of which takes a mapping, and a process may have {most:,} mappings "
            "(vm.max_map_count); save to one file, such as 'x.safetensors', or open a part of it (keys=, subpath=)"
        )


class LeafOpener:
    """Opens the tensors of leaves in a saved folder.

    Args:
        root: The absolute path of the saved folder.
        mode: The mode of the mappings; see `MemoryMappedTensor.from_filename`.
        device: The device to move tensors to; for ``meta`` no file is opened.
        non_blocking: Whether moves may be asynchronous.
        kept: Tensors that are already mapped, by the paths of their files under the root.
        exact: Whether a file that is longer than its tensor is refused; a shorter one always is.
    """

    def __init__(
        self,
        root: str,
        *,
        mode: str | None = None,
        device: torch.device | None = None,
        non_blocking: bool = False,
        kept: dict[str, torch.Tensor] | None = None,
        exact: bool = True,
    ) -> None:
        self.root = root
        self.mode = mode
        self.device = None if device is not None and device.type == "cpu" else device
        self.non_blocking = non_blocking
        self.kept = {} if kept is None else kept
        self.exact = exact
        # Under a torch mode that replaces new tensors, such as FakeTensorMode, the leaves are made under that mode.
        self.empty = type(torch.empty(0, device="cpu")) is not torch.Tensor or (
            device is not None and device.type == "meta"
        )
        self.is_listed: Callable[[], bool] = lambda: True
        """Whether a manifest has the sizes of the files; if none has, files may be longer than their tensors."""
        self.shared: dict[Any, torch.Tensor] = {}
        self.ties = False

    def __call__(self, leaf: Leaf) -> torch.Tensor:
        """Return the tensor of a leaf; tied leaves get the same tensor."""
        if self.kept:
            tensor = self.kept.get(leaf.file)
            if tensor is not None:
                return tensor
        if not self.ties:
            return self._moved(leaf)
        key = (leaf.alias or leaf.file, leaf.dtype, leaf.shape, leaf.layout)
        tensor = self.shared.get(key)
        if tensor is None:
            tensor = self.shared[key] = self._moved(leaf)
        return tensor

    def _moved(self, leaf: Leaf) -> torch.Tensor:
        tensor: torch.Tensor
        path = f"{self.root}/{leaf.file}"
        if leaf.layout != "strided":
            tensor = self._nested(leaf)
        elif self.empty:
            return torch.empty(leaf.shape, dtype=leaf.dtype, device=self.device)
        elif nbytes := leaf.nbytes:
            tensor = self._map_file(leaf, path, nbytes, leaf.shape)
        else:
            tensor = MemoryMappedTensor.from_filename(path, leaf.dtype, leaf.shape, mode=self.mode)
        return tensor if self.device is None else tensor.to(self.device, non_blocking=self.non_blocking)

    def _map_file(self, leaf: Leaf, path: str, nbytes: int, shape: tuple[int, ...]) -> torch.Tensor:
        file, mode = self._open(leaf, path, nbytes)
        with file:
            fd = file.fileno()
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise _irregular(leaf, path)
            if info.st_size != nbytes and (self.exact or info.st_size < nbytes):
                what = f"key {show(leaf.key)} takes {nbytes} bytes {_reason(leaf)}, and its file {path} has"
                if info.st_size < nbytes or self.is_listed():
                    raise ValueError(f"{what} {info.st_size}; restore it or save again")
                self.exact = False  # one warning for all files
                warnings.warn(
                    f"{what} {info.st_size}; the rest of it is not loaded, as in files of older releases: save again",
                    UserWarning,
                    stacklevel=2,
                )
            mapping = Mapping(fd, path, nbytes, mode=mode, info=info)
        return MemoryMappedTensor._over(mapping, leaf.dtype, shape)

    def _open(self, leaf: Leaf, path: str, nbytes: int) -> tuple[Descriptor, str]:
        """Open an existing file; return its descriptor, and the mode that it can be mapped with."""
        try:
            return open_file(path, self.mode, flags=syscalls.NO_LINK)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(
                f"the file of key {show(leaf.key)}, {path} ({nbytes} bytes {_reason(leaf)}), is missing; restore it or "
                "save again"
            ) from None
        except OSError as error:
            if error.errno == errno.ELOOP or os.path.isdir(path):
                raise _irregular(leaf, path) from None
            error.add_note(f"while opening key {show(leaf.key)}")
            raise

    def _document(self, path: str, nbytes: int) -> bytes | None:
        """Return the content of a file under the root; None if it does not exist, b"" if it is longer.

        Of a dataset, whose files may be longer, it returns the first bytes.
        """
        with contextlib.suppress(OSError):
            if os.path.getsize(f"{self.root}/{path}") > nbytes:
                if self.exact:
                    return b""
                with open(f"{self.root}/{path}", "rb") as file:
                    return file.read(nbytes)
        return syscalls.read_file(f"{self.root}/{path}")

    # --- nested tensors: one file holds the values of the components, another one their shapes

    def _nested(self, leaf: Leaf) -> torch.Tensor:
        count, dims = leaf.shape
        shapes = torch.zeros((0, 0), dtype=torch.int64, device="cpu")
        if count * dims:
            document = self._document(leaf.shapes_file, count * dims * 8)
            if document is None or len(document) != count * dims * 8:
                raise ValueError(
                    f"the shapes of the {count} components of key {show(leaf.key)} take {count * dims * 8} bytes, and "
                    f"{leaf.shapes_file} {'is missing' if document is None else f'has {len(document)}'}; restore it "
                    "or save again"
                )
            shapes = torch.tensor(memoryview(document).cast("q").tolist(), device="cpu").reshape(count, dims)
        elif count:  # numbers, whose shapes take no bytes
            self._map_file(leaf, f"{self.root}/{leaf.file}", count * leaf.dtype.itemsize, (count,))
            shapes = torch.zeros((count, 0), dtype=torch.int64, device="cpu")
        rows: list[list[int]] = shapes.tolist()
        total = sum(prod(row) for row in rows)
        possible = all(is_possible(row, leaf.dtype) for row in rows) and is_possible([total], leaf.dtype)
        if any(n < 0 for row in rows for n in row) or not possible:
            raise ValueError(
                f"the shapes of key {show(leaf.key)} in {leaf.shapes_file} are negative or too large; restore the file"
            )
        if self.empty:
            if self.device is not None and self.device.type == "meta":
                check_on_meta(leaf.layout, leaf.key)
            values = torch.empty(total, dtype=leaf.dtype, device=self.device)
        else:
            path = f"{self.root}/{leaf.file}"
            if total:
                mapped: torch.Tensor = self._map_file(leaf, path, total * leaf.dtype.itemsize, (total,))
            else:
                mapped = MemoryMappedTensor.from_filename(path, leaf.dtype, (0,), mode=self.mode)
            values = mapped.as_subclass(torch.Tensor)
        try:
            return nested_of(values, rows, jagged=leaf.layout == "jagged", ragged=leaf.ragged, dims=dims)
        except (RuntimeError, TypeError, AssertionError, IndexError) as error:
            raise ValueError(
                f"the components of key {show(leaf.key)} in {leaf.shapes_file} do not form a nested tensor ({error}); "
                "restore the file"
            ) from None


def _reason(leaf: Leaf) -> str:
    if leaf.layout != "strided":
        return f"by the shapes of its {leaf.shape[0]} components"
    return f"by its shape {list(leaf.shape)} and dtype {leaf.dtype}"


def _irregular(leaf: Leaf, path: str) -> ValueError:
    return ValueError(
        f"the file of key {show(leaf.key)}, {path}, is a link or not a regular file; replace it by the file itself"
    )
