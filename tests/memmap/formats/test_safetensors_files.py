"""Safetensors files of anybody: published ones open without a copy, hostile and damaged ones are errors."""

from __future__ import annotations

import json
import os
import random
import sys

import pytest
import torch

from tensordict_core import TensorDict, lazy_stack
from tensordict_memmap import from_safetensors, load_memmap, to_safetensors
from tensordict_memmap.formats.safetensors.header import load_header


def write(path, header, data=b"", *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


# --- published files


def test_names_are_split_on_dots_and_those_that_begin_with_a_tensor_are_not(tmp_path):
    header = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
        for i, name in enumerate(["m.l.0.w", "m.b", "c", "c.d", "e..f"])
    }
    td = from_safetensors(write(tmp_path / "x.safetensors", header, b"abcde"))
    assert td["m", "l", "0", "w"].item() == ord("a") and td.batch_size == ()
    assert set(td.keys()) == {"m", "c", "c.d", "e..f"} and td.device is None


def test_unaligned_tensors_open_without_a_copy(tmp_path, raw_bytes):
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


def test_a_header_whose_length_starts_as_an_archive_is_not_an_archive(tmp_path):
    length = int.from_bytes(b"PK", "little")
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode().ljust(length)
    for name in ("x.safetensors", "any.name"):
        assert write(tmp_path / name, header, b"\7").read_bytes().startswith(b"PK")
        assert load_memmap(tmp_path / name)["a"].tolist() == [7]


@pytest.mark.parametrize("format", ["archive", "consolidated"])
def test_a_file_of_another_format_may_have_the_ending(tmp_path, format):
    path, td = tmp_path / "x.safetensors", TensorDict({"a": {"b": torch.arange(3)}})
    other = tmp_path / f"x{'.tdz' if format == 'archive' else '.tdc'}"
    td.consolidate(other) if format == "consolidated" else td.memmap(other)
    other.rename(path)
    assert load_memmap(path)["a", "b"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [[], [2], [2, 3]])
@pytest.mark.parametrize("below", ["plain", "deeper batch size", "named", "lazy"])
def test_a_saved_tensordict_is_locked_as_a_whole(tmp_path, size, below):
    inner = TensorDict({"x": torch.ones(2, 3)}, size)
    made = {
        "plain": inner,
        "deeper batch size": TensorDict({"x": torch.ones(2, 3)}, [*size, *[2, 3][len(size) :]]),
        "named": TensorDict({"x": torch.ones(2, 3)}, size, names=["n"] * bool(size) + [None] * (len(size) - 1)),
        "lazy": lazy_stack([inner, inner], len(size)),
    }[below]
    source = TensorDict({"a": TensorDict({"b": made, "c": torch.zeros(2, 3)}, size)}, size)
    td = source.memmap(tmp_path / "x.safetensors")
    loaded = load_memmap(tmp_path / "x.safetensors")
    assert not any(node.is_locked for node in [loaded, loaded["a"], loaded["a", "b"]])
    assert (loaded == source).all() and loaded["a", "b"].names == made.names
    nodes = [td, td["a"], td["a", "b"]]
    assert all(node.is_locked for node in nodes) and td["a", "b"].batch_size == made.batch_size
    assert (td == source).all() and td["a", "b"].names == made.names
    for node in nodes[1:]:
        with pytest.raises(RuntimeError, match="lock"):
            node.unlock_()
    td.unlock_()
    assert not any(node.is_locked for node in nodes)


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


def test_an_address_is_one_for_load_memmap():
    with pytest.raises(ValueError, match="open it with load_memmap"):
        from_safetensors("memory://somewhere/model.safetensors")


def test_a_local_address_is_a_path(tmp_path):
    to_safetensors(TensorDict({"a": torch.ones(1)}), tmp_path / "x.safetensors")
    assert from_safetensors(f"file://{tmp_path}/x.safetensors")["a"].item() == 1


def test_other_than_regular_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="regular file"):
        from_safetensors(tmp_path / "x.safetensors")
    with pytest.raises(FileNotFoundError):
        from_safetensors(tmp_path / "absent.safetensors")


TENSORS = (
    '"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b.c":{"dtype":"F32","shape":[2,2],"data_offsets":[3,19]},'
    '"d":{"dtype":"F32","shape":[2,2],"data_offsets":[19,35]},"e":{"dtype":"I64","shape":[],"data_offsets":[35,43]},'
    '"f":{"dtype":"I64","shape":[0],"data_offsets":[43,43]}}'
)
TEXTS = '"__metadata__":{"format":"pt","tensordict":"{\\"a\\":\\"},\\"}"},'
PARTS = [*'"",:{}[]01 \\\n\x01\x7f\xa0\u00e9', "},", ',"', "01", "1.0", "1e0", "-1", "null", '\\"', "\\u003a", '"a":']
PARTS += [
    '":{"dtype":"',
    '"__metadata__":{"x":"y"},',
    '"__metadata__":{},',
    '"data_offsets":[0,3]',
    '"U8"',
    "18446744073709551616",
]


@pytest.mark.parametrize("start", ["{", "{" + TEXTS, '{"__metadata__":{},'])
def test_headers_of_the_usual_form_are_parsed_as_others(start):
    """A space after the first brace makes it another form, and changes nothing of what it says."""

    def outcome(text):
        try:
            return load_header(text.encode(), 43, "x")
        except ValueError:
            return None

    usual = start + TENSORS
    found = outcome(usual)
    assert found == outcome("{ " + usual[1:]) and found.names == ["a", "b.c", "d", "e", "f"]
    assert outcome(usual + "   ") == found and outcome(usual + "\n") == found and outcome(usual + "}") is None
    chance = random.Random(len(start))
    valid = 0
    for _ in range(4000):
        text = usual
        for _ in range(chance.randrange(1, 3)):
            place, cut = chance.randrange(1, len(text)), chance.choice([0, 0, 1, 1, 2, 8, 45])
            text = text[:place] + chance.choice(["", *PARTS]) + text[place + cut :]
        found = outcome(text)
        assert found == outcome("{ " + text[1:]), text[-80:]
        valid += found is not None
    assert 0 < valid < 4000


def test_names_that_a_header_repeats_or_keeps_for_itself_are_errors_in_the_usual_form(tmp_path):
    one = '{"dtype":"U8","shape":[1],"data_offsets":[%s]}'
    for first, second in [("a", "a"), ("a", "__metadata__"), ("__metadata__", "a")]:
        header = f'{{"{first}":{one % "0,1"},"{second}":{one % "1,2"}}}'
        with pytest.raises(ValueError, match=r"twice|metadata|bytes of tensors"):
            from_safetensors(write(tmp_path / "x.safetensors", header.encode(), b"xy"))


@pytest.mark.parametrize("name", ['q"uote', "back\\slash", '":{"tensor":"a"},"', "new\nline", "caf\u00e9", "\u200b"])
def test_a_flat_tensordict_keeps_odd_names(tmp_path, name):
    td = TensorDict({name: torch.arange(2), "a": torch.arange(3)})
    to_safetensors(td, tmp_path / "x.safetensors")
    loaded = from_safetensors(tmp_path / "x.safetensors")
    assert set(loaded.keys()) == {name, "a"} and loaded[name].equal(td[name]) and loaded["a"].equal(td["a"])


def test_each_of_many_equal_tensors_has_memory_of_its_own(tmp_path):
    to_safetensors(TensorDict({f"x{i}": torch.full((2, 3), i) for i in range(50)}), tmp_path / "x.safetensors")
    loaded = from_safetensors(tmp_path / "x.safetensors")
    for number, tensor in enumerate(loaded.values()):
        assert tensor._base is None and tensor.is_leaf and tensor.untyped_storage().nbytes() == tensor.nbytes
        assert tensor._version == 0 and (tensor == number).all()
        tensor.float().requires_grad_().sum().backward()
    loaded["x7"].zero_()
    assert loaded["x7"]._version == 1 and loaded["x8"]._version == 0 and loaded["x8"].eq(8).all()
