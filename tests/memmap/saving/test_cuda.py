"""Saves of tensors on a GPU, and loads to it, in each format."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save_checkpoint

pytestmark = pytest.mark.cuda


def content():
    big = torch.arange(5 << 20, device="cuda", dtype=torch.int32).reshape(5, -1)  # longer than one write
    entries = {
        "big": big,
        "columns": big[:, ::2],
        "turned": torch.rand(3, 4, device="cuda").T,
        "complex": torch.rand(4, dtype=torch.complex64, device="cuda").conj(),
        "half": torch.rand(7, device="cuda").to(torch.bfloat16),
        "small": {f"k{i}": torch.full((3,), i, device="cuda") for i in range(50)},
        "host": torch.arange(3),
    }
    return TensorDict(entries)


def check(loaded, td, device):
    for (key, value), (other, expected) in zip(
        sorted(loaded.items(True, True), key=str), sorted(td.items(True, True), key=str), strict=True
    ):
        assert key == other and value.device.type == device
        assert torch.equal(value.cpu(), expected.cpu()), key


@pytest.mark.parametrize("name", ["folder", "x.safetensors"])
@pytest.mark.parametrize("early", [False, True])
def test_saves_from_the_gpu_load_on_both_devices(tmp_path, name, early):
    td = content()
    if name.endswith("tensors"):
        del td["complex"]
    torch.cuda._sleep(50_000_000)  # the last writes of the GPU are not done when the save begins
    td["big"] += 1
    saved = td.clone()
    future = td.save(tmp_path / name, return_early=early)
    if early:
        future.result()
    check(load_memmap(tmp_path / name), saved, "cpu")
    check(load_memmap(tmp_path / name, device="cuda"), saved, "cuda")
    check(TensorDict.load(tmp_path / name).cuda(), saved, "cuda")


def test_memmap_copies_from_the_gpu_and_in_place_updates_reach_the_file(tmp_path):
    td = content()
    mapped = td.memmap(tmp_path / "x")
    assert mapped.is_memmap() and mapped.device == torch.device("cpu")
    check(mapped, td, "cpu")
    mapped.update_(td.apply(lambda leaf: leaf + 1 if leaf.dtype == torch.int32 else leaf))
    assert torch.equal(load_memmap(tmp_path / "x")["big"], td["big"].cpu() + 1)


def test_consolidated_tensors_go_to_the_gpu_in_one_copy(tmp_path):
    td = content()
    packed = td.cpu().consolidate()
    there = packed.to("cuda")
    check(there, td, "cuda")
    assert len({leaf.untyped_storage().data_ptr() for leaf in there.values(True, True)}) == 1
    check(td.consolidate(tmp_path / "x.td"), td, "cpu")
    check(TensorDict.from_consolidated(tmp_path / "x.td"), td, "cpu")


def test_a_training_state_of_the_gpu_is_saved_in_the_background(tmp_path):
    model = torch.nn.Linear(1000, 1000).cuda()
    before = model.weight.detach().cpu()
    future = save_checkpoint(tmp_path / "x", model=model, return_early=True)
    with torch.no_grad():
        model.weight.zero_()
    future.result()
    assert torch.equal(load_memmap(tmp_path / "x")["model", "weight"], before)
