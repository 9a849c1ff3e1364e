"""Mounts: whether a path lies on a network file system, where each request takes about a millisecond."""

from __future__ import annotations

import os

__all__ = ["is_on_network"]

_NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "beegfs", "ceph", "glusterfs", "gpfs", "lustre"))
_REMOTE_FUSE = ("ssh", "s3", "gcs", "goofys", "rclone", "gluster", "ceph", "juice", "blob", "dav")
"""Parts of the names of FUSE file systems that keep their files elsewhere; others, such as fuseblk, do not."""
_MOUNTS = "/proc/self/mountinfo"


def is_on_network(path: str, mounts: str = _MOUNTS) -> bool:
    """Return whether a path lies on a network file system; False where the system does not say.

    Args:
        path: The path of a file or a folder.
        mounts: The file in which the system lists its mounts, as in proc_pid_mountinfo(5).

    >>> is_on_network("/proc/self/mountinfo")
    False
    """
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    place = os.path.realpath(path)
    best, kind = -1, ""
    for line in lines:
        left, dash, right = line.partition(" - ")
        fields = left.split()
        if not dash or len(fields) < 5:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of mounts at one place, the last is on top
            best, kind = len(point), right.split()[0]
    fuse = kind.removeprefix("fuse.") if kind.startswith("fuse.") else ""
    return kind in _NETWORK or any(part in fuse for part in _REMOTE_FUSE)
