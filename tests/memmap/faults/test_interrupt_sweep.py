"""Interrupt sweep: an exception at every bytecode of a save, load, append, commit and update leaves everything usable.

A trace function lists the bytecodes that the main thread executes during an operation, in this package, in the standard
library and wherever else; the operation is repeated, and interrupted at one of them. Afterwards nothing is locked, open
or mapped, no thread runs, the earlier content or the new one loads whole, and the next save works and leaves nothing
beside its files. Only calls of the function that is interrupted are traced by bytecodes then.

A bytecode that an operation executes several times is swept at its first execution and at its last. Not swept are the
bytecodes between the end of a ``with`` block and the call of ``__exit__``, and those that enter a handler: Python
checks for signals at calls, loops and the begin of functions, so nothing arrives there, and no lock of Python could be
released otherwise. With every change some of the boundaries are swept, on a disk; in the long tests all of them, in
memory: 168,548 of 20 operations took 20 minutes of processor time, and 68 minutes on a machine with other work.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest
import torch
from tests.memmap.faults.sweep_cases import CASES, Map, Remove

from tensordict_memmap import lock_timeout
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage import cleanup

pytestmark = [
    pytest.mark.skipif(not system.LINUX, reason="open files are listed in /proc"),
    pytest.mark.filterwarnings("ignore"),  # an object that is dropped unclosed warns, and an exception in __del__ too
]

SAMPLES = 6
"""The number of boundaries of each operation that are swept with every change."""

TRIES = 8
"""The number of times that an operation may begin for a boundary: some depend on its state, some on other threads."""


class Interrupt(BaseException):
    """What arrives."""


# --- the trace


def unswept(code: CodeType) -> frozenset[int]:
    """The offsets of bytecodes at which no signal arrives."""
    found, steps = set(), list(dis.get_instructions(code))
    for number, step in enumerate(steps):
        after = steps[number : number + 5]
        names = [one.opname for one in after]
        is_exit = names[:3] == ["LOAD_CONST"] * 3 and names[3:] in (["PRECALL", "CALL"], ["CALL", "POP_TOP"])
        if is_exit and all(one.argval is None for one in after[:3]) and after[3].arg == 2:
            found.update(one.offset for one in after)
            if number and steps[number - 1].opname in ("NOP", "SWAP"):  # of `pass`, and of `return` with a value
                found.add(steps[number - 1].offset)
        if step.opname in ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "RERAISE", "POP_EXCEPT", "COPY", "CHECK_EXC_MATCH"):
            found.add(step.offset)
    return frozenset(found)


class Place(NamedTuple):
    """An execution of a bytecode: the number of the call among those of the function, and of the step within it."""

    code: CodeType
    offset: int
    call: int
    step: int


def trace_bytecodes(frame, function):
    """Lets a function be called for each bytecode of a frame."""
    frame.f_trace = function  # Python 3.13 looks at it when the next attribute is set
    frame.f_trace_opcodes, frame.f_trace_lines = True, False


class Tracer:
    """Lists the boundaries of a call, and raises at one of them."""

    def __init__(self):
        self.skipped = {}

    def places(self, function):
        """Calls a function; returns the places of all boundaries."""
        found, calls = [], Counter()

        def trace(frame, event, argument):
            code = frame.f_code
            calls[code] += 1
            call, steps = calls[code], Counter()
            skipped = self.skipped.get(code)
            if skipped is None:
                skipped = self.skipped[code] = unswept(code)
            if code.co_filename.startswith("<"):
                return None

            def step(frame, event, argument):
                offset = frame.f_lasti
                if event == "opcode" and offset not in skipped:
                    steps[offset] += 1
                    found.append(Place(code, offset, call, steps[offset]))
                return step

            trace_bytecodes(frame, step)
            return step

        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(None)
        return found

    def interrupt(self, function, place):
        """Calls a function; returns whether it came to a place, where an exception was raised."""
        code, offset, call, step = place
        arrived = False

        def trace(frame, event, argument):
            nonlocal call
            if frame.f_code is not code:
                return None
            call -= 1
            # other calls of the same function are traced too, as Python 3.13 stops where one of them is not
            local = ignore if call else follow
            trace_bytecodes(frame, local)
            return local

        def ignore(frame, event, argument):
            return ignore

        def follow(frame, event, argument):
            nonlocal step, arrived
            if event == "opcode" and frame.f_lasti == offset:
                step -= 1
                if not step:
                    sys.settrace(None)
                    arrived = True
                    raise Interrupt
            return follow

        sys.settrace(trace)
        try:
            function()
        except Interrupt:
            pass
        finally:
            sys.settrace(None)
        return arrived


def boundaries(places):
    """The numbers of the first and of the last execution of each bytecode."""
    first, last = {}, {}
    for number, place in enumerate(places):
        first.setdefault(place[:2], number)
        last[place[:2]] = number
    return sorted({*first.values(), *last.values()})


# --- what is checked


def open_files():
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # that of the list itself
            continue
    return sorted(name for name in found if not name.endswith("/fd"))


def mapped_files(folder):
    """The files of a folder that are mapped into this process, removed ones too."""
    with open("/proc/self/maps") as file:
        return {line[line.index(folder) :].rstrip() for line in file if folder in line}


def settled(before, mapped, others, folder):
    """Waits for threads that are not among `others` and checks that nothing is open or mapped that was not before."""
    deadline = time.monotonic() + 20
    while working := [thread for thread in threading.enumerate() if not thread.daemon and thread not in others]:
        assert time.monotonic() < deadline, working
        time.sleep(0.001)
    cleanup.wait()
    while open_files() != before:  # a thread may still close what it wrote to
        assert time.monotonic() < deadline, set(open_files()) - set(before)
        time.sleep(0.001)
    if mapped_files(folder) - mapped:
        gc.collect()  # the traceback may be part of a cycle
        assert mapped_files(folder) <= mapped, mapped_files(folder) - mapped
    assert gc.isenabled()


@pytest.fixture(autouse=True)
def others_rest(monkeypatch):
    """Collections look at new objects only, and torch starts no threads, which would wait for each other."""
    # the hook of pytest keeps the exceptions that callbacks of weak references swallow, and with them what is open
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.enable()
    gc.collect()  # earlier tests may have left garbage with open files
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


def sweep(case, chosen, folder):
    """Interrupts a case at boundaries; returns the number of boundaries, of those chosen, and of those interrupted."""
    tracer, swept = Tracer(), 0
    subject, others = case(folder), set(threading.enumerate())  # tests before this one may have left some
    for _ in range(2):  # the first run imports modules and starts threads
        subject.act()
        subject.check()
        cleanup.wait()
    before, mapped = open_files(), mapped_files(str(folder))
    places = []
    for _ in range(TRIES):
        places = max(places, tracer.places(subject.act), key=len)
        subject.check()
    numbers = chosen(places)
    for at in numbers:
        arrived = False
        for _ in range(TRIES):
            if arrived:
                break
            with lock_timeout(5), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                arrived = tracer.interrupt(subject.act, places[at])
                try:
                    settled(before, mapped, others, str(folder))
                    subject.check()
                except BaseException as error:
                    code, offset, *_ = places[at]
                    where = next((i.positions for i in dis.get_instructions(code) if i.offset == offset), None)
                    line = where.lineno if where is not None else 0
                    error.add_note(
                        f"interrupted at {at}: {code.co_filename}:{line} in {code.co_qualname}, {places[at][1:]}"
                    )
                    raise
            before = open_files()
        swept += arrived
    return len(places), len(numbers), swept


@pytest.mark.parametrize("name", CASES)
def test_an_exception_at_some_bytecodes_leaves_everything_usable(tmp_path, name):
    chance = random.Random(name)
    total, _, swept = sweep(CASES[name], lambda places: chance.sample(boundaries(places), SAMPLES), tmp_path)
    assert total > 1000 and swept


@pytest.mark.parametrize(("case", "module"), [(Map, "mapped_range"), (Map, "mapping"), (Remove, "removal")])
def test_an_exception_at_any_bytecode_of_a_module_leaves_nothing_open_or_mapped(tmp_path, case, module):
    def of_module(places):
        return [at for at, place in enumerate(places) if place.code.co_filename.endswith(f"{module}.py")]

    total, chosen, swept = sweep(case, of_module, tmp_path)
    assert total > chosen > 50 and swept == chosen


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_an_exception_at_any_bytecode_leaves_everything_usable(name, record_property):
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        total, different, swept = sweep(CASES[name], boundaries, Path(folder))
    assert swept > 0.9 * different
    record_property("boundaries", f"{name}: {different} of {total} boundaries swept, {swept} reached")
    print(f"{name}: {total} bytecodes, {different} boundaries, {swept} interrupted")
