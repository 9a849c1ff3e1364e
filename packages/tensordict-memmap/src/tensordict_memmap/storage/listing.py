"""A saved folder known by the list of its files: what an archive holds, or what lies elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ListedFolder"]


class ListedFolder:
    """Answers what parsing asks about the names in a folder.

    Args:
        files: the paths of its files, with ``/`` between folders.

    >>> folder = ListedFolder(["meta.json", "stack/0/a.memmap", "stack/1/a.memmap"])
    >>> folder.has("stack/1"), folder.names(""), folder.numbered("stack")
    (True, ['meta.json', 'stack'], [0, 1])
    """

    def __init__(self, files: Iterable[str]) -> None:
        self.paths = frozenset(files)
        self.folders = {
            "/".join(name.split("/")[:depth]) for name in self.paths for depth in range(1, name.count("/") + 1)
        }

    def has(self, path: str) -> bool:
        """Whether there is a file, or a folder of files, of that path."""
        return path in self.paths or path in self.folders

    def names(self, path: str) -> list[str]:
        """The names of the files and folders in a folder."""
        start = path + "/" if path else ""
        return sorted({name[len(start) :].split("/")[0] for name in self.paths if name.startswith(start)})

    def numbered(self, path: str) -> list[int]:
        """The numbers that name folders in a folder, in order."""
        start = path + "/" if path else ""
        inside = {name for name in self.names(path) if start + name in self.folders}
        return sorted(int(name) for name in inside if name.isascii() and name.isdigit())
