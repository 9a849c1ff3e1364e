"""File names of keys: percent-encoded where a file system could misread them, and set apart where two would share one.

The encoding is that of the reference, so that either finds the other's files. What it cannot name (two keys with one
file, a key that reads as the node's own metadata, a name too long) gets a name of its own, which starts with ``%-``: no
encoded key does.
"""

from __future__ import annotations

import re
import sys

__all__ = [
    "LEAF",
    "MANIFEST",
    "META",
    "PATH",
    "RESERVED_FIELDS",
    "SHAPES",
    "STAGING",
    "FileNames",
    "check_path",
    "encode_key",
    "is_escape",
]

META = "meta.json"
"""The name of the file that describes a node."""

MANIFEST = "tensordict.manifest.json"
"""The name of the manifest in the folder that it describes."""

LEAF = ".memmap"
"""What the names of files with the bytes of a leaf end with."""

SHAPES = ".shape" + LEAF
"""What the names of files with the shapes of a nested tensor's components end with."""

RESERVED_FIELDS = frozenset(
    {"shape", "device", "_type", "_format_version", "_class", "_names", "_entries", "_owner", "_key_order"}
)
"""What ``meta.json`` says about the node itself, so that entries of these names stand elsewhere in it."""

_RESERVED_FILES = (META, MANIFEST, "tensordict.journal.json", "tensordict.lock")

STAGING = ".tensordict-"
"""What names of folders and files that are being saved hold, so that no key is called so."""

_LONGEST = 255
_CODES = {code: f"%{code:02X}" for code in [*range(0x21), *map(ord, '"%*/:<>?\\|'), 0x7F]}
_UNUSUAL = re.compile("[" + re.escape("".join(map(chr, _CODES))) + "]")
_ESCAPE = re.compile(r"%-[0-9]{1,9}")
_IGNORES_CASE = sys.platform in ("darwin", "win32")


_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\:\0]+"
PATH = re.compile(f"{_PART}(?:/{_PART}){{0,199}}")
"""Plain relative paths of files inside a saved folder."""


def check_path(path: str) -> str:
    """Refuses all but plain relative paths of files inside the folder, its manifest left out.

    Raises:
        ValueError: It is no such path.

    >>> check_path("a/b.memmap")
    'a/b.memmap'
    """
    if PATH.fullmatch(path) is None or path.rpartition("/")[2] == MANIFEST:
        raise ValueError(f"{path[:200]!r} is not a path inside the folder")
    return path


def encode_key(key: str) -> str:
    """The file name of a key, without an ending.

    >>> encode_key("weird/key.x"), encode_key(".."), encode_key("")
    ('weird%2Fkey.x', '%2E%2E', '%')
    """
    if key in ("", ".", ".."):
        return key.replace(".", "%2E") or "%"
    return key.translate(_CODES) if _UNUSUAL.search(key) else key


def is_escape(stem: object) -> bool:
    """Whether something is a file name that `FileNames` sets apart.

    >>> is_escape("%-0"), is_escape("../x")
    (True, False)
    """
    return isinstance(stem, str) and _ESCAPE.fullmatch(stem) is not None


class FileNames:
    """The names given out in one folder.

    >>> names = FileNames()
    >>> names.leaf("a"), names.node("a.memmap"), names.nested("b"), names.leaf("b.shape"), names.leaf("shape")
    ('a', '%-0', 'b', '%-1', '%-2')
    """

    __slots__ = ("_escapes", "_taken")

    def __init__(self) -> None:
        self._taken = {self._fold(name) for name in _RESERVED_FILES}
        self._escapes = 0

    @staticmethod
    def _fold(name: str) -> str:
        return name.casefold() if _IGNORES_CASE else name

    def leaf(self, key: str) -> str:
        """The stem for a tensor: ``stem.memmap`` is its file."""
        return self._take(key, (LEAF,))

    def nested(self, key: str) -> str:
        """The stem for a nested tensor: ``stem.memmap`` and ``stem.shape.memmap`` are its files."""
        return self._take(key, (LEAF, SHAPES))

    def node(self, key: str) -> str:
        """The stem for a node: its folder."""
        return self._take(key, ("",))

    def _take(self, key: str, endings: tuple[str, ...]) -> str:
        stem = encode_key(key)
        names = [self._fold(stem + ending) for ending in endings]
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
