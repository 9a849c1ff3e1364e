"""Saves written before the packages were laid out anew load, with the contents that they were made of."""

from __future__ import annotations

import pickle
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_non_tensor,
)
from tensordict_memmap import MemmapDataset, MemoryMappedTensor, from_consolidated

EARLIER = Path(__file__).parent
SAVES = EARLIER / "25f0095"
EXPECTED: dict[str, Any] = runpy.run_path(str(EARLIER / "write.py"))

WHOLE = ["tree", "tree_checksum", "one.safetensors", "one_checksum.safetensors", "stored.tdz", "compressed.tdz"]
CHECKED = ["tree_checksum", "one_checksum.safetensors", "packed.tdz"]
OTHERS = {
    "lazy": "lazy",
    "lazy.safetensors": "lazy",
    "tied": "tied",
    "tied.safetensors": "tied",
    "plain.safetensors": "plain",
    "packed.tdz": "plain",
    "sharded.safetensors": "dtypes",
}


def bits(leaf: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, which compare equal for NaN and for dtypes without ``==``."""
    return leaf.as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8)


def assert_same(found: Any, wanted: Any) -> None:
    assert found.batch_size == wanted.batch_size
    assert found.names == wanted.names
    assert set(found.keys()) == set(wanted.keys())
    for key in wanted.keys():  # noqa: SIM118  # iterating a tensordict yields rows, not keys
        old, new = wanted.get(key, as_list=True), found.get(key, as_list=True)
        if isinstance(old, TensorDictBase) and not is_non_tensor(old):
            assert type(new) is type(old)
            assert_same(new, old)
        elif isinstance(old, torch.Tensor):
            assert (new.dtype, new.shape) == (old.dtype, old.shape)
            assert torch.equal(bits(new), bits(old)), key
        else:
            # files do not tell MetaData from NonTensorData, pickles do; that release held equal values as one
            one_for_all = isinstance(new, NonTensorData) and isinstance(old, NonTensorStack)
            allowed = (type(old), NonTensorData if isinstance(old, MetaData) or one_for_all else type(old))
            assert type(new) in allowed, key
            values = new.maybe_to_stack().tolist() if one_for_all else new.tolist()
            assert repr(values) == repr(old.tolist()), key


def assert_loads_as(loaded: Any, name: str) -> None:
    wanted = EXPECTED[name]()
    assert type(loaded) is type(wanted)
    if isinstance(wanted, LazyStackedTensorDict):
        assert (loaded.stack_dim, len(loaded.tensordicts)) == (wanted.stack_dim, len(wanted.tensordicts))
        for found, one in zip(loaded.tensordicts, wanted.tensordicts, strict=True):
            assert_same(found, one)
    else:
        assert_same(loaded, wanted)


@pytest.mark.parametrize(("place", "name"), [*((place, "contents") for place in WHOLE), *OTHERS.items()])
def test_an_earlier_save_loads_with_its_contents(place: str, name: str) -> None:
    assert_loads_as(TensorDict.load(SAVES / place, verify="full" if place in CHECKED else "size"), name)


@pytest.mark.parametrize("place", ["tied", "tied.safetensors"])
def test_entries_that_shared_storage_in_an_earlier_save_share_it_again(place: str) -> None:
    td = TensorDict.load(SAVES / place)
    assert td["encoder", "weight"].data_ptr() == td["decoder", "weight"].data_ptr()


@pytest.mark.parametrize("place", ["ragged", "ragged.safetensors"])
def test_a_jagged_tensor_of_an_earlier_save_has_its_components(place: str) -> None:
    found = TensorDict.load(SAVES / place)["tokens"].unbind()
    for part, wanted in zip(found, EXPECTED["ragged"]()["tokens"].unbind(), strict=True):
        assert torch.equal(part, wanted)


def test_an_earlier_dataset_opens_with_its_rows(tmp_path: Path) -> None:
    with MemmapDataset.open(SAVES / "dataset") as dataset:
        assert_same(dataset.tensordict.contiguous(), EXPECTED["rows"]())


def test_an_earlier_consolidated_file_opens() -> None:
    found, wanted = from_consolidated(SAVES / "consolidated.td"), EXPECTED["dtypes"]()
    assert_same(found, wanted.select(*found.keys()))
    assert len(found.keys()) == len(wanted.keys()) - 2


@pytest.mark.parametrize(("place", "name"), [("torch_save.pt", "contents"), ("torch_save_lazy.pt", "lazy")])
@pytest.mark.parametrize("weights_only", [True, False])
def test_an_earlier_pickle_of_torch_loads(place: str, name: str, weights_only: bool) -> None:
    with torch.serialization.safe_globals([(type(Path()), "pathlib.PosixPath")]):  # whose module differs by version
        assert_loads_as(torch.load(SAVES / place, weights_only=weights_only), name)


def test_an_earlier_pickle_loads() -> None:
    # torch itself cannot unpickle tensors of the 8-bit floats, so the nested tensordict with every dtype is not in it
    loaded = pickle.loads((SAVES / "pickled.pkl").read_bytes())
    assert_same(loaded, EXPECTED["contents"]().exclude("dtypes"))


def test_an_earlier_pickle_of_a_mapped_tensor_loads() -> None:
    loaded = pickle.loads((SAVES / "mapped.pkl").read_bytes())
    assert type(loaded) is MemoryMappedTensor
    assert torch.equal(loaded, torch.arange(4))
