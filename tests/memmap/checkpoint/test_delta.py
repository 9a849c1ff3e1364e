"""Deltas: files with what differs from a base, which load as the whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson
import pytest
import torch
import torch.distributed.checkpoint as dcp

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict
from tensordict_memmap import TensorDictReader, compare, convert, from_safetensors, load_memmap, save_delta
from tensordict_memmap.formats.safetensors.delta import DELTA, DeltaRecord
from tensordict_memmap.formats.safetensors.header import dump_header, load_header
from tensordict_memmap.loading.delta import read_delta
from tensordict_memmap_cli.main import main

BASES = ["base", "base.safetensors"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def weights():
    torch.manual_seed(0)
    return TensorDict(
        {
            "big": torch.randn(300, 1000),
            "layer": {"weight": torch.randn(20, 30).bfloat16(), "bias": torch.zeros(7)},
            "wide": torch.zeros(3, 4, dtype=torch.complex128),
            "empty": torch.zeros(0, 5),
            "name": "first",
        }
    )


def saved(base, td=None):
    td = weights() if td is None else td
    td.save(base, checksum=True)
    return td


def same_save(path, td):
    report = compare(path, td, values=True)
    assert not report, report


@pytest.mark.parametrize("base", BASES)
def test_a_delta_holds_the_changed_blocks_and_loads_as_the_whole(base):
    td = saved(base)
    td["big"][150, 500] += 1
    td["layer", "bias"][3] = 5
    td["name"] = "second"
    assert td.save_delta("d.safetensors", base=base) is td
    assert os.path.getsize("d.safetensors") < 80_000
    loaded = TensorDict.load("d.safetensors", verify="full")
    same_save("d.safetensors", td)
    assert loaded["name"] == "second" and loaded.saved_path == Path("d.safetensors").absolute() and loaded.is_memmap()
    blocks = read_delta("d.safetensors").tensors["big"].blocks
    assert blocks == [((150 * 1000 + 500) // 16384 * 16384, (150 * 1000 + 500) // 16384 * 16384 + 16384)]


@pytest.mark.parametrize("base", BASES)
def test_an_unchanged_tensordict_makes_a_delta_without_tensors(base):
    td = saved(base)
    td.save_delta("d.safetensors", base=base)
    assert os.path.getsize("d.safetensors") < 4000
    same_save("d.safetensors", td)


def test_a_tensor_that_changed_everywhere_is_stored_whole():
    td = saved("base")
    td["big"] += 1
    td.save_delta("d.safetensors", base="base")
    assert read_delta("d.safetensors").tensors["big"].blocks is None
    same_save("d.safetensors", td)


@pytest.mark.parametrize("base", BASES)
def test_keys_shapes_and_dtypes_may_change(base):
    td = saved(base)
    del td["layer", "weight"]
    td["big"] = td["big"][:2]
    td["layer", "bias"] = td["layer", "bias"].double()
    td["more"] = {"x": torch.arange(5), "lazy": LazyStackedTensorDict(TensorDict({"q": torch.ones(2)}), TensorDict({}))}
    td.save_delta("d.safetensors", base=base)
    same_save("d.safetensors", td)
    assert list(load_memmap("d.safetensors").keys()) == list(td.keys())


def test_tensors_in_any_memory_are_compared_as_they_are_saved():
    big = torch.randn(200, 300)
    td = TensorDict(
        {
            "strided": big.T,
            "conj": torch.randn(3, dtype=torch.complex64).conj(),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "stack": LazyStackedTensorDict(TensorDict({"a": torch.ones(3)}), TensorDict({"a": torch.zeros(3)})),
            "tied": big.T,
        }
    )
    for number, base in enumerate(BASES):
        saved(base, td)
        big[17, 250] += 1
        td["stack"].tensordicts[1]["a"][0] = 7
        td.save_delta(f"d{number}.safetensors", base=base, block_size=64)
        assert os.path.getsize(f"d{number}.safetensors") < 10_000
        same_save(f"d{number}.safetensors", td)
        again = load_memmap(f"d{number}.safetensors")
        assert again["tied"].data_ptr() == again["strided"].data_ptr()


def test_a_chain_of_deltas_loads_and_is_bounded():
    td, base = saved("base"), "base"
    for number in range(3):
        td["big"][number] += 1
        td["layer", "bias"][number] = number + 1
        save_delta(td, f"d{number}.safetensors", base=base, max_chain=3)
        base = f"d{number}.safetensors"
        same_save(base, td)
    with pytest.raises(ValueError, match=r"d2\.safetensors is a chain of 3 deltas, and max_chain=3; flatten it with"):
        save_delta(td, "d3.safetensors", base=base, max_chain=3)
    convert(base, "flat")
    shutil.rmtree("base")
    same_save("flat", td)


def test_an_older_tensordict_names_the_base():
    td = saved("base")
    earlier = load_memmap("base")
    td["big"][0] += 1
    td.save_delta("d.safetensors", base=earlier)
    td.save_delta("e.safetensors", base=load_memmap("d.safetensors"))
    assert read_delta("d.safetensors").base == "base" and read_delta("e.safetensors").base == "d.safetensors"
    with pytest.raises(ValueError, match="no saved_path; pass the path"):
        td.save_delta("f.safetensors", base=td)
    with pytest.raises(TypeError, match="base= is the path of a save"):
        td.save_delta("f.safetensors", base=3)


def test_the_base_is_found_relative_to_the_delta(tmp_path):
    td = saved("base")
    td["big"][0] += 1
    os.mkdir("deltas")
    td.save_delta("deltas/d", base="base")
    shutil.copytree(tmp_path, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("elsewhere"))
    shutil.rmtree("base")
    same_save("elsewhere/deltas/d", td)
    with pytest.raises(FileNotFoundError, match=r"deltas/d is a delta, and its base is missing .*/base"):
        load_memmap("deltas/d")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("change", ["saved again", "opened for writing", "saved without checksums"])
def test_a_changed_base_is_an_error_that_names_it(base, change):
    td = saved(base)
    td["big"][0] += 1
    td.save_delta("d.safetensors", base=base)
    if change == "opened for writing":
        load_memmap(base, mode="r+")["big"][0, 0] = 3
    else:
        td.save(base, checksum=change == "saved again")
    with pytest.raises(ValueError, match=rf"d\.safetensors is a delta, and its base .*{base} was changed since: "):
        load_memmap("d.safetensors")


@pytest.mark.parametrize("base", BASES)
def test_verification_finds_a_flipped_bit_of_the_base(base):
    td = saved(base)
    td["layer", "bias"][0] += 1
    td.save_delta("d.safetensors", base=base)
    with open("base/big.memmap" if base == "base" else base, "r+b") as file:
        file.seek(-10, os.SEEK_END)
        byte = file.read(1)
        file.seek(-10, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    load_memmap("d.safetensors")
    with pytest.raises(ValueError, match=r"checksum mismatch in .* or its base of tensor"):
        load_memmap("d.safetensors", verify="full")


def test_bases_that_cannot_be_checked_are_refused(monkeypatch):
    td = weights()
    td.save("plain")
    td.save("plain.safetensors")
    td.save("x.tdz")
    td.consolidate("x.bin")
    td.save("shards", format="safetensors", shard_size=1000, checksum=True)
    for base in ("plain", "plain.safetensors"):
        with pytest.raises(ValueError, match=r"has no checksums of all tensors.*save it with checksum=True"):
            td.save_delta("d", base=base)
    for base, what in {"x.tdz": "archive", "x.bin": "consolidated", "shards": "shards"}.items():
        with pytest.raises(ValueError, match=f"{what}.*, and the base of a delta is a folder"):
            td.save_delta("d", base=base)
    with pytest.raises(FileNotFoundError, match="there is no save to base a delta on"):
        td.save_delta("d", base="nothing")
    with pytest.raises(ValueError, match="the base of a delta is a local save"):
        td.save_delta("d", base="memory://bucket/run")
    with pytest.raises(ValueError, match="is a URL"):
        td.save_delta("memory://bucket/run", base="plain")
    assert not os.path.exists("d")


def test_a_delta_never_overwrites_its_base():
    td = saved("base.safetensors")
    td.save_delta("d.safetensors", base="base.safetensors")
    for target in ("base.safetensors", "d.safetensors"):
        with pytest.raises(ValueError, match="is the base of the delta, or one of its bases"):
            td.save_delta(target, base="d.safetensors")
    with pytest.raises(RuntimeError, match="existsok=False"):
        td.save_delta("d.safetensors", base="base.safetensors", existsok=False)
    same_save("d.safetensors", td)


def test_writes_to_a_loaded_delta_stay_in_this_process():
    td = saved("base")
    td["big"][0] += 1
    td.save_delta("d.safetensors", base="base", durable=True)
    loaded = load_memmap("d.safetensors", mode="c")
    loaded["big"].zero_()
    loaded["layer", "bias"].fill_(9)
    same_save("d.safetensors", td)
    load_memmap("base", verify="full")
    with pytest.raises(ValueError, match=r"mode='r\+' would write to its base; load it with mode='r', or flatten"):
        load_memmap("d.safetensors", mode="r+")


@pytest.mark.parametrize("base", BASES)
def test_a_delta_is_read_into_memory_with_its_changes(base):
    td = saved(base)
    td["big"][150, 500] += 1
    td["layer", "bias"][3] = 5
    td.save_delta("d.safetensors", base=base)
    td["big"][7, 500] += 1
    td.save_delta("e.safetensors", base="d.safetensors")
    loaded = load_memmap("e.safetensors", eager=True)
    assert not loaded.is_memmap() and (loaded == td).all()
    rows = load_memmap("e.safetensors", subpath="big", rows=slice(100, 200), eager=True)
    assert torch.equal(rows, td["big"][100:200])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("base", BASES)
def test_dcp_reads_a_delta_with_its_changes(base):
    td = saved(base)
    td["big"][150, 500] += 1
    td.save_delta("d.safetensors", base=base)
    state = {"big": torch.zeros(300, 1000)}
    dcp.load(state, storage_reader=TensorDictReader("d.safetensors"), no_dist=True)
    assert torch.equal(state["big"], td["big"])


def test_parts_of_a_delta_load_alone():
    td = saved("base")
    td["big"][3] += 1
    td["layer", "bias"][3] = 3
    td.save_delta("d.safetensors", base="base")
    assert list(load_memmap("d.safetensors", keys="layer.*").keys(True, True)) == [
        ("layer", "weight"),
        ("layer", "bias"),
    ]
    assert torch.equal(load_memmap("d.safetensors", subpath="big"), td["big"])
    assert load_memmap("d.safetensors", device="meta")["big"].is_meta
    assert torch.equal(from_safetensors("d.safetensors")["big"], td["big"])


def test_remote_deltas_say_how_to_flatten_them():
    fsspec = pytest.importorskip("fsspec", reason="fsspec is an extra")
    td = saved("base")
    td.save_delta("d.safetensors", base="base")
    fsspec.filesystem("memory").put("d.safetensors", "/deltas/d.safetensors")
    with pytest.raises(ValueError, match="is a delta, which loads together with its base, from a local path"):
        load_memmap("memory://deltas/d.safetensors")


def test_pickled_values_are_stored_in_the_delta(tmp_path):
    td = TensorDict({"a": torch.zeros(3), "f": NonTensorData(print)})
    with pytest.warns(UserWarning, match="pickled"):
        saved("base", td)
    td["a"][0] = 1
    with pytest.warns(UserWarning, match="pickled"):
        td.save_delta("d.safetensors", base="base")
    assert load_memmap("d.safetensors", allow_pickle=True)["f"] is print
    with pytest.raises(ValueError, match="allow_pickle=True"):
        load_memmap("d.safetensors")


def test_the_commands_know_deltas(capsys):
    td = saved("base")
    td["big"][3] += 1
    td.save_delta("d.safetensors", base="base")
    assert main(["tree", "d.safetensors"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(", safetensors, delta 1 over base")
    assert main(["tree", "d.safetensors", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["base"] == "base"
    assert main(["verify", "d.safetensors", "--full"]) == 0
    assert main(["diff", "base", "d.safetensors"]) == 1
    assert "values of big" in capsys.readouterr().out
    assert main(["convert", "d.safetensors", "flat.safetensors"]) == 0
    assert main(["diff", "flat.safetensors", "d.safetensors"]) == 0
    shutil.rmtree("base")
    assert main(["verify", "d.safetensors"]) == 1
    assert "its base is missing" in capsys.readouterr().out
    assert main(["verify", "flat.safetensors"]) == 0


def _rewritten(change):
    """A copy of the delta ``d.safetensors`` whose record is changed."""
    data = Path("d.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = load_header(data[8 : 8 + length], len(data) - 8 - length, "d")
    record = orjson.loads(header.metadata[DELTA])
    change(record)
    texts = header.metadata | {DELTA: orjson.dumps(record).decode()}
    assert not header.names
    Path("bad.safetensors").write_bytes(dump_header([], [], [], texts))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 2, "its version is 2"),
        ("depth", 0, "depth 0 is not between 1 and 64"),
        ("depth", 2, "is delta 2 of its chain, and its base .* is number 0"),
        ("base", "/etc/passwd", "not a relative path"),
        ("base", "", "not a relative path"),
        ("id", "md5:0", "does not identify a base"),
        ("tensors", {"a": {"checksum": "zz"}}, "has the checksum 'zz'"),
        ("tensors", {"a": {"checksum": "", "tensor": 3}}, "refers to 3"),
        ("tensors", {"a": {"checksum": "", "tensor": "x", "blocks": [[4, 2]]}}, "has the block 4 to 2"),
        ("tensors", {"nothing": {"checksum": ""}}, "'nothing' of the delta .* is not in its base"),
        ("tensors", {"big": {"checksum": "", "tensor": "x"}}, "is not in the file"),
        ("tensors", [], "record of .* is broken"),
    ],
)
def test_damaged_records_are_errors(field, value, message):
    saved("base").save_delta("d.safetensors", base="base")
    _rewritten(lambda record: record.update({field: value}))
    with pytest.raises(ValueError, match=message):
        load_memmap("bad.safetensors")


def test_options_are_checked():
    td = saved("base")
    with pytest.raises(ValueError, match="block_size=0"):
        td.save_delta("d", base="base", block_size=0)
    for most in (0, 65):
        with pytest.raises(ValueError, match=f"max_chain={most}, and a chain has 1 to 64"):
            td.save_delta("d", base="base", max_chain=most)


def test_other_saves_have_no_record():
    saved("base")
    saved("base.safetensors")
    assert read_delta("base") is None and read_delta("base.safetensors") is None and read_delta("nothing") is None
    assert DeltaRecord("b", "xxh3_64/1:" + "0" * 16, 1).tensors == {}
