"""The law of deltas: whatever changes between saves, a chain of deltas loads as the tensordict that was saved last."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import TensorDict
from tensordict_memmap import compare, convert, load_memmap, save_delta

DTYPES = [torch.bool, torch.int8, torch.int64, torch.bfloat16, torch.float32, torch.complex128, torch.float8_e5m2]
KEYS = ["a", "b", "c", "a.b", "d@blocks", "d"]

shapes = st.lists(st.integers(0, 40), max_size=2).map(tuple)


@st.composite
def leaves(draw):
    shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
    numbers = torch.arange(torch.Size(shape).numel()).remainder(50).reshape(shape).to(dtype)
    return numbers.T if len(shape) == 2 and draw(st.booleans()) else numbers


@st.composite
def tensordicts(draw, depth=1):
    td = TensorDict({})
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=4, unique=True)):
        kind = draw(st.sampled_from(["leaf", "leaf", "value", "node"] if depth else ["leaf", "value"]))
        td[key] = draw(
            {"leaf": leaves(), "value": st.text(max_size=3), "node": tensordicts(depth=depth - 1)}[kind]
            if depth or kind != "node"
            else leaves()
        )
    return td


@st.composite
def histories(draw):
    """Versions of a tensordict: elements, entries or everything differ from one to the next."""
    versions = [draw(tensordicts())]
    for _ in range(draw(st.integers(1, 4))):
        td = versions[-1].clone()
        change = draw(st.sampled_from(["elements", "elements", "entry", "everything", "nothing"]))
        filled = [leaf for leaf in td.values(True, True) if isinstance(leaf, torch.Tensor) and leaf.numel()]
        if change == "everything":
            td = draw(tensordicts())
        elif change == "entry":
            td[draw(st.sampled_from(KEYS))] = draw(leaves())
        elif change == "elements" and filled:
            leaf = draw(st.sampled_from(filled))
            place = draw(st.integers(0, leaf.numel() - 1))
            index = torch.unravel_index(torch.tensor(place), leaf.shape) if leaf.dim() else ()
            leaf[index] = draw(st.sampled_from([0, 1]))
        versions.append(td)
    return versions


@given(histories(), st.sampled_from(["", ".safetensors"]), st.integers(1, 300))
def test_a_chain_of_deltas_loads_the_state_that_was_saved_last(versions, ending, block_size):
    with tempfile.TemporaryDirectory() as folder:
        base = f"{folder}/base{ending}"
        versions[0].save(base, checksum=True)
        for number, td in enumerate(versions[1:]):
            path = f"{folder}/{number}"
            save_delta(td, path, base=base, block_size=block_size)
            base = path
            loaded = load_memmap(path, verify="full")
            assert list(loaded.keys(True)) == list(td.keys(True))
            assert not compare(loaded, td, values=True)
            loaded.apply(lambda x: x.zero_())  # in this process alone
        for number, td in enumerate(versions[1:]):
            assert not compare(f"{folder}/{number}", td, values=True)
        convert(base, f"{folder}/flat{ending}")
        for old in Path(folder).glob("[0-9]"):
            old.unlink()
        assert not compare(f"{folder}/flat{ending}", versions[-1], values=True)
