"""Local tensors: whatever memory a rank holds its part of a DTensor in, its values are saved and loaded."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from tensordict_core import TensorDict
from tensordict_memmap import TensorDictReader, TensorDictWriter, load_memmap

DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.bool, torch.complex64]
TARGETS = ["saved.safetensors", "saved"]


def sharded(local, mesh):
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False)


def values(dtype):
    whole = torch.arange(12).view(4, 3)
    return whole > 5 if dtype is torch.bool else whole.to(torch.float32).to(dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_dtypes_of_any_width(ranks, tmp_path, target):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        td = TensorDict({str(dtype): sharded(values(dtype)[2 * rank : 2 * rank + 2], mesh) for dtype in DTYPES})
        td.save(tmp_path / target)
        back = TensorDict.load(tmp_path / target, like=td)
        for key, leaf in td.items():
            assert back[key].dtype == leaf.dtype
            assert torch.equal(back[key].to_local().to(torch.complex64), leaf.to_local().to(torch.complex64)), key

    ranks.run(2, work)
    loaded = load_memmap(tmp_path / target)
    for dtype in DTYPES:
        assert loaded[str(dtype)].dtype == dtype
        assert torch.equal(loaded[str(dtype)].to(torch.complex64), values(dtype).to(torch.complex64)), dtype


def memories(rank):
    """Local tensors of four rows in all that are not contiguous, or read in a special way."""
    rows = slice(2 * rank, 2 * rank + 2)
    numbers = torch.arange(24.0).view(4, 6)
    return {
        "transposed": torch.arange(12.0).view(3, 4).t()[rows],
        "every other": numbers[rows, ::2],
        "expanded": torch.tensor([float(rank)]).expand(2, 3),
        "conjugate": torch.complex(numbers, numbers)[rows].conj(),
        "negative": torch.complex(numbers, numbers)[rows].conj().imag,
        "a parameter": torch.nn.Parameter(numbers[rows]),
        "without columns": torch.zeros(2, 0),
    }


@pytest.mark.parametrize("target", TARGETS)
def test_memory_that_is_not_contiguous(ranks, tmp_path, target):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        td = TensorDict({key: sharded(local, mesh) for key, local in memories(rank).items()})
        td.save(tmp_path / target)
        into = torch.zeros(3, 2).t()
        TensorDict({"transposed": sharded(into, mesh)}).load_(tmp_path / target)
        assert torch.equal(into, memories(rank)["transposed"])

    ranks.run(2, work)
    loaded = load_memmap(tmp_path / target)
    for key, first in memories(0).items():
        assert torch.equal(loaded[key], torch.cat([first, memories(1)[key]])), key


def test_a_tensor_that_a_collective_still_fills_is_awaited(ranks, tmp_path):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        rows = distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
        TensorDict({"whole": rows.redistribute(mesh, [Replicate()], async_op=True)}).save(tmp_path / "x.safetensors")
        into = TensorDict({"whole": rows.redistribute(mesh, [Replicate()], async_op=True)}).apply(lambda leaf: leaf)
        into.load_(tmp_path / "x.safetensors")
        sums = [into["whole"].to_local().sum().item()]
        state = {"whole": rows.redistribute(mesh, [Replicate()], async_op=True)}
        dcp.save(state, storage_writer=TensorDictWriter(tmp_path / "storage"))
        state = {"whole": rows.redistribute(mesh, [Replicate()], async_op=True)}
        dcp.load(state, storage_reader=TensorDictReader(tmp_path / "storage"))
        return [*sums, state["whole"].to_local().sum().item()]

    assert ranks.run(2, work) == [[66.0, 66.0]] * 2
    for name in ("x.safetensors", "storage"):
        assert load_memmap(tmp_path / name)["whole"].tolist() == torch.arange(12.0).view(4, 3).tolist()


@pytest.mark.parametrize("target", TARGETS)
def test_weights_are_tied_on_ranks_without_a_part_of_them(ranks, tmp_path, target):
    def work(rank):
        weight = distribute_tensor(torch.arange(3.0).view(1, 3), init_device_mesh("cpu", (2,)), [Shard(0)])
        TensorDict({"embed": weight.detach(), "head": weight.detach()}).save(tmp_path / target)

    ranks.run(2, work)
    loaded = load_memmap(tmp_path / target)
    assert loaded["head"].tolist() == [[0, 1, 2]] and loaded["head"].data_ptr() == loaded["embed"].data_ptr()


def test_tensors_over_the_same_memory_on_other_meshes_are_not_tied(ranks, tmp_path):
    def work(rank):
        local = torch.full((2,), rank)
        there, back = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [1, 0])
        TensorDict({"there": sharded(local, there), "back": sharded(local, back)}).save(tmp_path / "x.safetensors")

    ranks.run(2, work)
    loaded = load_memmap(tmp_path / "x.safetensors")
    assert loaded["there"].tolist() == [0, 0, 1, 1] and loaded["back"].tolist() == [1, 1, 0, 0]
