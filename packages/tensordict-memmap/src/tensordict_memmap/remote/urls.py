"""URLs: distinguishes remote URLs such as ``s3://bucket/run`` from local paths."""

from __future__ import annotations

import re
from typing import Any

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+(://|::)")
_LOCAL = re.compile(r"(file|local)://")


def is_remote(path: Any) -> bool:
    """Return whether a path is a URL of remote storage.

    >>> is_remote("s3://bucket/run"), is_remote("runs/s3"), is_remote("file:///runs/1")
    (True, False, False)
    """
    return isinstance(path, str) and _SCHEME.match(path) is not None and _LOCAL.match(path) is None


def local_path(path: Any) -> Any:
    """Return a path without the scheme of local files, and anything else unchanged.

    Raises:
        ValueError: The path is empty, which `pathlib` would take for the current folder.

    >>> local_path("file:///runs/1"), local_path("runs/1")
    ('/runs/1', 'runs/1')
    """
    if path == "":
        raise ValueError("'' is an empty path; name a folder or a file, or pass '.' for the current folder")
    return _LOCAL.sub("", path, count=1) if isinstance(path, str) else path
