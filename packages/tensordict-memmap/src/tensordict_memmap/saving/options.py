"""Save options: their types, and the checks that they do not contradict each other, for all formats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from tensordict_core.extension import check_options
from tensordict_memmap.formats.detect import ARCHIVE, SAFETENSORS, TREE, format_by_name
from tensordict_memmap.remote.urls import is_remote, local_path

FORMATS = (TREE, SAFETENSORS, ARCHIVE)
SHARED_MEMORY = "shared memory"


def check_local(path: str | os.PathLike[str] | None) -> None:
    """Refuse URLs.

    Raises:
        ValueError: The path is a URL.
    """
    if is_remote(path) or local_path(path) != path:
        raise ValueError(f"{path!r} is a URL, not a local path; save there with save() or convert()")


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveOptions:
    """Options of a save; `memmap` documents those that are not listed here.

    Args:
        like: Whether files get their sizes and no content.
        reserve: Whether disk blocks are allocated for files without content.
        mapped: Whether the result is mapped onto the files.
    """

    copy_existing: bool = True
    num_threads: int | None = None
    existsok: bool = True
    atomic: bool = True
    durable: bool = False
    checksum: bool = False
    format: str | None = None
    archive: bool | None = None
    compression: str | int | None = None
    shard_size: int | None = None
    like: bool = False
    reserve: bool = False
    mapped: bool = True

    @classmethod
    def of(cls, name: str, known: Any, keywords: Mapping[str, Any], **own: Any) -> Self:
        """Return the options among the keyword arguments of a public function.

        Args:
            name: The name of the function, for errors.
            known: The `TypedDict` of its keyword arguments.
            keywords: The keyword arguments of the call.
            **own: Options that the function sets itself.

        Raises:
            TypeError: A keyword argument is unknown.
        """
        check_options(name, keywords, known)
        return cls(**own, **{key: value for key, value in keywords.items() if key in _NAMES})

    def format_for(self, path: str | os.PathLike[str] | None) -> str:
        """Return the format of a save: ``"tree"``, ``"safetensors"``, ``"archive"``, or shared memory without a path.

        Raises:
            ValueError: The path is a URL, the format is unknown, or an option does not apply to it.

        >>> SaveOptions().format_for("x.tdz"), SaveOptions(archive=False).format_for("x.tdz")
        ('archive', 'tree')
        """
        check_local(path)
        found = self._format(path)
        in_one_file = found in (SAFETENSORS, ARCHIVE)
        if self.format is not None and self.archive not in (None, self.format == ARCHIVE):
            raise ValueError(f"archive={self.archive} and format={self.format!r} contradict each other; pass only one")
        if self.compression is not None and found != ARCHIVE:
            raise ValueError("compression applies to archives only; pass archive=True, or a path that ends with .tdz")
        if self.shard_size is not None and found != SAFETENSORS:
            raise ValueError("shard_size applies to safetensors files only; pass format='safetensors' too")
        if self.shard_size is not None and self.shard_size <= 0:
            raise ValueError(f"shard_size={self.shard_size}, and a shard holds at least one byte; pass a larger one")
        if in_one_file and not self.atomic:
            raise ValueError(
                "atomic=False applies to folders only: one file is replaced as a whole; load it with mode='r+' to "
                "write in place"
            )
        if in_one_file and self.reserve:
            raise ValueError("reserve=True applies to folders and shared memory only; leave it out for one file")
        return found

    def _format(self, path: str | os.PathLike[str] | None) -> str:
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"unknown format {self.format!r}; the formats are {', '.join(map(repr, FORMATS))}")
        if path is None:
            if self.format is not None or self.archive:
                raise ValueError(f"{self.format or 'archive'!r} is a file format, and it requires a path; pass one")
            return SHARED_MEMORY
        if self.format is not None:
            return self.format
        if self.archive:
            return ARCHIVE
        found = format_by_name(os.fspath(path))
        return TREE if found == ARCHIVE and self.archive is False else found


_NAMES = frozenset(field.name for field in fields(SaveOptions))

DEFAULTS: dict[str, Any] = {
    **{field.name: field.default for field in fields(SaveOptions)},
    **{"share_non_tensor": False, "robust_key": None, "pbar": None},
    **{"group": None, "placements": None, "timeout": None, "pending": "wait"},
}
"""The defaults of the keyword arguments of public functions."""
