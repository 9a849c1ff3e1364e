"""Errors: the messages that several modules share; each names the offender, the rule and the remedy."""

from __future__ import annotations

import io


class PlaceError(TypeError, RuntimeError):
    """Neither or both of a file and a group are given as the place of a tensordict."""


class ReadOnlyError(io.UnsupportedOperation, RuntimeError):
    """A write to a file or a store that is open for reading only; an `OSError` and a `ValueError` too, as in ``io``."""


def missing_extra(what: str, library: str, extra: str) -> ImportError:
    """Report that a function needs a library that is not installed."""
    return ImportError(f'{what} needs {library}: pip install "tensordict-store[{extra}]"', name=library)
