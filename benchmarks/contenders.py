"""Contenders: what a tracked benchmark is, how it is timed, and how names of old commits are found.

A benchmark is a class with a method for each contender: ``by_ours``, ``by_torch``, ``by_safetensors``,
``by_reference``. The method prepares the tensors and returns the call that is timed.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import shutil
import tempfile
import timeit
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

from benchmarks.workloads import Tree

CONTENDERS = ("ours", "torch", "safetensors", "reference")
Run = Callable[[], Any]


class NotThereError(NotImplementedError):
    """A package or a name that the measured commit lacks; asv skips what raises a `NotImplementedError`."""


def found(*places: str) -> Any:
    """Returns the first of several names that exists, each ``module`` or ``module:name``.

    A module of ours counts only if it is of the measured commit: ``BENCHMARK_SOURCES`` is the folder of its sources.
    """
    for place in places:
        name, _, attribute = place.partition(":")
        try:
            module = importlib.import_module(name)
            value = getattr(module, attribute) if attribute else module
        except (ImportError, AttributeError):
            continue
        sources = os.environ.get("BENCHMARK_SOURCES", "")
        if name.startswith("tensordict_") and not (module.__file__ or "").startswith(sources):
            continue
        return value
    raise NotThereError(f"the measured commit has none of {', '.join(places)}")


def core() -> ModuleType:
    module: ModuleType = found("tensordict_core")
    return module


def memmap(name: str) -> Any:
    core()
    return found(f"tensordict_memmap:{name}")


def reference() -> ModuleType:
    """The reference, which has the import name of the suite."""
    module: ModuleType = found("tensordict")
    if module.TensorDict.__module__.startswith("tensordict_core"):
        raise NotThereError("`tensordict` is the suite of this repository here, not the reference")
    return module


def settle() -> None:
    """Waits for files that are removed in the background."""
    try:
        wait = found("tensordict_memmap.storage.cleanup:wait", "tensordict_memmap.removal:wait")
    except NotThereError:
        return
    wait()


def scratch() -> Path:
    """Makes a folder in memory where the system has one: what else the disk does is no part of a measurement."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="tracked-", dir=memory if os.access(memory, os.W_OK) else None))


class Tracked(ABC):
    """A benchmark of the dashboard.

    Attributes:
        pretty_name: The title on the dashboard.
        about: What is measured, in a line.
        limits: Contenders that do less, and are no rivals to be faster than.
        less: What they do less, in two words.
        note: What a reader of the ratios must know about the contenders, in a sentence or two.
        rounds_here: How many samples of each contender `measure` takes.
    """

    pretty_name: ClassVar[str]
    about: ClassVar[str]
    limits: ClassVar[tuple[str, ...]] = ()
    less: ClassVar[str] = "no tensordict"
    note: ClassVar[str] = ""
    params: ClassVar[tuple[tuple[str, ...], ...]] = ()
    param_names: ClassVar[tuple[str, ...]] = ("contender",)
    version: ClassVar[str] = "1"  # results stay comparable as long as this does not change
    timeout: ClassVar[float] = 120
    rounds_here: ClassVar[int] = 15
    number: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.params = (tuple(name for name in CONTENDERS if hasattr(cls, f"by_{name}")),)

    @abstractmethod
    def by_ours(self) -> Run:
        """Prepares the work and returns the call that is timed; other contenders are methods like this one."""

    def setup(self, contender: str) -> None:
        if not hasattr(self, "run"):
            torch.manual_seed(0)
            self.run: Run = getattr(self, f"by_{contender}")()

    def teardown(self, contender: str) -> None:  # noqa: B027  # most benchmarks leave nothing
        """Removes what a sample has left."""

    def time_run(self, contender: str) -> None:
        self.run()


class OnDisk(Tracked):
    """A save or an open of a new path for each sample, in memory where the system has a folder there."""

    number = 1
    rounds = 1
    repeat = 7
    warmup_time = 0
    rounds_here = 6
    ending = ".safetensors"

    @abstractmethod
    def tree(self) -> Tree:
        """The saved tensors."""

    def setup(self, contender: str) -> None:
        if not hasattr(self, "run"):
            self.folder = scratch()
            self.count = 0
            super().setup(contender)
        self.count += 1
        ending = {"torch": ".pt", "safetensors": ".safetensors"}.get(contender, self.ending)
        self.path = self.folder / f"{contender}{self.count}{ending}"
        self.before()

    def before(self) -> None:
        """Prepares a sample."""

    def teardown(self, contender: str) -> None:
        settle()
        if self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)

    def __del__(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


def measure(cls: type[Tracked], seconds: float = 0.003) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Times the contenders of a benchmark in turn, in random order within a round.

    Args:
        cls: The benchmark.
        seconds: How long a sample takes at least; calls that are shorter are repeated.

    Returns:
        The seconds of a call by contender, and for contenders that cannot run, why.
    """
    runs: dict[str, tuple[Tracked, int]] = {}
    failed: dict[str, str] = {}
    for contender in cls.params[0]:
        try:
            benchmark, number = cls(), 1
            for _ in range(2):  # imports and compilation are no part of a sample
                benchmark.setup(contender)
                benchmark.time_run(contender)
                benchmark.teardown(contender)
            if not cls.number:
                timer = timeit.Timer(partial(benchmark.time_run, contender))
                number = max(1, int(seconds / min(timer.repeat(3, 3)) * 3))
            runs[contender] = benchmark, number
        except Exception as error:
            failed[contender] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    samples: dict[str, list[float]] = {contender: [] for contender in runs}
    gc.collect()
    for _ in range(cls.rounds_here if runs else 0):
        for contender, (benchmark, number) in random.sample(list(runs.items()), len(runs)):
            benchmark.setup(contender)
            timer = timeit.Timer(partial(benchmark.time_run, contender))
            samples[contender].append(timer.timeit(number) / number)
            benchmark.teardown(contender)
    return samples, failed
