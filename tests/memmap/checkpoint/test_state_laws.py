"""The law of states: what a checkpoint gives back is what it was given, with all types; damaged files are errors."""

from __future__ import annotations

import random
import tempfile
from collections import Counter, OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import TensorDict
from tensordict_memmap import load_checkpoint, load_memmap, save_checkpoint, save_delta
from tensordict_memmap.checkpoint.state import pack, unpack

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64]
keys = (
    st.text(max_size=3) | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False) | st.binary(max_size=2)
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=3)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    made = torch.arange(torch.Size(shape).numel()).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    return made.permute(draw(st.permutations(range(len(shape)))))


arrays = st.sampled_from(["?", "u1", "<i4", "<f2", "<c16", ">f4", "<U2"]).map(
    lambda code: np.array([[1, 0], [0, 1]], code)
)

values = st.recursive(
    plain | tensors() | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda one: deque(one, maxlen=3))
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(OrderedDict)
        | st.dictionaries(keys, st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=8,
)


def alike(a, b):
    if isinstance(a, torch.Tensor):
        return (
            type(b) is torch.Tensor
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and torch.equal(a, b)
            and (a.is_contiguous() == b.is_contiguous())
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(alike(x, y) and alike(a[x], b[y]) for x, y in zip(a, b, strict=True))
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


@given(values)
def test_a_state_is_restored_from_its_record_and_its_tensors(state):
    record, found = pack(state, "state")
    assert alike(unpack(record, TensorDict(found), "state"), state)


@given(values, st.sampled_from(["run", "run.safetensors"]))
def test_a_state_is_restored_from_a_file(state, name):
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(f"{folder}/{name}", extra=state, rng=False)
        assert alike(load_checkpoint(f"{folder}/{name}", verify="full").extra, state)


@pytest.mark.parametrize("rounds", [150, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_headers_are_documented_errors(tmp_path, monkeypatch, rounds):
    monkeypatch.chdir(tmp_path)
    dice = random.Random(0)
    td = TensorDict({"a": torch.arange(500.0), "b": {"c": torch.ones(3)}, "s": "x"})
    td.save("base", checksum=True)
    td["a"][7] = 1
    save_delta(td, "delta", base="base", block_size=64)
    save_checkpoint("run.safetensors", extra=[1, (2, torch.ones(2)), {3: torch.ones(1)}], checksum=False)
    for name, load in {"delta": load_memmap, "run.safetensors": load_checkpoint}.items():
        data = Path(name).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        for _ in range(rounds):
            damaged = bytearray(data)
            for _ in range(dice.choice([1, 1, 2, 4])):
                damaged[dice.randrange(8, end)] = dice.choice([dice.randrange(32, 127), data[dice.randrange(8, end)]])
            Path("damaged").write_bytes(damaged)
            try:
                load("damaged")
            except (ValueError, KeyError, OSError) as error:
                assert str(error)
