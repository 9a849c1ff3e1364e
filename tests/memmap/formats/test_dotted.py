"""Structures that names tell by their dots: what is loaded by them is what the record says, or the record is read."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack
from tensordict_memmap import MemoryMappedTensor, from_safetensors, load_memmap, to_safetensors
from tensordict_memmap.formats.safetensors import dotted_names as dotted
from tensordict_memmap.formats.safetensors.describe import RECORD, describe
from tensordict_memmap.formats.safetensors.dotted_names import DIGEST, by_names
from tensordict_memmap.formats.safetensors.parse import schema_of
from tensordict_memmap.formats.safetensors.plain import describe_plain
from tensordict_memmap.schema.node import leaves
from tensordict_memmap.schema.plan import plan


def header_of(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def rewrite(path, change):
    """Changes the header of a file as another tool would."""
    header, data = header_of(path)
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.unlink()  # what is mapped stays as it is
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def keys(td):
    return list(td.keys(True))


def leaf(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def deep(depth):
    td = TensorDict({"x": leaf(2)})
    for _ in range(depth):
        td = TensorDict({"n": td})
    return td


ONLY_NAMES = {
    "flat": lambda: TensorDict({"b": leaf(2), "a": leaf(3)}),
    "nested": lambda: TensorDict({"b": {"z": leaf(1), "y": {"x": leaf(2)}, "w": leaf(3)}, "a": leaf(1)}),
    "in alternation": lambda: TensorDict({"b": {"z": leaf(1)}, "a": leaf(1), "c": {"z": leaf(1)}}),
    "of a batch": lambda: TensorDict({"b": TensorDict({"z": leaf(2, 3)}, [2]), "a": leaf(2)}, [2]),
    "as deep as goes": lambda: deep(63),
}
MORE = {
    "empty": lambda: TensorDict({}),
    "an empty node": lambda: TensorDict({"a": {}, "b": leaf(1)}),
    "a key with a dot": lambda: TensorDict({"a.b": leaf(1), "a": {"c": leaf(1)}}),
    "a node with a dot": lambda: TensorDict({"a.b": {"c": leaf(1)}}),
    "an empty key": lambda: TensorDict({"": leaf(1), "a": {"": leaf(1)}}),
    "a node with an empty key": lambda: TensorDict({"": {"a": leaf(1)}}),
    "another order": lambda: TensorDict({"b": {"z": leaf(1, dtype=torch.int8)}, "a": leaf(1, dtype=torch.int64)}),
    "another batch size": lambda: TensorDict({"b": TensorDict({"z": leaf(2, 3)}, [2])}),
    "names of dimensions": lambda: TensorDict({"a": leaf(2)}, [2], names=["time"]),
    "a value": lambda: TensorDict({"a": leaf(2), "v": NonTensorData("text")}),
    "a lazy stack": lambda: lazy_stack([TensorDict({"a": leaf(2)}), TensorDict({"a": leaf(2)})]),
    "a lazy stack inside": lambda: TensorDict({"s": lazy_stack([TensorDict({"a": leaf(2)})] * 2)}),
    "a tie": lambda: TensorDict(dict.fromkeys(["a", "b"], leaf(2))),
    "another form": lambda: TensorDict({"a": leaf(2, dtype=torch.complex128)}),
    "deeper than goes": lambda: deep(64),
}


@pytest.mark.parametrize("name", [*ONLY_NAMES, *MORE])
def test_a_digest_is_saved_if_names_determine_the_structure_and_loads_work_without_it(tmp_path, name):
    source, path = (ONLY_NAMES | MORE)[name](), tmp_path / "x.safetensors"
    to_safetensors(source, path)
    texts = header_of(path)[0]["__metadata__"]
    assert (DIGEST in texts) == (name in ONLY_NAMES)
    assert (RECORD in texts) == (name in MORE or bool(source.batch_size))
    td = load_memmap(path)
    rewrite(path, lambda header: header["__metadata__"].pop(DIGEST, None))
    plain = load_memmap(path)
    for one in (td, plain):
        assert (one == source).all() and one.batch_size == source.batch_size and one.names == source.names
    assert keys(td) == keys(plain)
    if name != "another order":
        assert set(keys(td)) == set(keys(source))


def test_the_record_is_not_parsed_where_the_digest_is_right(tmp_path, monkeypatch):
    source = ONLY_NAMES["of a batch"]()
    to_safetensors(source, tmp_path / "x.safetensors")
    called = []
    monkeypatch.setattr("tensordict_memmap.loading.safetensors.parse", lambda *arguments: called.append(arguments))
    assert keys(load_memmap(tmp_path / "x.safetensors")) == keys(source) and not called


def _rename(header):
    header["b.q"] = header.pop("b.z")


def _other_structure(header):
    header["__metadata__"][RECORD] = header["__metadata__"][RECORD].replace('"z":', '"v":')


@pytest.mark.parametrize("change", [_rename, _other_structure])
def test_files_that_another_tool_changed_are_read_by_the_schema(tmp_path, change):
    path = tmp_path / "x.safetensors"
    to_safetensors(ONLY_NAMES["of a batch"](), path)
    rewrite(path, change)
    if change is _rename:
        with pytest.raises(ValueError, match=r"the file does not hold its tensor .*b.z"):
            load_memmap(path)
    else:
        assert "v" in load_memmap(path)["b"]


def _add(header):
    end = max(about["data_offsets"][1] for name, about in header.items() if name != "__metadata__")
    header["new"] = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}


def _exchange(header):
    header["b.z"], header["a"] = header["a"], header["b.z"]


@pytest.mark.parametrize("part", [{}, {"keys": "b.w"}])
@pytest.mark.parametrize("change", [_rename, _add, _exchange])
def test_without_a_record_no_name_changes_unseen(tmp_path, change, part):
    path = tmp_path / "x.safetensors"
    to_safetensors(ONLY_NAMES["nested"](), path)
    rewrite(path, change)
    with pytest.raises(ValueError, match=rf"names of the tensors in .*x\.safetensors are not .*remove '{DIGEST}'"):
        load_memmap(path, **part)
    rewrite(path, lambda header: header["__metadata__"].pop(DIGEST))
    assert keys(load_memmap(path, **part))


@given(st.data())
def test_saves_without_a_schema_are_loaded_in_their_order(tmp_path_factory, data):
    names = st.text("ab", min_size=1, max_size=2)
    tree = st.recursive(
        st.just(None), lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=9
    )

    def made(drawn):
        return leaf(2) if drawn is None else TensorDict({name: made(one) for name, one in drawn.items()})

    source = made({"a": data.draw(tree), "b": data.draw(tree)})
    path = tmp_path_factory.mktemp("file") / "x.safetensors"
    to_safetensors(source, path)
    assert RECORD not in header_of(path)[0]["__metadata__"]
    assert keys(load_memmap(path)) == keys(source)


def test_a_redundant_schema_is_read_too(tmp_path):
    path, root = tmp_path / "x.safetensors", {"batch_size": [], "names": None, "keys": {"a": {"tensor": "a"}}}
    to_safetensors(TensorDict({"a": leaf(2)}), path)
    record = json.dumps({"version": 1, "root": root}, separators=(",", ":"))
    rewrite(path, lambda header: header["__metadata__"].update({RECORD: record, DIGEST: dotted.digest(record, ["a"])}))
    assert keys(load_memmap(path)) == ["a"]
    rewrite(path, lambda header: header["__metadata__"].update({RECORD: record.replace('{"a"', '{"b"')}))
    assert keys(load_memmap(path)) == ["b"]


@pytest.mark.parametrize("record", ["", "nonsense", dotted._START, dotted._START + "true]", dotted._START + "-1]"])
def test_a_digest_of_nonsense_changes_no_error(tmp_path, record):
    path = tmp_path / "x.safetensors"
    to_safetensors(TensorDict({"a": leaf(2)}), path)

    def forge(header):
        header["__metadata__"] |= {RECORD: record, DIGEST: dotted.digest(record, ["a"])}

    rewrite(path, forge)
    with pytest.raises(ValueError, match="structure"):
        load_memmap(path)


def test_a_shape_that_does_not_start_with_the_batch_size_is_an_error_with_any_digest(tmp_path):
    path = tmp_path / "x.safetensors"
    to_safetensors(TensorDict({"a": leaf(2, 3)}, [2]), path)
    rewrite(path, lambda header: header["a"].update(shape=[3, 2]))
    with pytest.raises(ValueError, match=r"key 'a'.*batch size \[2\]"):
        load_memmap(path)


def test_a_part_and_a_load_without_a_lock_go_by_names_too(tmp_path):
    path = tmp_path / "x.safetensors"
    to_safetensors(ONLY_NAMES["nested"](), path)
    assert keys(load_memmap(path, keys="b.y")) == ["b", ("b", "y"), ("b", "y", "x")]
    td = from_safetensors(path)
    td["b", "new"] = leaf(2)
    assert not td.is_locked and ("b", "new") in td.keys(True)


@given(st.lists(st.text("ab.", max_size=6), unique=True, max_size=12))
def test_each_tensor_is_under_the_key_of_its_name_and_none_is_lost(names):
    tensors = {name: torch.tensor(number) for number, name in enumerate(names)}
    td, found = by_names(tensors), {leaf.file: leaf.key for leaf in leaves(schema_of(names))}
    for name, tensor in tensors.items():
        key = found[name]
        beginnings = [".".join(key[:count]) for count in range(1, len(key))]
        assert td.get(key if len(key) > 1 else key[0], None) is tensor
        assert ".".join(key) == name and not set(beginnings) & set(names)
    assert len(list(td.keys(True, True))) == len(names)


def test_a_name_of_many_parts_is_a_key():
    name = ".".join("a" * 100_000)
    assert keys(by_names({name: leaf(1)})) == [name]


@pytest.mark.parametrize("size", [[], [2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_plain_tensordicts_are_described_as_by_their_schema(size, dtype):
    below = TensorDict({"c": torch.nn.Parameter(torch.ones(2, 3)), "d": TensorDict({"e": torch.zeros(2)}, size)}, size)
    td = TensorDict({"a": torch.arange(2, dtype=dtype), "b": below, "f": torch.ones(2)}, size)
    plain, pack = describe_plain(td), describe(plan(td))
    first, second = plain.layout(), pack.layout()
    assert [form.text for form in first.forms] == [form.text for form in second.forms]
    assert first._replace(forms=()) == second._replace(forms=()) and ("b", "d", "e") in first.keys
    assert plain.metadata(first.names) == pack.metadata(first.names)


@pytest.mark.parametrize(
    "more",
    {
        "batch size": lambda td: td.set("x", TensorDict({"y": torch.ones(3)}, [3])),
        "names": lambda td: td.set("x", TensorDict({"y": torch.ones(3)}, [3], names=["time"])),
        "empty node": lambda td: td.set("x", TensorDict()),
        "value": lambda td: td.set_non_tensor("x", 1),
        "lazy stack": lambda td: td.set("x", LazyStackedTensorDict(TensorDict(), TensorDict())),
        "tied": lambda td: td.set("x", td["a"]),
        "transposed": lambda td: td.set("x", torch.ones(2, 3).T),
        "empty": lambda td: td.set("x", torch.ones(0)),
        "complex": lambda td: td.set("x", torch.ones(3, dtype=torch.complex128)),
        "negative": lambda td: td.set("x", torch._neg_view(torch.ones(3))),
        "sparse": lambda td: td.set("x", torch.ones(3).to_sparse()),
        "meta": lambda td: td.set("x", torch.ones(3, device="meta")),
        "nested": lambda td: td.set("x", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        "jagged": lambda td: td.set("x", torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)),
        "mapped": lambda td: td.set("x", MemoryMappedTensor.from_tensor(torch.ones(3))),
        "dot": lambda td: td.set("x.y", torch.ones(3)),
        "not in ASCII": lambda td: td.set("é", torch.ones(3)),
        "metadata": lambda td: td.set("__metadata__", torch.ones(3)),
    }.items(),
    ids=lambda more: more[0],
)
def test_only_plain_tensordicts_are_described_without_a_schema(more):
    td = TensorDict({"a": torch.arange(3.0)})
    assert describe_plain(td) is not None
    more[1](td)
    assert describe_plain(td) is None
