"""Checksums of sharded saves: those that one process records, whichever ranks wrote the bytes of a block."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from tensordict_core import TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.engine.checksums import BLOCK

TARGETS = {
    "one file": ("saved.safetensors", {}),
    "shards": ("saved", {"format": "safetensors", "shard_size": 4 * BLOCK}),
    "tree": ("saved", {}),
}


def whole():
    """Tensors of several blocks, of one, of a few bytes and of none, with a tie and values that are not tensors."""
    torch.manual_seed(0)
    long = torch.randint(0, 255, (3, BLOCK - 1000), dtype=torch.uint8)
    return TensorDict(
        {
            "long": long,
            "in": {"short": torch.arange(7.0), "tied": long},
            "pairs": torch.randn(4, 3, dtype=torch.complex128),
            "empty": torch.zeros(0, 4),
            "plain": torch.arange(5),
            "text": "a text",
        }
    )


def sharded(placement, mesh):
    made = whole()
    for key in ("long", ("in", "short"), "pairs", "empty"):
        fits = getattr(placement, "dim", -1) < made[key].dim()
        made[key] = distribute_tensor(made[key], mesh, [placement if fits else Replicate()])
    made["in", "tied"] = made["long"]
    return made


def damaged_copies(path):
    """Flips the last bit of each file in turn; of shards, the index and the list of files are not needed to load."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    shards = [file for file in files if file.suffix == ".safetensors"]
    for file in shards or files:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        yield file.name
        content[-1] ^= 1
        file.write_bytes(content)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_a_sharded_save_has_checksums_that_find_a_flipped_bit(ranks, tmp_path, target, placement):
    name, options = TARGETS[target]
    path = tmp_path / name

    def work(rank):
        sharded(placement, init_device_mesh("cpu", (2,))).save(path, checksum=True, **options)

    ranks.run(2, work)
    loaded = load_memmap(path, verify="full")
    assert torch.equal(loaded["long"], whole()["long"]) and loaded["text"] == "a text"
    for what in damaged_copies(path):
        with pytest.raises(ValueError, match="JSON" if what.endswith(".json") else "checksum"):
            load_memmap(path, verify="full")
            pytest.fail(what)


def test_the_checksums_are_those_that_one_process_records(ranks, tmp_path):
    save(whole(), tmp_path / "alone.safetensors", checksum=True)

    def work(rank):
        sharded(Shard(1), init_device_mesh("cpu", (2,))).save(tmp_path / "ranks.safetensors", checksum=True)

    ranks.run(2, work)
    from tensordict_memmap.formats.safetensors.header import load_header
    from tensordict_memmap.storage.header_checksums import recorded_checksums

    found = []
    for name in ("alone", "ranks"):
        content = (tmp_path / f"{name}.safetensors").read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        found.append(recorded_checksums(load_header(content[8:end], len(content) - end, name)))
    assert found[0] == found[1] and len(found[0]["long"]) > 16


@pytest.mark.parametrize("target", TARGETS)
def test_ranks_verify_the_parts_that_they_load(ranks, tmp_path, target):
    name, options = TARGETS[target]
    path = tmp_path / name

    def work(rank):
        mesh = init_device_mesh("cpu", (2,))
        td = sharded(Shard(0), mesh)
        td.save(path, checksum=True, durable=True, **options)
        loaded = TensorDict.load(path, like=td, verify="full")
        assert isinstance(loaded["long"], DTensor)
        return torch.equal(loaded["long"].to_local(), td["long"].to_local())

    assert ranks.run(2, work) == [True, True]


def test_ranks_with_different_checksum_options_are_refused(ranks, tmp_path):
    def work(rank):
        sharded(Shard(0), init_device_mesh("cpu", (2,))).save(tmp_path / "x", checksum=bool(rank))

    outcomes = ranks.start(2, work).wait()
    assert all("has checksum=True where rank 0 has False" in one.text for one in outcomes)


def test_checksums_of_a_sharded_upload_are_refused(ranks):
    def work(rank):
        sharded(Shard(0), init_device_mesh("cpu", (2,))).save("memory://bucket/x", checksum=True)

    outcomes = ranks.start(2, work).wait()
    assert all("downloaded again" in one.text for one in outcomes)
