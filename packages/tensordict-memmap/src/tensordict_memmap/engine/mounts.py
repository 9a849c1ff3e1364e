"""Mounts: whether a path is a mount point, or is on a network file system, whose requests take about a millisecond."""

from __future__ import annotations

import functools
import os

from tensordict_memmap.engine.syscalls import system_text

_NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "beegfs", "ceph", "glusterfs", "gpfs", "lustre"))
_REMOTE_FUSE = ("ssh", "s3", "gcs", "goofys", "rclone", "gluster", "ceph", "juice", "blob", "dav")
"""Parts of the names of FUSE file systems that keep their files elsewhere; others, such as fuseblk, do not."""
_MOUNTS = "/proc/self/mountinfo"


def is_mount(path: str) -> bool:
    """Return whether a real path is a mount point; `os.path.ismount` would resolve its links again.

    >>> is_mount("/"), is_mount(os.path.realpath("."))
    (True, False)
    """
    if os.name != "posix":
        return os.path.ismount(path)
    try:
        here, above = os.lstat(path), os.lstat(os.path.dirname(path))
    except OSError:
        return False
    return here.st_dev != above.st_dev or here.st_ino == above.st_ino


def is_on_network(path: str) -> bool:
    """Return whether a path is on a network file system; False if the system does not report it.

    >>> is_on_network(".")
    False
    """
    return _is_network(os.stat(path).st_dev)


@functools.cache
def _is_network(device: int, mounts: str = _MOUNTS) -> bool:
    """Return whether a device is a network file system, by the list of mounts in proc_pid_mountinfo(5)."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in system_text(mounts).splitlines():
        left, dash, right = line.partition(" - ")
        if dash and left.split()[2:3] == [number]:
            kind = right.split()[0]
            keeper = kind.removeprefix("fuse.") if kind.startswith("fuse.") else ""
            return kind in _NETWORK or any(part in keeper for part in _REMOTE_FUSE)
    return False
