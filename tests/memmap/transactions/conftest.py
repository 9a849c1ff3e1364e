"""Saves of numbered versions, what is known of each, and ways to stop one."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import signal
import time

import pytest

from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest
from tensordict_memmap.storage.ownership import JOURNAL, read_manifest
from tensordict_memmap.storage.transaction import recover

BIG = 70_000


def _content(version):
    """The files of a version; some names stay, some come and go."""
    names = ["meta.json", "a.memmap", "b/meta.json", "b/c.memmap", f"only{version % 3}.memmap", f"n{version % 2}/x"]
    return {name: (f"{version}:{name}".encode() * 9000)[:BIG] for name in names}


def _writer(version, pause=0.0):
    def write(folder):
        files = {}
        for name, data in _content(version).items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
            files[name] = Entry(len(data))
            time.sleep(pause)
        return Manifest(files)

    return write


def _found(target, foreign=()):
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
    assert "meta.json" in files
    version = int(files["meta.json"].split(b":")[0])
    wanted = _content(version)
    # names, for a comparison of the contents would be explained byte by byte, which takes minutes
    assert not [name for name in {*files, *wanted} if files.get(name) != wanted.get(name)]
    assert {name: entry.size for name, entry in manifest.files.items()}.items() <= {
        (name, len(data)) for name, data in files.items()
    }
    return version


def _leftovers(target):
    folders = [os.path.dirname(target), target]
    return [name for folder in folders for name in os.listdir(folder) if "tensordict-" in name or name == JOURNAL]


def _put_foreign(target):
    os.makedirs(os.path.join(target, "b"), exist_ok=True)
    for name in ("notes.txt", "b/other.bin"):
        with open(os.path.join(target, name), "w") as file:
            file.write(name)
    return ("notes.txt", "b/other.bin")


def _check_foreign(target, foreign):
    for name in foreign:
        with open(os.path.join(target, name)) as file:
            assert file.read() == name


STEPS = [(os, name) for name in ("mkdir", "rename", "replace", "unlink", "rmdir")] + [
    (system, "exchange"),
    (system, "write_file"),
    (shutil, "rmtree"),
]


def _killed_at(fork, step, save):
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

    status = fork(run).wait()
    assert status in (0, -signal.SIGKILL)
    return status != 0


@pytest.fixture
def target(tmp_path):
    return str(tmp_path / "saved")


@pytest.fixture(scope="session")
def content():
    """The files of a version."""
    return _content


@pytest.fixture(scope="session")
def writer():
    """Makes what writes a version."""
    return _writer


@pytest.fixture(scope="session")
def found():
    """Says which version a folder holds, whole."""
    return _found


@pytest.fixture(scope="session")
def leftovers():
    """Names what saves left."""
    return _leftovers


@pytest.fixture(scope="session")
def put_foreign():
    """Puts files of somebody else into a folder."""
    return _put_foreign


@pytest.fixture(scope="session")
def check_foreign():
    """Asserts that these are as they were."""
    return _check_foreign


@pytest.fixture
def killed_at(fork):
    """Kills a save before one of its steps."""
    return functools.partial(_killed_at, fork)


@pytest.fixture
def hindered(monkeypatch):
    """Makes that a folder cannot be exchanged, and names the foreign files in it."""
    monkeypatch.setattr(system, "exchange", system.exchange)

    def hinder(case, target):
        if case == "foreign":
            return _put_foreign(target)
        if case == "current folder":
            os.chdir(target)
        else:
            system.exchange = lambda a, b: False
        return ()

    return hinder
