"""The law of saving: what loads is what was saved, whatever its structure, and saving that again changes no byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict

DTYPES = [torch.bool, torch.int8, torch.int64, torch.bfloat16, torch.float32, torch.complex64, torch.float8_e5m2]

shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
plain_values = st.none() | st.integers() | st.text(st.characters(), max_size=5) | st.tuples(st.booleans()) | st.binary()


@st.composite
def leaves(draw, batch):
    shape = batch + draw(shapes)
    numbers = torch.arange(torch.Size(shape).numel() * 2).remainder(50)
    tensor = numbers[::2].reshape(shape) if draw(st.booleans()) else numbers[: numbers.numel() // 2].reshape(shape)
    tensor = tensor.to(draw(st.sampled_from(DTYPES)))
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if shape and draw(st.booleans()) else tensor


@st.composite
def tensordicts(draw, batch=None, depth=2):
    batch = draw(shapes) if batch is None else batch
    td = TensorDict({}, batch)
    for key in draw(st.lists(st.text(st.characters(), max_size=4), max_size=4, unique=True)):
        kind = draw(st.sampled_from(["leaf", "leaf", "value", "node", "lazy"] if depth else ["leaf", "value"]))
        if kind == "leaf":
            td._set(key, draw(leaves(batch)))
        elif kind == "value":
            td._set(key, NonTensorData(draw(plain_values), batch_size=batch))
        elif kind == "node":
            td._set(key, draw(tensordicts(batch=batch + draw(shapes)[:1], depth=depth - 1)))
        elif batch and batch[0]:
            rest = batch[1:]
            parts = [draw(tensordicts(batch=rest, depth=0)) for _ in range(batch[0])]
            td._set(key, LazyStackedTensorDict(*parts, stack_dim=0))
    return td


def bits(tensor):
    packed = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return packed.reshape(-1).view(torch.uint8).tolist() if packed.numel() else []


def same(a, b):
    """Whether two trees are alike in kind, metadata, keys, order and bits."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if type(a) is not type(b) or a.batch_size != b.batch_size:
        return False
    if isinstance(a, NonTensorData):
        return type(a.data) is type(b.data) and a.data == b.data
    if isinstance(a, LazyStackedTensorDict):
        return len(a.tensordicts) == len(b.tensordicts) and all(map(same, a.tensordicts, b.tensordicts))
    keys = list(a._keys())
    return keys == list(b._keys()) and all(same(a._get(key), b._get(key)) for key in keys)


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}


@given(tensordicts())
def test_loading_inverts_saving(td):
    with tempfile.TemporaryDirectory() as folder:
        twin = td.memmap(f"{folder}/x")
        loaded = TensorDict.load_memmap(f"{folder}/x")
        assert same(td, twin) and same(td, loaded)
        loaded.save(f"{folder}/y")
        assert files(f"{folder}/x") == files(f"{folder}/y")
        before = files(f"{folder}/x")
        loaded.memmap(f"{folder}/x")
        assert files(f"{folder}/x") == before


@given(tensordicts())
def test_shared_memory_holds_the_same(td):
    assert same(td, td.memmap())
