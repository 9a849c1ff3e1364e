"""Saves of every format that the fuzzer changes: small, and with each kind of entry."""

from __future__ import annotations

import json
import os

import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, UnbatchedTensor
from tensordict_memmap import MemmapDataset

NAMES = ["tree", "safetensors", "consolidated", "archive", "compressed", "oldest", "journal", "dataset", "shards"]


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
