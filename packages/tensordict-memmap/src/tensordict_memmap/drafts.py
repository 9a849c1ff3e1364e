"""What is being saved lies beside its target, under a name that tells whose it is, until it is whole."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

__all__ = ["drafts_among", "new_draft"]

_TOKEN = re.compile("[0-9a-f]{16}")


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


def _prefix(target: str) -> str:
    return f".{target}.tensordict-" if target else ".tensordict-"
