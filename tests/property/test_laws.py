"""Laws that hold for every tensordict: what is undone comes back, and an operation is that operation on each leaf."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import tensordict_core
from tensordict_core import TensorDict

# Names that file systems, separators and other keys could get wrong.
NAMES = st.sampled_from(["a", "b", "ab", "A", "0", "key with blanks", "weird/key", "..", "ünï", "x" * 60])
DTYPES = st.sampled_from(
    [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
SIZES = st.integers(0, 3)
FEW_DIMS = st.integers(0, 2)


@st.composite
def leaves(draw: st.DrawFn, batch: tuple[int, ...], dtypes: st.SearchStrategy[torch.dtype] = DTYPES) -> torch.Tensor:
    """A tensor that starts with the batch size, contiguous or not."""
    shape = (*batch, *draw(st.lists(SIZES, max_size=2)))
    values = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 2**16))))
    leaf = values.to(draw(dtypes))
    return leaf if draw(st.booleans()) else leaf.mT.contiguous().mT if leaf.ndim > 1 else leaf


@st.composite
def tensordicts(
    draw: st.DrawFn,
    dims: st.SearchStrategy[int] = FEW_DIMS,
    dtypes: st.SearchStrategy[torch.dtype] = DTYPES,
) -> TensorDict:
    """A nested tensordict of up to three levels, empty nodes and zero-size leaves included."""
    batch = tuple(draw(st.lists(SIZES, min_size=(n := draw(dims)), max_size=n)))

    def node(depth: int) -> st.SearchStrategy[dict[str, Any]]:
        value = leaves(batch, dtypes)
        return st.dictionaries(NAMES, value | node(depth - 1) if depth else value, max_size=3)

    return TensorDict(draw(node(2)), batch)


def same(one: TensorDict, other: TensorDict) -> bool:
    """Equal keys, shapes, dtypes, batch sizes of every node, and values."""
    if one.batch_size != other.batch_size or set(one.keys()) != set(other.keys()):
        return False
    for key in one.keys():  # noqa: SIM118  # a tensordict iterates over its first dimension
        a, b = one.get(key), other.get(key)
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            return False
        if isinstance(a, torch.Tensor):
            if (a.dtype, a.shape) != (b.dtype, b.shape) or not torch.equal(a, b):
                return False
        elif not same(a, b):
            return False
    return True


@given(tensordicts())
def test_load_inverts_save(td: TensorDict):
    with tempfile.TemporaryDirectory() as folder:
        td.memmap(Path(folder) / "saved")
        assert same(TensorDict.load_memmap(Path(folder) / "saved"), td)


@given(tensordicts(dims=st.integers(1, 2)))
def test_unbinding_then_stacking_gives_back(td: TensorDict):
    for dim in range(td.batch_dims):
        if td.batch_size[dim]:
            assert same(torch.stack(list(td.unbind(dim)), dim), td)


@given(tensordicts(dims=st.integers(1, 2)))
def test_indexing_each_row_then_stacking_gives_back(td: TensorDict):
    if td.batch_size[0]:
        assert same(tensordict_core.stack([td[i] for i in range(td.batch_size[0])], 0), td)


@given(tensordicts(dims=st.integers(1, 2)), st.integers(1, 3))
def test_splitting_then_concatenating_gives_back(td: TensorDict, size: int):
    if td.batch_size[0]:
        assert same(torch.cat(list(td.split(size, 0)), 0), td)


@given(tensordicts())
def test_a_lazy_stack_is_the_stack(td: TensorDict):
    assert same(tensordict_core.lazy_stack([td, td], 0), torch.stack([td, td], 0))


@given(tensordicts(dtypes=st.just(torch.float32)))
def test_apply_composes(td: TensorDict):
    one_after_the_other = td.apply(torch.exp).apply(torch.neg)
    assert same(one_after_the_other, td.apply(lambda leaf: torch.neg(torch.exp(leaf))))


@given(tensordicts())
def test_unflattening_inverts_flattening_of_keys(td: TensorDict):
    # Flat keys cannot say that an empty node was there.
    full = td.filter_empty_().clone()
    assert same(full.flatten_keys("→").unflatten_keys("→"), full)


@given(tensordicts(dims=st.just(2)))
def test_reshaping_back_gives_back(td: TensorDict):
    batch = td.batch_size
    assert same(td.reshape(batch.numel()).reshape(batch), td)
    assert same(td.transpose(0, 1).transpose(0, 1), td)
    assert same(td.unsqueeze(0).squeeze(0), td)


@given(tensordicts(dtypes=st.sampled_from([torch.float32, torch.float64])))
def test_an_operation_on_a_tensordict_is_the_operation_on_each_leaf(td: TensorDict):
    for got, each in [
        (td + 1, lambda leaf: leaf + 1),
        (td * td, lambda leaf: leaf * leaf),
        (-td, torch.neg),
        (td.exp(), torch.exp),
        (td.clamp(0, 0.5), lambda leaf: leaf.clamp(0, 0.5)),
        (td.to(torch.float16), lambda leaf: leaf.to(torch.float16)),
    ]:
        assert same(got, td.apply(each))


@given(tensordicts())
def test_a_dictionary_and_back_gives_back(td: TensorDict):
    assert same(TensorDict.from_dict(td.to_dict(), batch_size=td.batch_size), td)
