"""Commits: whatever stops a save, the earlier one or the new one is there, whole, and nobody else's file is lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import threading
import time

import pytest

from tensordict_memmap import commit, owned, removal, system
from tensordict_memmap.commit import recover, save_folder
from tensordict_memmap.manifest import NAME, Entry, Manifest
from tensordict_memmap.owned import JOURNAL, manifest_for, read_manifest

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked and killed")

BIG = 70_000


def content(version):
    """The files of a version; some names stay, some come and go."""
    names = ["meta.json", "a.memmap", "b/meta.json", "b/c.memmap", f"only{version % 3}.memmap", f"n{version % 2}/x"]
    return {name: (f"{version}:{name}".encode() * 9000)[:BIG] for name in names}


def writer(version, pause=0.0):
    def write(folder):
        files = {}
        for name, data in content(version).items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
            files[name] = Entry(len(data))
            time.sleep(pause)
        return Manifest(files)

    return write


def found(target, foreign=()):
    """Which version a folder holds, whole; an assertion where it holds none or a mixture."""
    recover(target)
    manifest = read_manifest(target)
    assert manifest is not None and manifest.complete
    files = {}
    for place, _, names in os.walk(target):
        for name in names:
            path = os.path.join(place, name)
            relative = os.path.relpath(path, target)
            if relative != NAME and relative not in foreign and ".tensordict-" not in relative:
                with open(path, "rb") as file:
                    files[relative] = file.read()
    version = int(files["meta.json"].split(b":")[0])
    assert files == content(version)
    assert manifest.problems({name: len(data) for name, data in files.items()}) == []
    return version


def leftovers(target):
    folders = [os.path.dirname(target), target]
    return [name for folder in folders for name in os.listdir(folder) if "tensordict-" in name or name == JOURNAL]


def put_foreign(target):
    os.makedirs(os.path.join(target, "b"), exist_ok=True)
    for name in ("notes.txt", "b/other.bin"):
        with open(os.path.join(target, name), "w") as file:
            file.write(name)
    return ("notes.txt", "b/other.bin")


def check_foreign(target, foreign):
    for name in foreign:
        with open(os.path.join(target, name)) as file:
            assert file.read() == name


@pytest.fixture
def target(tmp_path):
    return str(tmp_path / "saved")


def in_child(function):
    """Runs a function in a forked child; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return child


@pytest.mark.parametrize("durable", [False, True])
def test_a_save_replaces_what_was_there(target, durable):
    for version in range(4):
        save_folder(target, writer(version), durable=durable)
        assert found(target) == version
        assert not leftovers(target)


def test_an_earlier_save_is_exchanged_and_open_files_keep_it(target):
    save_folder(target, writer(0))
    with open(os.path.join(target, "a.memmap"), "rb") as early:
        inode = os.stat(target).st_ino
        save_folder(target, writer(1))
        assert os.stat(target).st_ino != inode, "another folder took its place"
        assert early.read() == content(0)["a.memmap"]


def test_overwriting_in_place_keeps_the_folder_and_drops_stale_files(target):
    save_folder(target, writer(0))
    inode = os.stat(target).st_ino
    foreign = put_foreign(target)
    save_folder(target, writer(1), atomic=False)
    assert os.stat(target).st_ino == inode and found(target, foreign) == 1

    def stopped(folder):
        writer(2)(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_folder(target, stopped, atomic=False)
    assert read_manifest(target).complete is False


def case_foreign(target):
    return put_foreign(target)


def case_current(target):
    os.chdir(target)
    return ()


def case_no_exchange(target):
    system.exchange = lambda a, b: False
    return ()


CASES = {"foreign": case_foreign, "current folder": case_current, "no exchange": case_no_exchange}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_exchanged_is_replaced_file_by_file(target, case, monkeypatch):
    monkeypatch.setattr(system, "exchange", system.exchange)
    monkeypatch.chdir(os.path.dirname(target))
    save_folder(target, writer(0))
    inode = os.stat(target).st_ino
    foreign = CASES[case](target)
    save_folder(target, writer(1))
    assert found(target, foreign) == 1 and os.stat(target).st_ino == inode
    check_foreign(target, foreign)
    assert not leftovers(target)


def test_folders_without_a_manifest_and_symbolic_links_are_kept(target, tmp_path):
    foreign = put_foreign(target)
    link = str(tmp_path / "link")
    os.symlink(target, link)
    save_folder(link, writer(0))
    assert os.path.islink(link) and found(target, foreign) == 0
    check_foreign(target, foreign)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("foreign")
    shutil.rmtree(os.path.join(target, "n0"))
    os.symlink(outside, os.path.join(target, "n0"))
    save_folder(target, writer(1))  # drops n0/x, which now is another folder's
    assert (outside / "x").read_text() == "foreign"


def test_empty_targets_and_absent_parents(target):
    os.mkdir(target)
    save_folder(target, writer(0))
    assert found(target) == 0
    deep = os.path.join(os.path.dirname(target), "x", "y", "z")
    save_folder(deep, writer(1))
    assert found(deep) == 1


def test_what_is_in_the_way_is_an_error_before_anything_changes(target):
    save_folder(target, writer(0))
    foreign = put_foreign(target)
    os.makedirs(os.path.join(target, "only1.memmap"))
    with pytest.raises(FileExistsError, match="folder has its name"):
        save_folder(target, writer(1))
    assert found(target, foreign) == 0 and not leftovers(target)
    with open(target + "-file", "w"), pytest.raises(FileExistsError):
        save_folder(target + "-file", writer(0))


def test_an_error_while_writing_leaves_the_earlier_save(target):
    save_folder(target, writer(0))

    def fail(folder):
        writer(1)(folder)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        save_folder(target, fail)
    assert found(target) == 0 and not leftovers(target)


@pytest.mark.parametrize("case", ["exchanged", "foreign"])
def test_a_full_disk_leaves_the_earlier_save(target, case):
    save_folder(target, writer(0))
    foreign = put_foreign(target) if case == "foreign" else ()

    def save():
        for limit in (BIG - 1, 150):  # the first leaf; the manifest
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with pytest.raises(OSError, match="File too large"):
                save_folder(target, writer(1) if limit > 150 else lambda folder: Manifest({"x" * 200: Entry(0)}))

    child = in_child(save)
    assert os.waitpid(child, 0)[1] == 0
    assert found(target, foreign) == 0 and not leftovers(target)


STEPS = [(os, name) for name in ("mkdir", "rename", "replace", "unlink", "rmdir")] + [
    (system, "exchange"),
    (system, "write_file"),
    (shutil, "rmtree"),
]


def killed_at(step, save):
    """Forks a child that saves and dies, by SIGKILL, before its n-th change of the file system; False if it ended."""

    def run():
        left = itertools.count(step, -1)

        def dying(function):
            def call(*arguments, **options):
                if next(left) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **options)

            return call

        for module, name in STEPS:
            setattr(module, name, dying(getattr(module, name)))
        save()

    status = os.waitpid(in_child(run), 0)[1]
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


@pytest.mark.parametrize("case", ["exchanged", *CASES])
def test_a_save_killed_before_any_of_its_steps_leaves_a_whole_one(target, case, monkeypatch):
    monkeypatch.setattr(system, "exchange", system.exchange)
    monkeypatch.chdir(os.path.dirname(target))
    save_folder(target, writer(0))
    foreign = CASES[case](target) if case != "exchanged" else ()
    seen = set()
    for step in itertools.count():
        before = found(target, foreign)
        killed = killed_at(step, lambda: save_folder(target, writer(before + 1)))  # noqa: B023  # called at once
        after = found(target, foreign)
        seen.add(after - before)
        assert after in (before, before + 1)
        check_foreign(target, foreign)
        save_folder(target, writer(after + 1))
        assert found(target, foreign) == after + 1
        assert not leftovers(target), "the next save cleans up"
        if not killed:
            break
    assert step > 8 and seen == {0, 1}


@pytest.mark.parametrize("case", ["exchanged", "foreign"])
def test_saves_killed_at_random_moments_leave_a_whole_one(target, case):
    save_folder(target, writer(0))
    foreign = put_foreign(target) if case == "foreign" else ()
    moments = random.Random(0)
    for _ in range(25):
        before = found(target, foreign)

        def forever(first=before):
            for version in itertools.count(first + 1):
                save_folder(target, writer(version))

        child = in_child(forever)
        time.sleep(moments.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert found(target, foreign) >= before
        check_foreign(target, foreign)
    save_folder(target, writer(before))
    assert not leftovers(target)


def test_two_processes_saving_at_once_one_wins_whole(target):
    def save(versions):
        for version in versions:
            save_folder(target, writer(version))

    children = [in_child(lambda first=first: save(range(first, 40, 2))) for first in (0, 1)]
    while children:
        with contextlib.suppress(AssertionError, FileNotFoundError):  # while it is replaced a walk may see both
            found(target)
        children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
    assert found(target) in (38, 39) and not leftovers(target)


def test_eight_threads_saving_at_once_one_wins_whole(target):
    errors = []

    def save(version):
        try:
            for _ in range(4):
                save_folder(target, writer(version))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(version,)) for version in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and found(target) in range(8) and not leftovers(target)


def test_the_staging_folder_of_a_save_under_way_is_left_alone(target):
    started, go_on = threading.Event(), threading.Event()

    def slow(folder):
        started.set()
        assert go_on.wait(120)
        return writer(5)(folder)

    thread = threading.Thread(target=save_folder, args=(target, slow))
    thread.start()
    assert started.wait(120)
    save_folder(target, writer(1))
    assert found(target) == 1
    go_on.set()
    thread.join()
    assert found(target) == 5 and not leftovers(target)


def test_a_foreign_file_that_comes_while_a_save_is_exchanged_is_kept(target, monkeypatch):
    save_folder(target, writer(0))
    exchange = system.exchange

    def late(a, b):
        with open(os.path.join(target, "b", "late.txt"), "w") as file:
            file.write("b/late.txt")
        return exchange(a, b)

    monkeypatch.setattr(system, "exchange", late)
    save_folder(target, writer(1))
    assert found(target, ("b/late.txt",)) == 1
    check_foreign(target, ["b/late.txt"])


def test_hostile_journals_change_nothing(target):
    save_folder(target, writer(0))
    victim = os.path.join(os.path.dirname(target), "victim")
    with open(victim, "w") as file:
        file.write("precious")
    stage = ".tensordict-0123456789abcdef"
    for journal in (
        [],
        {"stage": "../..", "files": [], "remove": []},
        {"stage": stage, "files": [], "remove": ["../victim"]},
        {"stage": stage, "files": ["../victim"], "remove": []},
        {"stage": f"{stage}/../..", "files": [], "remove": []},
        {"stage": stage, "files": ["absent"], "remove": []},
    ):
        with open(os.path.join(target, JOURNAL), "w") as file:
            json.dump(journal, file)
        with pytest.raises(ValueError, match="journal"):
            recover(target)
        with open(victim) as file:
            assert file.read() == "precious"
        os.unlink(os.path.join(target, JOURNAL))
        assert found(target) == 0


def test_a_save_into_a_part_of_a_save_is_known_above(target):
    save_folder(target, writer(0))
    part = os.path.join(target, "b")
    assert set(manifest_for(part).files) == {"meta.json", "c.memmap"}
    save_folder(part, lambda folder: writer(7)(folder))
    assert found(part) == 7
    above = read_manifest(target)
    assert above.under("b").files == read_manifest(part).files
    assert "a.memmap" in above.files

    inode = os.stat(target).st_ino
    save_folder(target, writer(1))
    assert found(target) == 1 and os.stat(target).st_ino != inode, "all of it was ours, the part included"


def test_another_save_inside_a_folder_is_foreign_to_it(target):
    save_folder(target, writer(0))
    other = os.path.join(target, "other")
    save_folder(other, writer(5))
    assert not read_manifest(target).under("other").files
    save_folder(target, writer(1))
    assert found(other) == 5


# --- mount points, mappings and parts


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
def test_a_mount_point_is_replaced_file_by_file_and_stays_mounted(mounted):
    for version in range(3):
        save_folder(mounted, writer(version))
        assert found(mounted) == version and os.path.ismount(mounted) and not leftovers(mounted)
    foreign = put_foreign(mounted)
    save_folder(mounted, writer(3))
    assert found(mounted, foreign) == 3
    check_foreign(mounted, foreign)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs the mount command")
def test_a_save_into_a_mount_point_killed_before_any_of_its_steps_leaves_a_whole_one(mounted):
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
def test_a_full_mount_point_is_an_oserror_and_keeps_the_earlier_save(mounted):
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
def test_a_folder_that_has_another_file_system_inside_is_not_exchanged(target):
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


@pytest.mark.parametrize("case", ["exchanged", *CASES])
@pytest.mark.parametrize("size", [BIG, 0])
def test_who_has_files_mapped_keeps_the_old_content(target, case, size, monkeypatch):
    monkeypatch.setattr(system, "exchange", system.exchange)
    monkeypatch.setattr(commit, "is_long_removal", lambda *sizes: size == 0)  # removed at once, or in the background
    monkeypatch.chdir(os.path.dirname(target))
    save_folder(target, writer(0))
    path = os.path.join(target, "a.memmap")
    mapped_here, go = map_file(path), os.pipe()

    def child():
        mapped = map_file(path)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        assert mapped[:] == content(0)["a.memmap"]

    ready = os.pipe()
    other = in_child(child)
    os.read(ready[0], 1)
    if case != "exchanged":
        CASES[case](target)
    save_folder(target, writer(1))
    removal.wait()
    os.write(go[1], b"x")
    assert os.waitpid(other, 0)[1] == 0 and mapped_here[:] == content(0)["a.memmap"]
    with open(path, "rb") as file:
        assert file.read() == content(1)["a.memmap"]
    for fd in (*go, *ready):
        os.close(fd)


def map_file(path):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


@pytest.mark.parametrize("case", ["exchanged", *CASES])
def test_a_part_of_a_save_killed_while_it_is_saved_leaves_a_whole_one(target, case, monkeypatch):
    monkeypatch.setattr(system, "exchange", system.exchange)
    monkeypatch.chdir(os.path.dirname(target))
    save_folder(target, writer(0))
    part = os.path.join(target, "b")
    save_folder(part, writer(0))
    foreign = CASES[case](part) if case != "exchanged" else ()
    for step in itertools.count():
        before = found(part, foreign)
        killed = killed_at(step, lambda: save_folder(part, writer(before + 1)))  # noqa: B023  # called at once
        assert found(part, foreign) in (before, before + 1)
        with open(os.path.join(target, "a.memmap"), "rb") as file:
            assert file.read() == content(0)["a.memmap"], "the rest is as it was"
        if not killed:
            break
    assert read_manifest(target).under("b").files == read_manifest(part).files


def test_a_target_that_is_a_dangling_link_or_lies_behind_one_is_made_there(tmp_path):
    os.symlink(tmp_path / "real", tmp_path / "link")
    save_folder(tmp_path / "link", writer(0))
    assert found(tmp_path / "real") == 0 and os.path.islink(tmp_path / "link")
    os.mkdir(tmp_path / "folder")
    os.symlink(tmp_path / "folder", tmp_path / "way")
    save_folder(tmp_path / "way" / "x", writer(1))
    save_folder(tmp_path / "way" / "x", writer(2))
    assert found(str(tmp_path / "folder" / "x")) == 2 and not leftovers(str(tmp_path / "folder" / "x"))


def test_what_a_killed_process_was_about_to_put_in_place_goes_and_what_looks_alike_stays(target):
    save_folder(target, writer(0))
    drafts = [NAME + ".0123456789abcdef", "meta.json.0123456789abcdef", "a.memmap.fedcba9876543210"]
    others = [NAME + ".old", "meta.json.0123", "a.memmap.copy", "0123456789abcdef"]
    for name in drafts:
        pathlib.Path(target, name).write_text("half")
    save_folder(target, writer(1))
    assert found(target) == 1 and not {*drafts} & {*os.listdir(target)}
    for name in others:
        pathlib.Path(target, name).write_text("mine")
    save_folder(target, writer(2))
    assert found(target, others) == 2


def test_what_an_interrupt_left_while_a_save_cleaned_up_goes_with_the_next_save(target, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    save_folder(target, writer(0))
    with monkeypatch.context() as patch:
        patch.setattr(owned, "remove_save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_folder(target, writer(1))
    assert found(target) == 1 and leftovers(target)
    save_folder(target, writer(2))
    assert found(target) == 2 and not leftovers(target)
