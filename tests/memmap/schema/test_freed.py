"""Tensors without memory: wrappers and freed storages are refused by key, and nothing is left behind."""

from __future__ import annotations

import os

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, memmap, save


class Wrapper(torch.Tensor):
    """A tensor that wraps another one, as ``DTensor`` does."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args, kwargs=None):
        raise NotImplementedError(function)


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def shortened():
    tensor = torch.ones(1000)[500:]
    tensor.untyped_storage().resize_(400)
    return tensor


TENSORS = {
    "small": lambda: freed(torch.ones(1000)),
    "large": lambda: freed(torch.ones(1 << 21)),
    "strided": lambda: freed(torch.ones(1000, 20).T),
    "converted": lambda: freed(torch.ones(1000, dtype=torch.complex64).conj()),
    "a parameter": lambda: torch.nn.Parameter(freed(torch.ones(1000))),
    "shortened": shortened,
}
SAVES = {
    "tree": lambda td, path: save(td, path / "x"),
    "safetensors": lambda td, path: save(td, path / "x.safetensors"),
    "archive": lambda td, path: save(td, path / "x.tdz"),
    "compressed": lambda td, path: save(td, path / "x.tdz", compression="deflate"),
    "consolidated": lambda td, path: td.consolidate(path / "x.bin"),
    "in memory": lambda td, path: td.consolidate(),
    "shared memory": lambda td, path: memmap(td),
}


@pytest.mark.parametrize("kind", SAVES)
@pytest.mark.parametrize("tensor", TENSORS)
def test_a_freed_tensor_is_refused_by_its_key(tmp_path, kind, tensor):
    if tensor == "shortened" and kind in ("safetensors", "consolidated"):
        pytest.skip("small contiguous tensors are written by address, and no library shortens a storage in use")
    td = TensorDict({"a": torch.zeros(3), "x": {"bad": TENSORS[tensor]()}})
    with pytest.raises(ValueError, match=r"the memory of \('x', 'bad'\) was freed"):
        SAVES[kind](td, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", SAVES)
def test_a_tensor_that_wraps_others_is_refused_by_its_key(tmp_path, kind):
    td = TensorDict({"a": torch.zeros(3), "x": {"bad": Wrapper(torch.ones(1000))}})
    with pytest.raises(TypeError, match=r"\('x', 'bad'\) is a Wrapper, which wraps other tensors"):
        SAVES[kind](td, tmp_path)
    assert os.listdir(tmp_path) == []


def test_freed_rows_are_refused_and_committed_rows_stay(tmp_path):
    row = TensorDict({"bad": torch.ones(1000)})
    with MemmapDataset.create(tmp_path / "x", row) as dataset:
        dataset.append(row)
        with pytest.raises(ValueError, match="the memory of 'bad' was freed"):
            dataset.append(TensorDict({"bad": freed(torch.ones(1000))}))
        dataset.append(row)
    assert MemmapDataset.open(tmp_path / "x")["bad"].sum() == 2000
