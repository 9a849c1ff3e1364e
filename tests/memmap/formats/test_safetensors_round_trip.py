"""Safetensors files: any tensordict comes back as it was, and every file is as other readers want it."""

from __future__ import annotations

import itertools
import json
import os

import pytest
import torch
from tests.memmap.formats.test_dotted import header_of
from tests.memmap.saving.test_save import some

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
)
from tensordict_memmap import from_safetensors, to_safetensors
from tensordict_memmap.formats.safetensors.header import CODES, Form, dump_header

DTYPES = [*CODES, torch.complex128, torch.complex32, torch.float8_e8m0fnu]
if hasattr(torch, "bcomplex32"):  # since torch 2.14
    DTYPES.append(torch.bcomplex32)


def test_wide_complex_numbers_are_aligned_after_any_tensor(tmp_path, same):
    wide = torch.arange(3).to(torch.complex128)
    td = TensorDict({"a": torch.ones(1, dtype=torch.float64), "b": wide, "c": torch.ones(3), "d": wide * 1j})
    stacked = LazyStackedTensorDict(td, td.clone())
    for name, data in {"x.safetensors": td, "y.safetensors": stacked}.items():
        data.save(tmp_path / name)
        back = from_safetensors(tmp_path / name)
        same(data, back)
        for key in ("b", "d"):
            leaf = back[key] if data is td else back.tensordicts[0][key]
            assert leaf.data_ptr() % 16 == 0 and torch.equal(leaf.clone(), td[key])


def test_wide_complex_numbers_that_are_not_aligned_are_refused_rather_than_used(tmp_path):
    keys = {"a": {"tensor": "a"}, "b": {"tensor": "b", "dtype": "torch.complex128"}}
    record = {"version": 1, "root": {"batch_size": [], "names": None, "keys": keys}}
    forms = [Form(torch.float64, (1,)), Form(torch.float64, (1, 2))]
    start = dump_header(["a", "b"], forms, [8, 24], {"tensordict": json.dumps(record)})
    (tmp_path / "x.safetensors").write_bytes(start + bytes(24))
    with pytest.raises(ValueError, match=r"'b'.*multiple of 16"):
        from_safetensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, [1, {"a": 10**30}], (1 << 70,)], ids=str)
@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz"])
def test_integers_of_more_than_64_bits_come_back_exactly(tmp_path, name, value):
    TensorDict({"a": torch.zeros(1), "v": NonTensorData(value)}).save(tmp_path / name)
    back = TensorDict.load(tmp_path / name)["v"]
    assert back == value and repr(back) == repr(value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_lazy_stack_may_hold_nested_tensors_without_a_shape(tmp_path):
    parts = [
        TensorDict({"n": torch.nested.nested_tensor([torch.ones(n), torch.ones(2)], layout=torch.strided)})
        for n in (1, 3)
    ]
    LazyStackedTensorDict(*parts).save(tmp_path / "x.safetensors")
    back = from_safetensors(tmp_path / "x.safetensors")
    assert [[len(part) for part in one["n"].unbind()] for one in back.tensordicts] == [[1, 2], [3, 2]]


@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)], ids=str)
def test_every_dtype_and_shape_is_restored(tmp_path, dtype, shape, same):
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
def test_a_tensordict_is_loaded_as_it_was_saved(tmp_path, name, same):
    td = TREES[name]()
    to_safetensors(td, tmp_path / "x.safetensors")
    same(td, from_safetensors(tmp_path / "x.safetensors"))


@pytest.mark.parametrize(
    "value", ["text", None, (1, 2), b"bytes", {"a": [1]}, float("inf"), [{"a": (-float("inf"),)}], 2**70]
)
def test_a_single_value_is_restored(tmp_path, value):
    for td in (NonTensorData(value, batch_size=[2]), NonTensorStack(value, value)):
        to_safetensors(td, tmp_path / "x.safetensors")
        back = from_safetensors(tmp_path / "x.safetensors")
        assert type(back) is type(td) and back.tolist() == td.tolist() and back.batch_size == td.batch_size


def test_tied_weights_are_stored_once_and_tied_again(tmp_path, same):
    weight = torch.rand(8, 8)
    td = TensorDict({"a": weight, "b": {"c": weight}, "transposed": weight.T, "part": weight[0]})
    to_safetensors(td, tmp_path / "x.safetensors")
    back = from_safetensors(tmp_path / "x.safetensors")
    assert back["a"] is back["b", "c"]
    same(td, back)
    assert len(header_of(tmp_path / "x.safetensors")[0]) == 4  # with the metadata


ODD = {
    "tied": ("odd", lambda td: td["k3"]),
    "overlapping": ("odd", lambda td: td["k3"][1:]),
    "another shape of the same memory": ("odd", lambda td: td["k3"].reshape(2, 1)),
    "transposed": ("odd", lambda td: torch.rand(3, 2).T),
    "expanded": ("odd", lambda td: torch.rand(1).expand(4)),
    "negated lazily": ("odd", lambda td: torch.imag(torch.ones(3, dtype=torch.complex64).conj())),
    "complex": ("odd", lambda td: torch.ones(3, dtype=torch.complex128)),
    "empty": ("odd", lambda td: torch.empty(0, 3)),
    "nested": ("odd", lambda td: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
    "pickled": ("odd", lambda td: NonTensorData(Opaque())),
    "a name that is taken": ("n.x", lambda td: torch.rand(5)),
    "a name that would be next": ("n.x~1", lambda td: torch.rand(5)),
    "a name that the format keeps": ("__metadata__", lambda td: torch.rand(5)),
    "a name that is escaped": ('quoted"\\\n', lambda td: torch.rand(5)),
    "a name of other letters": ("größe", lambda td: torch.rand(5)),
}


@pytest.mark.filterwarnings("ignore:key 'odd' is pickled", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("place", [0, 7, 20])
@pytest.mark.parametrize("name, make", ODD.values(), ids=ODD)
def test_one_odd_tensor_among_many_plain_ones_changes_nothing_for_those(tmp_path, same, name, make, place, checksum):
    td = TensorDict({f"k{i}": some(dtype, 2) for i, dtype in enumerate([torch.float32, torch.int64, torch.uint8] * 6)})
    td["n"] = {"x": torch.rand(3), "y": {"z": torch.rand(2)}}
    entries = list(td.items())
    entries.insert(place, (name, make(td)))
    td = TensorDict(dict(entries))
    to_safetensors(td, tmp_path / "x.safetensors", checksum=checksum)
    verify = "full" if checksum else "size"
    same(td, from_safetensors(tmp_path / "x.safetensors", allow_pickle=True, verify=verify))
    header, _ = header_of(tmp_path / "x.safetensors")
    assert {f"k{i}" for i in range(18) if i != 3} | {"n.y.z"} <= header.keys()  # k3 has the name of what is tied to it
    offsets = [about["data_offsets"] for about in header.values() if "dtype" in about]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(offsets))


def test_one_number_that_is_negated_lazily_is_saved_negated(tmp_path):
    number = torch.imag(torch.tensor([1 + 2j]).conj())
    assert number.is_contiguous() and number.is_neg()  # its memory holds the 2
    to_safetensors(TensorDict({"a": number}), tmp_path / "x.safetensors")
    assert from_safetensors(tmp_path / "x.safetensors")["a"].tolist() == [-2]


def test_parameters_are_saved_as_their_values(tmp_path):
    layer = torch.nn.Linear(3, 2)
    to_safetensors(TensorDict(dict(layer.named_parameters())), tmp_path / "x.safetensors")
    back = from_safetensors(tmp_path / "x.safetensors")
    assert torch.equal(back["weight"], layer.weight) and not back["weight"].requires_grad


class Opaque:
    def __eq__(self, other):
        return isinstance(other, Opaque)

    __hash__ = None


def test_values_without_a_json_form_are_pickled_and_load_only_if_allowed(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.warns(UserWarning, match="key 'o' is pickled"):
        to_safetensors(TensorDict({"o": NonTensorData(Opaque())}), path)
    with pytest.raises(ValueError, match="key 'o' was pickled"):
        from_safetensors(path)
    assert from_safetensors(path, allow_pickle=True)["o"] == Opaque()


BAD = {
    "coo": lambda: torch.rand(3, 3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, device="meta"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_tensors_without_memory_are_refused_before_anything_is_written(tmp_path, make):
    with pytest.raises(TypeError, match="'b', 'bad'"):
        to_safetensors(TensorDict({"b": {"bad": make()}}), tmp_path / "x.safetensors")
    assert os.listdir(tmp_path) == []


def test_every_tensor_that_is_written_is_aligned_to_its_element(tmp_path):
    td = TensorDict({f"{i}{str(dtype)[6:]}": some(dtype, i) for i in range(1, 4) for dtype in CODES})
    to_safetensors(td, tmp_path / "x.safetensors")
    length = int.from_bytes((tmp_path / "x.safetensors").read_bytes()[:8], "little")
    assert (length + 8) % 64 == 0
    assert all(
        tensor.data_ptr() % tensor.element_size() == 0
        for tensor in from_safetensors(tmp_path / "x.safetensors").values()
    )
