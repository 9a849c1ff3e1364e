"""Errors of other ranks: failures on another rank, raised on this one."""

from __future__ import annotations

from concurrent.futures import CancelledError


class RankError(RuntimeError):
    """A save or load failed on another rank, or that rank did not answer; the earlier checkpoint is unchanged.

    Attributes:
        ranks: The global ranks that failed.

    >>> raise RankError("the save failed", [3])
    Traceback (most recent call last):
        ...
    tensordict_memmap.distributed.errors.RankError: the save failed
    """

    def __init__(self, message: str, ranks: list[int]) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankCancelledError(CancelledError):
    """A save was cancelled on another rank."""


def failure_of(error: BaseException) -> dict[str, object]:
    """Return a failure as it is sent to other ranks.

    >>> failure_of(OSError(28, "No space left on device (writing 'x')"))["text"]
    "OSError: [Errno 28] No space left on device (writing 'x')"
    """
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    notes = "; ".join(getattr(error, "__notes__", ()))
    return {"text": f"{text} ({notes})" if notes else text, "cancelled": isinstance(error, CancelledError)}


def describe_failure(what: str, failures: dict[int, dict[str, object]]) -> RankError | RankCancelledError:
    """Report that the error about failures on some ranks.

    Args:
        what: The name of what failed, such as ``"the save to run"``.
        failures: The result of `failure_of` on each of those ranks.

    >>> print(describe_failure("the save to x", {1: {"text": "OSError: full", "cancelled": False}}))
    the save to x failed on rank 1: OSError: full; the earlier checkpoint is unchanged
    """
    if all(failure["cancelled"] for failure in failures.values()):
        return RankCancelledError(f"{what} was cancelled on rank {', '.join(map(str, failures))}")
    real = {rank: failure for rank, failure in failures.items() if not failure["cancelled"]}
    told = "; ".join(f"on rank {rank}: {failure['text']}" for rank, failure in real.items())
    return RankError(f"{what} failed {told}; the earlier checkpoint is unchanged", list(real))
