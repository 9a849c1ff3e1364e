"""`TensorAttrs`: what device, dtype and shape leaves have, written down, and casts to what is written."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

from tensordict_core import NonTensorStack, TensorAttrs, TensorDict, UnbatchedTensor, is_tensor_collection, lazy_stack


@pytest.fixture
def td() -> TensorDict:
    nested = TensorDict({"b": torch.ones(3, 2, dtype=torch.int64)}, [3])
    return TensorDict({"a": torch.zeros(3, 4), "n": nested, "s": "text"}, [3], names=["x"])


def test_each_leaf_is_described_under_its_key(td: TensorDict) -> None:
    attrs = td.attrs()
    assert type(attrs) is TensorDict and attrs.batch_size == torch.Size([]) and attrs.device is None
    assert set(attrs.keys(True)) == {"a", "n", ("n", "b"), "s"}
    one = attrs["n", "b"]
    assert (one.tgt_device, one.tgt_dtype, one.tgt_shape) == (torch.device("cpu"), torch.int64, torch.Size([3, 2]))
    assert type(attrs.get("a")) is TensorAttrs and is_tensor_collection(one) and attrs["s"] == "text"


def test_only_the_requested_fields_are_recorded(td: TensorDict) -> None:
    assert td.attrs(fields=["dtype"])["a"].to_dict() == {
        "tgt_device": None,
        "tgt_dtype": torch.float32,
        "tgt_shape": None,
    }
    assert td.attrs(fields="shape")["a"].tgt_shape == torch.Size([3, 4])
    with pytest.raises(ValueError, match=r"'device', 'dtype' and 'shape', got 'stride'; pass some"):
        td.attrs(fields=["stride"])


def test_each_leaf_takes_the_spec_under_its_key(td: TensorDict) -> None:
    other = TensorDict({"a": torch.rand(3).double(), "n": {"b": torch.rand(3)}, "own": torch.ones(3)}, [3])
    result = other.to(td.attrs())
    assert [leaf.dtype for leaf in result.values(True, True)] == [torch.float32, torch.int64, torch.float32]
    assert result["own"] is other["own"] and other["a"].dtype == torch.float64
    assert other.to(other=td.attrs())["a"].dtype == torch.float32
    assert other.to(td.attrs(fields=["shape"]))["a"] is other["a"]
    assert other.to(td.attrs(), inplace=True) is other and other["n", "b"].dtype == torch.int64
    assert other.to(TensorAttrs(tgt_dtype=torch.float16))["n", "b"].dtype == torch.float16
    below = other.to(TensorDict({"n": TensorAttrs(tgt_dtype=torch.int8)}))
    assert (below["n", "b"].dtype, below["own"].dtype) == (torch.int8, torch.float32)


def test_the_device_of_the_result_is_the_one_that_all_leaves_are_on(td: TensorDict) -> None:
    attrs = TensorDict({"a": TensorAttrs("meta")})
    here = td.to("cpu")
    assert here.to(attrs)["a"].is_meta and here.to(attrs).device is None
    assert here.select("a").to(attrs).device == torch.device("meta")
    assert here.to(here.attrs()).device == torch.device("cpu") and td.to(td.attrs()).device is None
    assert TensorDict({}, device="cpu").to(TensorAttrs("meta")).device == torch.device("cpu")
    assert here.lock_().to(here.attrs()).is_locked and here.to(here.attrs()).names == ["x"]


def test_attrs_exclude_other_arguments(td: TensorDict) -> None:
    for arguments, options in (((torch.int8,), {}), ((), {"device": "cpu"}), ((), {"cast_filter": lambda *_: True})):
        with pytest.raises(TypeError, match=r"from attrs and allows no other"):
            td.to(td.attrs(), *arguments, **options)


def test_a_lazy_stack_is_described_by_the_properties_that_its_elements_share(td: TensorDict) -> None:
    stack = lazy_stack([td.rename_(None), td.clone()], 1)
    attrs = stack.attrs()
    assert attrs["a"].tgt_shape == torch.Size([3, 2, 4]) == stack["a"].shape and attrs["s"] == stack["s"]
    doubled = lazy_stack([td.double(), td], 1)
    assert doubled.attrs()["a"].tgt_dtype is None and doubled.attrs()["a"].tgt_shape == torch.Size([3, 2, 4])
    assert [part["a"].dtype for part in doubled.to(attrs).tensordicts] == [torch.float32] * 2
    ragged = lazy_stack([TensorDict({"a": torch.ones(2)}), TensorDict({"a": torch.ones(3), "own": torch.ones(1)})])
    assert ragged.attrs()["a"].tgt_shape is None and ragged.attrs()["own"].tgt_shape == torch.Size([1, 1])
    valued = lazy_stack([TensorDict({"s": "p"}), TensorDict({"s": "q"}), TensorDict({"s": torch.ones(())})])
    assert valued.attrs()["s"] == "p"
    assert lazy_stack([TensorDict({"s": "p"}), TensorDict({"s": "q"})]).attrs()["s"] == ["p", "q"]


def test_every_kind_of_entry_is_described() -> None:
    td = TensorDict({"u": UnbatchedTensor(torch.arange(5)), "v": NonTensorStack("a", "b"), "e": {}}, [2])
    attrs = td.attrs()
    assert attrs["u"].tgt_shape == torch.Size([5]) and attrs["v"] == ["a", "b"] and attrs["e"].is_empty()
    assert td.to(TensorDict({"u": TensorAttrs(tgt_dtype=torch.int8)}))["u"].dtype == torch.int8
    assert td.view_at(slice(0, 1)).attrs()["v"] == ["a"]


def test_constructor_arguments_are_checked() -> None:
    one = TensorAttrs("cpu", torch.int8, [3], batch_size=[2], names=["x"])
    assert one.tgt_device == torch.device("cpu") and one.tgt_shape == torch.Size([3]) and one.batch_size == (2,)
    assert repr(one) == "TensorAttrs(tgt_device=cpu, tgt_dtype=torch.int8, tgt_shape=torch.Size([3]))"
    with pytest.raises(TypeError, match=r"tgt_dtype is a torch.dtype or None, got 'int8'; pass, for example, torch"):
        TensorAttrs(tgt_dtype="int8")


def test_operations_treat_specs_as_other_values(td: TensorDict) -> None:
    attrs = td.attrs()
    assert (attrs == attrs.clone()).all() and not (attrs == td.double().attrs()).all()
    for same in (
        pickle.loads(pickle.dumps(attrs)),
        copy.deepcopy(attrs),
        attrs.clone(),
        torch.stack([attrs, attrs])[0],
    ):
        assert type(same["a"]) is TensorAttrs and same["a"].tgt_dtype == torch.float32
    assert torch.stack([attrs, td.double().attrs()])[1]["a"].tgt_dtype == torch.float64
    assert attrs.to_dict()["n"]["b"]["tgt_dtype"] == torch.int64
    attrs.update_({"a": TensorAttrs("meta")})
    assert attrs["a"].tgt_device == torch.device("meta")
    with pytest.raises(TypeError, match="takes another TensorAttrs in place, got 'text'; use set"):
        attrs.set_("a", "text")


def test_a_tree_map_leaves_it_as_it_is(td: TensorDict) -> None:
    both = TensorDict({"x": torch.ones(3), "attrs": td.attrs()["a"]}, [3])
    result = pytree.tree_map(lambda x: x + 1, both)
    assert type(result["attrs"]) is TensorAttrs and result["x"].eq(2).all()
    _, spec = pytree.tree_flatten(both)
    again = pytree.treespec_loads(pytree.treespec_dumps(spec)).unflatten([torch.zeros(3)])
    assert again["attrs"].to_dict() == both["attrs"].to_dict()
    assert torch.vmap(lambda one: one)(both)["attrs"].tgt_shape == torch.Size([3, 4])


def test_attributes_of_one_tensor():
    leaf = torch.zeros(2, 3, dtype=torch.int8)
    attrs = TensorAttrs.from_tensor(leaf)
    assert (attrs.tgt_device, attrs.tgt_dtype, attrs.tgt_shape) == (leaf.device, torch.int8, (2, 3))
    for fields in ("dtype", ("dtype",)):
        assert TensorAttrs.from_tensor(leaf, fields=fields).to_dict() == TensorAttrs(tgt_dtype=torch.int8).to_dict()
    with pytest.raises(ValueError, match="'typo'"):
        TensorAttrs.from_tensor(leaf, fields=["typo"])
    with pytest.raises(TypeError, match="tensor, got int"):
        TensorAttrs.from_tensor(3)
    with pytest.raises(TypeError, match=r"attrs\(\)"):
        TensorAttrs.from_tensor(TensorDict({"a": leaf}))


def test_fields_are_read_and_written_by_name(td: TensorDict) -> None:
    one = td.attrs()["a"]
    assert list(one.keys()) == ["tgt_device", "tgt_dtype", "tgt_shape"] and one["tgt_dtype"] == torch.float32
    assert {key: value.data for key, value in one.items()} == one.to_dict() == one.to_tensordict().to_dict()
    assert [value.data for value in one.values()] == list(one.to_dict().values())
    assert list(td.attrs(fields=["dtype"])["a"].keys()) == ["tgt_dtype"]
    assert td.attrs()["a", "tgt_shape"] == torch.Size([3, 4]) and one.get("tgt_shape") == torch.Size([3, 4])
    assert one.replace(tgt_dtype=torch.int8).tgt_dtype == torch.int8 and one.tgt_dtype == torch.float32
    one.tgt_dtype = torch.int16
    assert one.set("tgt_shape", [2]).to_dict() == TensorAttrs("cpu", torch.int16, [2]).to_dict()
    assert one.update({"tgt_dtype": torch.int8}).tgt_dtype == torch.int8 and TensorAttrs.from_dict(one.to_dict()) == one
    with pytest.raises(AttributeError, match="'other' cannot be set"):
        one.set("other", 1)
    with pytest.raises(RuntimeError, match="locked"):
        one.lock_().tgt_dtype = None


def test_update_with_an_unknown_field_replaces_none() -> None:
    attrs = TensorAttrs("cpu")
    with pytest.raises(KeyError, match="'typo' is no field of TensorAttrs"):
        attrs.update({"tgt_dtype": torch.int8, "typo": 1})
    assert attrs.tgt_dtype is None


def test_item_assignment_replaces_a_field_as_set_does():
    attrs = TensorAttrs("cpu")
    attrs["tgt_dtype"] = torch.int8
    assert attrs.tgt_dtype == torch.int8
