"""Conversion: every format to every other keeps everything, in bounded memory, all or nothing."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from tensordict_core import NonTensorData, TensorDict
from tensordict_memmap import compare, convert, load_memmap
from tensordict_memmap.loading.detect import format_of

NAMES = {"tree": "x", "safetensors": "x.safetensors", "archive": "x.tdz", "consolidated": "x.bin"}


def content():
    return TensorDict(
        {
            "a": torch.arange(12.0).view(4, 3),
            "b": {"c": torch.arange(4, dtype=torch.uint8), "half": torch.ones(4, dtype=torch.bfloat16)},
            "lazy": TensorDict.lazy_stack([TensorDict({"i": torch.full((n,), n)}) for n in range(1, 5)]),
            "value": ("text", 3),
        },
        [4],
        names=["time"],
    )


@pytest.mark.parametrize(("source", "target"), list(itertools.product(NAMES, NAMES)))
def test_every_format_converts_to_every_other(tmp_path, same, source, target):
    first, second = tmp_path / NAMES[source], tmp_path / f"new-{NAMES[target]}"
    if source == "consolidated":
        content().consolidate(first)
    else:
        content().save(first)
    convert(first, second, target, durable=True)
    assert format_of(second) == target
    assert not compare(first, second, values=True)
    if target != "consolidated":  # which keeps values apart from tensors, so their order is lost
        same(load_memmap(second), load_memmap(first))


def test_the_suffix_chooses_the_format(tmp_path):
    content().save(tmp_path / "x")
    for name, kind in (("y.safetensors", "safetensors"), ("y.tdz", "archive"), ("y", "tree")):
        convert(tmp_path / "x", tmp_path / name)
        assert format_of(tmp_path / name) == kind
    with pytest.raises(ValueError, match="formats"):
        convert(tmp_path / "x", tmp_path / "z", "zip")
    with pytest.raises(ValueError, match="consolidated"):
        convert(tmp_path / "x", tmp_path / "z", "consolidated", compression="deflate")


def test_compressed_archives_and_shards_convert(tmp_path):
    content().save(tmp_path / "x")
    convert(tmp_path / "x", tmp_path / "x.tdz", compression="lzma")
    convert(tmp_path / "x.tdz", tmp_path / "shards", "safetensors", shard_size=20)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    convert(tmp_path / "shards", tmp_path / "back")
    assert not compare(tmp_path / "x", tmp_path / "back", values=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "shards", "x", "x.tdz"]


def test_tied_weights_stay_tied(tmp_path):
    weight = torch.ones(3)
    TensorDict({"a": weight, "b": weight}).save(tmp_path / "x")
    convert(tmp_path / "x", tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "y")
    td = load_memmap(tmp_path / "y")
    assert td["a"] is td["b"]


def test_a_failed_conversion_keeps_the_earlier_target(tmp_path):
    TensorDict({"a": torch.ones(2)}).save(tmp_path / "target")
    content().save(tmp_path / "x")
    (tmp_path / "x" / "a.memmap").write_bytes(b"short")
    with pytest.raises(ValueError, match="'a'"):
        convert(tmp_path / "x", tmp_path / "target")
    assert load_memmap(tmp_path / "target")["a"].tolist() == [1, 1]


def test_pickled_values_convert_only_with_allow_pickle(tmp_path):
    with pytest.warns(UserWarning, match="pickled"):
        TensorDict({"odd": NonTensorData({1: complex})}).save(tmp_path / "x")
    with pytest.raises(ValueError, match="odd"):
        convert(tmp_path / "x", tmp_path / "y.safetensors")
    with pytest.warns(UserWarning, match="pickled"):
        convert(tmp_path / "x", tmp_path / "y.safetensors", allow_pickle=True)
    assert load_memmap(tmp_path / "y.safetensors", allow_pickle=True)["odd"] == {1: complex}


SCRIPT = """
import sys, threading
import torch
from tensordict_core import TensorDict
from tensordict_memmap import convert

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

TensorDict({"warm": torch.ones(1 << 22)}).save("warm")
for number, (source, target, kind) in enumerate(zip(*[iter(sys.argv[1:])] * 3)):
    convert("warm", f"warm-{number}", kind)
    peak, done = [0], threading.Event()
    def watch():
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous())
    before = anonymous()
    watcher = threading.Thread(target=watch)
    watcher.start()
    convert(source, target, kind)
    done.set()
    watcher.join()
    print(source, target, peak[0] - before)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is told apart as Linux does")
def test_memory_stays_under_64_mib_for_512_mib(tmp_path):
    td = TensorDict({"large": torch.ones(1 << 26), "rest": {str(n): torch.ones(1 << 20) for n in range(64)}})
    td.save(tmp_path / "x")
    del td
    order = ["tree", "safetensors", "archive", "consolidated", "safetensors", "tree"]
    paths = ["x", "1.safetensors", "2.tdz", "3.bin", "4.safetensors", "5"]
    steps = [word for n in range(1, len(order)) for word in (paths[n - 1], paths[n], order[n])]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *steps], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peaks = {line.split()[1]: int(line.split()[2]) for line in done.stdout.splitlines()}
    assert len(peaks) == 5 and max(peaks.values()) < 64 << 20, peaks
    assert not compare(tmp_path / "x", tmp_path / "5", values=True)
