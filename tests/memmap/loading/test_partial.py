"""Partial loads: keys by pattern, rows and devices, of every format; what is not asked for is not opened."""

from __future__ import annotations

import json

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorStack, TensorDict, UnbatchedTensor
from tensordict_memmap import MemoryMappedTensor, convert, load_memmap, to_safetensors
from tensordict_memmap.calls.load import describe_saved
from tensordict_memmap.formats.safetensors.header import Form, dump_header
from tensordict_memmap.schema.node import leaves
from tensordict_memmap.schema.select import Selection, as_index

FORMATS = {
    "tree": "x",
    "safetensors": "x.safetensors",
    "shards": "shards",
    "archive": "x.tdz",
    "compressed": "y.tdz",
    "consolidated": "x.bin",
}


def content():
    return TensorDict(
        {
            "encoder": {
                "0": {"weight": torch.arange(12.0).view(6, 2), "bias": torch.arange(6)},
                "1": {"weight": torch.ones(6, 2), "bias": torch.zeros(6, dtype=torch.int64)},
            },
            "decoder": {"weight": torch.full((6, 3), 2.0, dtype=torch.bfloat16)},
            "label": torch.arange(6, dtype=torch.uint8),
            "name": "all",
            "names": NonTensorStack(*"uvwxyz"),
            "lazy": TensorDict.lazy_stack(
                [TensorDict({"i": torch.full((6, n), n), "j": torch.zeros(6)}, [6]) for n in range(1, 3)], 1
            ),
        },
        [6],
    )


@pytest.fixture(scope="module", params=list(FORMATS))
def saved(request, tmp_path_factory):
    """A path with `content` in one of the formats."""
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / FORMATS[request.param]
    td = content()
    if request.param == "consolidated":
        td.consolidate(path)
    elif request.param == "shards":
        to_safetensors(td, path, shard_size=100)
        assert len(list(path.glob("*.safetensors"))) > 2
    else:
        td.save(path, compression="deflate" if request.param == "compressed" else None)
    return path


def keys(td):
    return set(td.keys(True, True))


# --- keys


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("label", {"label"}),
        (["label", ("encoder", "0", "bias")], {"label", ("encoder", "0", "bias")}),
        ("encoder.1", {("encoder", "1", "weight"), ("encoder", "1", "bias")}),
        (("encoder", "*"), {("encoder", i, n) for i in "01" for n in ("weight", "bias")}),
        ([("encoder", "*", "bias")], {("encoder", "0", "bias"), ("encoder", "1", "bias")}),
        (
            ["**.weight"],
            {("encoder", "0", "weight"), ("encoder", "1", "weight"), ("decoder", "weight")},
        ),
        (["decoder.**", "name*"], {("decoder", "weight"), "names", "name"}),
        (["encoder.[!1].b?as"], {("encoder", "0", "bias")}),
        (["lazy.i"], {("lazy", "i")}),
    ],
)
def test_only_entries_that_match_patterns_are_loaded(saved, patterns, names):
    td = load_memmap(saved, keys=patterns)
    top = set(td.keys())
    found = set(td.exclude("lazy").keys(True, True)) | (top & {"name", "names"})
    found |= {("lazy", key) for key in set(td["lazy"].tensordicts[0].keys())} if "lazy" in top else set()
    assert found == names and not td.is_locked and td.batch_size == (6,)
    whole = content()
    for key in names - {"name", "names"} - {("lazy", "i")}:
        assert torch.equal(td[key], whole[key])
    if "name" in names:
        assert td["name"] == "all" and td[3]["names"] == "x"


def test_elements_of_a_lazy_stack_keep_their_place_without_the_rest(saved):
    lazy = load_memmap(saved, keys=["lazy.i"])["lazy"]
    assert isinstance(lazy, LazyStackedTensorDict) and lazy.stack_dim == 1
    assert [one["i"].shape[1] for one in lazy.tensordicts] == [1, 2] and "j" not in set(lazy.tensordicts[0].keys())


@pytest.mark.parametrize("pattern", ["encodr", ("encoder", "2"), "label.x", ["label", "decoder.bias"]])
def test_a_pattern_that_names_nothing_is_a_key_error(saved, pattern):
    with pytest.raises(KeyError, match="matches no saved key"):
        load_memmap(saved, keys=pattern)


def test_keys_go_on_from_a_nested_key(saved):
    td = load_memmap(saved, subpath="encoder", keys=["0.*"])
    assert keys(td) == {("0", "weight"), ("0", "bias")}
    with pytest.raises(KeyError, match="tensor"):
        load_memmap(saved, subpath="label", keys=["x"])
    with pytest.raises(KeyError, match="nothing"):
        load_memmap(saved, subpath=("encoder", "nothing"))


@pytest.mark.parametrize("name", ["x", "x.safetensors", "shards", "x.tdz", "x.bin"])
def test_elements_of_a_lazy_stack_are_parts_that_load_alone(tmp_path, name):
    elements = [TensorDict({"i": torch.full((2, 3), n), "in": {"j": torch.full((2,), n)}}, [2]) for n in range(3)]
    td, path = TensorDict({"lazy": TensorDict.lazy_stack(elements, 1)}, [2]), tmp_path / name
    if name == "x.bin":
        td.consolidate(path)
    else:
        td.save(path, **({"format": "safetensors", "shard_size": 1} if name == "shards" else {}))
    one = load_memmap(path, subpath=("lazy", "1"))
    assert one.batch_size == (2,) and (one == elements[1]).all()
    assert keys(load_memmap(path, subpath="lazy/2/in")) == {"j"}
    assert torch.equal(load_memmap(path, subpath=("lazy", "2", "in", "j")), elements[2]["in", "j"])
    assert keys(load_memmap(path, subpath=("lazy", "1"), keys="in")) == {("in", "j")}
    for missing in (("lazy", "3"), ("lazy", "x"), ("lazy", "1", "k"), ("lazy", "1", "i", "j")):
        with pytest.raises(KeyError, match=f"{missing[-1]}"):
            load_memmap(path, subpath=missing)


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz"])
def test_all_keys_of_a_stack_whose_elements_have_others_are_chosen(tmp_path, name):
    td = TensorDict({"lazy": TensorDict.lazy_stack([TensorDict({"a": 1, "b": 2}), TensorDict({"a": 3})])})
    td.save(tmp_path / name)
    assert [keys(one) for one in load_memmap(tmp_path / name, keys="**")["lazy"].tensordicts] == [{"a", "b"}, {"a"}]


@pytest.mark.parametrize("name", ["x.safetensors", "x.bin"])
def test_a_part_of_one_file_has_no_path_of_its_own(tmp_path, name):
    td, path = TensorDict({"a": {"b": torch.ones(2), "text": "x"}}), tmp_path / name
    td.consolidate(path) if name == "x.bin" else td.save(path)
    part = load_memmap(path, subpath="a", mode="r+")
    assert part.saved_path is None and part["text"] == "x"
    part["b"].zero_()
    assert load_memmap(path)["a", "b"].sum() == 0


@pytest.mark.parametrize("bad", [[], [()], [3], 3.5, [("a", 3)]])
def test_invalid_patterns_are_refused(saved, bad):
    with pytest.raises((TypeError, ValueError)):
        load_memmap(saved, keys=bad)


def test_files_of_other_keys_are_not_opened(tmp_path):
    content().save(tmp_path / "x")
    (tmp_path / "x" / "label.memmap").unlink()
    (tmp_path / "x" / "encoder" / "0" / "bias.memmap").write_bytes(b"short")
    assert load_memmap(tmp_path / "x", keys=["decoder", "encoder.*.weight"])["encoder", "0", "weight"].shape == (6, 2)
    with pytest.raises(FileNotFoundError, match="label"):
        load_memmap(tmp_path / "x", keys=["l*"])


@pytest.fixture
def shards(tmp_path):
    """A folder of `content` with a file for each tensor, all of which are damaged but the first and that of ``label``.

    The first file holds the structure.
    """
    folder = tmp_path / "shards"
    to_safetensors(content(), folder, shard_size=1)
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted(set(places.values()))
    assert len(files) > 8 and places["label"] != files[0]
    for name in files[1:]:
        if name != places["label"]:
            (folder / name).write_bytes(b"damaged")
    return folder


@pytest.mark.parametrize("device", [None, "meta"])
def test_shards_that_hold_nothing_wanted_are_not_opened(shards, device):
    loaded = load_memmap(shards, keys="label", device=device)
    assert keys(loaded) == {"label"} and loaded.batch_size == (6,)
    if device is None:
        assert loaded["label"].tolist() == list(range(6))
    assert load_memmap(shards, subpath="label", rows=[1], device=device).shape == (1,)
    for wanted in ("label", "decoder"), "**", ("encoder.0.weight",):
        with pytest.raises(ValueError, match="truncated or not a safetensors file"):
            load_memmap(shards, keys=wanted)


def test_a_pattern_that_names_nothing_looks_at_all_shards(tmp_path):
    to_safetensors(content(), tmp_path / "shards", shard_size=1)
    with pytest.raises(KeyError, match=r"matches no saved key; the nearest are .*decoder"):
        load_memmap(tmp_path / "shards", keys=["label", "decodr"])
    with pytest.raises(KeyError, match="encoder"):
        load_memmap(tmp_path / "shards", subpath="encodr")


def test_shards_of_other_tools_are_chosen_by_the_dots_in_names(tmp_path):
    places = {}
    for number, name in enumerate(["a", "a.b", "c.d.e", "c.f"], 1):
        file = places[name] = f"model-0000{number}-of-00004.safetensors"
        header = dump_header([name], [Form(torch.uint8, (1,))], [1], {"format": "pt"})
        (tmp_path / file).write_bytes(header + bytes([number]))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert keys(load_memmap(tmp_path)) == {"a", "a.b", ("c", "d", "e"), ("c", "f")}
    (tmp_path / places["c.f"]).write_bytes(b"damaged")
    assert keys(load_memmap(tmp_path, keys=["a", ("a.b",)])) == {"a", "a.b"}
    assert load_memmap(tmp_path, keys=["c.d", "**.e"])["c", "d", "e"].tolist() == [3]
    assert load_memmap(tmp_path, subpath=("c", "d"))["e"].tolist() == [3]
    with pytest.raises(ValueError, match="truncated"):
        load_memmap(tmp_path, keys="c")


def test_shards_elsewhere_that_hold_nothing_wanted_are_not_read(shards):
    fsspec = pytest.importorskip("fsspec", reason="the extra that this tests")
    there = f"memory://partial-{shards.parent.name}"
    fsspec.filesystem("memory").put(str(shards), there, recursive=True)
    assert load_memmap(there, keys="label")["label"].tolist() == list(range(6))
    with pytest.raises(ValueError, match="truncated"):
        load_memmap(there)


@pytest.mark.parametrize("name", ["x", "x.safetensors"])
def test_values_of_other_keys_are_not_unpickled(tmp_path, name):
    with pytest.warns(UserWarning, match="pickled"):
        TensorDict({"a": torch.ones(2), "b": {"odd": object}}).save(tmp_path / name)
    assert load_memmap(tmp_path / name, keys="a")["a"].sum() == 2
    with pytest.raises(ValueError, match="odd"):
        load_memmap(tmp_path / name, keys="b")


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz"])
def test_values_that_are_shared_load_alone(tmp_path, name):
    td = TensorDict({"a": torch.zeros(2), "b": {"text": "hello", "each": NonTensorStack("u", "v")}}, [2])
    td.memmap(tmp_path / name, share_non_tensor=True)
    loaded = load_memmap(tmp_path / name, keys=["b.text", "b.each"])
    assert set(loaded.keys(True)) == {"b", ("b", "text"), ("b", "each")}
    assert loaded["b", "text"] == "hello" and loaded["b", "each"] == ["u", "v"]
    assert load_memmap(tmp_path / name, keys="b.each", rows=1)["b", "each"] == "v"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["x", "x.safetensors", "shards"])
def test_a_strided_nested_tensor_is_none_on_the_meta_device(tmp_path, name):
    td = TensorDict({"a": torch.zeros(2), "n": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])})
    if name == "shards":
        to_safetensors(td, tmp_path / name, shard_size=1)
    else:
        td.save(tmp_path / name)
    with pytest.raises(RuntimeError, match=r"torch\.jagged only, and key 'n' is a strided one"):
        load_memmap(tmp_path / name, device="meta")
    assert load_memmap(tmp_path / name, device="meta", keys="a")["a"].is_meta
    assert {leaf.key[-1] for leaf in leaves(describe_saved(tmp_path / name))} == {"a", "n"}


def test_parts_stay_mapped_and_are_written_through(tmp_path):
    content().save(tmp_path / "x")
    part = load_memmap(tmp_path / "x", keys=["encoder.0.bias"], mode="r+")
    assert part.is_memmap() and isinstance(part["encoder", "0", "bias"], MemoryMappedTensor)
    part["encoder", "0", "bias"][:] = 7
    assert load_memmap(tmp_path / "x")["encoder", "0", "bias"].tolist() == [7] * 6


def test_a_part_of_one_file_stays_mapped_and_refreshes_to_that_part(tmp_path):
    for name in ("x", "x.safetensors"):
        content().save(tmp_path / name)
        part = load_memmap(tmp_path / name, keys=["label", "encoder.0"])
        assert part.is_memmap()
        changed = content()
        changed["label"] += 1
        changed.save(tmp_path / name)
        part.memmap_refresh_()
        assert part["label"].tolist() == [1, 2, 3, 4, 5, 6] and set(part.keys()) == {"label", "encoder"}


def test_keys_with_dots_are_named_by_tuples(tmp_path):
    TensorDict({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}, "[": torch.ones(1)}).save(tmp_path / "x")
    assert keys(load_memmap(tmp_path / "x", keys=[("a.b",)])) == {"a.b"}
    assert keys(load_memmap(tmp_path / "x", keys=["a.b"])) == {("a", "b")}
    assert keys(load_memmap(tmp_path / "x", keys=[("[",)])) == {"["}


def test_unbatched_tensors_are_entries_like_others(tmp_path):
    td = TensorDict({"a": torch.zeros(3)}, [3])
    td["table"] = UnbatchedTensor(torch.arange(7), torch.Size([3]))
    td.save(tmp_path / "x.safetensors")
    part = load_memmap(tmp_path / "x.safetensors", keys=["table"])
    assert isinstance(part.get("table"), UnbatchedTensor) and part.get("table").tensor.tolist() == list(range(7))
    assert load_memmap(tmp_path / "x.safetensors").is_memmap()


def test_patterns_match_within_one_part():
    taken = Selection(["a.*.c", "**.z", "q"]).takes
    assert taken(("a", "b", "c")) and taken(("a", "b", "c", "d")) and not taken(("a", "b", "b", "c"))
    assert taken(("z",)) and taken(("k", "l", "z", "m")) and taken(("q", "r")) and not taken(("qr",))


# --- rows


ROWS = [slice(1, 4), slice(None, None, 2), slice(None, None, -1), slice(9, 20), [4, 0, 4], range(5, 2, -1), 2, -1]
ROWS += [torch.tensor([1, -1]), torch.tensor([True, False, True, False, False, True]), []]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_rows_are_those_of_indexing(saved, rows):
    td = load_memmap(saved, rows=rows)
    whole = content()
    like = torch.arange(6)[list(rows)] if isinstance(rows, range) else None
    index = rows if not isinstance(rows, slice) or rows.step is None or rows.step > 0 else torch.arange(5, -1, -1)
    wanted = whole[like if like is not None else index if not isinstance(index, list) else torch.tensor(index).long()]
    assert td.batch_size == wanted.batch_size and not td.is_locked
    for key in ("label", ("encoder", "0", "weight"), ("decoder", "weight")):
        assert torch.equal(td[key], wanted[key])
    if isinstance(rows, int):
        assert td["names"] == "uvwxyz"[rows]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32], ids=str)
def test_row_numbers_may_have_any_integer_dtype(tmp_path, dtype):
    TensorDict({"x": torch.arange(300)}, [300]).save(tmp_path / "x")
    rows = torch.zeros(300, dtype=dtype)
    rows[:3] = torch.tensor([2, 0, 100]).to(dtype)
    assert load_memmap(tmp_path / "x", rows=rows)["x"].tolist() == rows.tolist(), "not a mask"


def test_a_slice_of_rows_stays_mapped(tmp_path):
    content().save(tmp_path / "x")
    part = load_memmap(tmp_path / "x", rows=slice(2, 4), mode="r+")
    part["label"][:] = 9
    assert load_memmap(tmp_path / "x")["label"].tolist() == [0, 1, 9, 9, 4, 5]


def test_rows_of_one_tensor(saved):
    assert load_memmap(saved, subpath="label", rows=[3, 1]).tolist() == [3, 1]


@pytest.mark.parametrize("rows", [6, -7, [0, 6], range(4, 8), torch.tensor([True])])
def test_rows_that_are_not_there_are_an_index_error(saved, rows):
    with pytest.raises(IndexError):
        load_memmap(saved, rows=rows)


@pytest.mark.parametrize("rows", [True, "1", 1.5, torch.zeros(2), torch.zeros(2, 2, dtype=torch.int64)])
def test_invalid_row_numbers_are_type_errors(rows):
    with pytest.raises(TypeError, match="rows="):
        as_index(rows, 6)


def test_rows_need_a_batch_dimension(tmp_path):
    TensorDict({"a": torch.ones(3)}).save(tmp_path / "x")
    with pytest.raises(ValueError, match="batch size"):
        load_memmap(tmp_path / "x", rows=1)


# --- where to


def test_the_meta_device_can_be_combined_with_parts(saved):
    td = load_memmap(saved, device="meta", keys=["encoder", "label"], rows=slice(0, 2))
    assert td["encoder", "0", "weight"].is_meta and td["encoder", "0", "weight"].shape == (2, 2)


def test_parts_go_into_a_given_tensordict(saved):
    out = content().zero_()
    assert load_memmap(saved, keys=["label", "encoder.0"], out=out.select("label", ("encoder", "0"))) is not None
    assert out["label"].tolist() == list(range(6)) and out["decoder", "weight"].sum() == 0


@pytest.mark.cuda
def test_rows_go_to_another_device(saved):
    td = load_memmap(saved, device="cuda", keys=["label"], rows=[5, 0])
    assert td["label"].is_cuda and td["label"].tolist() == [5, 0]


def test_every_format_is_recognized_by_its_content(saved, tmp_path):
    other = tmp_path / "other"
    saved.rename(other)
    try:
        assert load_memmap(other, keys="label")["label"].tolist() == list(range(6))
        convert(other, tmp_path / "again")
        assert load_memmap(tmp_path / "again")["encoder", "0", "bias"].tolist() == list(range(6))
    finally:
        other.rename(saved)


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz"])
@pytest.mark.parametrize("keys", ["w", "w.x", "**.x", "*"])
def test_stacks_of_ragged_stacks_are_chosen_from(tmp_path, name, keys):
    inner = TensorDict.lazy_stack([TensorDict({"x": torch.zeros(n)}) for n in (3, 4)])
    TensorDict.lazy_stack([TensorDict({"w": inner}), TensorDict({"w": inner})]).save(tmp_path / name)
    loaded = load_memmap(tmp_path / name, keys=keys)
    assert [len(part["x"]) for part in loaded[1]["w"].unbind(0)] == [3, 4]
