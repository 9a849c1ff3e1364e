"""File names of keys: percent-encodes characters that file systems do not allow, and resolves collisions.

The encoding is that of the tensordict package, so that each package finds the files of the other. Where it cannot be
used (two keys with one file name, a key that is a field of ``meta.json``, a name that is too long), the file gets a
number after ``%-``, with which no encoded key starts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

META = "meta.json"
"""The name of the file that describes a node."""

MANIFEST = "tensordict.manifest.json"
"""The name of the manifest in the folder that it describes."""

LEAF = ".memmap"
"""The suffix of the files with the values of leaves."""

SHAPES = ".shape" + LEAF
"""The suffix of the files with the shapes of the components of nested tensors."""

RESERVED_FIELDS = frozenset(
    {"shape", "device", "_type", "_format_version", "_class", "_names", "_entries", "_owner", "_key_order"}
)
"""The fields of ``meta.json`` about the node itself; entries of these names are stored elsewhere in it."""

_RESERVED_FILES = (META, MANIFEST, "tensordict.journal.json", "tensordict.lock")

STAGING = ".tensordict-"
"""A part of the names of staged folders and files; keys with it are escaped."""

_LONGEST = 255
_CODES = {code: f"%{code:02X}" for code in [*range(0x21), *map(ord, '"%*/:<>?\\|'), 0x7F]}
_UNUSUAL = re.compile("[" + re.escape("".join(map(chr, _CODES))) + "]")
_ESCAPE = re.compile(r"%-[0-9]{1,9}")
_fold: Callable[[str], str] = str.casefold if sys.platform in ("darwin", "win32") else str
"""Returns the common form of names that are one file: file systems of macOS and Windows ignore case."""


MOST_PARTS = 200
"""The most names in the path of a file of a save."""

_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\:\0]+"
PATH = re.compile(f"{_PART}(?:/{_PART}){{0,{MOST_PARTS - 1}}}")
"""Plain relative paths of files inside a saved folder."""


def check_path(path: str) -> str:
    """Refuse all paths but plain relative paths of files inside the folder, except its manifest.

    Raises:
        ValueError: The path is absolute, leads out of the folder, or is that of a manifest.

    >>> check_path("a/b.memmap")
    'a/b.memmap'
    """
    if PATH.fullmatch(path) is None or path.rpartition("/")[2] == MANIFEST:
        raise ValueError(f"{path[:200]!r} is not a path inside the folder")
    return path


def encode_key(key: str) -> str:
    """Return the file name of a key, without a suffix.

    >>> encode_key("weird/key.x"), encode_key(".."), encode_key("")
    ('weird%2Fkey.x', '%2E%2E', '%')
    """
    if key in ("", ".", ".."):
        return key.replace(".", "%2E") or "%"
    return key.translate(_CODES) if _UNUSUAL.search(key) else key


def is_escape(stem: object) -> bool:
    """Return whether a file name is one that `FileNames` makes for a collision.

    >>> is_escape("%-0"), is_escape("../x")
    (True, False)
    """
    return isinstance(stem, str) and _ESCAPE.fullmatch(stem) is not None


class FileNames:
    """Assigns file names to the keys of one folder, without collisions.

    >>> names = FileNames()
    >>> names.leaf("a"), names.node("a.memmap"), names.nested("b"), names.leaf("b.shape"), names.leaf("shape")
    ('a', '%-0', 'b', '%-1', '%-2')
    """

    __slots__ = ("_escapes", "_taken")

    def __init__(self) -> None:
        self._taken = set(map(_fold, _RESERVED_FILES))
        self._escapes = 0

    def leaf(self, key: str) -> str:
        """Return the stem for a tensor, whose file is ``stem.memmap``."""
        return self._take(key, (LEAF,))

    def nested(self, key: str) -> str:
        """Return the stem for a nested tensor, whose files are ``stem.memmap`` and ``stem.shape.memmap``."""
        return self._take(key, (LEAF, SHAPES))

    def node(self, key: str) -> str:
        """Return the name of the folder for a node."""
        return self._take(key, ("",))

    def _take(self, key: str, endings: tuple[str, ...]) -> str:
        stem = encode_key(key)
        names = [_fold(stem + ending) for ending in endings]
        if (
            key in RESERVED_FIELDS
            or not self._taken.isdisjoint(names)
            or stem.startswith(STAGING)
            or not _fits(stem + endings[-1])
        ):
            stem = f"%-{self._escapes}"
            self._escapes += 1
            names = [stem + ending for ending in endings]
        self._taken.update(names)
        return stem


def _fits(name: str) -> bool:
    if len(name) * 4 <= _LONGEST and name.isascii():
        return True
    try:
        return len(name.encode()) <= _LONGEST
    except UnicodeEncodeError:  # a lone surrogate
        return False
