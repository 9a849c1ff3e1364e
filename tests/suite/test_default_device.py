"""Programs that set torch's default device: tensors of the library's own are where they have to be.

The default device of these tests is "meta", whose tensors hold no data: a helper made there gives an error or a wrong
result. On a GPU the default device is "cuda" in many programs, and the faults are the same.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensordict_memmap as memmap
from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict, UnbatchedTensor, lazy_stack


@pytest.fixture
def td():
    with torch.device("cpu"):
        return TensorDict(
            {
                "a": torch.arange(12.0).reshape(4, 3),
                "n": {"b": torch.arange(4), "empty": torch.zeros(4, 0)},
                "text": "same",
                "words": ["w", "x", "y", "z"],
            },
            batch_size=[4],
        )


def same(one, other):
    return bool((one == other).all()) and one.batch_size == other.batch_size


CALLS = {
    "list": lambda td: td[[0, 2]],
    "empty list": lambda td: td[[]],
    "range": lambda td: td[range(1, 3)],
    "array": lambda td: td[np.array([2, 0])],
    "mask of a list": lambda td: td[[True, False, True, False]],
    "view_at": lambda td: td.view_at([1, 2])[[1]].to_tensordict(),
    "stack of rows": lambda td: lazy_stack(list(td.unbind(0)))[[3, 1]].contiguous(),
    "write of an array": lambda td: td.select("a").clone().set_at_("a", np.ones(3, dtype=np.float32), 0),
    "write at a list": lambda td: td.select("a").clone().set_at_("a", 1.0, [0, 1]),
    "plus an array": lambda td: td.select("a") + np.ones(4, dtype=np.float32),
    "flip": lambda td: td.flip(0),
    "reshape": lambda td: td.reshape(2, 2),
    "transpose": lambda td: td.reshape(2, 2).transpose(0, 1).contiguous(),
    "repeat": lambda td: td.repeat(2),
    "repeat_interleave": lambda td: td.repeat_interleave(2, 0),
    "gather": lambda td: td.select("a").gather(0, torch.tensor([0, 1], device="cpu")),
    "split": lambda td: td.split([1, 3], 0)[1],
    "chunks of map": lambda td: td.select("a").map(lambda x: x + 1, chunksize=2, num_workers=1, mp_start_method="fork"),
    "copy": lambda td: td.clone(),
    "pack": lambda td: td.consolidate(),
    "shared": lambda td: td.clone().share_memory_(),
    "to_dict": lambda td: TensorDict.from_dict(td.to_dict(), batch_size=[4]),
    "structured array": lambda td: TensorDict.from_struct_array(td.select("a").to_struct_array()),
    "groups": lambda td: td.select("a", "n")[torch.tensor([0, 1], device="cpu")],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_give_the_same_as_without_a_default_device(td, name):
    expected = CALLS[name](td)
    with torch.device("meta"):
        result = CALLS[name](td)
    assert all(leaf.device.type == "cpu" for leaf in result.values(True, True) if isinstance(leaf, torch.Tensor))
    assert same(result, expected)


@pytest.mark.parametrize("name", ["folder", "x.safetensors", "x.zip", "x.bin"])
@pytest.mark.parametrize("options", [{}, {"checksum": True}], ids=str)
def test_saves_and_loads(td, tmp_path, name, options):
    if name == "x.bin" and options:
        pytest.skip("a consolidated file has no checksums")
    with torch.device("meta"):
        td.consolidate(tmp_path / name) if name == "x.bin" else td.save(tmp_path / name, **options)
        loaded = memmap.load_memmap(tmp_path / name)
        eager = memmap.load_memmap(tmp_path / name, eager=True)
        rows = memmap.load_memmap(tmp_path / name, rows=[3, 0], keys=["a", "words"])
    assert same(loaded, td) and same(eager, td)
    assert rows["a"].tolist() == td["a"][[3, 0]].tolist() and rows["words"] == ["z", "w"]


def test_lazy_stacks_on_disk(td, tmp_path):
    with torch.device("meta"):
        other = td.clone()
        other["own"] = td["a"]
        LazyStackedTensorDict(td, other).memmap(tmp_path / "x")
        loaded = memmap.load_memmap(tmp_path / "x")
    assert isinstance(loaded, LazyStackedTensorDict) and same(loaded[1], other)


def test_mapped_tensors(td, tmp_path):
    with torch.device("meta"):
        mapped = td.memmap(tmp_path / "x")
        mapped["a"][[0, 1]] = td["a"][[1, 0]]
        made = mapped.unlock_().make_memmap("new", torch.Size([4, 2]), dtype=torch.int64)
        made.fill_(3)
        full = memmap.MemoryMappedTensor.full((2,), 7.0, filename=tmp_path / "full.memmap")
    assert memmap.load_memmap(tmp_path / "x")["new"].unique().item() == 3
    assert mapped["a"][0].tolist() == [3.0, 4.0, 5.0] and full.tolist() == [7.0, 7.0]


def test_datasets(td, tmp_path):
    with torch.device("meta"):
        td = td.exclude("words")
        data = memmap.MemmapDataset.create(tmp_path / "d", td[0])
        data.extend(td)
        data.append(td[1])
        batch = data[[4, 0, 2]]
        everything = data[:]
    assert batch["a"].tolist() == td["a"][[1, 0, 2]].tolist()
    assert len(everything) == 5


def test_a_background_checkpoint(tmp_path):
    model = torch.nn.Linear(2, 3, device="cpu")
    with torch.device("meta"):
        memmap.save_checkpoint(tmp_path / "c", model=model, return_early=True).result()
        found = memmap.load_memmap(tmp_path / "c")["model", "weight"]
    assert torch.equal(found, model.weight)


def test_values_and_unbatched_tensors(td):
    with torch.device("meta"):
        stacked = torch.stack([td, td])
        text = stacked.get("words").tolist()
        equal = NonTensorData("a", batch_size=[2], device="cpu") == NonTensorData("a", batch_size=[2], device="cpu")
        whole = UnbatchedTensor(td["a"]) + 1
    assert text == [["w", "x", "y", "z"]] * 2 and equal.tolist() == [True, True]
    assert torch.equal(torch.as_tensor(whole), td["a"] + 1)
