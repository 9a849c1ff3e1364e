"""Interrupt sweep: an exception at every bytecode of a save, load, append, commit and update leaves everything usable.

A trace function counts the bytecodes that the main thread executes during an operation, in this package, in the
standard library and wherever else, and raises at one of them. Afterwards nothing is locked or open, no thread runs, the
earlier content or the new one loads whole, and the next save works and leaves nothing beside its files.

A bytecode that an operation executes several times is swept at its first execution and at its last. Not swept are the
bytecodes between the end of a ``with`` block and the call of ``__exit__``, and those that enter a handler: Python
checks for signals at calls, loops and the begin of functions, so nothing arrives there, and no lock of Python could be
released otherwise. With every change some of the boundaries are swept, in the long tests all of them.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import shutil
import sys
import threading
import time
import warnings
from types import CodeType

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import (
    MemmapDataset,
    from_consolidated,
    load_memmap,
    lock_timeout,
    make_memmap_from_tensor,
    memmap,
    save,
)
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage import cleanup

pytestmark = [
    pytest.mark.skipif(not system.LINUX, reason="open files are listed in /proc"),
    pytest.mark.filterwarnings("ignore"),  # an object that is dropped unclosed warns, and an exception in __del__ too
]

SAMPLES = 6
"""The number of boundaries of each operation that are swept with every change."""


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
        if step.opname in ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "RERAISE", "POP_EXCEPT", "COPY", "CHECK_EXC_MATCH"):
            found.add(step.offset)
    return frozenset(found)


class Tracer:
    """Counts the boundaries of a call, and raises at one of them."""

    def __init__(self):
        self.skipped = {}

    def run(self, function, at=None):
        """Calls a function; returns the places of all boundaries, or whether an exception was raised at one."""
        places, seen = [], 0

        def trace(frame, event, argument):
            nonlocal seen
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event != "opcode":
                return trace
            code = frame.f_code
            skipped = self.skipped.get(code)
            if skipped is None:
                skipped = self.skipped[code] = unswept(code)
            if frame.f_lasti in skipped or code.co_filename.startswith("<"):
                return trace
            if at is None:
                places.append((code, frame.f_lasti))
            elif seen == at:
                sys.settrace(None)
                seen += 1
                raise Interrupt
            seen += 1
            return trace

        sys.settrace(trace)
        try:
            function()
        except Interrupt:
            return True
        finally:
            sys.settrace(None)
        return places if at is None else False


def boundaries(places):
    """The numbers of the first and of the last execution of each bytecode."""
    first, last = {}, {}
    for number, place in enumerate(places):
        first.setdefault(place, number)
        last[place] = number
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


def settled(before, others):
    """Waits for threads that are not among `others` and checks that nothing is open that was not before."""
    deadline = time.monotonic() + 20
    while working := [thread for thread in threading.enumerate() if not thread.daemon and thread not in others]:
        assert time.monotonic() < deadline, working
        time.sleep(0.001)
    cleanup.wait()
    while open_files() != before:  # a thread may still close what it wrote to
        assert time.monotonic() < deadline, set(open_files()) - set(before)
        time.sleep(0.01)
    assert gc.isenabled()


def content(version):
    """A tensordict that tells its version in each of its parts; one leaf has several jobs, one is strided."""
    return TensorDict(
        {
            "a": torch.full((3,), version),
            "large": torch.full((300_000,), version % 251, dtype=torch.uint8),  # a full sweep makes thousands
            "inner": {f"only{version % 2}": torch.full((5, 4), version).T, "text": f"version {version}"},
        }
    )


def version_of(td):
    version = int(td["a"][0])
    expected = content(version)
    assert set(td.keys(True, True)) == set(expected.keys(True, True))
    assert all(torch.equal(td[key], leaf) for key, leaf in expected.items(True, True) if isinstance(leaf, torch.Tensor))
    assert td["inner", "text"] == f"version {version}"
    return version


class Save:
    """A save over an earlier one."""

    def __init__(self, folder, name="saved", load=load_memmap, foreign=False, fresh=False, **options):
        self.folder, self.path, self.load, self.foreign = folder, folder / name, load, foreign
        self.options, self.fresh, self.version = {"num_threads": 2, **options}, fresh, 0
        if not fresh:
            self.store(0)
        if foreign:
            (self.path / "notes.txt").write_text("mine")

    def store(self, version):
        save(content(version), self.path, **self.options)

    def act(self):
        self.store(self.version + 1)

    def check(self):
        expected = {self.version, self.version + 1}
        if self.fresh and not self.path.exists():
            found = self.version
        else:
            found = version_of(self.load(self.path))
        assert found in expected, (found, expected)
        self.version = found + 2
        self.store(self.version)
        assert version_of(self.load(self.path)) == self.version
        assert os.listdir(self.folder) == [self.path.name]
        if self.foreign:
            assert (self.path / "notes.txt").read_text() == "mine"
            assert not [name for name in os.listdir(self.path) if "tensordict-" in name or "journal" in name]
        if self.fresh:
            self.path = self.path.with_name(f"saved{self.version}")
            (self.folder / os.listdir(self.folder)[0]).rename(self.path)
            self.path = self.path.with_name("saved")
            _remove(self.folder)


def _remove(folder):
    for name in os.listdir(folder):
        shutil.rmtree(folder / name)


class Consolidate(Save):
    def store(self, version):
        content(version).consolidate(self.path, num_threads=2)


class Memmap(Save):
    def store(self, version):
        memmap(content(version), self.path, num_threads=2)


class InPlace(Save):
    """A save that overwrites files: an interrupted one says so."""

    def check(self):
        try:
            self.load(self.path)
        except ValueError as error:
            assert "overwrote files in place" in str(error)
            self.version += 1
            self.store(self.version)
        super().check()


class Load(Save):
    """A load changes nothing."""

    def act(self):
        self.load(self.path)

    def check(self):
        assert version_of(self.load(self.path)) == self.version


class LoadConsolidated(Load):
    def store(self, version):
        content(version).consolidate(self.path, num_threads=2)


class AddEntry(Save):
    def __init__(self, folder):
        super().__init__(folder)
        self.number = 0

    def act(self):
        make_memmap_from_tensor(load_memmap(self.path), f"more{self.number}", torch.full((7,), self.number))

    def check(self):
        td = load_memmap(self.path)
        if f"more{self.number}" not in td:
            self.act()
            td = load_memmap(self.path)
        assert all(td[f"more{n}"].tolist() == [n] * 7 for n in range(self.number + 1))
        self.number += 1
        if self.number == 20:
            self.number = 0
            self.store(0)
            assert os.listdir(self.folder) == ["saved"]


class SetValue(Save):
    def act(self):
        td = load_memmap(self.path)
        with td.unlock_():
            td["inner"].set_non_tensor("text", f"version {self.version + 1}")

    def check(self):
        assert load_memmap(self.path)["inner", "text"] in (f"version {self.version}", f"version {self.version + 1}")
        self.store(self.version)
        assert version_of(load_memmap(self.path)) == self.version and os.listdir(self.folder) == ["saved"]


class Update(Save):
    """An in-place update of mapped tensors, by their files and by their mappings."""

    def __init__(self, folder):
        self.path, self.version = folder / "saved", 0
        self.fill()

    def fill(self):
        like = TensorDict({"a": torch.zeros(3), "large": torch.zeros(1 << 21, dtype=torch.uint8)})
        self.td = like.memmap_like(self.path)

    def act(self):
        large = torch.full((1 << 21,), 7, dtype=torch.uint8)
        self.td.update_(TensorDict({"a": torch.full((3,), 7.0), "large": large}))

    def check(self):
        assert set(self.td["large"].unique().tolist()) <= {0, 7}
        self.act()
        assert (load_memmap(self.path)["large"] == 7).all() and self.td["a"].tolist() == [7] * 3
        self.fill()


class Append:
    """Rows that a writer appends and commits, which it opened before the exception or during it."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "rows"
        self.rows = 0
        MemmapDataset.create(self.path, self.row(0)).close()

    def row(self, number):
        return TensorDict({"a": torch.full((3,), number), "b": {"c": torch.tensor(number)}, "text": "one for all"})

    def act(self):
        with MemmapDataset.open(self.path, "r+") as dataset:
            dataset.append(self.row(self.rows))

    def check(self):
        dataset = MemmapDataset.open(self.path)
        assert len(dataset) in (self.rows, self.rows + 1)
        self.rows = len(dataset)
        for _ in range(2):
            assert dataset["a"][:, 0].tolist() == dataset["b", "c"].tolist() == list(range(len(dataset)))
            if len(dataset) == self.rows:
                self.act()
                dataset = MemmapDataset.open(self.path)
                assert len(dataset) == self.rows + 1
        self.rows += 1
        if self.rows > 30:
            with MemmapDataset.open(self.path, "r+") as writer:
                writer.resize(0)
            self.rows = 0
        assert not [name for name in os.listdir(self.path) if name not in ROWS], os.listdir(self.path)


ROWS = ["a.memmap", "b", "meta.json", "tensordict.manifest.json", "tensordict.lock", "text"]


class KeepAppending(Append):
    """The writer goes on after the exception."""

    def __init__(self, folder):
        super().__init__(folder)
        self.writer = MemmapDataset.open(self.path, "r+")

    def act(self):
        self.writer.append(self.row(self.rows))

    def check(self):
        found = len(MemmapDataset.open(self.path))
        assert found in (self.rows, self.rows + 1)
        if found == self.rows:
            if self.writer._check_writer().written_rows > self.rows:  # written and not committed
                self.writer.commit()
            else:
                self.act()
        self.rows += 1
        dataset = MemmapDataset.open(self.path)
        assert dataset["a"][:, 0].tolist() == dataset["b", "c"].tolist() == list(range(self.rows))
        if self.rows > 30:
            self.writer.resize(0)
            self.rows = 0


CASES = {
    "save of a tree": Save,
    "save of a new tree": lambda folder: Save(folder, fresh=True),
    "save of a tree, durable": lambda folder: Save(folder, durable=True, checksum=True),
    "save of a tree by a journal": lambda folder: Save(folder, foreign=True),
    "save of a tree in place": lambda folder: InPlace(folder, atomic=False),
    "memmap of a tree": Memmap,
    "save of a safetensors file": lambda folder: Save(folder, "saved.safetensors"),
    "save of a safetensors file, durable": lambda folder: Save(folder, "x.safetensors", durable=True, checksum=True),
    "save of shards": lambda folder: Save(folder, format="safetensors", shard_size=100),
    "save of an archive": lambda folder: Save(folder, "saved.tdz"),
    "save of a compressed archive": lambda folder: Save(folder, "saved.tdz", compression="deflate"),
    "save of a consolidated file": lambda folder: Consolidate(folder, "saved.bin", from_consolidated),
    "load of a tree": Load,
    "load of a safetensors file": lambda folder: Load(folder, "saved.safetensors"),
    "load of shards": lambda folder: Load(folder, format="safetensors", shard_size=100),
    "load of an archive": lambda folder: Load(folder, "saved.tdz"),
    "load of a consolidated file": lambda folder: LoadConsolidated(folder, "saved.bin", from_consolidated),
    "read of a whole save": lambda folder: Load(folder, load=lambda path: load_memmap(path, eager=True)),
    "entry added to a tree": AddEntry,
    "value set in a tree": SetValue,
    "update in place": Update,
    "append of a row": Append,
    "append of a row by a writer that goes on": KeepAppending,
}


def sweep(case, numbers, folder):
    """Interrupts a case at boundaries; returns the number of boundaries, and of those that were swept."""
    tracer, swept = Tracer(), 0
    # earlier cases may have left garbage with open files
    gc.enable()
    gc.collect()
    subject, others = case(folder), set(threading.enumerate())  # tests before this one may have left some
    before = None
    for _ in range(2):  # the first run imports modules and starts threads
        subject.act()
        subject.check()
        cleanup.wait()
        before = open_files()
    places = tracer.run(subject.act)
    subject.check()
    found = boundaries(places)
    for at in numbers(found):
        with lock_timeout(5), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            swept += tracer.run(subject.act, at)
            code, offset = places[at]
            try:
                settled(before, others)
                subject.check()
            except BaseException as error:
                where = next((i.positions for i in dis.get_instructions(code) if i.offset == offset), None)
                line = where.lineno if where is not None else 0
                error.add_note(f"interrupted at {at}: {code.co_filename}:{line} in {code.co_qualname}, offset {offset}")
                raise
        before = open_files()
    return len(places), len(found), swept


@pytest.mark.parametrize("name", CASES)
def test_an_exception_at_some_bytecodes_leaves_everything_usable(tmp_path, name):
    chance = random.Random(name)
    total, different, swept = sweep(CASES[name], lambda found: chance.sample(found, SAMPLES), tmp_path)
    assert total > 1000 and different > 300 and swept


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_an_exception_at_any_bytecode_leaves_everything_usable(tmp_path, name, record_property):
    total, different, swept = sweep(CASES[name], lambda found: found, tmp_path)
    record_property("boundaries", f"{name}: {different} of {total} boundaries swept, {swept} reached")
    print(f"{name}: {total} bytecodes, {different} boundaries, {swept} interrupted")
