"""Safetensors files: round trips of whole tensordicts, any published file, all or nothing, and hostile headers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
)
from tensordict_memmap import SaveFuture, from_safetensors, memmap, memmap_like, save, to_safetensors
from tensordict_memmap.formats.safetensors import CODES

DTYPES = [*CODES, torch.complex128, torch.complex32, torch.float8_e8m0fnu]


def some(dtype, *shape):
    """A tensor of any dtype with bytes that are not all alike."""
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = (torch.arange(count) % (2 if dtype is torch.bool else 60)).to(torch.uint8)
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def raw_bytes(tensor):
    tensor = tensor.resolve_conj().resolve_neg()
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def header_of(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(path, header, data=b"", *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def same(a, b):
    """Whether two tensordicts are the same: keys and their order, metadata, types, dtypes and bytes."""
    assert type(a) is type(b) and a.batch_size == b.batch_size and a.names == b.names
    if isinstance(a, LazyStackedTensorDict):
        assert a.stack_dim == b.stack_dim and len(a.tensordicts) == len(b.tensordicts)
        for one, two in zip(a.tensordicts, b.tensordicts, strict=True):
            same(one, two)
        return
    assert list(a.keys()) == list(b.keys())
    for key in a.keys():  # noqa: SIM118
        one, two = a.get(key), b.get(key)
        assert type(one) is type(two), key
        if isinstance(one, torch.Tensor) and one.is_nested:
            assert one.layout == two.layout and one.dtype == two.dtype
            for x, y in zip(one.unbind(), two.unbind(), strict=True):
                assert x.shape == y.shape and raw_bytes(x) == raw_bytes(y)
        elif isinstance(one, torch.Tensor):
            assert one.dtype == two.dtype and one.shape == two.shape and raw_bytes(one) == raw_bytes(two), key
        elif isinstance(one, UnbatchedTensor):
            assert one.batch_size == two.batch_size and torch.equal(one.tensor, two.tensor)
        elif isinstance(one, NonTensorData | NonTensorStack):
            assert one.tolist() == two.tolist() and one.batch_size == two.batch_size
        else:
            same(one, two)


# --- round trips


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)], ids=str)
def test_every_dtype_and_shape_comes_back(tmp_path, dtype, shape):
    td = TensorDict({"odd": torch.ones(3, dtype=torch.int8), "a": some(dtype, *shape)})
    td.save(tmp_path / "x.safetensors")
    same(td, from_safetensors(tmp_path / "x.safetensors"))


def lazy(*shapes, **entries):
    return LazyStackedTensorDict(*(TensorDict({"a": torch.rand(shape), **entries}) for shape in shapes))


def lazy_in_the_middle():
    parts = [TensorDict({"a": torch.rand(4, 5, 2), "b": {"c": torch.rand(4, 5)}}, [4, 5]) for _ in range(3)]
    return LazyStackedTensorDict(*parts, stack_dim=1, stack_dim_name="t")


TREES = {
    "nested": lambda: TensorDict(
        {"a": torch.rand(4, 2), "b": {"c": torch.arange(4), "d": {}}, "e": torch.zeros(4, 0)}, [4]
    ),
    "names": lambda: TensorDict({"a": torch.rand(2, 3), "b": TensorDict({}, [2, 3])}, [2, 3], names=["time", None]),
    "nothing": lambda: TensorDict({}, [3]),
    "strided": lambda: TensorDict({"t": torch.rand(30, 40).T, "e": torch.rand(40, 1).expand(40, 7)}, [40]),
    "names that collide": lambda: TensorDict(
        {"a.b": torch.rand(1), "a": {"b": torch.rand(2), "b~1": torch.rand(3)}, "a.b~1": torch.rand(4)}
    ),
    "unusual keys": lambda: TensorDict(
        {
            "__metadata__": torch.rand(1),
            "": torch.rand(1),
            "a/b": torch.rand(1),
            "ünï ☃": {"\ud800": torch.rand(1)},
            '"\\': torch.rand(2),
        }
    ),
    "complex": lambda: TensorDict(
        {
            "a": torch.rand(3, dtype=torch.complex128).conj(),
            "b": torch.rand(3, dtype=torch.complex64).conj(),
            "c": torch.rand(3, dtype=torch.complex64).conj().imag,
        }
    ),
    "values": lambda: TensorDict(
        {
            "text": "x",
            "tuple": NonTensorData((1, b"bytes", None), batch_size=[2]),
            "stack": NonTensorStack("a", {"b": (1,)}),
            "list": NonTensorData([float("inf"), 2**80], batch_size=[2]),
        },
        [2],
    ),
    "unbatched": lambda: TensorDict(
        {"u": UnbatchedTensor(torch.rand(7)), "b": {"v": UnbatchedTensor(torch.rand(2, 2))}}, [2]
    ),
    "lazy": lambda: lazy(3, 3),
    "lazy in the middle": lazy_in_the_middle,
    "lazy of unequal shapes": lambda: lazy(2, 3),
    "lazy of unequal keys": lambda: LazyStackedTensorDict(
        TensorDict({"a": torch.rand(1)}), TensorDict({"b": torch.rand(1)})
    ),
    "lazy with values": lambda: lazy(2, 2, s="text"),
    "lazy inside": lambda: TensorDict({"x": lazy(2, 3), "y": lazy(1, 1)}, [2]),
    "jagged": lambda: TensorDict(
        {"j": torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(5, 3)], layout=torch.jagged)}, [2]
    ),
    "nested tensor beside its shapes": lambda: TensorDict(
        {
            "n": torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(1, 4)], layout=torch.strided),
            "n.shape": torch.rand(2),
        },
    ),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", TREES)
def test_a_tensordict_comes_back_as_it_was(tmp_path, name):
    td = TREES[name]()
    to_safetensors(td, tmp_path / "x.safetensors")
    same(td, from_safetensors(tmp_path / "x.safetensors"))


@pytest.mark.parametrize(
    "value", ["text", None, (1, 2), b"bytes", {"a": [1]}, float("inf"), [{"a": (-float("inf"),)}], 2**70]
)
def test_a_value_alone_comes_back(tmp_path, value):
    for td in (NonTensorData(value, batch_size=[2]), NonTensorStack(value, value)):
        to_safetensors(td, tmp_path / "x.safetensors")
        back = from_safetensors(tmp_path / "x.safetensors")
        assert type(back) is type(td) and back.tolist() == td.tolist() and back.batch_size == td.batch_size


def test_tied_weights_are_stored_once_and_tied_again(tmp_path):
    weight = torch.rand(8, 8)
    td = TensorDict({"a": weight, "b": {"c": weight}, "transposed": weight.T, "part": weight[0]})
    to_safetensors(td, tmp_path / "x.safetensors")
    back = from_safetensors(tmp_path / "x.safetensors")
    assert back["a"] is back["b", "c"]
    same(td, back)
    assert len(header_of(tmp_path / "x.safetensors")[0]) == 4  # with the metadata


def test_parameters_are_saved_as_their_values(tmp_path):
    layer = torch.nn.Linear(3, 2)
    to_safetensors(TensorDict(dict(layer.named_parameters())), tmp_path / "x.safetensors")
    back = from_safetensors(tmp_path / "x.safetensors")
    assert torch.equal(back["weight"], layer.weight) and not back["weight"].requires_grad


class Opaque:
    def __eq__(self, other):
        return isinstance(other, Opaque)

    __hash__ = None


def test_what_has_no_json_form_is_pickled_and_loads_only_where_that_is_allowed(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.warns(UserWarning, match="key 'o' is pickled"):
        to_safetensors(TensorDict({"o": NonTensorData(Opaque())}), path)
    with pytest.raises(ValueError, match="key 'o' was pickled"):
        from_safetensors(path)
    assert from_safetensors(path, allow_pickle=True)["o"] == Opaque()


@pytest.mark.parametrize("bad", [torch.rand(3, 3).to_sparse(), torch.empty(3, device="meta")])
def test_what_has_no_values_in_memory_is_refused_before_anything_is_written(tmp_path, bad):
    with pytest.raises(TypeError, match="'b', 'bad'"):
        to_safetensors(TensorDict({"b": {"bad": bad}}), tmp_path / "x.safetensors")
    assert os.listdir(tmp_path) == []


# --- as saving and loading use it


def test_the_ending_or_the_format_chooses(tmp_path):
    td = TensorDict({"a": torch.arange(3)}, [3])
    td.save(tmp_path / "x.safetensors")
    td.save(tmp_path / "y", format="safetensors")
    td.save(tmp_path / "z.safetensors", format="tree")
    assert (
        (tmp_path / "x.safetensors").is_file() and (tmp_path / "y").is_file() and (tmp_path / "z.safetensors").is_dir()
    )
    for name in ("x.safetensors", "y", "z.safetensors"):
        back = TensorDict.load(tmp_path / name)
        assert torch.equal(back["a"], td["a"]) and back.is_locked and back.device.type == "cpu"
    with pytest.raises(ValueError, match="formats"):
        td.save(tmp_path / "x", format="zip")
    with pytest.raises(ValueError, match="replaced as a whole"):
        td.save(tmp_path / "x.safetensors", atomic=False)


def test_memmap_maps_the_file_and_writes_reach_it(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
    twin = td.memmap(path)
    assert twin.is_memmap() and twin.is_locked and twin.saved_path == path and not td.is_memmap()
    twin["a"].zero_()
    twin["b", "c"][1] = 7
    back = from_safetensors(path)
    assert back["a"].sum() == 0 and back["b", "c"].sum() == 18
    assert not twin.clone().is_memmap()


def test_memmap_in_place_maps_the_tensordict_itself(tmp_path):
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
    inner = td["b"]
    assert td.memmap_(tmp_path / "x.safetensors", format="safetensors") is td and td.is_memmap() and td["b"] is inner
    inner["c"].zero_()
    assert from_safetensors(tmp_path / "x.safetensors")["b", "c"].sum() == 0


def test_memmap_like_makes_room_of_zeros(tmp_path):
    td = memmap_like(TensorDict({"a": torch.ones(2)}).expand(1000), tmp_path / "x.safetensors")
    assert td["a"].shape == (1000, 2) and not td["a"].any() and td.is_memmap()
    td["a"][3] = 1
    assert TensorDict.load(tmp_path / "x.safetensors")["a"].sum() == 2


def test_writes_to_what_was_loaded_stay_here_unless_asked_otherwise(tmp_path):
    path = tmp_path / "x.safetensors"
    TensorDict({"a": torch.arange(3)}).save(path)
    from_safetensors(path)["a"].zero_()
    assert from_safetensors(path)["a"].sum() == 3
    from_safetensors(path, mode="r+")["a"].zero_()
    assert from_safetensors(path)["a"].sum() == 0
    with pytest.raises(ValueError, match="mode"):
        from_safetensors(path, mode="w")


def test_one_key_loads_alone_and_values_go_into_what_is_there(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2)}})
    td.save(path)
    assert TensorDict.load(path, subpath=("b", "c")).tolist() == [1, 1]
    assert list(TensorDict.load(path, subpath="b").keys()) == ["c"]
    out = td.clone().zero_()
    assert TensorDict.load_memmap(path, out=out) is out and out["a"].tolist() == [0, 1, 2]
    assert td.clone().zero_().load_memmap_(path)["b", "c"].sum() == 2


def test_the_meta_device_reads_only_the_header(tmp_path):
    path = tmp_path / "x.safetensors"
    TensorDict({"a": torch.arange(3)}).save(path)
    td = from_safetensors(path, device="meta")
    assert td["a"].is_meta and td["a"].shape == (3,) and td.device.type == "meta"


def test_each_tensor_has_a_version_and_a_storage_of_its_own(tmp_path):
    path = tmp_path / "x.safetensors"
    TensorDict({"w": torch.rand(4, 4), "n": torch.zeros(2, 2), "h": torch.rand(2, 2).bfloat16()}).save(path)
    td = from_safetensors(path)
    weight = td["w"].requires_grad_()
    loss = (weight * weight).sum()
    td["n"].add_(1)
    td["h"].add_(1)
    loss.backward()
    assert torch.equal(weight.grad, 2 * weight)
    assert td["n"].untyped_storage().nbytes() == 16 and td["h"].untyped_storage().nbytes() == 8


def test_refreshing_sees_what_was_saved_over(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.zeros(2)}).memmap(path)
    TensorDict({"a": torch.ones(2), "b": torch.ones(1)}).save(path)
    assert td["a"].sum() == 0
    assert td.memmap_refresh_()["a"].sum() == 2 and "b" in td.keys() and td.is_memmap()  # noqa: SIM118


def test_a_save_in_the_background_shows_its_progress(tmp_path):
    td = TensorDict({"a": torch.rand(1 << 20)})
    future = save(td, tmp_path / "x.safetensors", return_early=True)
    assert isinstance(future, SaveFuture) and future.result() is td and future.bytes_total == 4 << 20
    assert torch.equal(from_safetensors(tmp_path / "x.safetensors")["a"], td["a"])


def test_entries_of_other_files_are_copied_only_where_asked(tmp_path):
    td = TensorDict({"a": torch.arange(3)}).memmap(tmp_path / "tree")
    with pytest.raises(RuntimeError, match="'a'"):
        memmap(td, tmp_path / "x.safetensors")
    memmap(td, tmp_path / "x.safetensors", copy_existing=True)["a"].zero_()
    assert td["a"].sum() == 3


# --- shards


def test_shards_open_as_one(tmp_path):
    td = TensorDict({f"l{i}": {"w": torch.full((100,), i), "b": torch.rand(1)} for i in range(7)})
    save(td, tmp_path / "model", format="safetensors", shard_size=2000)
    names = sorted(os.listdir(tmp_path / "model"))
    assert names[0] == "model-00001-of-00004.safetensors" and "model.safetensors.index.json" in names
    assert all((tmp_path / "model" / name).stat().st_size < 4000 for name in names)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 7 * 804 and len(index["weight_map"]) == 14
    same(td, from_safetensors(tmp_path / "model"))
    same(td, from_safetensors(tmp_path / "model" / "model.safetensors.index.json"))
    save(td, tmp_path / "model", format="safetensors", shard_size=1 << 30)
    assert sorted(os.listdir(tmp_path / "model")) == ["model.safetensors", "tensordict.manifest.json"]
    same(td, from_safetensors(tmp_path / "model"))


@pytest.mark.parametrize("place", ["../x.safetensors", "/etc/passwd", "", ".", "a/b", 3, None, "a\0b"])
def test_an_index_names_files_beside_it_only(tmp_path, place):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(ValueError, match=r"index|beside"):
        from_safetensors(tmp_path / "model.safetensors.index.json")


def test_shards_of_different_saves_are_refused(tmp_path):
    for name, tensors in (("one", {"a": 3, "b": 3}), ("two", {"b": 3, "a": 3})):
        save(
            TensorDict({k: torch.rand(n) for k, n in tensors.items()}),
            tmp_path / name,
            format="safetensors",
            shard_size=12,
        )
    os.replace(
        tmp_path / "one" / "model-00001-of-00002.safetensors", tmp_path / "two" / "model-00001-of-00002.safetensors"
    )
    with pytest.raises(ValueError, match="not of one save"):
        from_safetensors(tmp_path / "two")


# --- published files


def test_names_are_split_on_dots_and_those_that_begin_with_a_tensor_are_not(tmp_path):
    header = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i, name in enumerate(["m.l.0.w", "m.b", "c", "c.d", "e..f"])
    }
    td = from_safetensors(write(tmp_path / "x.safetensors", header, b"abcde"))
    assert td["m", "l", "0", "w"].item() == ord("a") and td.batch_size == ()
    assert set(td.keys()) == {"m", "c", "c.d", "e..f"} and td.device is None


def test_unaligned_tensors_open_without_a_copy(tmp_path):
    values = torch.arange(6, dtype=torch.float64)
    header = {
        "odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "flat": {"dtype": "F64", "shape": [6], "data_offsets": [1, 49]},
        "square": {"dtype": "F64", "shape": [2, 3], "data_offsets": [49, 97]},
        "half": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [97, 105]},
    }
    half = torch.rand(2, 2).bfloat16()
    write(tmp_path / "x.safetensors", header, b"\1" + raw_bytes(values) * 2 + raw_bytes(half))
    td = from_safetensors(tmp_path / "x.safetensors", mode="r+")
    assert td["flat"].equal(values) and td["square"].equal(values.view(2, 3)) and td["half"].equal(half)
    assert (td["square"] @ td["square"].T).equal(values.view(2, 3) @ values.view(2, 3).T)
    td["flat"].zero_()
    assert not from_safetensors(tmp_path / "x.safetensors")["flat"].any()


def test_every_tensor_that_is_written_is_aligned_to_its_element(tmp_path):
    td = TensorDict({f"{i}{str(dtype)[6:]}": some(dtype, i) for i in range(1, 4) for dtype in CODES})
    to_safetensors(td, tmp_path / "x.safetensors")
    length = int.from_bytes((tmp_path / "x.safetensors").read_bytes()[:8], "little")
    assert (length + 8) % 64 == 0
    assert all(
        tensor.data_ptr() % tensor.element_size() == 0
        for tensor in from_safetensors(tmp_path / "x.safetensors").values()
    )


# --- hostile and damaged files

ONE = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
HOSTILE = {
    "empty": lambda p: p.write_bytes(b""),
    "short": lambda p: p.write_bytes(b"\0" * 7),
    "no header": lambda p: write(p, b""),
    "huge length": lambda p: write(p, {"a": ONE}, b"x", length=(1 << 64) - 1),
    "length over the limit": lambda p: write(p, {"a": ONE}, b"x", length=100_000_001),
    "length over the file": lambda p: write(p, {"a": ONE}, b"", length=1000),
    "no object": lambda p: write(p, b"[1]"),
    "starts with a space": lambda p: write(p, b' {"a":' + json.dumps(ONE).encode() + b"}", b"x"),
    "no JSON": lambda p: write(p, b"{" + b"\xff" * 20),
    "deep": lambda p: write(p, b'{"a":' + b"[" * 100_000),
    "duplicate": lambda p: write(
        p, b'{"a":' + json.dumps(ONE).encode() + b',"a":' + json.dumps(ONE).encode() + b"}", b"x"
    ),
    "duplicate field": lambda p: write(p, b'{"a":{"dtype":"I8",' + json.dumps(ONE).encode()[1:] + b"}", b"x"),
    "overlap": lambda p: write(
        p, {"a": {**ONE, "shape": [2], "data_offsets": [0, 2]}, "b": {**ONE, "data_offsets": [1, 2]}}, b"xx"
    ),
    "same bytes": lambda p: write(p, {"a": ONE, "b": ONE}, b"x"),
    "hole": lambda p: write(p, {"a": ONE, "b": {**ONE, "data_offsets": [2, 3]}}, b"xxx"),
    "hole at the start": lambda p: write(p, {"b": {**ONE, "data_offsets": [1, 2]}}, b"xx"),
    "negative": lambda p: write(p, {"a": {**ONE, "data_offsets": [-1, 0]}}, b"x"),
    "backwards": lambda p: write(p, {"a": {**ONE, "shape": [0], "data_offsets": [1, 0]}}, b"x"),
    "beyond the file": lambda p: write(p, {"a": {**ONE, "shape": [1 << 40], "data_offsets": [0, 1 << 40]}}, b"x"),
    "bytes behind": lambda p: write(p, {"a": ONE}, b"xy"),
    "cut off": lambda p: write(p, {"a": {**ONE, "shape": [2], "data_offsets": [0, 2]}}, b"x"),
    "wrong size": lambda p: write(p, {"a": {**ONE, "dtype": "I64"}}, b"x"),
    "negative shape": lambda p: write(p, {"a": {**ONE, "shape": [-1, -1]}}, b"x"),
    "true in a shape": lambda p: write(p, {"a": {**ONE, "shape": [True]}}, b"x"),
    "fractions": lambda p: write(p, {"a": {**ONE, "shape": [1.0]}}, b"x"),
    "offsets that are fractions": lambda p: write(p, {"a": {**ONE, "data_offsets": [0.5, 1.5]}}, b"x"),
    "overflow": lambda p: write(p, {"a": {**ONE, "shape": [1 << 32, 1 << 32], "data_offsets": [0, 0]}}),
    "huge and empty": lambda p: write(p, {"a": {**ONE, "shape": [0, 1 << 63], "data_offsets": [0, 0]}}),
    "three offsets": lambda p: write(p, {"a": {**ONE, "data_offsets": [0, 1, 2]}}, b"x"),
    "no offsets": lambda p: write(p, {"a": {"dtype": "U8", "shape": [1]}}, b"x"),
    "no dtype": lambda p: write(p, {"a": {"shape": [1], "data_offsets": [0, 1]}}, b"x"),
    "unknown dtype": lambda p: write(p, {"a": {**ONE, "dtype": "F6_E2M3"}}, b"x"),
    "dtype that is a list": lambda p: write(p, {"a": {**ONE, "dtype": []}}, b"x"),
    "a number for a tensor": lambda p: write(p, {"a": 1}),
    "metadata that is none": lambda p: write(p, {"__metadata__": {"a": 1}}),
    "metadata that is a list": lambda p: write(p, {"__metadata__": [1]}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_cannot_be_is_an_error(tmp_path, name):
    path = tmp_path / "x.safetensors"
    HOSTILE[name](path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        from_safetensors(path)
    assert path.read_bytes() == before


def node(**fields):
    return {"batch_size": [], "names": None, "keys": {"a": {"tensor": "a"}}, **fields}


RECORDS = {
    "no JSON": "{",
    "deep": "[" * 10_000,
    "no object": [1],
    "another version": {"version": 2, "root": node()},
    "no root": {"version": 1},
    "no batch size": {"version": 1, "root": {"keys": {}}},
    "negative batch": {"version": 1, "root": node(batch_size=[-2])},
    "another batch": {"version": 1, "root": node(batch_size=[7])},
    "names": {"version": 1, "root": node(names=["x"])},
    "absent tensor": {"version": 1, "root": node(keys={"a": {"tensor": "a"}, "b": {"tensor": "b"}})},
    "unused tensor": {"version": 1, "root": node(keys={})},
    "list of keys": {"version": 1, "root": node(keys=["a"])},
    "nothing of an entry": {"version": 1, "root": node(keys={"a": {"tensor": "a"}, "b": {}})},
    "stack dimension": {"version": 1, "root": node(stack_dim=0)},
    "stack of nothing": {"version": 1, "root": node(batch_size=[0], stack_dim=0, keys={})},
    "stack dimension of text": {"version": 1, "root": node(stack_dim="0")},
    "parts": {"version": 1, "root": node(parts=[1], stack_dim=0)},
    "dtype": {"version": 1, "root": node(keys={"a": {"tensor": "a", "dtype": "os.system"}})},
    "dtype of another width": {"version": 1, "root": node(keys={"a": {"tensor": "a", "dtype": "torch.complex128"}})},
    "class": {"version": 1, "root": node(**{"class": 3})},
    "tag": {"version": 1, "root": node(keys={"a": {"tensor": "a"}, "b": {"non_tensor": 1, "exact": {"$": "evil"}}})},
    "shapes": {"version": 1, "root": node(keys={"a": {"tensor": "a", "shapes": "a"}})},
    "pickle": {"version": 1, "root": node(keys={"a": {"tensor": "a", "pickled": True}})},
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_structure_that_does_not_fit_is_an_error(tmp_path, name):
    record = RECORDS[name] if isinstance(RECORDS[name], str) else json.dumps(RECORDS[name])
    header = {"__metadata__": {"tensordict": record}, "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}
    with pytest.raises(ValueError, match=r"x\.safetensors|damaged|registered"):
        from_safetensors(write(tmp_path / "x.safetensors", header, b"xy"))


def test_no_class_is_imported_because_a_file_names_it(tmp_path):
    header = {
        "__metadata__": {
            "tensordict": json.dumps({"version": 1, "root": node(**{"class": "<class 'antigravity.X'>"})})
        },
        "a": ONE,
    }
    with pytest.warns(UserWarning, match="not registered"):
        td = from_safetensors(write(tmp_path / "x.safetensors", header, b"x"))
    assert type(td) is TensorDict and "antigravity" not in sys.modules


def test_a_flipped_or_missing_byte_of_the_header_never_crashes(tmp_path):
    path = tmp_path / "x.safetensors"
    to_safetensors(TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(2), "s": "text"}}), path)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    chance = random.Random(0)
    opened = 0
    for _ in range(600):
        damaged = bytearray(whole)
        if chance.random() < 0.3:
            del damaged[chance.randrange(end) :]
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(min(end, len(damaged)))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            from_safetensors(path)
            opened += 1
        except (ValueError, KeyError):
            continue
    assert opened < 600


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="regular file"):
        from_safetensors(tmp_path / "x.safetensors")
    with pytest.raises(FileNotFoundError):
        from_safetensors(tmp_path / "absent.safetensors")


# --- all or nothing


def test_a_save_over_a_file_leaves_its_mappings_alone(tmp_path):
    path = tmp_path / "x.safetensors"
    td = TensorDict({"a": torch.zeros(1000)})
    td.save(path)
    earlier = from_safetensors(path)
    (earlier + 1).save(path)
    assert earlier["a"].sum() == 0 and from_safetensors(path)["a"].sum() == 1000
    loaded = from_safetensors(path)
    loaded.save(path)  # onto the very file that it is mapped from
    assert from_safetensors(path)["a"].sum() == 1000


def test_a_folder_in_the_way_is_an_error_and_stays(tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises(IsADirectoryError):
        TensorDict({"a": torch.zeros(1)}).save(tmp_path / "x.safetensors")
    with pytest.raises(RuntimeError, match="existsok"):
        TensorDict({"a": torch.zeros(1)}).memmap(__file__, existsok=False, format="safetensors")


def test_a_link_is_followed_and_the_mode_of_the_file_kept(tmp_path):
    td = TensorDict({"a": torch.zeros(1)})
    (tmp_path / "real").mkdir()
    td.save(tmp_path / "real" / "x.safetensors")
    os.chmod(tmp_path / "real" / "x.safetensors", 0o640)
    os.symlink(tmp_path / "real" / "x.safetensors", tmp_path / "x.safetensors")
    (td + 1).save(tmp_path / "x.safetensors")
    assert (
        os.path.islink(tmp_path / "x.safetensors") and from_safetensors(tmp_path / "real" / "x.safetensors")["a"] == 1
    )
    assert (tmp_path / "real" / "x.safetensors").stat().st_mode & 0o777 == 0o640


LIMITED = """
import resource, signal, sys, torch
from tensordict_core import TensorDict
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    TensorDict({"small": torch.zeros(3), "large": torch.ones(1 << 20)}).save(sys.argv[1])
except OSError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_and_the_earlier_file_whole(tmp_path):
    path = tmp_path / "x.safetensors"
    TensorDict({"a": torch.arange(3)}).save(path)
    result = subprocess.run([sys.executable, "-c", LIMITED, path], capture_output=True, text=True, check=True)
    assert "File too large" in result.stdout
    assert os.listdir(tmp_path) == ["x.safetensors"] and from_safetensors(path)["a"].tolist() == [0, 1, 2]


KILLED = """
import sys, torch
from tensordict_core import TensorDict
number = 0
while True:
    number += 1
    td = TensorDict({f"k{i}": torch.full((50_000,), number) for i in range(20)})
    td.save(sys.argv[1])
    print(number, flush=True)
"""


def test_a_killed_save_leaves_the_earlier_file_and_the_next_one_cleans_up(tmp_path):
    path = tmp_path / "x.safetensors"
    process = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    chance = random.Random(1)
    for _ in range(12):
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGSTOP)  # as good as killed: nothing of it runs while we look
        found = {value for tensor in from_safetensors(path).values() for value in tensor.unique().tolist()}
        assert len(found) == 1
        process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()
    process.stdout.close()
    (tmp_path / ".x.safetensors.tensordict-0123456789abcdef").write_bytes(b"left by one that was killed")
    TensorDict({"a": torch.arange(3)}).save(path)
    assert os.listdir(tmp_path) == ["x.safetensors"]
