"""Corruption: folders and files that were damaged, by chance or by someone who means harm, never do more than fail.

Each case copies a save, damages it in a random way and opens it with every loader, in a child: a crash, a hang, a file
that is opened outside of the folder, anything that is unpickled, a file that changes or an error of an unexpected kind
is a failure, and so is content that lies outside. What was saved with checksums is what is loaded, or an error.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import resource
import shutil
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path

import pytest
import torch

import tensordict_core
import tensordict_memmap
from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap import (
    from_consolidated,
    from_safetensors,
    load_memmap,
    load_memmap_,
    pack_memmap,
    save,
    unpack_memmap,
)
from tensordict_memmap.engine import syscalls as system

pytestmark = [
    pytest.mark.skipif(not system.POSIX, reason="children are forked and limited"),
    pytest.mark.filterwarnings("ignore"),  # what damage makes torch and the loaders warn of is not what is tested
]

CASES = [pytest.param(20, id="20 cases"), pytest.param(1000, id="1000 cases", marks=pytest.mark.long)]
BATCH = 50
"""How many cases a child goes through; one that dies says at which."""

SLOWEST = 60
"""Seconds after which a load counts as one that hangs; each takes milliseconds on a machine that is not busy."""

EXPECTED = (ValueError, KeyError, OSError)
"""What a load of damaged files may raise; crashes of Python code, like AttributeError, are not among them."""


class Unpickled:
    """A value without a JSON form: it is pickled, and must not come back."""

    def __reduce__(self):
        return (os.system, ("true",))


def content():
    tied = torch.arange(6).reshape(2, 3)
    return TensorDict(
        {
            "a": torch.arange(24, dtype=torch.float32).reshape(2, 12),
            "odd": torch.arange(2, dtype=torch.int8),
            "none": torch.zeros(2, 0),
            "tied": tied,
            "shape": torch.ones(2, dtype=torch.bfloat16),
            "in": {
                "c": tied,
                "weird/key": torch.rand(2, 3, dtype=torch.float64),
                "text": "text",
                "deep": {"d": tied + 1},
            },
            "values": NonTensorData({"x": (1, b"x", 2**70)}, batch_size=[2]),
            "stack": NonTensorStack("a", {"b": (1,)}),
            "lazy": LazyStackedTensorDict(*(TensorDict({"x": torch.ones(n)}) for n in (1, 3))),
            "jagged": torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(5, 3)], layout=torch.jagged),
        },
        [2],
        names=["time"],
    )


def pickled():
    return content().set("pickled", NonTensorData(Unpickled(), batch_size=[2]))


def save_oldest(td, folder):
    """A folder as releases up to 0.2 wrote it."""
    folder.mkdir()
    torch.save({"batch_size": td.batch_size, "device": torch.device("cpu")}, folder / "meta.pt")
    for key, value in td.items():
        if isinstance(value, torch.Tensor):
            (folder / f"{key}.memmap").write_bytes(value.contiguous().view(torch.uint8).numpy().tobytes())
            record = {"shape": value.shape, "device": torch.device("cpu"), "dtype": value.dtype}
            torch.save(record, folder / f"{key}.meta.pt")
        else:
            save_oldest(value, folder / key)


def oldest():
    return TensorDict(
        {"a": torch.rand(2, 3), "b": {"c": torch.arange(6).reshape(2, 3), "d": {"e": torch.ones(2)}}}, [2]
    )


FORMATS = {
    "tree": ("x", lambda path: save(content(), path)),
    "pickled tree": ("x", lambda path: save(pickled(), path)),
    "oldest tree": ("x", lambda path: save_oldest(oldest(), path)),
    "safetensors": ("x.safetensors", lambda path: save(content(), path)),
    "pickled safetensors": ("x.safetensors", lambda path: save(pickled(), path)),
    "shards": ("x", lambda path: save(content(), path, format="safetensors", shard_size=100)),
    "archive": ("x.tdz", lambda path: save(content(), path)),
    "compressed archive": ("x.tdz", lambda path: save(content(), path, compression="deflate")),
    "consolidated": ("x.bin", lambda path: content().exclude("stack").consolidate(path)),
}

# Saves whose content is what was saved, or an error, whatever happens to them.
SEALED = {
    "tree with checksums": ("x", lambda path: save(content(), path, checksum=True)),
    "safetensors with checksums": ("x.safetensors", lambda path: save(content(), path, checksum=True)),
    "shards with checksums": (
        "x",
        lambda path: save(content(), path, format="safetensors", shard_size=100, checksum=True),
    ),
    "archive with checksums": ("x.tdz", lambda path: save(content(), path, checksum=True)),
    "compressed archive with checksums": (
        "x.tdz",
        lambda path: save(content(), path, compression="deflate", checksum=True),
    ),
}


# --- how it is opened


def open_folder(path):
    yield lambda: load_memmap(path)
    yield lambda: load_memmap(path, mode="r")
    yield lambda: load_on_meta(path)
    yield lambda: load_memmap(path, subpath=("in", "c"))
    yield lambda: load_memmap(path, subpath="lazy")


def load_on_meta(path):
    try:
        return load_memmap(path, device="meta")
    except RuntimeError as error:  # damage may make a nested tensor of the kind that torch has no empty twin of
        if "torch.jagged only" not in str(error):
            raise
        raise ValueError from error


def open_tree(path):
    yield from open_folder(path)
    yield lambda: pack_memmap(path, path.parent.parent / "made" / "packed.tdz")
    if not (path / "in").is_symlink():  # a link that is asked for is followed
        yield lambda: load_memmap(path / "in")
        yield lambda: load_into(content()["in"], path / "in")


def load_into(td, path):
    try:
        return load_memmap_(td, path)
    except RuntimeError as error:  # what fits the files may not fit what they are loaded into
        raise ValueError from error


def open_archive(path):
    yield from open_folder(path)
    yield lambda: load_memmap(unpack_memmap(path, path.parent.parent / "made" / "unpacked"))


def open_packed(path):
    yield from open_folder(path)
    yield lambda: from_safetensors(path)


def open_consolidated(path):
    yield lambda: from_consolidated(path)


def open_verified(path):
    yield lambda: load_memmap(path, verify="full")
    yield lambda: load_memmap(path, verify="full", mode="r")
    yield lambda: load_memmap(path, verify="full", num_threads=1)


def loaders(name, path):
    if name in SEALED:
        return open_verified(path)
    if "tree" in name:
        return open_tree(path)
    if "archive" in name:
        return open_archive(path)
    return open_consolidated(path) if name == "consolidated" else open_packed(path)


def contents(loaded):
    """All bytes, keys and values of what was loaded; every page of a mapping is touched."""
    if isinstance(loaded, torch.Tensor):
        if loaded.is_meta:
            return
        if loaded.is_nested:
            for part in loaded.unbind():
                yield from contents(part)
        elif loaded.numel():
            yield loaded.contiguous().as_subclass(torch.Tensor).reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(loaded, NonTensorData | NonTensorStack):
        yield repr(loaded.tolist()).encode("utf-8", "replace")
    elif isinstance(loaded, LazyStackedTensorDict):
        for part in loaded.tensordicts:
            yield from contents(part)
    elif isinstance(loaded, tensordict_core.TensorDictBase):
        for key, value in loaded.items():
            yield key.encode("utf-8", "replace")
            yield from contents(value)


class Watch:
    """Sees, from inside a process, which files it opens and what it unpickles."""

    def __init__(self, allowed):
        own = [Path(module.__file__).parent for module in (tensordict_core, tensordict_memmap, torch)]
        roots = [
            *allowed,
            *own,
            sys.pycache_prefix or sys.prefix,
            sys.prefix,
            sys.base_prefix,
            *sysconfig.get_paths().values(),
            "/proc",
            "/dev",
            "/sys",
        ]
        self.roots = tuple(f"{os.path.abspath(root)}{os.sep}" for root in roots)
        self.seen = []
        self.weights_only = False
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            if os.path.basename(path) == path != "..":
                return  # a name in a folder that is open, as whoever removes folders uses them
            path = os.path.normpath(os.path.abspath(path))
            above = os.path.basename(path) == "tensordict.manifest.json"  # a save is told to those that it is a part of
            if not above and not f"{path}{os.sep}".startswith(self.roots):
                self.seen.append(f"opened {path}")
        elif event in ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.fork"):
            self.seen.append(f"{event} {arguments}")


def run_cases(name, sample, original, place, first, last, progress, outcomes, damaged, fingerprint, same):
    """Goes through some cases, and says of which loads did more than fail."""
    resource.setrlimit(resource.RLIMIT_AS, (used_memory() + (3 << 30),) * 2)
    watch = Watch([place])
    failures = []
    for case in range(first, last):
        progress[:8] = case.to_bytes(8, "little")
        outside, folder, made = place / "outside", place / "place", place / "made"
        for one in (outside, folder, made):
            shutil.rmtree(one, ignore_errors=True)
            one.mkdir(parents=True)
        path = folder / sample.name
        shutil.copytree(sample, path) if sample.is_dir() else shutil.copy(sample, path)
        damaged(path, outside, f"{name} {case}", anew=name not in SEALED)
        before = fingerprint(folder), fingerprint(outside)
        for number, attempt in enumerate(loaders(name, path)):
            faulthandler.dump_traceback_later(SLOWEST, exit=True, file=sys.__stderr__)
            failure = try_once(attempt, watch, outcomes, (case % BATCH, number), damaged.canary, original, same)
            if failure is not None:
                failures.append(f"case {case}, loader {number}: {failure}")
        faulthandler.cancel_dump_traceback_later()
        if (fingerprint(folder), fingerprint(outside)) != before:
            failures.append(f"case {case}: a load changed a file")
    assert not failures, "\n".join(failures[:10])


def try_once(attempt, watch, outcomes, where, canary, original, same):
    """What a load did that it must not do; None where it gave something or failed as it should."""
    watch.seen.clear()
    found = b""
    try:
        loaded = attempt()
        found = b"".join(contents(loaded))
        outcomes[where] = True
        if original is not None:
            same(original, loaded)
    except EXPECTED:
        outcomes[where] = False
    except BaseException as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:300]} ({at.filename}:{at.lineno})"
    if canary in found:
        return "it read a file outside"
    return ", ".join(watch.seen[:3]) or None


def used_memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE


class Outcomes:
    """Whether each loader opened something, by case, in memory that a child shares with its parent."""

    def __init__(self):
        self.memory = mmap.mmap(-1, BATCH * 16)

    def __setitem__(self, where, opened):
        self.memory[where[0] * 16 + where[1]] = 2 if opened else 1

    def counts(self):
        return self.memory[:].count(2), self.memory[:].count(1)


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("name", [*FORMATS, *SEALED])
def test_damaged_files_do_no_more_than_fail(tmp_path, fork, damaged, fingerprint, same, capfd, name, cases):
    file, store = {**FORMATS, **SEALED}[name]
    sample = tmp_path / "sample" / file
    sample.parent.mkdir()
    with warnings.catch_warnings(action="ignore"):
        store(sample)
    original = load_memmap(sample, verify="full") if name in SEALED else None
    opened = failed = 0
    for first in range(0, cases, BATCH):
        progress, outcomes = mmap.mmap(-1, 8), Outcomes()
        last = min(first + BATCH, cases)
        arguments = (name, sample, original, tmp_path / "x", first, last, progress, outcomes)
        status = fork(run_cases, *arguments, damaged, fingerprint, same).wait(SLOWEST * 10)
        case = int.from_bytes(progress[:8], "little")
        assert status == 0, f"case {case} of {name!r} ended with {status}: {capfd.readouterr().err[-3000:]}"
        one, other = outcomes.counts()
        opened, failed = opened + one, failed + other
    assert failed > cases // 2, "most damage is seen"
    assert opened > cases // 20 or "pickled" in name or name in SEALED, "what is not damaged opens"
