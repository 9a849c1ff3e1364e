"""Structure-aware fuzzing of every file format: mutated saves either load, or raise one of the documented errors.

Each input is a save with changes at the level of its structure (fields of JSON documents, shapes, dtypes, offsets,
lengths, zip records, file names) or of its bytes. Worker processes load it with a limit of time and of memory. These
are findings: a crash, a hang, an allocation beyond the limit, any other type of error, a file outside of the save that
changed, and values that pass a full verification but differ from those saved. An input is determined by its format and
its number:

    python fuzz_formats.py --inputs 100000 --workers 2      # numbers 0 to 99,999, over all formats in turn
    python fuzz_formats.py --only archive:1234               # one input again, with its traceback
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import torch
from mutations import MUTATORS, mutate_files
from seeds import NAMES, files_in, make_seeds

from tensordict_core.base.errors import IndexCountError
from tensordict_memmap import MemmapDataset, from_safetensors, load_memmap, unpack_memmap
from tensordict_memmap.schema.dtypes import as_bytes
from tensordict_memmap.schema.node import leaves
from tensordict_memmap.schema.plan import plan

EXPECTED = (ValueError, OSError, KeyError)
"""What a load may raise, by its documentation."""

SECONDS = 20
"""The time that one input may take; nearly all take a few milliseconds."""

MEMORY = 512 << 20
"""The address space that one input may take beside that of the process; no file has more than 100 kB."""

BATCH = 5000
"""The inputs that a worker process opens before another takes its place."""


class Finding(Exception):
    """An input did what it must not do."""


# --- one input


def read(td):
    """Reads every byte of a loaded tensordict, and prints it."""
    found = [leaf for leaf in leaves(plan(td)) if leaf.source is not None]
    if all(leaf.layout != "nested" for leaf in found):  # torch does not print their shapes
        repr(td)
    for leaf in found:
        parts = leaf.source.unbind() if leaf.layout != "strided" else [getattr(leaf.source, "tensor", leaf.source)]
        for part in parts[:100]:
            as_bytes(part.as_subclass(torch.Tensor)).clone()
    if td.batch_size and td.batch_size[0]:
        td[0]


def check_equal(td, expected):
    """Compares values that were verified with those that were saved."""
    found, wanted = list(leaves(plan(td))), list(leaves(plan(expected)))
    if [leaf.key for leaf in found] != [leaf.key for leaf in wanted]:
        raise Finding("other keys than those that were saved, and verified")
    for one, two in zip(found, wanted, strict=True):
        a, b = ([x.source.values() if x.layout == "jagged" else x.source] for x in (one, two))
        for x, y in zip(a, b, strict=True):
            x, y = ((t.unbind() if t.is_nested else [t]) for t in (x, y))
            if len(x) != len(y) or not all(p.shape == q.shape and torch.equal(p, q) for p, q in zip(x, y, strict=True)):
                raise Finding(f"other values of {one.key} than those that were saved, and verified")


def load(name, place, seed, chance):
    """Opens an input in one of the ways that its format can be opened."""
    path = place if len(seed.files) > 1 else place / "x"
    roll = chance.random()
    if name == "dataset" and roll < 0.5:
        mode = chance.choice(["r", "r+"])
        with MemmapDataset.open(path, mode) as dataset:
            if roll < 0.25 and mode != "r":
                dataset.append(dataset[:1].contiguous())
            with contextlib.suppress(IndexCountError):  # a save without rows
                read(dataset[:])
        return
    if name == "journal":
        path = place / "save"
    if name in ("archive", "compressed") and roll < 0.15:
        unpack_memmap(path, place / "unpacked")
        path = place / "unpacked"
    if name == "safetensors" and roll < 0.3:
        read(from_safetensors(path))
        return
    options = {"verify": chance.choice(["size", "size", "none", "full"])}
    if chance.random() < 0.15:
        options["keys"] = chance.choice(["a", "**", "b.**", ["l", "m.x"]])
    if chance.random() < 0.1:
        options["subpath"] = chance.choice(["a", "b", "l/1", "v"])
    if chance.random() < 0.1 and name not in ("compressed",):
        options["mode"] = chance.choice(["r", "r+", "c"])
    if chance.random() < 0.05:
        options["device"] = "meta"
    try:
        loaded = load_memmap(path, **options)
    except RuntimeError as error:
        if "device" in options and "on the meta device torch has" in str(error):  # documented
            return
        if options.get("mode") == "r+" and "is compressed in" in str(error):  # so is this
            return
        raise
    if "device" in options:
        return
    if isinstance(loaded, torch.Tensor):
        loaded.unbind() if loaded.is_nested else as_bytes(loaded.as_subclass(torch.Tensor)).clone()
    else:
        read(loaded)
        if options == {"verify": "full"} and seed.sealed and seed.value is not None:
            check_equal(loaded, seed.value)


class Fuzzer:
    """Makes and opens inputs in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.place = folder / "input"
        self.canary = folder / "outside"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.seeds = make_seeds(folder / "seeds")
        self.canary.mkdir()
        (self.canary / "canary").write_bytes(b"canary")

    def input(self, name, number):
        """The files of an input, the save that it was made of, and the source of chance for its load."""
        chance = random.Random(f"{name}:{number}")
        seed = chance.choice(self.seeds[name])
        mutate = MUTATORS.get(name)
        if mutate is None:
            return mutate_files(seed.files, chance), seed, chance
        ((path, data),) = seed.files.items()
        for _ in range(chance.choice([1, 1, 1, 1, 2])):
            with contextlib.suppress(Exception):  # the second change may find nothing that it can read
                data = mutate(data, chance)
        return {path: data}, seed, chance

    def run(self, name, number):
        """Opens one input.

        Returns:
            The name of the error that it raises, or "loads".
        """
        files, seed, chance = self.input(name, number)
        shutil.rmtree(self.place, ignore_errors=True)
        for path, data in files.items():
            target = self.place / path
            with contextlib.suppress(OSError, ValueError):  # one name is that of a file and of a folder
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        try:
            load(name, self.place, seed, chance)
            return "loads"
        except EXPECTED as error:
            return type(error).__name__
        finally:
            if files_in(self.canary) != {"canary": b"canary"}:
                raise Finding("a file outside of the save changed")


# --- processes


def limit_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def work(numbers, step, report):
    """Opens inputs one after the other; reports each finding and the counts as lines of JSON."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    def give_up(*_):
        raise Finding(f"takes longer than {SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    counts = Counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        fuzzer = Fuzzer(Path(folder))
        fuzzer.run("tree", 0)
        limit_memory()
        armed = 0.0
        for number in range(numbers.start, numbers.stop, step):
            name = NAMES[number % len(NAMES)]
            report.write(f"{number}\n")
            report.flush()
            signal.alarm(SECONDS)
            if time.monotonic() - armed > 1:  # each time, a thread ends and another begins
                armed = time.monotonic()
                faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
            try:
                counts[name, fuzzer.run(name, number)] += 1
            except Exception as error:
                text = "".join(traceback.format_exception(error)[-8:])
                report.write(
                    json.dumps({"input": f"{name}:{number}", "error": repr(error)[:300], "trace": text}) + "\n"
                )
                counts[name, "finding"] += 1
            finally:
                signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
    report.write(json.dumps({"counts": [[*key, n] for key, n in counts.items()]}) + "\n")


def follow(first, inputs, step):
    """Runs workers over every ``step``-th input from ``first`` on until all are done; one that dies is replaced."""
    counts, findings, crashed, start = Counter(), [], None, first
    while start < inputs:
        command = [sys.executable, __file__, "--work", f"{start}:{min(inputs, start + BATCH * step)}:{step}"]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            done = False
            for line in process.stdout:
                if line[:1] != "{":
                    crashed = int(line)
                    continue
                record = json.loads(line)
                if "counts" in record:
                    done = True
                    counts.update({(name, kind): n for name, kind, n in record["counts"]})
                else:
                    findings.append(record)
                    print(json.dumps(record), flush=True)
            process.wait()
            errors.seek(0)
            trace = errors.read().decode(errors="replace")[-3000:]
        if done:
            start += BATCH * step
            print(f"inputs of worker {first}: {sum(counts.values())}, findings: {len(findings)}", flush=True)
        elif crashed is None:
            raise SystemExit(f"no worker starts: {trace}")
        else:
            number = crashed
            name = f"{NAMES[number % len(NAMES)]}:{number}"
            findings.append({"input": name, "error": f"ended with {process.returncode}", "trace": trace})
            print(json.dumps(findings[-1]), flush=True)
            counts[NAMES[number % len(NAMES)], "lost before a crash"] += (number - start) // step + 1
            start, crashed = number + step, None
    return counts, findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", help="FORMAT:NUMBER")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    faulthandler.enable()
    if options.work:
        start, stop, step = map(int, options.work.split(":"))
        work(range(start, stop), step, sys.stdout)
        return 0
    if options.only:
        name, _, number = options.only.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            fuzzer = Fuzzer(Path(folder))
            files, *_ = fuzzer.input(name, int(number))
            for path, data in files.items():
                print(path, len(data), data[:2000])
            limit_memory()
            print(fuzzer.run(name, int(number)))
        return 0
    begun = time.monotonic()
    if options.workers == 1:
        results = [follow(options.first, options.first + options.inputs, 1)]
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(options.workers) as pool:
            ends = options.first + options.inputs
            firsts = range(options.first, options.first + options.workers)
            results = list(pool.map(lambda first: follow(first, ends, options.workers), firsts))
    counts, findings = Counter(), []
    for one, found in results:
        counts += one
        findings += found
    for name in NAMES:
        kinds = {kind: n for (of, kind), n in sorted(counts.items()) if of == name}
        print(f"{name}: {sum(kinds.values())} inputs, {kinds}")
    print(f"{sum(counts.values())} inputs, {len(findings)} findings, {time.monotonic() - begun:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
