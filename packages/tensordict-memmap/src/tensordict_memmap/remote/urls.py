"""Addresses: paths with a scheme, told from paths here."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["here", "is_remote"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+(://|::)")
_HERE = re.compile(r"(file|local)://")


def is_remote(path: Any) -> bool:
    """Whether a path is an address elsewhere.

    >>> is_remote("s3://bucket/run"), is_remote("runs/s3"), is_remote("file:///runs/1")
    (True, False, False)
    """
    return isinstance(path, str) and _SCHEME.match(path) is not None and _HERE.match(path) is None


def here(path: Any) -> Any:
    """A path without the scheme of local files; anything else as it is.

    >>> here("file:///runs/1"), here("runs/1")
    ('/runs/1', 'runs/1')
    """
    return _HERE.sub("", path, count=1) if isinstance(path, str) else path
