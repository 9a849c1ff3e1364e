"""Errors: the messages that several modules share; each names the offender, the rule and the remedy."""

from __future__ import annotations

__all__ = ["missing_extra"]


def missing_extra(what: str, library: str, extra: str) -> ImportError:
    """A function needs a library that is not installed."""
    return ImportError(f'{what} needs {library}: pip install "tensordict-store[{extra}]"', name=library)
