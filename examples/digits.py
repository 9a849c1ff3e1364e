"""Handwritten digits, from images to a trained and checkpointed classifier, with every step on tensordicts.

The 1,797 digits that scikit-learn ships (8 x 8 pixels, 16 grey levels, ten classes; UCI "Optical Recognition of
Handwritten Digits") become a dataset on disk, are preprocessed by worker processes in place, train a classifier on
random batches read from disk, and the classifier is saved and loaded, whole and one layer alone. Run it with ``python
-m nox -s demo``, or directly where the packages and scikit-learn are installed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from sklearn.datasets import load_digits
from torch import nn

from tensordict_core import TensorDict
from tensordict_nn import TensorDictModule, TensorDictSequential


def write_dataset(folder: Path) -> TensorDict:
    """The digits as a dataset on disk: preallocated by ``memmap_like``, filled by indexed writes."""
    digits = load_digits()
    sample = TensorDict({"image": torch.zeros(8, 8, dtype=torch.float32), "label": torch.zeros((), dtype=torch.int64)})
    data = sample.expand(len(digits.target)).memmap_like(folder)
    for start in range(0, len(data), 256):
        rows = slice(start, start + 256)
        data[rows] = TensorDict(
            {
                "image": torch.from_numpy(digits.images[rows]).float(),
                "label": torch.from_numpy(digits.target[rows]),
            },
            batch_size=[len(digits.target[rows])],
        )
    return data


def preprocess(batch: TensorDict) -> None:
    """Grey levels from 0 to 16 become numbers from 0 to 1, written into the files by whichever worker has the batch."""
    batch.set_("image", batch["image"] / 16)


def make_classifier() -> TensorDictSequential:
    """A convolutional classifier that reads ``image`` and writes ``logits``."""
    features = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    return TensorDictSequential(
        TensorDictModule(features, in_keys=["image"], out_keys=["features"]),
        TensorDictModule(nn.Linear(32 * 4 * 4, 64), in_keys=["features"], out_keys=["hidden"]),
        TensorDictModule(nn.ReLU(), in_keys=["hidden"], out_keys=["hidden"]),
        TensorDictModule(nn.Linear(64, 10), in_keys=["hidden"], out_keys=["logits"]),
    )


def train(classifier: TensorDictSequential, data: TensorDict, rows: torch.Tensor, steps: int) -> None:
    """Adam on random batches, each read from disk by its row numbers."""
    loss_module = TensorDictModule(
        nn.CrossEntropyLoss(reduction="none"), in_keys=["logits", "label"], out_keys=["loss"]
    )
    optimizer = torch.optim.Adam(classifier.parameters(), lr=2e-3)
    for step in range(steps):
        batch = data[rows[torch.randint(len(rows), (128,))]]
        loss = loss_module(classifier(batch))["loss"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"  step {step:4d}  loss {loss.item():.3f}")


def predict(classifier: TensorDictSequential, batch: TensorDict) -> torch.Tensor:
    """The most probable class of each image."""
    with torch.no_grad():
        return classifier(batch.clone(False))["logits"].argmax(-1)


def show_tree(folder: Path) -> None:
    """The files of a folder and their sizes."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            print(f"  {path.relative_to(folder)!s:40} {path.stat().st_size:>10,} bytes")


def milliseconds(function: Callable[[Path], object], paths: list[Path]) -> float:
    """The median time of a call, each with a path of its own."""
    times = []
    for path in paths:
        start = time.perf_counter()
        function(path)
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)


def time_checkpoints(params: TensorDict, folder: Path, repeats: int = 7) -> None:
    """How long saving to a new place and loading takes, beside torch for the same parameters."""
    state = dict(params.flatten_keys(".").items())
    ways = {
        "a file a tensor": (params.save, TensorDict.load, ""),
        "one file": (params.save, TensorDict.load, ".safetensors"),
        "torch": (lambda path: torch.save(state, path), torch.load, ".pt"),
    }
    print(f"  {params.bytes():,} bytes of parameters, medians of {repeats}:")
    for name, (save, load, ending) in ways.items():
        paths = [folder / f"timed{i}{ending}" for i in range(repeats)]
        print(f"  {name:16} save {milliseconds(save, paths):6.2f} ms, load {milliseconds(load, paths):6.2f} ms")


def main(folder: Path, steps: int, workers: int) -> None:
    """The whole way."""
    torch.manual_seed(0)
    print("1. Writing the digits as a dataset on disk")
    data = write_dataset(folder / "digits")
    print(f"  {len(data):,} rows, {data.bytes():,} bytes, memory mapped: {data.is_memmap()}")

    print(f"2. Preprocessing in place, {workers} workers")
    data.map(preprocess, num_workers=workers, chunksize=128, pbar=True)
    assert float(data["image"].max()) == 1.0, "the workers wrote into the files that this process maps"

    print("3. Training on random batches read from disk")
    order = torch.randperm(len(data))
    training, held_out = order[: len(order) * 4 // 5], order[len(order) * 4 // 5 :]
    classifier = make_classifier()
    train(classifier, data, training, steps)
    test = data[held_out]
    predictions = predict(classifier, test)
    accuracy = float((predictions == test["label"]).float().mean())
    print(f"  accuracy on {len(held_out)} held-out digits: {accuracy:.3f}")
    assert accuracy > 0.95, f"the classifier learned too little: {accuracy:.3f}"

    print("4. Checkpointing the parameters")
    params = TensorDict.from_module(classifier)
    params.memmap(folder / "classifier")
    show_tree(folder / "classifier")

    fresh = make_classifier()
    TensorDict.load_memmap(folder / "classifier", mode="c").to_module(fresh)
    assert torch.equal(predict(fresh, test), predictions), "the loaded classifier predicts the same"
    print(f"  whole: {len(held_out)} predictions of a fresh classifier are equal")

    layer = make_classifier()
    for name in ("0", "1", "3"):
        part = TensorDict.load_memmap(folder / "classifier" / "module" / name, mode="c")
        part.to_module(layer.module[int(name)])
    assert torch.equal(predict(layer, test), predictions), "layers loaded one by one predict the same"
    other = make_classifier()
    TensorDict.load_memmap(folder / "classifier" / "module" / "1", mode="c").to_module(other.module[1])
    assert torch.equal(other.module[1].module.weight, classifier.module[1].module.weight)
    assert not torch.equal(other.module[3].module.weight, classifier.module[3].module.weight)
    print("  one layer alone: its weights are equal, the others untouched; layer by layer, all predictions are equal")

    print("5. Save and load times")
    time_checkpoints(params, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where files go; by default a temporary folder")
    parser.add_argument("--steps", type=int, default=400, help="training steps")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    options = parser.parse_args()
    if options.folder is not None:
        main(options.folder, options.steps, options.workers)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary), options.steps, options.workers)
