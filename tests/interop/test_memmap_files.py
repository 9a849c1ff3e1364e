"""Folders written here open in the reference, and folders of the reference open here, in one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensordict as reference
import tensordict_core as ours
from tensordict_class import tensorclass
from tensordict_memmap import MemoryMappedTensor

pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
KEYS = ["a b", "a/b", "a.b", "é", "..", ".", "", "a%b", "a:b\\c", "x\n", "日本", '<>|"*?']
BOTH = pytest.mark.parametrize("writer, reader", [(ours, reference), (reference, ours)], ids=["ours", "theirs"])


@tensorclass
class Ours:
    x: torch.Tensor
    note: str


@reference.tensorclass
class Theirs:
    x: torch.Tensor
    note: str


def read(library, path, **options):
    return library.TensorDict.load_memmap(path, **options)


def equal(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(torch.as_tensor(a).clone(), torch.as_tensor(b).clone())
    )


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_zero_size_and_zero_dim(tmp_path, writer, reader, dtype):
    values = {
        "a": torch.arange(6).reshape(2, 3).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
        "scalar": torch.ones((), dtype=dtype),
    }
    writer.TensorDict(values).memmap(tmp_path)
    td = read(reader, tmp_path)
    assert set(td.keys()) == set(values)
    assert all(equal(td[key], value) for key, value in values.items())


@BOTH
def test_nested_with_names_and_batch_sizes(tmp_path, writer, reader):
    td = writer.TensorDict({"a": torch.rand(4, 3), "b": {"c": {"d": torch.rand(4)}}, "none": {}}, [4], names=["time"])
    td.memmap(tmp_path)
    again = read(reader, tmp_path)
    assert again.batch_size == (4,) and list(again.names) == ["time"]
    assert equal(again["b", "c", "d"], td["b", "c", "d"]) and again["b", "c"].batch_size == (4,)
    assert again["none"].batch_size == (4,) and list(again["none"].keys()) == []


@BOTH
def test_keys_with_unusual_characters(tmp_path, writer, reader):
    td = writer.TensorDict({key: torch.full((2,), n) for n, key in enumerate(KEYS)})
    for n, key in enumerate(KEYS):
        td["n" + key] = writer.TensorDict({key: torch.full((1,), n)})
    td.memmap(tmp_path)
    again = read(reader, tmp_path)
    assert set(again.keys()) == set(td.keys())
    for n, key in enumerate(KEYS):
        assert again[key].tolist() == [n, n] and again["n" + key][key].tolist() == [n]


def test_keys_that_the_reference_wrote_without_encoding(tmp_path):
    reference.TensorDict({"a b": torch.ones(2), "c d": {"e": torch.ones(1)}}).memmap(tmp_path, robust_key=False)
    td = read(ours, tmp_path)
    assert td["a b"].sum() == 2 and td["c d", "e"].sum() == 1


@BOTH
@pytest.mark.parametrize("dim", [0, 1])
def test_lazy_stacks(tmp_path, writer, reader, dim):
    parts = [writer.TensorDict({"i": torch.full((2, 3), n), "n": {"j": torch.ones(2)}}, [2]) for n in range(3)]
    writer.TensorDict({"l": writer.LazyStackedTensorDict(*parts, stack_dim=dim, stack_dim_name="s")}).memmap(tmp_path)
    lazy = read(reader, tmp_path)["l"]
    assert type(lazy).__name__ == "LazyStackedTensorDict" and lazy.stack_dim == dim
    assert lazy.batch_size == ((3, 2) if dim == 0 else (2, 3)) and list(lazy.names)[dim] == "s"
    assert [part["i"].tolist() for part in lazy.unbind(dim)] == [[[n] * 3] * 2 for n in range(3)]


@BOTH
def test_lazy_stacks_of_elements_that_differ(tmp_path, writer, reader):
    parts = [writer.TensorDict({"i": torch.full((n,), n)}) for n in range(1, 4)]
    writer.LazyStackedTensorDict(*parts, stack_dim=0).memmap(tmp_path)
    assert [part["i"].tolist() for part in read(reader, tmp_path).unbind(0)] == [[1], [2, 2], [3, 3, 3]]


@BOTH
@pytest.mark.parametrize(
    "value", ["text", "é\n", 1, 1.5, True, None, [1, "a"], {"k": [1, 2.5, None]}, float("inf"), 2**70], ids=repr
)
def test_values_of_json(tmp_path, writer, reader, value):
    writer.TensorDict({"s": writer.NonTensorData(value, batch_size=[2])}, [2]).memmap(tmp_path)
    again = read(reader, tmp_path).get("s")
    assert again.data == value and again.batch_size == (2,)


@BOTH
def test_stacks_of_values(tmp_path, writer, reader):
    td = writer.TensorDict({"t": writer.NonTensorStack("a", "b")}, [2])
    td["u"] = torch.stack([writer.NonTensorStack("a", "b"), writer.NonTensorStack("c", "d")], 1)
    td.memmap(tmp_path)
    again = read(reader, tmp_path)
    assert again.get("t").tolist() == ["a", "b"] and again.get("u").tolist() == [["a", "c"], ["b", "d"]]


def test_a_tuple_is_a_list_there_as_from_the_reference_itself(tmp_path):
    ours.TensorDict({"s": ours.NonTensorData((1, (2,)))}).memmap(tmp_path)
    assert read(reference, tmp_path)["s"] == [1, [2]]
    assert read(ours, tmp_path)["s"] == (1, (2,))


@BOTH
def test_pickled_values(tmp_path, writer, reader):
    td = writer.TensorDict({"s": writer.NonTensorData(slice(1, 2)), "t": writer.NonTensorStack(slice(3), "x")})
    td.memmap(tmp_path)
    options = {"allow_pickle": True} if reader is ours else {}
    again = read(reader, tmp_path, **options)
    assert again["s"] == slice(1, 2) and again.get("t").tolist() == [slice(3), "x"]
    if reader is ours:
        with pytest.raises(ValueError, match="'s'"):
            read(ours, tmp_path)


def test_values_that_only_ours_have_a_form_for(tmp_path):
    ours.TensorDict({"s": ours.NonTensorData(b"bytes"), "a": torch.ones(1)}).memmap(tmp_path)
    assert read(ours, tmp_path)["s"] == b"bytes"
    assert read(reference, tmp_path)["a"].sum() == 1


def test_tensorclasses_written_here_open_there(tmp_path):
    ours.TensorDict({"tc": Ours(x=torch.arange(3), note="n", batch_size=[3])}, [3]).memmap(tmp_path)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert "tc/_tensordict/x.memmap" in files and "tc/_tensordict/note/meta.json" in files
    document = (tmp_path / "tc" / "meta.json").read_text()
    (tmp_path / "tc" / "meta.json").write_text(document.replace(str(Ours), str(Theirs)))
    td = read(reference, tmp_path)
    assert type(td["tc"]) is Theirs and td["tc"].x.tolist() == [0, 1, 2] and td["tc"].note == "n"


def test_tensorclasses_written_there_open_here(tmp_path):
    reference.TensorDict({"tc": Theirs(x=torch.arange(3), note="n", batch_size=[3])}, [3]).memmap(tmp_path)
    with pytest.warns(UserWarning, match="Theirs"):
        td = read(ours, tmp_path)
    assert td["tc", "x"].tolist() == [0, 1, 2] and td["tc", "note"] == "n"
    document = (tmp_path / "tc" / "meta.json").read_text()
    (tmp_path / "tc" / "meta.json").write_text(document.replace(str(Theirs), str(Ours)))
    td = read(ours, tmp_path)
    assert type(td["tc"]) is Ours and td["tc"].note == "n" and isinstance(td["tc"].x, MemoryMappedTensor)
    Ours.load_memmap(tmp_path / "tc").x[0] = 9
    assert read(reference, tmp_path / "tc" / "_tensordict")["x"].tolist() == [9, 1, 2]


@BOTH
def test_nested_tensors(tmp_path, writer, reader):
    parts = [torch.rand(2, 3), torch.rand(4, 3)]
    writer.TensorDict({"nt": torch.nested.nested_tensor(parts)}).memmap(tmp_path)
    again = read(reader, tmp_path)["nt"]
    assert all(torch.equal(a, b) for a, b in zip(again.unbind(0), parts, strict=True))


def test_tied_leaves_are_two_names_there(tmp_path):
    w = torch.arange(3)
    ours.TensorDict({"a": w, "b": w}).memmap(tmp_path)
    td = read(reference, tmp_path)
    assert td["a"].tolist() == td["b"].tolist() == [0, 1, 2]


def test_entries_that_the_reference_cannot_name_do_no_harm_there(tmp_path):
    td = ours.TensorDict({"shape": torch.ones(2), "a": torch.zeros(2), "a.memmap": {"x": torch.ones(1)}})
    td.memmap(tmp_path)
    assert read(ours, tmp_path)["a.memmap", "x"].sum() == 1
    assert list(read(reference, tmp_path).keys()) == ["a"]


def test_a_save_of_the_reference_over_ours_is_what_loads(tmp_path):
    ours.TensorDict({"a": torch.zeros(5), "b": torch.zeros(2)}).memmap(tmp_path)
    reference.TensorDict({"a": torch.arange(3)}).memmap(tmp_path)
    td = read(ours, tmp_path)
    assert td["a"].tolist() == [0, 1, 2]


def test_a_save_of_ours_over_the_reference_is_what_loads(tmp_path):
    reference.TensorDict({"a": torch.zeros(5), "b": torch.zeros(2)}).memmap(tmp_path)
    ours.TensorDict({"a": torch.arange(3)}).memmap(tmp_path)
    assert read(reference, tmp_path)["a"].tolist() == read(ours, tmp_path)["a"].tolist() == [0, 1, 2]
    assert list(read(reference, tmp_path).keys()) == ["a"]


def test_both_see_what_either_writes_through_its_mapping(tmp_path):
    mine = ours.TensorDict({"a": torch.zeros(3)}).memmap(tmp_path)
    other = read(reference, tmp_path)
    mine["a"][0] = 1
    other["a"][1] = 2
    assert mine["a"].tolist() == other["a"].tolist() == [1, 2, 0]


def test_random_trees_agree_byte_by_byte(tmp_path):
    rng = np.random.default_rng(0)
    for case in range(5):
        mine, other = ours.TensorDict({}), reference.TensorDict({})
        for n in range(12):
            key = (*map(str, rng.integers(0, 3, rng.integers(1, 4))), f"leaf{n}")
            value = torch.from_numpy(rng.random(tuple(rng.integers(0, 4, rng.integers(0, 3)))))
            mine[key] = value
            other[key] = value
        mine.memmap(tmp_path / f"mine{case}")
        other.memmap(tmp_path / f"other{case}")

        def payload(root):
            return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.memmap")}

        assert payload(tmp_path / f"mine{case}") == payload(tmp_path / f"other{case}")
