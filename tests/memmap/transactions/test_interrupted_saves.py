"""Stopping: whatever stops a save, or comes between two, the earlier one or the new one is there, whole."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pathlib
import random
import resource
import threading
import time

import pytest
from tests.memmap.transactions.saves import save_folder

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage import cleanup, ownership
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest
from tensordict_memmap.storage.ownership import read_manifest

pytestmark = pytest.mark.skipif(not system.POSIX, reason="children are forked and killed")

BIG = 70_000

CASES = ["foreign", "current folder", "no exchange"]
"""What keeps a target from being exchanged; `hindered` makes it so."""


def test_an_error_while_writing_leaves_the_earlier_save(target, writer, found, leftovers):
    save_folder(target, writer(0))

    def fail(folder):
        writer(1)(folder)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        save_folder(target, fail)
    assert found(target) == 0 and not leftovers(target)


@pytest.mark.parametrize("case", ["exchanged", "foreign"])
def test_a_full_disk_leaves_the_earlier_save(target, case, writer, found, leftovers, put_foreign, fork):
    save_folder(target, writer(0))
    foreign = put_foreign(target) if case == "foreign" else ()

    def save():
        for limit in (BIG - 1, 150):  # the first leaf; the manifest
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with pytest.raises(OSError, match="File too large"):
                save_folder(target, writer(1) if limit > 150 else lambda folder: Manifest({"x" * 200: Entry(0)}))

    assert fork(save).wait() == 0
    assert found(target, foreign) == 0 and not leftovers(target)


@pytest.mark.parametrize("case", ["exchanged", "scattered", *CASES])
def test_a_save_killed_before_any_of_its_steps_leaves_a_whole_one(
    target, case, monkeypatch, writer, found, leftovers, check_foreign, killed_at, hindered
):
    monkeypatch.setattr(system, "exchange", system.exchange)
    monkeypatch.setattr(system, "scatter", lambda folder: True)  # on any file system
    cleanup.remember()
    monkeypatch.chdir(os.path.dirname(target))
    save = functools.partial(save_folder, count=1000 if case == "scattered" else 0)
    save(target, writer(0))
    foreign = hindered(case, target) if case in CASES else ()
    seen = set()
    for step in itertools.count():
        before = found(target, foreign)
        killed = killed_at(step, lambda: save(target, writer(before + 1)))  # noqa: B023  # called at once
        after = found(target, foreign)
        seen.add(after - before)
        assert after in (before, before + 1)
        check_foreign(target, foreign)
        save(target, writer(after + 1))
        assert found(target, foreign) == after + 1
        assert not leftovers(target), "the next save cleans up"
        if not killed:
            break
    assert step > (11 if case == "scattered" else 8) and seen == {0, 1}


@pytest.mark.parametrize("case", ["exchanged", "foreign"])
def test_saves_killed_at_random_moments_leave_a_whole_one(
    target, case, writer, found, leftovers, put_foreign, check_foreign, fork
):
    save_folder(target, writer(0))
    foreign = put_foreign(target) if case == "foreign" else ()
    moments = random.Random(0)
    for _ in range(25):
        before = found(target, foreign)

        def forever(first=before):
            for version in itertools.count(first + 1):
                save_folder(target, writer(version))

        child = fork(forever)
        time.sleep(moments.uniform(0, 0.03))
        child.kill()
        assert found(target, foreign) >= before
        check_foreign(target, foreign)
    save_folder(target, writer(before))
    assert not leftovers(target)


def test_two_processes_saving_at_once_one_wins_whole(target, writer, found, leftovers, fork):
    def save(versions):
        for version in versions:
            save_folder(target, writer(version))

    children = [fork(lambda first=first: save(range(first, 40, 2))) for first in (0, 1)]
    while children:
        with contextlib.suppress(AssertionError, FileNotFoundError):  # while it is replaced a walk may see both
            found(target)
        children = [child for child in children if not child.has_ended()]
    assert found(target) in (38, 39) and not leftovers(target)


def test_eight_threads_saving_at_once_one_wins_whole(target, writer, found, leftovers):
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


def test_the_staging_folder_of_a_running_save_is_kept(target, writer, found, leftovers):
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


@pytest.mark.parametrize("case", ["exchanged", *CASES])
def test_a_part_of_a_save_killed_while_it_is_saved_leaves_a_whole_one(
    target, case, monkeypatch, content, writer, found, killed_at, hindered
):
    monkeypatch.setattr(system, "exchange", system.exchange)
    monkeypatch.chdir(os.path.dirname(target))
    save_folder(target, writer(0))
    part = os.path.join(target, "b")
    save_folder(part, writer(0))
    foreign = hindered(case, part) if case != "exchanged" else ()
    for step in itertools.count():
        before = found(part, foreign)
        killed = killed_at(step, lambda: save_folder(part, writer(before + 1)))  # noqa: B023  # called at once
        assert found(part, foreign) in (before, before + 1)
        with open(os.path.join(target, "a.memmap"), "rb") as file:
            assert file.read() == content(0)["a.memmap"], "the rest is as it was"
        if not killed:
            break
    assert read_manifest(target).under("b").files == read_manifest(part).files


def test_staged_files_of_a_killed_process_are_removed_and_similar_names_are_kept(target, writer, found):
    save_folder(target, writer(0))
    replacements = [NAME + ".0123456789abcdef", "meta.json.0123456789abcdef", "a.memmap.fedcba9876543210"]
    others = [NAME + ".old", "meta.json.0123", "a.memmap.copy", "0123456789abcdef"]
    for name in replacements:
        pathlib.Path(target, name).write_text("half")
    save_folder(target, writer(1))
    assert found(target) == 1 and not {*replacements} & {*os.listdir(target)}
    for name in others:
        pathlib.Path(target, name).write_text("mine")
    save_folder(target, writer(2))
    assert found(target, others) == 2


def test_files_left_by_an_interrupted_cleanup_are_removed_by_the_next_save(
    target, monkeypatch, writer, found, leftovers
):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    save_folder(target, writer(0))
    with monkeypatch.context() as patch:
        patch.setattr(ownership, "remove_save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_folder(target, writer(1))
    assert found(target) == 1 and leftovers(target)
    save_folder(target, writer(2))
    assert found(target) == 2 and not leftovers(target)
