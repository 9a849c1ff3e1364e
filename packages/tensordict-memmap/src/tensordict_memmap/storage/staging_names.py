"""What is being saved lies beside its target, under a name that tells whose it is, until it is whole."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable

from tensordict_memmap.formats.names import STAGING

__all__ = ["drafts_among", "drafts_in", "new_draft"]

_TOKEN = re.compile("[0-9a-f]{16}")

_MANY = 200
"""Names in a folder from which on it counts, beside a short save, that they are looked through."""

_RESTS = 20
"""How many times as long as that took such a folder is not looked through again."""

_drafts: dict[str, tuple[float, list[str]]] = {}
"""Until when that is for a folder, and what drafts of any target there were."""


def new_draft(target: str = "") -> str:
    """A name that nothing has yet, for what is to become the file or folder that is called ``target``.

    Without a target it is for a folder that is staged within its own target.

    >>> draft = new_draft("run")
    >>> draft.startswith(".run.tensordict-"), list(drafts_among([draft, "run", new_draft("other")], "run")) == [draft]
    (True, True)
    """
    return _prefix(target) + secrets.token_hex(8)


def drafts_among(names: Iterable[str], target: str = "") -> list[str]:
    """Those of some names that `new_draft` may have given to drafts of ``target``."""
    prefix = _prefix(target)
    return [name for name in names if name.startswith(prefix) and _TOKEN.fullmatch(name, len(prefix))]


def drafts_in(folder: str, target: str = "") -> list[str]:
    """The names of the drafts of ``target`` in a folder.

    Thousands of saves into one folder would take a time that grows with the square of their number. So a process looks
    through a folder of very many names the first time, and then now and again; between, it knows what was there last.

    Raises:
        OSError: The folder cannot be looked through.

    >>> draft = new_draft("run")
    >>> os.makedirs(os.path.join("runs", draft))
    >>> drafts_in("runs", "run") == [draft], drafts_in("runs", "other")
    (True, [])
    """
    until, known = _drafts.get(folder, (0.0, []))
    start = time.monotonic()
    if start >= until:
        names = os.listdir(folder)
        known = [name for name in names if STAGING in name]
        if len(names) >= _MANY:
            end = time.monotonic()
            _drafts[folder] = end + _RESTS * (end - start), known
        else:
            _drafts.pop(folder, None)
    return drafts_among(known, target)


def _prefix(target: str) -> str:
    return f".{target}{STAGING}" if target else STAGING
