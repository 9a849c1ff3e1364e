"""Rotation: a folder of checkpoints ``step-000100``, of which the newest are kept, and `latest` finds a complete one.

A checkpoint gets its name when it is complete, and loses the name before the first byte of it is removed. Therefore
every named checkpoint is complete, also after a process is killed, and the next rotation removes incomplete files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from tensordict_memmap.formats.safetensors.delta import MOST_DELTAS
from tensordict_memmap.loading.delta import read_delta
from tensordict_memmap.loading.open import open_any
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.storage import locks, ownership
from tensordict_memmap.storage.staging import remove_abandoned, staged_names, staging_name

_NAME = re.compile(r"step-([0-9]+)(?:\.safetensors|\.tdz)?")
_STAGED = re.compile(r"\.(step-[0-9]+(?:\.safetensors|\.tdz)?)\.")


def checkpoint_name(step: int, ending: str = "") -> str:
    """Return the name of a checkpoint in a folder of several.

    >>> checkpoint_name(100), checkpoint_name(12_345_678, ".safetensors")
    ('step-000100', 'step-12345678.safetensors')
    """
    return f"step-{step:06}{ending}"


def latest(path: str | os.PathLike[str]) -> Path | None:
    """Return the path of the checkpoint with the greatest step in a folder; None if there is none.

    Incomplete and damaged checkpoints are skipped: the files of the returned one exist and have the right sizes.

    Args:
        path: The folder that ``save_checkpoint(path, step=..., keep=...)`` was called with.

    Raises:
        ValueError: The path is a URL.

    >>> from tensordict_memmap import save_checkpoint
    >>> latest("runs") is None
    True
    >>> for step in (100, 200, 300):
    ...     _ = save_checkpoint("runs", step=step, keep=2)
    >>> latest("runs").name, sorted(os.listdir("runs"))
    ('step-000300', ['step-000200', 'step-000300'])
    """
    return next((Path(one) for one in _newest_first(_local(path)) if _is_whole(one)), None)


def rotate(folder: str | os.PathLike[str], keep: int, *, written: str | os.PathLike[str]) -> None:
    """Remove all checkpoints of a folder except the newest complete ones.

    Damaged checkpoints that are newer than the kept ones, bases of kept deltas, and files that no save wrote are not
    removed.

    Args:
        folder: The folder.
        keep: The number of complete checkpoints to keep, those with the greatest steps.
        written: The checkpoint that was just written, which is always kept.

    Warns:
        UserWarning: A checkpoint cannot be removed.
    """
    root = os.path.realpath(folder)
    kept = {os.path.realpath(written)}
    old: list[str] = []
    whole = 1
    for path in _newest_first(root):
        if os.path.realpath(path) in kept:
            continue
        if whole < keep:
            whole += _is_whole(path)
            kept.add(os.path.realpath(path))
        else:
            old.append(path)
    needed = {base for path in kept for base in _bases(path)}
    for path in reversed(old):
        if os.path.realpath(path) not in needed:
            try:
                _remove(path)
            except OSError as error:
                warnings.warn(
                    f"the old checkpoint {path} could not be removed ({error}); remove it, so that the disk does not "
                    "fill up",
                    UserWarning,
                    stacklevel=3,
                )
    _remove_remains(root)


def _local(path: str | os.PathLike[str]) -> str:
    place = local_path(path)
    if is_remote(place):
        raise ValueError(f"{path} is a URL, and checkpoints are rotated in local folders; list the URL with fsspec")
    return str(os.path.realpath(place))


def _newest_first(root: str) -> list[str]:
    """Return the paths of the checkpoints in a folder, whole or not."""
    try:
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return []
    steps = sorted(((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))), reverse=True)
    return [os.path.join(root, name) for _, name in steps]


def _is_whole(path: str) -> bool:
    """Return whether a checkpoint can be loaded: its files exist and have their sizes."""
    try:
        # a folder that no manifest lists was not written by a save, or not to its end
        if os.path.isdir(path) and ownership.read_manifest(path) is None:
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about classes that are not registered here, whose files are whole
            open_any(path, LoadRequest(mode="r", allow_pickle=None))
    except (OSError, ValueError, KeyError, RuntimeError, TypeError):
        return False
    return True


def _bases(path: str) -> Iterator[str]:
    """Yield the saves that a delta needs, nearest first."""
    for _ in range(MOST_DELTAS):
        try:
            record = read_delta(path)
        except (OSError, ValueError):
            return
        if record is None:
            return
        path = os.path.realpath(os.path.join(os.path.dirname(path), record.base))
        yield path


def _remove(path: str) -> None:
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    if ownership.read_valid_manifest(path) is None:
        return  # no save: whose files they are is not known
    folder, name = os.path.split(path)
    hidden = os.path.join(folder, staging_name(name))
    with locks.locked(path):
        os.rename(path, hidden)
        ownership.remove_save(hidden, keep_in=path)


def _remove_remains(root: str) -> None:
    """Remove the temporary files that killed saves and rotations left in a folder."""
    names = os.listdir(root)
    for target in {match[1] for name in names if (match := _STAGED.match(name))}:
        if not staged_names(names, target):
            continue
        path = os.path.join(root, target)
        remove_abandoned(root, target, os.unlink, locks.FILE)
        with locks.locked(path), contextlib.suppress(OSError):
            remove_abandoned(root, target, functools.partial(ownership.remove_save, keep_in=path))
