"""Checksums: what a save records, what a load compares, and that none is ever stale."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch
from xxhash import xxh3_64_intdigest

from tensordict_core import LazyStackedTensorDict, TensorDict
from tensordict_memmap import from_safetensors, load_memmap, load_memmap_, to_safetensors
from tensordict_memmap.engine.checksums import BLOCK, Extent, checksum_of, read_checksum
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.engine.tuning import HASH_BYTES, SMALL_FILE
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.storage.header_checksums import CHECKSUMS
from tensordict_memmap.storage.manifest import NAME, Entry, Manifest
from tensordict_memmap.storage.ownership import read_manifest


def naive(data, block=BLOCK):
    """The checksum by its definition, from bytes that are there already."""
    hashes = [xxh3_64_intdigest(data[start : start + block]) for start in range(0, len(data), block)]
    whole = xxh3_64_intdigest(b"".join(one.to_bytes(8, "little") for one in hashes))
    return f"xxh3_64/{block}:{whole:016x}"


def flip(path, position, bit=0):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def tree():
    w = torch.arange(6.0)
    return TensorDict(
        {
            "a": torch.arange(1000),
            "b": {"c": torch.ones(3, 5, dtype=torch.bfloat16), "w": w},
            "tied": w,
            "s": "text",
            "lazy": LazyStackedTensorDict(TensorDict({"i": torch.zeros(1)}), TensorDict({"i": torch.ones(2)})),
            "empty": torch.zeros(0, 3),
        }
    )


@pytest.mark.parametrize("size", [0, 1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_a_checksum_is_the_hash_of_the_hashes_of_its_blocks(size):
    data = np.arange(size, dtype=np.uint8).tobytes()
    assert checksum_of(data) == naive(data)


def test_checksums_of_other_kinds_and_of_absurd_blocks_are_not_known():
    digits = ":0123456789abcdef"
    assert read_checksum(f"xxh3_64/{BLOCK}{digits}") == BLOCK
    for text in ("", "xxh3_64/1" + digits, f"xxh3_64/{1 << 40}{digits}", f"xxh3_64/{BLOCK}:12", "crc32/1" + digits):
        assert read_checksum(text) is None


LAYOUTS = {
    "contiguous": lambda: torch.arange(3_000_001, dtype=torch.int32),
    "transposed": lambda: torch.arange(3000 * 1001, dtype=torch.int32).reshape(3000, 1001).T,
    "transposed, of many parts": lambda: torch.arange(40 * 300 * 331).reshape(40, 300, 331).transpose(1, 2),
    "transposed, of small parts": lambda: torch.arange(2000 * 33 * 57).reshape(2000, 33, 57).transpose(1, 2),
    "with long rows": lambda: torch.arange(9 * 300_000, dtype=torch.int32).reshape(300_000, 9).T,
    "every second": lambda: torch.arange(3_000_001, dtype=torch.int32)[::2],
    "conjugate": lambda: torch.arange(700_000.0).to(torch.complex64).conj(),
    "small": lambda: torch.arange(10),
}


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_of_any_layout_are_hashed_during_the_write(tmp_path, monkeypatch, layout, kernels):
    from tensordict_memmap.engine import write_plan
    from tensordict_memmap.engine.kernels import loader as module

    monkeypatch.setattr(write_plan, "load_kernels", lambda nbytes, widths: module if kernels else None)
    source = LAYOUTS[layout]()
    extent = Extent(64, source.nbytes)
    write_files([FileWrite(tmp_path / "x", [FileRange("x", source, 64)], extents=[extent])])
    data = (tmp_path / "x").read_bytes()[64:]
    assert data == source.resolve_conj().contiguous().numpy().tobytes()
    assert extent.checksum() == naive(data, extent.block)


@pytest.mark.parametrize("offset", [0, 1, HASH_BYTES - 8, HASH_BYTES + 64, BLOCK - 8])
@pytest.mark.parametrize("size", [1000, SMALL_FILE, BLOCK, BLOCK + 8, 2 * BLOCK + HASH_BYTES + 8])
def test_memory_is_hashed_without_reading_the_file(tmp_path, monkeypatch, offset, size):
    monkeypatch.setattr(Extent, "read_back", None)
    source = torch.arange(size // 8)
    extent, counted = Extent(offset, size), []
    write_files(
        [FileWrite(tmp_path / "x", [FileRange("x", source, offset)], extents=[extent])], progress=counted.append
    )
    data = (tmp_path / "x").read_bytes()
    assert data == bytes(offset) + source.numpy().tobytes() and sum(counted) == size
    assert extent.checksum() == naive(data[offset:])


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name.startswith("transposed")] + ["every second"])
def test_strided_memory_is_hashed_by_the_kernels_without_reading_it_back(tmp_path, monkeypatch, layout):
    from tensordict_memmap.engine import write_plan
    from tensordict_memmap.engine.kernels import loader as kernels

    monkeypatch.setattr(write_plan, "load_kernels", lambda nbytes, widths: kernels)
    monkeypatch.setattr(Extent, "read_back", None)
    source = LAYOUTS[layout]()
    extent = Extent(0, source.nbytes)
    write_files([FileWrite(tmp_path / "x", [FileRange("x", source)], extents=[extent])])
    assert extent.checksum() == naive((tmp_path / "x").read_bytes(), extent.block)


def test_ranges_that_make_up_one_extent_and_small_ones_side_by_side_are_hashed(tmp_path):
    ranges = [FileRange("x", torch.full((10,), float(n)), 40 * n) for n in range(5)]
    extents = [Extent(0, 80), Extent(80, 40), Extent(120, 80)]
    write_files([FileWrite(tmp_path / "x", ranges, extents=extents)])
    data = (tmp_path / "x").read_bytes()
    assert [one.checksum() for one in extents] == [naive(data[:80]), naive(data[80:120]), naive(data[120:])]


# --- folders


def test_the_manifest_holds_the_checksum_of_every_file_and_is_sealed(tmp_path):
    tree().save(tmp_path / "x", checksum=True)
    manifest = read_manifest(tmp_path / "x")
    assert manifest.is_sealed() and manifest.aliases
    for path, entry in manifest.files.items():
        assert entry.checksum == naive((tmp_path / "x" / path).read_bytes())
    tree().save(tmp_path / "y")
    assert not read_manifest(tmp_path / "y").is_sealed()


def test_saves_with_checksums_load_under_every_level(tmp_path):
    tree().save(tmp_path, checksum=True)
    for verify in ("none", "size", "full"):
        assert load_memmap(tmp_path, verify=verify)["b", "w"].tolist() == [0, 1, 2, 3, 4, 5]
    TensorDict({"a": torch.arange(3)}).save(tmp_path / "few", checksum=True)
    mine = TensorDict({"a": torch.zeros(3, dtype=torch.int64)})
    assert load_memmap_(mine, tmp_path / "few", verify="full")["a"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="'all'; the levels are 'none', 'size', 'full'"):
        load_memmap(tmp_path, verify="all")


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("a.memmap", "'a'"),
        ("b/c.memmap", r"\('b', 'c'\)"),
        ("tied.memmap", "'tied'"),
        ("lazy/1/i.memmap", r"\('lazy', '1', 'i'\)"),
        ("s/meta.json", "'s'"),
        ("b/meta.json", "'b'"),
    ],
)
def test_every_flipped_bit_is_named_by_its_key(tmp_path, file, key):
    tree().save(tmp_path, checksum=True)
    size = (tmp_path / file).stat().st_size
    for position in {0, size // 2, size - 1}:
        flip(tmp_path / file, position, position % 8)
        if file.endswith("memmap"):
            load_memmap(tmp_path)
            with pytest.raises(ValueError, match=key):
                load_memmap(tmp_path, verify="full")
        else:
            with pytest.raises((ValueError, FileNotFoundError, KeyError)):
                load_memmap(tmp_path, verify="full")
        flip(tmp_path / file, position, position % 8)
    load_memmap(tmp_path, verify="full")


def test_no_bit_of_a_manifest_can_be_flipped_unseen(tmp_path):
    TensorDict({"a": torch.arange(3)}).save(tmp_path, checksum=True)
    for position in range((tmp_path / NAME).stat().st_size):
        flip(tmp_path / NAME, position, position % 8)
        with pytest.raises((ValueError, FileNotFoundError)):
            load_memmap(tmp_path, verify="full")
        flip(tmp_path / NAME, position, position % 8)
    load_memmap(tmp_path, verify="full")


def test_swapped_and_missing_files_are_seen(tmp_path):
    TensorDict({"a": torch.zeros(3), "b": torch.ones(3)}).save(tmp_path, checksum=True)
    shutil.copy(tmp_path / "a.memmap", tmp_path / "b.memmap")
    with pytest.raises(ValueError, match="'b'"):
        load_memmap(tmp_path, verify="full")
    os.unlink(tmp_path / "a.memmap")
    with pytest.raises(FileNotFoundError, match="'a'"):
        load_memmap(tmp_path, verify="full")


def test_only_loaded_entries_are_compared(tmp_path):
    tree().save(tmp_path, checksum=True)
    flip(tmp_path / "a.memmap", 3)
    assert load_memmap(tmp_path, subpath="b", verify="full")["w"].sum() == 15
    assert load_memmap(tmp_path / "b", verify="full")["w"].sum() == 15
    with pytest.raises(ValueError, match="'a'"):
        load_memmap(tmp_path, subpath="a", verify="full")


def test_without_checksums_full_verification_is_an_error_with_a_remedy(tmp_path):
    tree().save(tmp_path)
    with pytest.raises(ValueError, match="checksum=True"):
        load_memmap(tmp_path, verify="full")


def test_a_huge_size_in_a_manifest_does_not_cause_reads(tmp_path):
    TensorDict({"a": torch.arange(3)}).save(tmp_path, checksum=True)
    manifest = read_manifest(tmp_path)
    manifest.files["a.memmap"] = Entry(1 << 62, manifest.files["a.memmap"].checksum)
    (tmp_path / NAME).write_bytes(manifest.dumps())
    with pytest.raises(ValueError, match="'a'"):
        load_memmap(tmp_path, verify="full")


def test_longer_files_are_taken_only_where_nothing_is_verified(tmp_path):
    TensorDict({"a": torch.arange(3)}).save(tmp_path)
    with open(tmp_path / "a.memmap", "ab") as file:
        file.write(b"more")
    with pytest.raises(ValueError, match="'a'"):
        load_memmap(tmp_path)
    assert load_memmap(tmp_path, verify="none")["a"].tolist() == [0, 1, 2]
    os.truncate(tmp_path / "a.memmap", 20)
    with pytest.raises(ValueError, match="'a'"):
        load_memmap(tmp_path, verify="none")


# --- sealed


def test_a_sealed_save_is_mapped_copy_on_write(tmp_path):
    for td in (TensorDict({"a": torch.arange(3)}).memmap(tmp_path, checksum=True), load_memmap(tmp_path)):
        td["a"][0] = 9
        assert td["a"][0] == 9
    assert load_memmap(tmp_path, verify="full")["a"].tolist() == [0, 1, 2]


def test_opening_it_to_write_drops_the_checksums_of_its_leaves_first(tmp_path):
    tree().save(tmp_path, checksum=True)
    load_memmap(tmp_path, subpath="b", mode="r+")["c"].zero_()
    manifest = read_manifest(tmp_path)
    dropped = {path for path, entry in manifest.files.items() if entry.checksum is None}
    assert dropped == {"b/c.memmap", "b/w.memmap", "tied.memmap"}, "what is another name of one of them too"
    with pytest.raises(ValueError, match=r"'tied', key \('b', 'c'\)"):
        load_memmap(tmp_path, verify="full")
    assert load_memmap(tmp_path, subpath="a", verify="full").sum() == 499_500
    load_memmap(tmp_path, mode="r+")["a"].zero_()
    assert not any(entry.checksum for path, entry in read_manifest(tmp_path).files.items() if path.endswith("memmap"))
    assert load_memmap(tmp_path)["a"].sum() == 0


def test_checksums_are_dropped_durably_and_before_a_leaf_is_mapped(tmp_path, monkeypatch):
    from tensordict_memmap.loading import leaves as opening
    from tensordict_memmap.storage import transaction

    TensorDict({"a": torch.arange(3)}).save(tmp_path, checksum=True)
    calls = []
    replace, opened = transaction.replace_file, opening.LeafOpener.__call__
    monkeypatch.setattr(
        transaction,
        "replace_file",
        lambda path, data, *, durable: calls.append(durable) or replace(path, data, durable=durable),
    )
    monkeypatch.setattr(
        opening.LeafOpener, "__call__", lambda self, leaf: calls.append(leaf.file) or opened(self, leaf)
    )
    load_memmap(tmp_path, mode="r+")
    assert calls == [True, "a.memmap"]


def test_saving_over_itself_with_checksums_copies_mapped_files(tmp_path):
    td = TensorDict({"a": torch.arange(3)}).memmap(tmp_path)
    sealed = td.memmap(tmp_path, checksum=True)
    td["a"][0] = 9
    assert sealed["a"][0] == 0 and load_memmap(tmp_path, verify="full")["a"][0] == 0


def test_a_save_into_a_part_of_a_sealed_one_updates_the_manifest_above(tmp_path):
    tree().save(tmp_path, checksum=True)
    TensorDict({"new": torch.arange(4)}).save(tmp_path / "b", checksum=True)
    assert load_memmap(tmp_path, subpath="a", verify="full").sum() == 499_500
    assert load_memmap(tmp_path / "b", verify="full")["new"].sum() == 6


def test_a_new_entry_to_be_filled_leaves_a_sealed_save_without_checksums(tmp_path):
    td = TensorDict({"a": torch.ones(2)}).memmap(tmp_path / "x", checksum=True)
    td.make_memmap("b", torch.Size([2])).fill_(3)
    assert load_memmap(tmp_path / "x")["b"].tolist() == [3, 3]
    with pytest.raises(ValueError, match="save it with checksum=True"):
        load_memmap(tmp_path / "x", verify="full")
    load_memmap(tmp_path / "x").save(tmp_path / "x", checksum=True)
    assert load_memmap(tmp_path / "x", verify="full")["b"].tolist() == [3, 3]


def test_manifests_with_a_wrong_seal_are_refused():
    sealed = Manifest({"a": Entry(3, checksum_of(b"abc"))}).dumps()
    assert Manifest.loads(sealed).files["a"].checksum == checksum_of(b"abc")
    for broken in (sealed.replace(b'"a"', b'"b"'), sealed[: sealed.index(b',"seal"')] + b"}"):
        with pytest.raises(ValueError, match="seal"):
            Manifest.loads(broken)


# --- one file


def test_a_file_holds_the_checksums_of_its_tensors_and_others_read_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="the library whose files these are")
    td = tree()
    td.save(tmp_path / "x.safetensors", checksum=True)
    assert torch.equal(safetensors.load_file(tmp_path / "x.safetensors")["a"], td["a"])
    for verify in ("none", "size", "full"):
        assert from_safetensors(tmp_path / "x.safetensors", verify=verify)["s"] == "text"
        assert load_memmap(tmp_path / "x.safetensors", verify=verify)["b", "w"].sum() == 15


def test_each_tensor_of_a_file_has_its_checksum_however_many_share_a_write(tmp_path):
    path = tmp_path / "x.safetensors"
    data = {f"small{number:04}": torch.full((number % 300,), float(number)) for number in range(6000)}
    data |= {"large": torch.arange(200_000.0), "every second": torch.arange(1000.0)[::2]}
    data |= {"conjugate": torch.ones(5, dtype=torch.complex64).conj(), "bytes": torch.arange(9, dtype=torch.uint8)}
    names = sorted(data)
    TensorDict({name: data[name] for name in sorted(names, key=lambda name: name[::-1])}).save(path, checksum=True)
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    text = header.pop("__metadata__")[CHECKSUMS].partition(":")[2]
    places = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    filled = [place for place in places if place[0] != place[1]]
    digits = [naive(content[start + begin : start + end])[-16:] for begin, end in filled]
    assert text[16:] == "".join(digits)
    assert len(from_safetensors(path, verify="full").keys()) == len(names)


def test_every_flipped_bit_of_a_file_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    TensorDict({"a": torch.zeros(3), "b": {"c": torch.ones(5, dtype=torch.int8)}}).save(path, checksum=True)
    size = path.stat().st_size
    length = int.from_bytes(path.read_bytes()[:8], "little")
    for position in range(size):
        flip(path, position, position % 8)
        name = "'a'" if 8 + length <= position < 8 + length + 12 else "'b.c'" if position >= 8 + length else "."
        with pytest.raises((ValueError, FileNotFoundError, RuntimeError), match=name):
            from_safetensors(path, verify="full")
        flip(path, position, position % 8)
    from_safetensors(path, verify="full")


def test_a_file_opened_to_write_loses_the_checksums_of_its_tensors_first(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.arange(3.0)})
    twin = td.memmap(path, checksum=True)
    twin["a"][0] = 9
    assert from_safetensors(path, verify="full")["a"][0] == 0, "it was mapped copy-on-write"
    from_safetensors(path, mode="r+")["a"][0] = 7
    assert from_safetensors(path)["a"][0] == 7
    with pytest.raises(ValueError, match=r"'a'.*checksum=True"):
        from_safetensors(path, verify="full")


def test_files_without_checksums_and_shards(tmp_path):
    td = TensorDict({"a": torch.arange(300.0), "b": torch.arange(500.0)})
    to_safetensors(td, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="checksum=True"):
        from_safetensors(tmp_path / "x.safetensors", verify="full")
    to_safetensors(td, tmp_path / "shards", checksum=True, shard_size=1500)
    assert load_memmap(tmp_path / "shards", verify="full")["b"].sum() == td["b"].sum()
    shard = sorted((tmp_path / "shards").glob("*.safetensors"))[1]
    assert CHECKSUMS.encode() in shard.read_bytes()
    flip(shard, shard.stat().st_size - 1)
    with pytest.raises(ValueError, match="'b'"):
        load_memmap(tmp_path / "shards", verify="full")


def test_archives_always_have_checksums(tmp_path):
    path = tmp_path / "x.tdz"
    TensorDict({"a": torch.arange(100)}).save(path, checksum=True)
    assert load_memmap(path, verify="full")["a"].sum() == 4950
    flip(path, path.read_bytes().index(torch.arange(100).numpy().tobytes()) + 9)
    with pytest.raises(ValueError, match=r"a\.memmap"):
        load_memmap(path, verify="full")


def test_consolidated_files_hold_no_checksums_and_say_so(tmp_path):
    tree().consolidate(tmp_path / "one.bin")
    with pytest.raises(ValueError, match=r"hold none; load it with verify='size', and save it in another format"):
        load_memmap(tmp_path / "one.bin", verify="full")
    assert load_memmap(tmp_path / "one.bin", verify="size").batch_size == tree().batch_size
