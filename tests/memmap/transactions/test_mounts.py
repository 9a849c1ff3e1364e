"""Mount points: a save goes into one file by file, and stops as it does elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess

import pytest
from tests.memmap.transactions.saves import save_folder

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage.manifest import Entry, Manifest

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked and killed")


@pytest.fixture
def mounted(target):
    """A target that is a file system of its own."""
    os.makedirs(target)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", target], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.decode().strip()}")
    yield target
    subprocess.run(["umount", target], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs the mount command")
def test_a_mount_point_is_replaced_file_by_file_and_stays_mounted(
    mounted, writer, found, leftovers, put_foreign, check_foreign
):
    for version in range(3):
        save_folder(mounted, writer(version))
        assert found(mounted) == version and os.path.ismount(mounted) and not leftovers(mounted)
    foreign = put_foreign(mounted)
    save_folder(mounted, writer(3))
    assert found(mounted, foreign) == 3
    check_foreign(mounted, foreign)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs the mount command")
def test_a_save_into_a_mount_point_killed_before_any_of_its_steps_leaves_a_whole_one(
    mounted, writer, found, leftovers, killed_at
):
    save_folder(mounted, writer(0))
    for step in itertools.count():
        before = found(mounted)
        killed = killed_at(step, lambda: save_folder(mounted, writer(before + 1)))  # noqa: B023  # called at once
        assert found(mounted) in (before, before + 1)
        if not killed:
            break
    save_folder(mounted, writer(0))
    assert step > 8 and found(mounted) == 0 and not leftovers(mounted)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs the mount command")
def test_a_full_mount_point_is_an_oserror_and_keeps_the_earlier_save(mounted, writer, found, leftovers):
    save_folder(mounted, writer(0))

    def too_much(folder):
        with open(os.path.join(folder, "x"), "wb") as file:
            for _ in range(16):
                file.write(bytes(1 << 20))
        return Manifest({"x": Entry(16 << 20)})

    with pytest.raises(OSError, match="No space left"):
        save_folder(mounted, too_much)
    assert found(mounted) == 0 and not leftovers(mounted)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs the mount command")
def test_a_folder_that_has_another_file_system_inside_is_not_exchanged(target, writer):
    save_folder(target, writer(0))
    inside = os.path.join(target, "b")
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", inside], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        with open(os.path.join(inside, "mine.txt"), "w") as file:
            file.write("b/mine.txt")
        inode = os.stat(target).st_ino
        with contextlib.suppress(OSError):  # a file cannot be moved to another file system in one step
            save_folder(target, writer(1))
        assert os.stat(target).st_ino == inode and os.path.ismount(inside)
        with open(os.path.join(inside, "mine.txt")) as file:
            assert file.read() == "b/mine.txt"
    finally:
        subprocess.run(["umount", inside], check=True)
