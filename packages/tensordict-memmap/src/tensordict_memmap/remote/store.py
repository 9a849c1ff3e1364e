"""Store: the files under a remote URL, through fsspec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensordict_memmap.engine.sources import batches

_Range = tuple[str, int, int]
"""A path, a start and an end."""

_MOST_BATCH_BYTES = 1 << 25
"""The maximum number of bytes of requests that are held in memory at once."""

_VERSION_FIELDS = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "created", "generation", "md5Hash")
"""File properties that change when a file is replaced, under the names that various stores give them."""


class Store:
    """The files under a remote URL.

    Args:
        url: A URL with a scheme; its last part names a file or a folder.

    Raises:
        ImportError: fsspec, or the package that it needs for the scheme, is not installed.

    >>> store = Store("memory://store/things")
    >>> store.write("a.txt", b"hello")
    >>> store.read("a.txt"), store.read("b.txt"), store.sizes()
    (b'hello', None, {'a.txt': 5})
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec.core  # an extra: imported where a URL is used
        except ImportError:
            raise ImportError(
                f"{url!r} needs fsspec, which reads and writes remote URLs and is not installed: "
                'pip install "tensordict-memmap[remote]"'
            ) from None
        self.url = url
        self.fs, root = fsspec.core.url_to_fs(url)
        self.root = str(root).rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the URL; a local copy gets this name."""
        return self.root.rpartition("/")[2] or "save"

    def full_path(self, path: str) -> str:
        """Return the path of a file in the file system; the root itself for ``""``."""
        return f"{self.root}/{path}" if path else self.root

    def is_file(self) -> bool:
        """Return whether the URL is that of one file."""
        self.fs.invalidate_cache()
        return bool(self.fs.isfile(self.root))

    def check_new(self) -> None:
        """Refuse a URL that is in use.

        Raises:
            RuntimeError: There is a file at the URL or under it.
        """
        if self.is_file() or self.sizes():
            raise RuntimeError(f"{self.url} exists, and existsok=False requires a new URL; choose another name")

    def size(self) -> int:
        """Return the size in bytes of the file at the URL."""
        return int(self.fs.size(self.root))

    def version(self) -> tuple[Any, ...] | None:
        """Properties of the file at the URL that change when it is replaced; None if there is no file."""
        self.fs.invalidate_cache()
        try:
            info = self.fs.info(self.root)
        except FileNotFoundError:
            return None
        return tuple(info.get(name) for name in _VERSION_FIELDS)

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file under the URL, by path."""
        return {path: int(info["size"]) for path, info in self._infos().items()}

    def versions(self) -> dict[str, tuple[Any, ...]]:
        """Properties of every file under the URL that change when it is replaced, by path."""
        return {path: tuple(info.get(name) for name in _VERSION_FIELDS) for path, info in self._infos().items()}

    def _infos(self) -> dict[str, Any]:
        self.fs.invalidate_cache()
        found = self.fs.find(self.root, detail=True)
        cut = len(self.root.lstrip("/")) + 1
        return {name.lstrip("/")[cut:]: info for name, info in found.items()}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is no file."""
        try:
            return bytes(self.fs.cat_file(self.full_path(path)))
        except (FileNotFoundError, IsADirectoryError):
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a file in one request."""
        self.fs.pipe_file(self.full_path(path), data)

    def read_ranges(self, ranges: Sequence[_Range]) -> list[bytes]:
        """Read byte ranges of files concurrently."""
        paths = [self.full_path(path) for path, _, _ in ranges]
        starts, ends = [start for _, start, _ in ranges], [end for _, _, end in ranges]
        return list(self.fs.cat_ranges(paths, starts, ends, on_error="raise"))

    def read_in_batches(self, ranges: Iterable[_Range], most: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of ranges in order, of which only some are in memory at once.

        Args:
            ranges: The ranges.
            most: The maximum number of concurrent requests.

        Raises:
            ValueError: A file is shorter.
        """
        for batch in batches(ranges, lambda one: one[2] - one[1], most_bytes=_MOST_BATCH_BYTES, most=most):
            for (path, start, end), data in zip(batch, self.read_ranges(batch), strict=True):
                if len(data) != end - start:
                    raise ValueError(
                        f"{self.full_path(path)} returned {len(data)} of {end - start} bytes from byte {start} on: it "
                        "was truncated or replaced while it was read; open it again"
                    )
                yield data
