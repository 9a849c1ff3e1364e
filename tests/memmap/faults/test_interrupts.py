"""Interrupts: however often Ctrl-C is pressed, no thread writes to a file that was closed, and no lock stays held."""

from __future__ import annotations

import fcntl
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemoryMappedTensor, load_memmap, lock_timeout, save
from tensordict_memmap.engine import executor
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.engine.descriptor import Descriptor
from tensordict_memmap.storage import locks

pytestmark = pytest.mark.skipif(not system.POSIX, reason="signals and locks of POSIX")


@pytest.fixture(autouse=True)
def ctrl_c_raises():
    """Python sets no handler where the shell ignores SIGINT, as for a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def open_files():
    return sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _is_open(n))


def _is_open(number):
    try:
        os.fstat(int(number))
    except OSError:
        return False
    return True


# --- descriptors


def test_a_descriptor_is_closed_with_its_last_reference(tmp_path):
    before = open_files()
    with Descriptor(os.open, str(tmp_path), os.O_RDONLY) as first:
        assert os.fstat(first.fileno()).st_ino == tmp_path.stat().st_ino
    assert first.fileno() == -1
    first.close()
    second = Descriptor(os.open, str(tmp_path), os.O_RDONLY)
    del second
    with pytest.raises(FileNotFoundError):
        Descriptor(os.open, str(tmp_path / "absent"), os.O_RDONLY)
    assert open_files() == before


def test_an_exception_at_any_bytecode_leaves_no_descriptor_open(tmp_path):
    def use():
        with Descriptor(os.open, str(tmp_path), os.O_RDONLY) as file:
            os.fstat(file.fileno())

    before = open_files()
    count = itertools.count()
    while interrupted_at(next(count), use):
        assert open_files() == before, count
    assert next(count) > 20


def interrupted_at(number, function):
    """Calls a function, and raises an exception at its bytecode of that number; returns whether it has so many."""
    left = number

    def trace(frame, event, argument):
        nonlocal left
        frame.f_trace = trace  # Python 3.13 looks at it when the next attribute is set
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    gc.disable()  # callbacks of other libraries at a collection would be interrupted too
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return False


# --- Ctrl-C during a save

PROGRAM = """
import os, signal, sys, threading, time
import torch
from tensordict_core import TensorDict
from tensordict_memmap.engine import sink, syscalls, write_plan

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell ignores it
folder, calls = sys.argv[1], int(sys.argv[2])
td = TensorDict({f"k{i}": torch.full((8 << 20,), i + 1, dtype=torch.uint8) for i in range(4)})
td.save(folder + "/saved.safetensors")
write = syscalls.write_ranges_at

def slow(*arguments):  # each write of another thread takes long, and Ctrl-C is pressed during it
    if threading.current_thread() is not threading.main_thread():
        for _ in range(calls):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
    write(*arguments)

syscalls.write_ranges_at = slow
try:
    td.save(folder + "/saved.safetensors", num_threads=4)
    sys.exit(3)
except KeyboardInterrupt:
    pass
numbers = [os.open(f"{folder}/mine{n}", os.O_RDWR | os.O_CREAT) for n in range(8)]
for number in numbers:
    os.write(number, b"x" * 64)
time.sleep(0.5)
assert all(os.fstat(number).st_size == 64 for number in numbers)
"""


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_ctrl_c_during_a_save_writes_to_no_file_that_is_opened_afterwards(tmp_path, calls):
    run = [sys.executable, "-c", PROGRAM, str(tmp_path), str(calls)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == sorted(["saved.safetensors", *(f"mine{n}" for n in range(8))])
    assert load_memmap(tmp_path / "saved.safetensors")["k3"].float().mean() == 4


def test_interrupts_do_not_end_the_wait_for_other_threads():
    main, begun, go, ended = threading.get_ident(), threading.Event(), threading.Event(), []

    def job():
        if threading.get_ident() == main:
            assert begun.wait(60)
        else:
            begun.set()
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
            go.wait(0.2)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        executor.run([[job], [job]], threads=2)
    assert ended


# --- locks


def test_an_exception_as_flock_returns_leaves_nothing_locked(tmp_path, monkeypatch):
    flock = fcntl.flock

    def interrupted(fd, operation):
        flock(fd, operation)
        raise KeyboardInterrupt

    td = TensorDict({"a": torch.zeros(3)})
    before = open_files()
    for name in ("saved", "saved.safetensors"):
        with monkeypatch.context() as patch:
            patch.setattr(locks.fcntl, "flock", interrupted)
            with pytest.raises(KeyboardInterrupt):
                save(td, tmp_path / name)
        assert open_files() == before
        with lock_timeout(0):
            save(td, tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["saved", "saved.safetensors"]


HOLD = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def hold():
    """Locks a folder in another process for some seconds."""
    processes = []

    def start(path, seconds):
        process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), str(seconds)], stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_wait_for_a_lock_has_a_limit_and_names_the_holder(tmp_path, hold):
    process = hold(tmp_path, 60)
    with lock_timeout(0.1), pytest.raises(TimeoutError) as raised:
        save(TensorDict({"a": torch.zeros(3)}), tmp_path / "saved")
    assert str(tmp_path) in str(raised.value)
    if system.LINUX:
        assert f"process {process.pid} (" in str(raised.value) and "import fcntl" in str(raised.value)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="number of seconds"), lock_timeout(-1):
        pass


def test_a_background_save_keeps_the_limit_of_its_caller(tmp_path, hold):
    hold(tmp_path, 60)
    with lock_timeout(0.1):
        future = save(TensorDict({"a": torch.zeros(3)}), tmp_path / "saved", return_early=True)
    with pytest.raises(TimeoutError, match="holds the lock"):
        future.result()


def test_a_long_wait_warns_with_the_name_of_the_lock(tmp_path, hold, monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 0.1)
    hold(tmp_path, 1)
    with pytest.warns(RuntimeWarning, match=f"waiting for the lock of {tmp_path}, which .* holds"):
        save(TensorDict({"a": torch.zeros(3)}), tmp_path / "saved")
    assert load_memmap(tmp_path / "saved")["a"].shape == (3,)


def test_a_lock_on_a_world_writable_folder_is_ignored(tmp_path, hold, monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 0.1)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    hold(shared, 60)
    for number in range(2):
        with pytest.warns(RuntimeWarning, match="a folder of other users; saves of this user go on without it"):
            save(TensorDict({"a": torch.full((3,), number)}), shared / "saved")
    assert load_memmap(shared / "saved")["a"].tolist() == [1, 1, 1]
    assert os.listdir(shared) == ["saved"]


def test_savers_in_a_world_writable_folder_exclude_each_other(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    inside, most, guard = 0, 0, threading.Lock()

    def enter():
        nonlocal inside, most
        for _ in range(20):
            with locks.locked(str(shared / "saved")):
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.001)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and os.listdir(shared) == []


def test_a_lock_file_of_another_user_is_not_used(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    planted = shared / os.path.basename(locks._lock_name(str(shared)))
    planted.touch(mode=0o666)
    planted.chmod(0o666)
    with open(planted) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with lock_timeout(5):
            save(TensorDict({"a": torch.zeros(3)}), shared / "saved")
    assert load_memmap(shared / "saved")["a"].shape == (3,)


def test_files_of_a_failed_save_are_closed_and_freed_with_its_error(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    before, td = open_files(), TensorDict({f"k{n}": torch.zeros(1 << 20) for n in range(4)})
    freed = weakref.ref(td["k3"])
    monkeypatch.setattr(system, "write_ranges_at", full)
    gc.disable()
    try:
        with pytest.raises(OSError, match="No space"):
            save(td, tmp_path / "saved", num_threads=2)
        future = save(td, tmp_path / "saved", num_threads=2, return_early=True)
        assert future.exception() is not None
        del td, future
        while any(thread.name == "tensordict-save" for thread in threading.enumerate()):
            time.sleep(0.001)
        assert freed() is None and open_files() == before
    finally:
        gc.enable()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="lists the mappings of this process")
@pytest.mark.parametrize("function", ["tensordict_memmap.tensor.mapping._bytes_at", "numpy.asarray"])
def test_an_interrupt_as_a_file_is_mapped_leaves_no_mapping(tmp_path, monkeypatch, function):
    path = tmp_path / "leaf.memmap"
    path.write_bytes(bytes(64))

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(function, interrupted)
    try:
        MemoryMappedTensor.from_filename(path, torch.uint8, [64])
    except KeyboardInterrupt:
        pass
    else:
        pytest.fail("the file was mapped without an interrupt")
    gc.collect()
    assert str(path) not in Path("/proc/self/maps").read_text()
