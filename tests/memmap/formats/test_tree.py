"""The tree layout: names of files, what ``meta.json`` says, and what is never believed of one."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tensordict_memmap.formats.names import META, RESERVED_FIELDS, FileNames, encode_key
from tensordict_memmap.formats.parse_tree import parse
from tensordict_memmap.formats.tree import describe, name_files
from tensordict_memmap.schema.node import Dense, candidate_names, find_class, leaves, nodes
from tensordict_memmap.schema.plan import plan


class Memory:
    """A saved folder in memory: what `describe` gives, for `parse` to read."""

    def __init__(self, node=None):
        self.files = {}
        for one in nodes(node) if node is not None else ():
            for name, document in describe(one).items():
                self.files[f"{one.folder}/{name}" if one.folder else name] = document
        if node is not None:
            for leaf in leaves(node):
                self.files[leaf.file] = b""

    def read(self, path):
        return self.files.get(path)

    def has(self, path):
        return any(file == path or file.startswith(path + "/") for file in self.files)

    def numbered(self, path):
        start = path + "/" if path else ""
        inside = {file[len(start) :].split("/")[0] for file in self.files if file.startswith(start)}
        return sorted(int(name) for name in inside if name.isdigit())


def planned(td):
    """The schema of a tensordict with the files of the tree format."""
    return name_files(plan(td))


def meta(td, folder=""):
    return next(json.loads(describe(node)[META]) for node in nodes(planned(td)) if node.folder == folder)


def test_the_description_of_a_node_is_that_of_the_reference():
    td = TensorDict({"a": torch.zeros(4, 3, dtype=torch.bfloat16), "b": {"c": torch.zeros(4)}}, [4], names=["time"])
    assert meta(td) == {
        "a": {"device": "cpu", "shape": [4, 3], "dtype": "torch.bfloat16", "is_nested": False},
        "b": {"type": "TensorDict"},
        "shape": [4],
        "device": "cpu",
        "_type": "<class 'tensordict._td.TensorDict'>",
        "_format_version": 1,
        "_class": "tensordict:TensorDict",
        "_names": ["time"],
    }


def test_the_description_of_values_is_that_of_the_reference():
    td = TensorDict({"s": NonTensorData({"k": [1, None]}, batch_size=[2]), "t": NonTensorStack("a", "b")}, [2])
    assert meta(td, "s") == {
        "_type": "<class 'tensordict.tensorclass.NonTensorData'>",
        "data": {"k": [1, None]},
        "_metadata": None,
        "_is_non_tensor": True,
    }
    stack = meta(td, "t")
    assert stack["_type"] == "<class 'tensordict.tensorclass.NonTensorStack'>"
    assert stack["data"] == ["a", "b"] and stack["stack_dim"] == 0


def test_the_description_of_a_lazy_stack_is_that_of_the_reference():
    lazy = TensorDict.lazy_stack([TensorDict({"i": torch.zeros(1)}), TensorDict({"i": torch.zeros(2)})])
    about = meta(TensorDict({"l": lazy}), "l")
    assert about["_type"] == "<class 'tensordict._lazy.LazyStackedTensorDict'>"
    assert about["_class"] == "tensordict:LazyStackedTensorDict"
    assert about["stack_dim"] == 0 and about["stack_dim_name"] is None
    assert [leaf.file for leaf in leaves(planned(lazy))] == ["0/i.memmap", "1/i.memmap"]


@pytest.mark.parametrize(
    "key, name",
    [
        ("a", "a"),
        ("a.b", "a.b"),
        ("a b", "a%20b"),
        ("a/b", "a%2Fb"),
        ("a\\b", "a%5Cb"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("...", "..."),
        ("", "%"),
        ("100%", "100%25"),
        ('<>|"?*:', "%3C%3E%7C%22%3F%2A%3A"),
        ("tab\t\n\x7f", "tab%09%0A%7F"),
        ("日本é~!@#$^&()", "日本é~!@#$^&()"),
    ],
)
def test_keys_are_encoded_as_the_reference_does(key, name):
    assert encode_key(key) == name


some_keys = st.text(st.characters(), max_size=8)


@given(
    st.lists(st.text(st.characters(), max_size=8) | st.sampled_from(["a", "a.memmap", "a.shape", META]), unique=True)
)
def test_no_two_entries_share_a_file_and_none_leaves_the_folder(keys):
    entries = {}
    for number, key in enumerate(keys):
        entries[key] = torch.zeros(1) if number % 2 else TensorDict({"x": torch.zeros(1)})
    node = planned(TensorDict(entries))
    files = [leaf.file for leaf in leaves(node)]
    folders = [one.folder for one in nodes(node) if one.folder]
    assert len(set(files)) == len(files) and len(set(folders)) == len(folders)
    assert not set(folders) & set(files) and META not in folders + files
    for path in files + folders:
        assert not path.startswith("/") and ".." not in path.split("/") and "\0" not in path
        assert all(len(part.encode()) <= 255 for part in path.split("/"))


@given(st.lists(some_keys | st.sampled_from(sorted(RESERVED_FIELDS)), unique=True))
def test_any_keys_are_found_again_in_their_order(keys):
    td = TensorDict({key: torch.zeros(n % 3, dtype=torch.int16) for n, key in enumerate(keys)})
    node = planned(td)
    again = parse(Memory(node))
    assert list(again.entries) == keys
    assert [leaf.file for leaf in leaves(again)] == [leaf.file for leaf in leaves(node)]
    assert [leaf.shape for leaf in leaves(again)] == [leaf.shape for leaf in leaves(node)]


def test_names_that_collide_get_distinct_names():
    names = FileNames()
    assert names.nested("nt") == "nt"
    assert names.leaf("nt.shape") == "%-0"
    assert names.node("nt.memmap") == "%-1"
    assert names.leaf("long" * 70) == "%-2"
    assert names.leaf("\ud800") == "%-3"
    assert names.node("tensordict.manifest.json") == "%-4"


def test_entries_named_like_fields_of_the_description_are_there_beside_them():
    td = TensorDict({name: torch.zeros(2, 1) for name in RESERVED_FIELDS}, [2])
    about = meta(td)
    assert about["shape"] == [2] and about["device"] == "cpu"
    assert set(about["_entries"]) == set(RESERVED_FIELDS)


def test_tied_leaves_are_planned_as_one_file_and_a_name():
    w = torch.zeros(3)
    node = planned(TensorDict({"a": w, "b": {"c": w}, "d": torch.zeros(3), "e": w[:0], "f": w[:0]}))
    assert {leaf.file: leaf.alias for leaf in leaves(node)} == {
        "a.memmap": None,
        "b/c.memmap": "a.memmap",
        "d.memmap": None,
        "e.memmap": None,
        "f.memmap": None,
    }


def test_another_view_of_the_same_memory_is_not_tied():
    w = torch.arange(4).reshape(2, 2)
    assert all(leaf.alias is None for leaf in leaves(planned(TensorDict({"a": w, "t": w.T, "r": w[0]}))))


def test_a_tree_of_every_kind_is_parsed_as_it_was_planned():
    td = TensorDict(
        {
            "a": torch.zeros(2, 0),
            "n": {"x": torch.zeros(2, 5, dtype=torch.bool)},
            "lazy": LazyStackedTensorDict(TensorDict({"i": 1}), TensorDict({"i": 2}), stack_dim=0),
            "s": NonTensorData((1, "two"), batch_size=[2]),
            "t": NonTensorStack({1}, b"2"),
        },
        [2],
    )
    node = parse(Memory(planned(td)))
    assert isinstance(node, Dense) and node.batch_size == (2,)
    assert node.entries["s"].value == (1, "two")
    assert node.entries["t"].value == [{1}, b"2"] and node.entries["t"].batch_size == (2,)
    assert list(node.entries["lazy"].parts) == ["0", "1"]
    assert node.entries["n"].entries["x"].dtype is torch.bool


def test_a_part_of_a_tree_is_parsed_without_reading_the_rest():
    memory = Memory(planned(TensorDict({"a": {"b": {"c": 1}, "x": 1}, "y": {"z": 1}})))
    memory.files["y/meta.json"] = b"damaged"
    node = parse(memory, only=("a", "b"))
    assert [leaf.key for leaf in leaves(node)] == [("a", "b", "c")]
    with pytest.raises(KeyError, match="'x'"):
        parse(memory, only=("a", "X"))


DAMAGE = [
    b"",
    b"[]",
    b"{",
    b'{"a": {"shape": [2], "dtype": "torch.float32"}, "shape": "no"}',
    b'{"a": {"shape": [-1], "dtype": "torch.float32"}, "shape": []}',
    b'{"a": {"shape": [1.5], "dtype": "torch.float32"}, "shape": []}',
    b'{"a": {"shape": [99999999999999999999999], "dtype": "torch.float32"}, "shape": []}',
    b'{"a": {"shape": [2], "dtype": "torch.save"}, "shape": []}',
    b'{"a": {"shape": [2], "dtype": 7}, "shape": []}',
    b'{"a": {"shape": [2, 3, 4], "dtype": "torch.float32", "is_nested": true}, "shape": []}',
    b'{"shape": [2], "_names": ["a", "b"]}',
    b'{"shape": [2], "_type": 3}',
    b'{"shape": [], "_entries": {"x": {"dtype": "torch.int8", "shape": [1], "file": "../../etc/passwd"}}}',
    b'{"shape": [], "_entries": {"x": 3}}',
    b'{"_type": "<class \'tensordict._lazy.LazyStackedTensorDict\'>", "stack_dim": "0"}',
    b'{"_type": "<class \'tensordict._lazy.LazyStackedTensorDict\'>", "stack_dim": 0, "_count": 3}',
    b'{"_type": "<class \'os.system\'>"}',
    b'{"_type": "<class \'tensordict.tensorclass.NonTensorStack\'>", "data": "x"}',
    b'{"_type": "<class \'tensordict.tensorclass.NonTensorData\'>", "data": {"$": 1}, "_metadata": {"exact": true}}',
    b'{"b": {"type": "TensorDict"}, "shape": []}',
    b'{"a": {"shape": [2], "dtype": "torch.float32"}, "shape": [3]}',
    b"[" * 10_000,
]


@pytest.mark.parametrize("document", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_description_is_an_error_that_names_key_and_damage(document):
    memory = Memory()
    memory.files[META] = document
    with pytest.raises(ValueError):
        parse(memory)


def test_the_error_of_a_damaged_node_names_its_key():
    memory = Memory(planned(TensorDict({"a": {"b": {"c": 1}}})))
    memory.files["a/b/meta.json"] = b"x"
    with pytest.raises(ValueError, match=r"\('a', 'b'\)"):
        parse(memory)


def test_a_stack_without_one_of_its_elements_is_an_error():
    memory = Memory(planned(LazyStackedTensorDict(*(TensorDict({"i": i}) for i in range(3)), stack_dim=0)))
    del memory.files["1/meta.json"], memory.files["1/i.memmap"]
    with pytest.raises(ValueError, match="element 1"):
        parse(memory)


def test_class_strings_stand_for_registered_names_only():
    assert candidate_names("<class 'a.b.C'>") == ["a.b:C", "a:b.C"]
    assert candidate_names("<class '__main__.C'>") == ["C"]
    assert find_class("<class 'os.PathLike'>") is None
    assert find_class("<class 'nowhere.C'>", owner="nobody:C") is None


def test_entries_that_the_layout_cannot_hold_are_errors_with_their_key():
    class Odd:
        pass

    td = TensorDict({"a": {"b": torch.zeros(1)}})
    td["a"]._set("odd", Odd())
    with pytest.raises(TypeError, match=r"\('a', 'odd'\)"):
        planned(td)
