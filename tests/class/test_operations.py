"""Operations keep the class; so do torch functions, lazy stacks, vmap, pytrees, compilation and copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from tensordict_class import TensorClass, tensorclass
from tensordict_core import LazyStackedTensorDict, NonTensorStack, TensorDict, is_tensorclass, lazy_stack
from tensordict_core.extension import find_type, operations, type_name


class Sample(TensorClass):
    x: torch.Tensor
    label: str = "none"
    extra: Any = None


class Plain(TensorClass):
    x: torch.Tensor
    y: torch.Tensor


class Holder(TensorClass):
    plain: Plain
    td: TensorDict = None


@pytest.fixture
def sample() -> Sample:
    return Sample(torch.arange(1.0, 4.0), "cat", batch_size=[3])


@pytest.fixture
def plain() -> Plain:
    return Plain(torch.arange(3.0), torch.ones(3, 2), batch_size=[3])


@pytest.mark.parametrize("name", [s.name for s in operations() if s.family == "unary" and not s.inplace])
def test_every_unary_operation_keeps_the_class_and_equals_that_of_a_tensordict(name, plain):
    values = (plain.to(torch.int64) if name.startswith(("bitwise", "logical")) else plain) * 0 + 1
    method = getattr(values, name, None)
    if method is None:
        pytest.fail(f"{name} is recorded and no method")
    result = method()
    assert type(result) is Plain and result.batch_size == plain.batch_size
    torch.testing.assert_close(result.y, getattr(values._tensordict, name)()["y"], equal_nan=True)


def test_arithmetic_takes_numbers_tensors_tensordicts_and_instances(plain):
    for result in (plain + 1, 1 + plain, plain + plain * 0 + 1, plain + TensorDict({"x": 1.0, "y": 1.0})):
        assert type(result) is Plain and result.x.tolist() == [1.0, 2.0, 3.0]
    assert type(torch.ones(3) * plain) is Plain
    assert type(plain._tensordict + plain) is TensorDict
    plain += 1
    assert type(plain) is Plain and plain.x.tolist() == [1.0, 2.0, 3.0]


def test_torch_functions_give_the_class(plain):
    for result in (
        torch.sin(plain),
        torch.zeros_like(plain),
        torch.where(plain.x > 0, plain, plain),
        torch.clone(plain),
        torch.unsqueeze(plain, 0),
        torch.unbind(plain)[0],
    ):
        assert type(result) is Plain


def test_comparisons_give_the_class_with_bool_fields(sample):
    equal = sample == sample.clone()
    assert type(equal) is Sample and equal.x.dtype == torch.bool and equal.all()
    assert not (sample == Sample(sample.x, "dog", batch_size=[3])).all()
    assert (sample > 0).x.all() and (sample != sample + 1).x.all()
    assert (sample == None) is False  # noqa: E711 (it is the comparison that is tested)
    with pytest.raises(RuntimeError, match="truth value"):
        bool(sample)


def test_shape_operations_carry_fields_of_every_kind(sample):
    for result, size in (
        (sample.reshape(3, 1), (3, 1)),
        (sample.unsqueeze(0), (1, 3)),
        (sample.expand(2, 3), (2, 3)),
        (sample[:, None].permute(1, 0), (1, 3)),
        (sample.split(2)[0], (2,)),
        (sample.unbind(0)[1], ()),
        (sample.repeat(2), (6,)),
    ):
        assert type(result) is Sample and result.batch_size == torch.Size(size)
        assert result.x.shape == size and result.extra is None
    assert sample[0].label == sample.unbind(0)[1].label == "cat"


def test_stacked_instances_keep_each_value(sample):
    other = Sample(torch.zeros(3), "dog", batch_size=[3])
    stacked = torch.stack([sample, other])
    assert type(stacked) is Sample and stacked.x.shape == (2, 3)
    assert stacked[0, 0].label == "cat" and stacked[1, 2].label == "dog"
    assert torch.cat([sample, other]).label == ["cat"] * 3 + ["dog"] * 3
    assert torch.cat([sample, other])[4].label == "dog"
    assert isinstance(stacked._tensordict.get("label"), NonTensorStack)


def test_instances_with_different_set_fields_do_not_stack_densely(sample):
    other = Sample(torch.zeros(3), "dog", extra=torch.zeros(3), batch_size=[3])
    with pytest.raises(RuntimeError, match="extra"):
        torch.stack([sample, other])
    lazy = TensorDict.maybe_dense_stack([sample, other])
    assert type(lazy) is Sample and isinstance(lazy._tensordict, LazyStackedTensorDict)
    assert lazy[1].extra is not None and lazy.extra is None


def test_instances_of_different_classes_do_not_combine(sample, plain):
    twin = Plain(torch.zeros(3), torch.zeros(3, 2), batch_size=[3])

    class Other(TensorClass):
        x: torch.Tensor
        y: torch.Tensor

    with pytest.raises(TypeError, match="Plain and Other"):
        torch.stack([twin, Other(torch.zeros(3), torch.zeros(3, 2), batch_size=[3])])


def test_lazy_stacks_of_instances_are_instances_and_write_through():
    items = [Sample(torch.zeros(n), "cat") for n in (1, 2)]
    lazy = TensorDict.lazy_stack(items)
    assert type(lazy) is Sample and isinstance(lazy._tensordict, LazyStackedTensorDict)
    assert lazy[1].x.shape == (2,) and [part.shape for part in lazy.get("x", as_list=True)] == [(1,), (2,)]
    assert type(lazy + 1) is Sample and (lazy + 1)[1].x.sum() == 2
    lazy[0].x.fill_(7)
    assert items[0].x == 7
    assert Sample.lazy_stack(items).batch_size == torch.Size([2])
    assert "Sample(" in repr(lazy) and "shape=torch.Size([2, -1])" in repr(lazy)


def test_indexed_writes(sample):
    sample[0] = Sample(torch.tensor(9.0), "dog")
    assert sample.x[0] == 9 and sample.label == ["dog", "cat", "cat"]
    sample[1] = TensorDict({"x": 5.0})
    sample[2] = 1
    assert sample.x.tolist() == [9.0, 5.0, 1.0]
    with pytest.raises(ValueError, match=r"Keys from the tensordict \('typo'\)"):
        sample[0] = TensorDict({"typo": 1.0})
    with pytest.raises(ValueError, match="must correspond to the class attributes"):
        sample[0] = {"typo": 1.0}
    assert set(sample.keys()) == {"x", "label"}


def test_rows_are_not_written_from_a_class_that_lacks_fields(sample):
    class Fewer(TensorClass):
        x: torch.Tensor

    before = sample.clone()
    with pytest.raises(ValueError, match="Fewer lacks the fields 'extra', 'label' of Sample"):
        sample[0] = Fewer(torch.tensor(9.0))
    assert (sample.x == before.x).all()
    sample[0] = Fewer(torch.tensor(9.0)).to_tensordict()
    assert sample.x[0] == 9


def test_an_empty_instance_is_filled_row_by_row():
    sample = Sample(None, None, batch_size=[2])
    for i in range(2):
        sample[i] = Sample(torch.full((4,), float(i)), "row")
    assert sample.x.shape == (2, 4) and sample[1].x[0] == 1 and sample[1].label == "row"


def test_apply_to_nested_nodes_of_a_stack_with_a_batch_size_keeps_the_class(sample):
    stacked = lazy_stack([sample, sample])
    result = stacked.apply(lambda leaf: leaf[0], batch_size=[3], call_on_nested=True)
    assert type(result) is type(sample) and result.batch_size == (3,)
    assert result.x.tolist() == sample.x.tolist()


def test_apply_drops_and_keeps(sample):
    assert sample.apply(lambda leaf: leaf * 2).x.tolist() == [2.0, 4.0, 6.0]
    assert sample.named_apply(lambda name, leaf: None if name == "x" else leaf, filter_empty=False).x is None
    assert sample.apply(lambda leaf: leaf.sum(), batch_size=[]).batch_size == torch.Size([])


def test_selections_keep_the_class(sample):
    assert type(sample.select("x")) is Sample and sample.select("x").label is None
    assert sample.exclude("x").x is None
    first, rest = sample.split_keys(["x"])
    assert type(first) is type(rest) is Sample and first.label is None and rest.x is None
    with pytest.raises(KeyError):
        sample.select("typo")
    assert type(sample.empty()) is Sample and sample.empty().x is None


def test_flattened_keys_that_are_not_fields_give_a_tensordict(plain):
    holder = Holder(plain, batch_size=[3])
    flat = holder.flatten_keys(".")
    assert type(flat) is TensorDict and set(flat.keys()) == {"plain.x", "plain.y"}
    assert type(plain.flatten_keys(".")) is Plain


def test_reductions_keep_the_class(plain):
    assert plain.sum(dim=0).y.tolist() == [3.0, 3.0] and type(plain.mean(dim=0)) is Plain


def test_instances_are_entries_of_tensordicts(sample):
    td = TensorDict({"sample": sample}, [3])
    assert td["sample"] is sample and td["sample", "label"] == "cat"
    assert type(td[0]["sample"]) is Sample and td[0]["sample"].label == "cat"
    assert type(torch.stack([td, td])["sample"]) is Sample
    assert set(td.keys(True, True)) == {("sample", "x")}
    assert type(td.to_tensordict()["sample"]) is TensorDict


def test_an_update_with_a_nested_dictionary_makes_a_nested_tensordict(sample):
    sample.update({"label": {"a": torch.zeros(3), "s": "text"}})
    assert type(sample.label) is TensorDict and sample.label.batch_size == (3,) and sample[0].label["a"].shape == ()
    td = TensorDict({"sample": Sample(torch.zeros(3), batch_size=[3])}, [3]).update(
        {"sample": {"label": {"a": [1] * 3}}}
    )
    assert td["sample"].label["a"].tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        sample.update({"label": {"a": torch.zeros(2)}})
    sample.set("label", {"a": 1.0})
    assert sample.label == {"a": 1.0}


def test_updates(sample):
    sample.update(Sample(torch.zeros(3), "dog", batch_size=[3]))
    assert sample.label == "dog" and sample.x.sum() == 0
    sample.update({"x": torch.ones(3)})
    assert sample.x.sum() == 3
    x = sample.x
    sample.update_(Sample(torch.full((3,), 2.0), "cat", batch_size=[3]))
    assert sample.x is x and x.sum() == 6


def test_vmap_maps_over_instances(plain):
    result = torch.vmap(lambda p: p + p.y.sum())(plain)
    assert type(result) is Plain and result.batch_size == torch.Size([3]) and result.x.tolist() == [2.0, 3.0, 4.0]
    assert torch.vmap(lambda p: p.x * 2)(plain).tolist() == [0.0, 2.0, 4.0]


def test_instances_are_pytree_nodes(sample):
    leaves, spec = torch.utils._pytree.tree_flatten(sample)
    assert len([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]) == 1
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert type(again) is Sample and again.label == "cat"
    assert torch.utils._pytree.tree_map(lambda leaf: leaf + 1, sample).x.tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "function",
    [
        lambda p: p + 1,
        lambda p: (p * p).sin(),
        lambda p: p[0],
        lambda p: p.reshape(3, 1),
        lambda p: torch.stack([p, p]),
        lambda p: torch.cat([p, p]),
        lambda p: Plain(p.x + 1, p.y, batch_size=[3]),
        lambda p: p.clone().set("x", p.x + 1),
        lambda p: p.replace(x=p.x * 2),
        lambda p: p.apply(lambda leaf: leaf * 2),
        lambda p: Plain.from_tensordict(p.to_tensordict()),
    ],
)
def test_operations_compile_in_one_graph(function, plain):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")(plain)
    expected = function(plain)
    assert type(compiled) is type(expected) and compiled.batch_size == expected.batch_size
    assert (compiled == expected).all()


def test_assignment_of_fields_compiles_in_one_graph(plain):
    def write(p: Plain) -> torch.Tensor:
        p = p.clone()
        p.x = p.x + 1
        return p.x + p.y.sum()

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(write, fullgraph=True, backend="eager")(plain), write(plain))


def test_compiled_functions_are_not_compiled_again_for_new_instances(plain):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda p: p + 1, fullgraph=True, backend=counter)
    for _ in range(3):
        compiled(plain.clone())
    assert counter.frame_count == 1


def test_copies_and_pickles(sample):
    for again in (pickle.loads(pickle.dumps(sample)), copy.deepcopy(sample), copy.copy(sample), sample.clone()):
        assert type(again) is Sample and again is not sample and (again == sample).all() and again.label == "cat"
    assert copy.deepcopy(sample).x is not sample.x and copy.copy(sample).x is sample.x
    assert copy.copy(sample)._tensordict is not sample._tensordict


def test_attributes_of_mixins_survive_a_pickle():
    again = pickle.loads(pickle.dumps(sample_with_mixin()))
    assert again.note == "kept" and again.x == 0


class Noted:
    _note = None

    @property
    def note(self) -> str:
        return self.__dict__["note"]


class Mixed(TensorClass, Noted):
    x: torch.Tensor


def sample_with_mixin() -> Mixed:
    mixed = Mixed(torch.zeros(1))
    mixed.__dict__["note"] = "kept"
    return mixed


def test_locking_an_instance_locks_its_nested_tensordicts(plain):
    holder = Holder(plain, batch_size=[3]).lock_()
    assert holder.plain.is_locked and holder._tensordict.is_locked
    with pytest.raises(RuntimeError, match="locked"):
        holder.plain.x = torch.zeros(3)
    with pytest.raises(RuntimeError, match="part of a locked"):
        holder.plain.unlock_()
    with holder.unlock_():
        holder.plain.x = torch.zeros(3)
    assert holder.is_locked and holder.plain.x.sum() == 0


def test_a_locked_tensordict_is_unlocked_through_its_instance():
    td = TensorDict({"plain": {"x": torch.zeros(3)}}, [3], lock=True)
    holder = Holder.from_tensordict(TensorDict({"td": td}, [3]).lock_())
    assert holder.is_locked
    holder.unlock_()
    assert not holder.is_locked and not holder._tensordict.is_locked


def test_metadata_can_be_set(plain):
    plain.names = ["time"]
    assert plain.names == ["time"] and plain[:2].names == ["time"]
    plain.batch_size = []
    assert plain.batch_size == torch.Size([])
    with pytest.raises(RuntimeError, match="device cannot be set"):
        plain.device = "cpu"
    assert plain.to("cpu").device == torch.device("cpu")


def test_classes_are_registered_under_stable_names():
    assert find_type(type_name(Sample)) is Sample
    assert type_name(Sample).endswith(":Sample")
    old = Local = make_local()  # noqa: F841 (the cell that is run again keeps its name)
    new = make_local()
    assert old is not new and find_type(type_name(new)) is new


def make_local() -> type:
    @tensorclass
    class Local:
        x: torch.Tensor

    return Local


def test_is_tensorclass_recognizes_tensorclasses(sample):
    assert is_tensorclass(sample) and is_tensorclass(Sample) and not is_tensorclass(TensorDict({}))


def test_state_dicts_restore_fields(sample):
    other = Sample(torch.zeros(3), "dog", batch_size=[3])
    other.load_state_dict(sample.state_dict())
    assert other.x.equal(sample.x) and other.label == "cat"


@pytest.mark.parametrize("index", [slice(0, 2), torch.tensor([0, 1]), torch.tensor([True, True, False])], ids=str)
def test_in_place_operations_on_a_view_change_its_source(index):
    whole = Sample(torch.ones(3, 2), "text", batch_size=[3])
    view = whole.view_at(index)
    assert view.mul_(4) is view and whole.x[:, 0].tolist() == [4.0, 4.0, 1.0]
    view.masked_fill_(torch.tensor([True, False]), 9.0)
    assert whole.x[:, 0].tolist() == [9.0, 4.0, 1.0]
    assert view.zero_() is view and whole.x[:, 0].tolist() == [0.0, 0.0, 1.0]


def test_the_shape_of_a_ragged_field_is_known_without_reading_it():
    stack = Sample.lazy_stack([Sample(torch.ones(n), "text") for n in (1, 2)])
    assert stack.get_item_shape("x") == torch.Size([2, -1]) and stack.entry_class("x") is torch.Tensor


def test_copy_replace_changes_fields_of_a_copy():
    class Point(TensorClass, shadow=True):
        x: torch.Tensor
        replace: str = "a field"

    point = Point(torch.zeros(2), batch_size=[2])
    changed = point.__replace__(x=torch.ones(2))
    assert type(changed) is Point and changed.x.eq(1).all() and changed.replace == "a field"
    assert point.x.eq(0).all() and "x" in point.__replace__()
