"""Meshes: what ranks save with any placements is one checkpoint, and ranks of any other mesh load their parts of it."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.placement_types import _StridedShard

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.distributed.placements import boxes_of

TARGETS = {
    "one file": ("saved.safetensors", {}),
    "shards": ("saved", {"format": "safetensors", "shard_size": 2000}),
    "tree": ("saved", {}),
}
SHAPES = {"even": (8, 12), "uneven": (7, 5, 3), "one row": (1, 9), "empty": (0, 4), "long": (300, 70), "vector": (11,)}


def whole():
    """The tensordict that the ranks hold together; each number occurs once."""
    entries, start = {}, 0
    for number, (name, shape) in enumerate(SHAPES.items()):
        count = torch.Size(shape).numel()
        dtype = (torch.float32, torch.int64, torch.bfloat16, torch.float32, torch.float64, torch.complex128)[number]
        entries[name] = torch.arange(start, start + count).reshape(shape).to(dtype)
        start += count
    return TensorDict({**entries, "plain": torch.arange(5), "in": {"text": "a text", "step": torch.tensor(3)}})


def sharded(td, mesh, placements):
    """The same with DTensors of this rank; a dimension that a tensor lacks is replicated."""
    made = td.clone()
    for name in SHAPES:
        fitting = [Replicate() if _dim(one) >= td[name].dim() else one for one in placements]
        made[name] = distribute_tensor(td[name], mesh, fitting)
    return made


def _dim(placement):
    return getattr(placement, "dim", -1)


def same_values(found, expected):
    for key, leaf in expected.items(True, True):
        if isinstance(leaf, torch.Tensor):
            assert torch.equal(found[key], leaf), key
    assert found["in", "text"] == "a text"


def check_local(loaded, like):
    """Each DTensor has the placements of ``like`` and its local values."""
    for name in SHAPES:
        found, wanted = loaded[name], like[name]
        assert isinstance(found, DTensor) and found.placements == wanted.placements and found.shape == wanted.shape
        assert torch.equal(found.to_local(), wanted.to_local()), name
    assert torch.equal(loaded["plain"], like["plain"]) and loaded["in", "text"] == "a text"


def blank(td):
    """The same structure and placements, without the values."""
    return td.apply(lambda leaf: torch.zeros_like(leaf))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_ranks_write_one_checkpoint_that_any_process_reads(ranks, tmp_path, same, target, placement):
    name, options = TARGETS[target]

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        for shift in (1, 0):  # the second replaces the first
            sharded(whole() + shift, mesh, [placement]).save(tmp_path / name, **options)

    ranks.run(2, work)
    loaded = load_memmap(tmp_path / name)
    same(loaded.clone().cpu(), whole().cpu())
    assert sorted(os.listdir(tmp_path)) == [name]
    if target == "one file":
        assert torch.equal(load_file(tmp_path / name)["even"], whole()["even"])
    if target == "shards":
        assert len(list((tmp_path / name).glob("model-*-of-*.safetensors"))) == 3


@pytest.mark.parametrize("target", TARGETS)
def test_ranks_load_their_parts_of_what_one_process_saved(ranks, tmp_path, target):
    name, options = TARGETS[target]
    save(whole(), tmp_path / name, **options)

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        for placement in (Shard(0), Shard(1), Replicate()):
            wanted = sharded(whole(), mesh, [placement])
            check_local(TensorDict.load(tmp_path / name, like=blank(wanted)), wanted)
            into = blank(wanted)
            into.load_(tmp_path / name)
            check_local(into, wanted)

    ranks.run(2, work)


def test_published_checkpoints_without_our_metadata_load_onto_a_mesh(ranks, tmp_path):
    from safetensors.torch import save_file

    tensors = {"model.weight": torch.arange(24.0).view(6, 4), "model.bias": torch.arange(4.0)}
    save_file(tensors, tmp_path / "published.safetensors")

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        like = TensorDict(
            {
                "model": {
                    "weight": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(1)]),
                    "bias": distribute_tensor(torch.zeros(4), mesh, [Replicate()]),
                }
            }
        )
        loaded = TensorDict.load(tmp_path / "published.safetensors", like=like)
        assert torch.equal(loaded["model", "weight"].to_local(), tensors["model.weight"][:, 2 * rank : 2 * rank + 2])
        assert torch.equal(loaded["model", "bias"].to_local(), tensors["model.bias"])

    ranks.run(2, work)


def test_two_dimensional_meshes_and_strided_shards_of_fsdp_with_tensor_parallelism(ranks, tmp_path):
    source = torch.arange(12 * 8.0).view(12, 8)
    cases = [
        [Shard(0), Shard(1)],
        [Shard(0), Shard(0)],
        [Shard(1), Replicate()],
        [_StridedShard(0, split_factor=2), Shard(0)],
        [_StridedShard(1, split_factor=2), Replicate()],
    ]

    def work(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        entries = {}
        for number, placements in enumerate(cases):
            made = distribute_tensor(source, mesh, placements)
            entries[str(number)] = made
        td = TensorDict(entries)
        td.save(tmp_path / "x.safetensors")
        back = TensorDict.load(tmp_path / "x.safetensors", like=td.apply(torch.zeros_like))
        for key, leaf in td.items():
            assert torch.equal(back[key].to_local(), leaf.to_local()), key

    ranks.run(4, work)
    for key, leaf in load_memmap(tmp_path / "x.safetensors").items():
        assert torch.equal(leaf, source), key


def test_plain_leaves_are_whole_on_each_rank_or_parts_of_the_whole(ranks, tmp_path):
    def work(rank):
        group = torch.distributed.group.WORLD
        whole = TensorDict({"a": torch.arange(6), "b": {"c": torch.ones(3, 2)}})
        whole.save(tmp_path / "same.safetensors", group=group)
        rows = 3 if rank == 0 else 5
        part = TensorDict({"x": torch.arange(rows) + 10 * rank, "in": {"y": torch.full((rows, 2), rank)}}, [rows])
        part["in"].batch_size = [rows]
        part.save(tmp_path / "parts", group=group, placements=Shard(0))

    ranks.run(2, work)
    assert torch.equal(load_memmap(tmp_path / "same.safetensors")["b", "c"], torch.ones(3, 2))
    loaded = load_memmap(tmp_path / "parts")
    assert loaded.batch_size == (8,) and loaded["in"].batch_size == (8,)
    assert loaded["x"].tolist() == [0, 1, 2, 10, 11, 12, 13, 14]
    assert loaded["in", "y"][:, 0].tolist() == [0] * 3 + [1] * 5


def test_a_group_of_some_ranks_saves_alone(ranks, tmp_path):
    def work(rank):
        some = torch.distributed.new_group([0, 2])
        if rank != 1:
            TensorDict({"a": torch.arange(4)}).save(tmp_path / "x", group=some)

    ranks.run(3, work)
    assert load_memmap(tmp_path / "x")["a"].tolist() == [0, 1, 2, 3]


def test_tied_weights_are_written_once_and_stay_tied(ranks, tmp_path):
    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        weight = distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
        td = TensorDict({"embed": weight, "head": weight})
        td.save(tmp_path / "tied.safetensors")
        td.save(tmp_path / "tied")

    ranks.run(2, work)
    assert list(load_file(tmp_path / "tied.safetensors")) == ["embed"]
    for name in ("tied.safetensors", "tied"):
        loaded = load_memmap(tmp_path / name)
        assert loaded["head"].data_ptr() == loaded["embed"].data_ptr() and loaded["head"].sum() == 66


def test_lazy_stacks_and_leaves_of_thousands(ranks, tmp_path):
    def work(rank):
        from tensordict_core import LazyStackedTensorDict

        mesh = init_device_mesh("cpu", (2,))
        parts = [TensorDict({"w": distribute_tensor(torch.full((4, 3), float(n)), mesh, [Shard(0)])}) for n in range(3)]
        many = {f"k{n}": distribute_tensor(torch.full((3,), n), mesh, [Shard(0)]) for n in range(1000)}
        td = TensorDict({"stack": LazyStackedTensorDict(*parts, stack_dim=0), "many": many})
        td.save(tmp_path / "x.safetensors")
        td.save(tmp_path / "x")

    ranks.run(2, work)
    for name in ("x.safetensors", "x"):
        loaded = load_memmap(tmp_path / name)
        assert loaded["stack"][2]["w"].unique().item() == 2 and loaded["stack"].batch_size == (3,)
        assert all(loaded["many", f"k{n}"].tolist() == [n] * 3 for n in range(1000))


@pytest.mark.parametrize("shape", [(1024, 700), (300, 40_000), (64, 3, 50_000), (2, 100_000)], ids=str)
def test_columns_of_any_width_land_at_their_places(ranks, tmp_path, shape):
    """Runs of some bytes go through a mapping, longer ones by writes of their own, very long ones as ranges."""

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        source = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)
        td = TensorDict({"x": distribute_tensor(source, mesh, [Shard(len(shape) - 1)])})
        td.save(tmp_path / "x.safetensors")
        back = TensorDict.load(tmp_path / "x.safetensors", like=td.apply(torch.zeros_like))
        assert torch.equal(back["x"].to_local(), td["x"].to_local())

    ranks.run(2, work)
    found = load_memmap(tmp_path / "x.safetensors")["x"]
    assert torch.equal(found, torch.arange(found.numel(), dtype=torch.int32).view(shape))


def test_partial_placements_are_refused_by_name_on_every_rank(ranks, tmp_path):
    from torch.distributed.tensor import Partial

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        TensorDict({"a": {"sum": DTensor.from_local(torch.ones(3), mesh, [Partial()])}}).save(tmp_path / "x")

    for outcome in ranks.start(2, work).wait():
        assert outcome.error == "TypeError" and "('a', 'sum')" in outcome.text and "Partial" in outcome.text


def test_a_rank_reads_only_its_ranges(ranks, tmp_path):
    save(TensorDict({"x": torch.zeros(4096, 2048), "y": torch.zeros(100_000)}), tmp_path / "x.safetensors")

    def work(rank, placement):
        from tensordict_memmap.distributed.load import bytes_read

        mesh = init_device_mesh("cpu", (2,))
        like = TensorDict(
            {
                "x": distribute_tensor(torch.zeros(4096, 2048), mesh, [placement]),
                "y": distribute_tensor(torch.zeros(100_000), mesh, [Shard(0)]),
            }
        )
        TensorDict.load(tmp_path / "x.safetensors", like=like)  # imports read files too
        counted, called = bytes_read.nbytes, _read_calls()
        TensorDict.load(tmp_path / "x.safetensors", like=like)
        return bytes_read.nbytes - counted, _read_calls() - called

    needed = 4096 * 2048 * 2 + 200_000
    for counted, called in ranks.run(2, work, Shard(0)):
        assert counted == needed and called <= 1.05 * needed
    for counted, _ in ranks.run(2, work, Shard(1)):
        assert counted == needed


def _read_calls():
    """Bytes that system calls of this process have read."""
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])


@pytest.mark.parametrize("seed", range(20))
def test_boxes_are_where_torch_puts_the_elements(seed):
    chance = random.Random(seed)
    mesh = [chance.choice([1, 2, 3]) for _ in range(chance.randint(1, 3))]
    shape = [chance.randint(0, 14) for _ in range(chance.randint(1, 3))]
    dims = range(len(shape))
    placements = tuple(
        chance.choice([Replicate(), Shard(chance.choice(dims)), _StridedShard(chance.choice(dims), split_factor=2)])
        for _ in mesh
    )
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    for coordinate in itertools.product(*map(range, mesh)):
        local = whole
        for placement, count, index in zip(placements, mesh, coordinate, strict=True):
            if not isinstance(placement, Replicate):
                local = placement._split_tensor(local, count, with_padding=False)[0][index]
        found = boxes_of(tuple(shape), tuple(mesh), coordinate, placements)
        assert sum(box.volume for box, _ in found) == local.numel()
        for box, start in found:
            part = local[tuple(slice(first, first + size) for first, size in zip(start, box.size, strict=True))]
            assert torch.equal(part, whole[box.slices()]), (shape, mesh, coordinate, placements)


# --- every pair of writers and readers


def random_placements(chance, count):
    """A mesh of some ranks and placements on it."""
    mesh = chance.choice([shape for shape in ((count,), (2, count // 2)) if torch.Size(shape).numel() == count])
    return mesh, [chance.choice([Shard(0), Shard(1), Replicate()]) for _ in mesh]


def check_pair(ranks, folder, writers, readers, seed):
    """Saves on one mesh with this package and with DCP, and loads both on another mesh."""
    chance = random.Random(seed)
    target = chance.choice(list(TARGETS))
    name, options = TARGETS[target]
    here, there = random_placements(chance, writers), random_placements(chance, readers)

    def write(rank):
        mesh = init_device_mesh("cpu", here[0])
        td = sharded(whole(), mesh, here[1])
        td.save(folder / name, **options)
        dcp.save({key: td[key] for key in SHAPES}, checkpoint_id=folder / "dcp", no_dist=False)

    def read(rank):
        mesh = init_device_mesh("cpu", there[0])
        like = blank(sharded(whole(), mesh, there[1]))
        loaded = TensorDict.load(folder / name, like=like)
        oracle = {key: like[key].clone() for key in SHAPES}
        dcp.load(oracle, checkpoint_id=folder / "dcp")
        for key, leaf in oracle.items():
            assert torch.equal(loaded[key].to_local(), leaf.to_local()), (key, target, here, there)

    ranks.run(writers, write)
    ranks.run(readers, read)


PAIRS = list(itertools.product(range(1, 5), repeat=2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("writers", "readers"), [(2, 1), (2, 3)])
def test_other_numbers_of_ranks_load_what_dcp_loads(ranks, tmp_path, writers, readers):
    check_pair(ranks, tmp_path, writers, readers, writers)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("writers", "readers"), PAIRS)
def test_every_pair_of_ranks_and_placements_loads_what_dcp_loads(ranks, tmp_path, writers, readers, seed):
    check_pair(ranks, tmp_path, writers, readers, 1000 * writers + 100 * readers + seed)


def test_the_room_is_imported_only_when_it_is_used():
    code = """
import sys
import torch
from tensordict_core import TensorDict
import tensordict_memmap
TensorDict({"a": torch.ones(3)}).save("x.safetensors")
TensorDict.load("x.safetensors", like=TensorDict({"a": torch.zeros(3)}))
print(sorted(name for name in sys.modules if "memmap.distributed" in name or name == "torch.distributed.tensor"))
"""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
