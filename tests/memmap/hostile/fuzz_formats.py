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
import copy
import faulthandler
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, UnbatchedTensor
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

NAMES = ["tree", "safetensors", "consolidated", "archive", "compressed", "oldest", "journal", "dataset", "shards"]


class Finding(Exception):
    """An input did what it must not do."""


# --- saves to mutate


def plain():
    return TensorDict(
        {
            "a": torch.arange(12, dtype=torch.int16).reshape(3, 4),
            "half": torch.ones(3, 2, dtype=torch.bfloat16),
            "z": torch.ones(3, dtype=torch.complex128),
            "empty": torch.zeros(3, 0),
            "flag": torch.tensor([True, False, True]),
            "b": {"c": torch.rand(3), "weird/key": torch.ones(3, 1), "deep": {"x": torch.zeros(3, 2)}},
        },
        [3],
        names=["time"],
    )


def valued():
    values = {"s": "text", "t": (1, b"x", {2: {3}}), "l": [1.5, None], "n": torch.float16, "i": NonTensorData(1 << 70)}
    array = TensorDict({"v": NonTensorData(torch.arange(4).numpy())})
    return TensorDict({"q": NonTensorStack("a", "b", "c"), "x": torch.ones(3), "v": values, "array": array}, [])


def ragged():
    rows = (TensorDict({"x": torch.rand(n), "s": f"row {n}"}) for n in (1, 2, 3))
    alike = (TensorDict({"x": torch.rand(2), "y": {"z": torch.ones(1)}}) for _ in range(3))
    return TensorDict({"l": LazyStackedTensorDict(*rows), "m": LazyStackedTensorDict(*alike), "a": torch.ones(3)}, [3])


def nested():
    jagged = torch.nested.nested_tensor([torch.rand(2, 2), torch.rand(1, 2), torch.rand(4, 2)], layout=torch.jagged)
    return TensorDict({"j": jagged, "a": torch.ones(3)}, [3])


def strided():
    return TensorDict({"n": torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(1, 3)]), "a": torch.ones(3)})


def unbatched():
    weight = torch.rand(4)
    return TensorDict({"u": UnbatchedTensor(torch.ones(5)), "w": weight, "tied": weight, "e.f": torch.ones(1)}, [])


CASES = {"plain": plain, "valued": valued, "ragged": ragged, "nested": nested, "strided": strided}


class Seed:
    """A save as its files, by relative path, and what it holds if it has checksums."""

    def __init__(self, files, value=None, sealed=False):
        self.files, self.value, self.sealed = files, value, sealed


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def make_seeds(folder):
    """The saves of each format, by its name."""
    torch.manual_seed(0)
    seeds = {name: [] for name in NAMES}
    for name, make in CASES.items():
        td = make()
        for sealed in (False, True):
            place = folder / f"{name}{sealed}"
            td.save(place, checksum=sealed)
            seeds["tree"].append(Seed(files_in(place), td, sealed))
            td.save(folder / "x.safetensors", checksum=sealed)
            seeds["safetensors"].append(Seed({"x": (folder / "x.safetensors").read_bytes()}, td, sealed))
        td.save(folder / "x.tdz")
        seeds["archive"].append(Seed({"x": (folder / "x.tdz").read_bytes()}, td))
        for method in ("deflate", "bzip2", "lzma"):
            td.save(folder / "x.tdz", compression=method)
            seeds["compressed"].append(Seed({"x": (folder / "x.tdz").read_bytes()}, td))
        if name != "strided":
            td.consolidate(folder / "c")
            seeds["consolidated"].append(Seed({"x": (folder / "c").read_bytes()}, td))
        td.save(folder / f"{name}shards", format="safetensors", shard_size=40)
        seeds["shards"].append(Seed(files_in(folder / f"{name}shards"), td))
    td = unbatched()
    td.save(folder / "x.safetensors")
    seeds["safetensors"].append(Seed({"x": (folder / "x.safetensors").read_bytes()}, td))
    seeds["oldest"].append(Seed(oldest(folder / "oldest")))
    seeds["journal"].append(Seed(journal(folder / "journal")))
    rows = TensorDict({"a": torch.arange(12).reshape(3, 4), "b": {"c": torch.rand(3)}}, [3])
    with MemmapDataset.create(folder / "rows", rows) as dataset:
        dataset.append(rows)
    seeds["dataset"].append(Seed(files_in(folder / "rows"), torch.cat([rows, rows])))
    return seeds


def oldest(folder):
    """A save in the layout of releases up to 0.2."""
    for place, size in (("", [3]), ("b", [3]), ("l", None), ("l/0", [3]), ("l/1", [3])):
        (folder / place).mkdir(parents=True)
        record = {"stack_dim": 0} if size is None else {"batch_size": torch.Size(size), "device": None}
        torch.save(record, folder / place / "meta.pt")
        if size is not None:
            about = {"shape": torch.Size([3, 2]), "dtype": torch.int32, "device": torch.device("cpu")}
            torch.save(about, folder / place / "a.meta.pt")
            (folder / place / "a.memmap").write_bytes(bytes(24))
    return files_in(folder)


def journal(folder):
    """A save that was interrupted while its journal was applied."""
    plain().save(folder / "save")
    stage = "save/.tensordict-0123456789abcdef"
    TensorDict({"a": torch.ones(5), "new": {"x": torch.ones(2)}}).save(folder / "next")
    os.rename(folder / "next", folder / stage)
    files = sorted(files_in(folder / stage))
    record = {"version": 1, "stage": stage.partition("/")[2], "files": files, "remove": ["half.memmap", "b/c.memmap"]}
    (folder / "save" / "tensordict.journal.json").write_text(json.dumps(record))
    return files_in(folder)


# --- mutations

NUMBERS = [-1, 0, 1, 2, 3, 7, 8, 64, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 64]
DTYPES = [
    name for name in map(str, vars(torch).values()) if re.fullmatch(r"torch\.[a-z]+[0-9][a-z0-9_]*|torch\.bool", name)
]
DTYPES = sorted({*DTYPES, "torch.quint8", "torch.qint32", "torch.quint4x2", "torch.float", "torch", "float32", ""})
CODES = ["BOOL", "U8", "I8", "I16", "F16", "BF16", "F32", "F64", "I64", "U64", "C64", "F8_E4M3", "F8_E8M0", "F4", "X"]
TEXTS = [
    "", ".", "..", "../outside", "../../outside/canary", "/etc/passwd", "a\0b", "\ud800", "a", "b", "shape", "x" * 300,
    "TensorDict", "NonTensorData", "NonTensorStack", "LazyStackedTensorDict", "other.pickle", "pickle.pkl", "time",
    "<class 'tensordict._td.TensorDict'>", "<class 'tensordict._lazy.LazyStackedTensorDict'>", "<class 'os.system'>",
    "<class 'tensordict.tensorclass.NonTensorData'>", "<class 'tensordict.tensorclass.NonTensorStack'>", "torch.jagged",
    "nested", "jagged", "strided", "%-0", "meta.json", "<NJT_VALUES>j", "<NJT_OFFSETS>j", "<NJT_LENGTHS>j", "0", "1",
]  # fmt: skip  # shorter than one a line
LARGE_ARRAY = {
    "$": "array",
    "npy": "k05VTVBZAQB2AHsnZGVzY3InOiAnPGY4JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDEwMDAwMDAwMDAwMCwpfQo=",
}
OBJECTS = [
    None, True, False, 1.5, float("nan"), [], {}, [[]], [0], [2, 3], [0, 1 << 40], [1 << 40, 0], [1 << 31, 1 << 31],
    {"td": {}}, {"tensor": "a"}, {"type": "TensorDict"}, {"non_tensor": [1]}, {"$": "tuple", "items": [[], {}]},
    {"dtype": "torch.int8", "shape": [2, 2], "is_nested": True}, {"$": "bytes", "base64": "!"},
    {"dtype": "torch.int8", "shape": [0, 1 << 40], "is_nested": True, "layout": "torch.jagged"}, {"$": "path"},
    {"$": "size", "items": ["a"]}, {"$": "enum", "class": "os:system", "value": 1}, LARGE_ARRAY,
    {"$": "dataclass", "class": "x", "fields": {}}, {"$": "dict", "items": [[[], 1]]},
]  # fmt: skip


def places(record):
    """The containers of a JSON document with their keys or indices."""
    found, waiting = [], [record]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], dict | list):
                waiting.append(one[key])
    return found


def random_value(old, chance):
    """Another value, most often of the kind of the earlier one."""
    roll = chance.random()
    if type(old) is int and roll < 0.8:
        return chance.choice(NUMBERS) if roll < 0.4 else old + chance.choice([-8, -1, 1, 2, 8, 64])
    if isinstance(old, str) and roll < 0.8:
        if old.startswith("torch."):
            return chance.choice(DTYPES)
        return chance.choice(CODES) if old in CODES else chance.choice(TEXTS)
    if isinstance(old, list) and roll < 0.6 and all(type(n) is int for n in old):
        return [chance.choice(NUMBERS) for _ in range(chance.randrange(4))] if roll < 0.4 else old[::-1]
    kind = chance.random()
    return copy.deepcopy(chance.choice(OBJECTS if kind < 0.5 else NUMBERS if kind < 0.8 else TEXTS))


def mutate_json(text, chance):
    """A JSON document that was changed in one place or a few; documents inside it are changed too."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return flip(text, chance)
    depth = 0
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        found = places(record) if isinstance(record, dict | list) else []
        if not found:
            break
        holder, key = chance.choice(found)
        old, how = holder[key], chance.random()
        if isinstance(old, str) and old[:1] in ("{", "[") and how < 0.9:
            holder[key] = mutate_json(old.encode("utf-8", "replace"), chance).decode("utf-8", "replace")
        elif how < 0.6:
            holder[key] = random_value(old, chance)
        elif how < 0.7 and isinstance(holder, dict):
            del holder[key]
        elif how < 0.8 and isinstance(holder, dict):
            holder[chance.choice([*TEXTS, *list(holder)])] = holder.pop(key)
        elif how < 0.9:
            other, place = chance.choice(found)
            if not isinstance(other[place], dict | list) and not isinstance(old, dict | list):  # no circles
                holder[key], other[place] = other[place], old
            else:
                holder[key] = json.loads(json.dumps(other[place]))
        elif how < 0.95 and isinstance(holder, list):
            holder.insert(key, random_value(old, chance))
        else:
            depth = chance.choice([50, 210, 1000, 20_000])
            holder[key] = "@DEEP@"
    new = json.dumps(record, separators=(",", ":")).encode()
    if depth:
        start, end = chance.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'{"td":{"batch_size":[],"keys":{"a":', b"}}}")])
        new = new.replace(b'"@DEEP@"', start * depth + b"1" + end * depth)
    return new


def flip(data, chance):
    """Bytes with a few changed, removed or added."""
    data, how = bytearray(data), chance.random()
    if how < 0.5:
        for _ in range(chance.choice([1, 1, 2, 8])):
            if data:
                data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    elif how < 0.7:
        del data[chance.randrange(len(data) + 1) :]
    elif how < 0.85:
        start = chance.randrange(len(data) + 1)
        del data[start : start + chance.choice([1, 2, 8, 100])]
    else:
        start = chance.randrange(len(data) + 1)
        data[start:start] = bytes(chance.choice([1, 8, 64])) if chance.random() < 0.5 else data[:64]
    return bytes(data)


def number_at(data, position, form, chance):
    """Bytes with another number at a position."""
    data = bytearray(data)
    with contextlib.suppress(struct.error):
        old = struct.unpack_from(form, data, position)[0]
        new = chance.choice([*NUMBERS, old - 1, old + 1, old + 8, old * 2])
        struct.pack_into(form, data, position, new % (1 << 8 * struct.calcsize(form)))
    return bytes(data)


def mutate_safetensors(data, chance):
    length = int.from_bytes(data[:8], "little")
    if chance.random() < 0.15:
        return flip(data, chance) if chance.random() < 0.5 else number_at(data, 0, "<Q", chance)
    header = mutate_json(data[8 : 8 + length].rstrip(), chance)
    if chance.random() < 0.9:
        header += b" " * (-(8 + len(header)) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def mutate_consolidated(data, chance):
    length = int.from_bytes(data[-8:], "little")
    if chance.random() < 0.15:
        return flip(data, chance) if chance.random() < 0.5 else number_at(data, len(data) - 8, "<Q", chance)
    body, text = data[: -8 - length], data[-8 - length : -8]
    start = body.find(b'{"tensordict_memmap":')
    roll = chance.random()
    if start >= 0 and roll < 0.4:
        body = body[:start] + mutate_json(body[start:].rstrip(), chance)
    elif roll < 0.5 and body:  # offsets and lengths of jagged tensors are among the bytes of the leaves
        body = number_at(body, chance.randrange(len(body)) // 8 * 8, "<Q", chance)
    else:
        text = mutate_json(text, chance)
    return body + text + len(text).to_bytes(8, "little")


def mutate_archive(data, chance):
    roll = chance.random()
    if roll < 0.1:
        return flip(data, chance)
    if roll < 0.5:  # a field of a record: local headers, the central directory, the end
        kinds = {b"PK\3\4": 30, b"PK\1\2": 46, b"PK\5\6": 22}
        spots = [(m.start(), kinds[m.group()]) for m in re.finditer(rb"PK(?:\x03\x04|\x01\x02|\x05\x06)", data)]
        for _ in range(chance.choice([1, 1, 2])):
            start, size = chance.choice(spots)
            data = number_at(data, start + chance.randrange(4, size - 1), chance.choice(["<H", "<I", "<B"]), chance)
        return data
    # the content of a member, in a valid archive
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(info, file.read(info)) for info in file.infolist()]
    target = chance.randrange(len(members))
    if chance.random() < 0.7:
        target = chance.choice([n for n, (info, _) in enumerate(members) if info.filename.endswith(".json")])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for number, (info, content) in enumerate(members):
            name, kind = info.filename, info.compress_type
            if number == target:
                if chance.random() < 0.1:
                    continue
                if chance.random() < 0.15:
                    name = chance.choice([text for text in TEXTS if text and "\0" not in text and text != "\ud800"])
                else:
                    content = mutate_json(content, chance) if name.endswith(".json") else flip(content, chance)
            kind = chance.choice([0, 8, 12, 14]) if chance.random() < 0.1 else kind
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                file.writestr(name, content, compress_type=kind)
    return out.getvalue()


def mutate_pt(data, chance):
    """A file of torch.save with another record, or other bytes."""
    if chance.random() < 0.4:
        return flip(data, chance)
    try:
        record = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # changed before
        return flip(data, chance)
    key = chance.choice([*record, "shape"])
    sizes = [torch.Size([chance.choice([0, 1, 2, 3, 1 << 31, 1 << 40, 1 << 62]) for _ in range(chance.randrange(4))])]
    dtypes = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    record[key] = chance.choice([None, -1, 0, 3, "a", [3], {}, *sizes * 4, *chance.sample(dtypes, 4)])
    if chance.random() < 0.2:
        record.pop(key)
    out = io.BytesIO()
    torch.save(record, out)
    return out.getvalue()


def mutate_files(files, chance):
    """A folder with one file changed, removed, copied or renamed."""
    files = dict(files)
    for _ in range(chance.choice([1, 1, 1, 2])):
        documents = [name for name in files if name.endswith(".json")]
        name = chance.choice(documents if documents and chance.random() < 0.7 else list(files))
        roll = chance.random()
        if roll < 0.06:
            del files[name]
        elif roll < 0.1:
            files[chance.choice(list(files))] = files[name]
        elif roll < 0.13:
            files[f"{name}.copy" if chance.random() < 0.5 else f"0/{name}"] = files.pop(name)
        elif name.endswith(".json"):
            files[name] = mutate_json(files[name], chance)
        elif name.endswith(".pt"):
            files[name] = mutate_pt(files[name], chance)
        elif name.endswith(".safetensors"):
            files[name] = mutate_safetensors(files[name], chance)
        elif name.endswith(".shape.memmap") and chance.random() < 0.8:
            files[name] = number_at(files[name], chance.randrange(len(files[name])) // 8 * 8, "<Q", chance)
        else:
            files[name] = flip(files[name], chance)
        if not files:
            break
    return files


MUTATORS = {
    "safetensors": mutate_safetensors,
    "consolidated": mutate_consolidated,
    "archive": mutate_archive,
    "compressed": mutate_archive,
}


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
        for number in range(numbers.start, numbers.stop, step):
            name = NAMES[number % len(NAMES)]
            report.write(f"{number}\n")
            report.flush()
            signal.alarm(SECONDS)
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
