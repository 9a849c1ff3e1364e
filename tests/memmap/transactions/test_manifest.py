"""The manifest says what a folder consists of, and nothing hostile in one is believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensordict_memmap.storage.manifest import NAME, Entry, Manifest, check_path, folders

SAVED = Manifest(
    {
        "meta.json": Entry(95),
        "a.memmap": Entry(48, "xxh64:0123456789abcdef"),
        "tied.memmap": Entry(48),
        "b/meta.json": Entry(120),
        "b/c/x%2Eshape.memmap": Entry(0),
    },
    names={"b/c": {"x.shape": "x%2Eshape.memmap"}},
    aliases={"tied.memmap": "a.memmap"},
)


def test_a_written_manifest_is_parsed_to_the_same():
    assert Manifest.loads(SAVED.dumps()) == SAVED
    assert json.loads(SAVED.dumps())["files"]["a.memmap"] == [48, "xxh64:0123456789abcdef"]


def test_a_part_is_cut_out_and_put_back():
    part = SAVED.under("b")
    assert set(part.files) == {"meta.json", "c/x%2Eshape.memmap"}
    assert part.names == {"c": {"x.shape": "x%2Eshape.memmap"}} and not part.aliases
    assert SAVED.replaced_under("b", part) == SAVED
    other = Manifest({"meta.json": Entry(1), "n": Entry(2)}, {"": {"k": "n"}}, {"n": "meta.json"})
    replaced = SAVED.replaced_under("b", other)
    assert replaced.under("b") == other
    assert {path for path in replaced.files if not path.startswith("b/")} == {"meta.json", "a.memmap", "tied.memmap"}
    assert not SAVED.under("a").files, "a file whose name begins alike is not in the folder"


def test_folders_are_all_that_lead_to_a_file():
    assert folders(SAVED.files) == {"b", "b/c"}


def record(**changes):
    return {"tensordict_manifest": 1, "complete": True, "files": {"a": 1}, **changes}


HOSTILE = {
    "not JSON": b"{",
    "not an object": b"[1]",
    "not text": b"\xff\xfe\x00",
    "nothing": b"",
    "twice": b'{"tensordict_manifest":1,"complete":true,"files":{"a":1,"a":2}}',
    "deep": b"[" * 100_000,
    "another version": json.dumps(record(tensordict_manifest=2)).encode(),
    "no files": b'{"tensordict_manifest":1,"complete":true}',
    "files no object": json.dumps(record(files=["a"])).encode(),
    "alias to nowhere": json.dumps(record(aliases={"a": "b"})).encode(),
    "names no object": json.dumps(record(names={"a": ["b"]})).encode(),
    "a name with a path": json.dumps(record(names={"": {"k": "../x"}})).encode(),
}
PATHS = [
    "../x",
    "/etc/passwd",
    "a/../../x",
    "",
    "a//b",
    "./a",
    "a/.",
    "a\\..\\b",
    "C:x",
    "a\0b",
    "a/" * 500 + "b",
    NAME,
]
SIZES = [-1, 1.5, True, None, "1", 1 << 63, [1], [1, 2], [1, "x", "y"], {}]


@pytest.mark.parametrize("name", HOSTILE)
def test_broken_and_hostile_manifests_are_refused(name):
    with pytest.raises(ValueError, match="manifest"):
        Manifest.loads(HOSTILE[name], where="its manifest")


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_lead_elsewhere_are_refused(path):
    for changes in ({"files": {path: 1}}, {"aliases": {"a": path}}, {"names": {path or "/": {}}}):
        with pytest.raises(ValueError, match="broken"):
            Manifest.loads(json.dumps(record(**changes)).encode())


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(ValueError, match="broken"):
        Manifest.loads(json.dumps(record(files={"a": size})).encode())


@given(st.binary(max_size=200) | st.text().map(str.encode), st.integers(0, 300), st.integers(0, 255))
def test_any_bytes_are_a_manifest_or_a_value_error(data, place, byte):
    flipped = bytearray(SAVED.dumps())
    flipped[place % len(flipped)] = byte
    for content in (data, bytes(flipped)):
        try:
            Manifest.loads(content)
        except ValueError:
            continue


@given(
    st.text("a./\\:\0\n", max_size=9)
    | st.sampled_from([NAME, f"a/{NAME}", f"{NAME}x", "/".join("a" * 200), "a/" * 200])
)
def test_a_path_is_inside_where_each_part_is_a_name(path):
    parts = path.split("/")
    plain = not any(part in ("", ".", "..") or set(part) & set("\\:\0") for part in parts)
    if plain and len(parts) <= 200 and parts[-1] != NAME:
        assert check_path(path) == path
    else:
        with pytest.raises(ValueError, match="not a path inside"):
            check_path(path)
