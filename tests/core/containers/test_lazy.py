"""Lazy stacks: what is theirs alone, beside the suite that all containers pass."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from tensordict_core import (
    LazyStackedTensorDict,
    TensorDict,
    lazy_stack,
    maybe_dense_stack,
)
from tensordict_core.containers.lazy import stack


def ragged():
    return LazyStackedTensorDict(
        TensorDict({"a": torch.zeros(3), "own": torch.ones(2)}), TensorDict({"a": torch.ones(4)}), stack_dim=0
    )


def even(dim=0):
    tds = [TensorDict({"a": torch.full((3, 4), float(i)), "n": {"b": torch.zeros(3)}}, [3]) for i in range(2)]
    return LazyStackedTensorDict(*tds, stack_dim=dim)


def test_keys_are_those_that_all_elements_have():
    td = ragged()
    assert list(td.keys()) == ["a"] and list(td.valid_keys()) == ["a"]
    assert "own" not in td and td.get("own") is None
    assert "own" in td[0] and "own" not in td[1]
    with pytest.raises(KeyError, match="own"):
        td["own"]


def test_taking_it_apart_gives_the_elements_themselves():
    td = even()
    assert td[0] is td.tensordicts[0] and td.unbind(0)[1] is td.tensordicts[1]
    assert td[:1].tensordicts[0] is td.tensordicts[0]
    assert td[torch.tensor([1])].tensordicts[0] is td.tensordicts[1]
    assert td[torch.tensor([False, True])].tensordicts[0] is td.tensordicts[1]
    last = even(1)
    assert last[:, 1] is last.tensordicts[1]


def test_nothing_is_selected_with_the_keys_and_shapes_of_the_elements():
    for index in (slice(0, 0), torch.zeros(2, dtype=torch.bool), torch.tensor([], dtype=torch.long)):
        empty = even()[index]
        assert empty.batch_size == (0, 3) and empty["a"].shape == (0, 3, 4)


def test_writes_reach_the_elements():
    td = even()
    td["new"] = torch.arange(6).reshape(2, 3)
    assert td.tensordicts[1]["new"].tolist() == [3, 4, 5]
    td["n", "deep", "er"] = torch.ones(2, 3)
    assert td.tensordicts[0]["n", "deep", "er"].all()
    td["n"]["b"] = torch.ones(2, 3)
    assert td.tensordicts[0]["n", "b"].all()
    td[1] = td[0].clone()
    assert not td.tensordicts[1]["a"].any()
    td.set_at_("a", 5.0, (1, 2))
    assert td.tensordicts[1]["a"][2].tolist() == [5.0] * 4
    del td["a"]
    assert "a" not in td[0]
    td.rename_key_("new", "newer")
    assert "newer" in td[0]


@pytest.mark.parametrize("lazy", [False, True])
def test_nothing_is_cut_into_as_many_pieces_as_a_tensor_is(lazy):
    td = TensorDict({"a": torch.zeros(0, 2)}, [0, 2])
    td = LazyStackedTensorDict(*td.unbind(1), stack_dim=1) if lazy else td
    assert (
        [piece.batch_size for piece in td.chunk(2)] == [(0, 2), (0, 2)] == [t.shape for t in torch.zeros(0, 2).chunk(2)]
    )


@pytest.mark.parametrize("dim", [0, 1])
def test_elements_are_appended_inserted_and_extended(dim):
    td = even(dim)
    extra = TensorDict({"a": torch.full((3, 4), 9.0), "n": {"b": torch.ones(3)}}, [3])
    td.append(extra)
    assert td.tensordicts[2] is extra and td.batch_size[dim] == 3
    td.insert(0, extra)
    td.extend([extra, extra])
    td.extend(even(dim))
    assert len(td.tensordicts) == td.batch_size[dim] == td["a"].shape[dim] == 8
    with pytest.raises(ValueError, match="Batch sizes"):
        td.append(TensorDict({"a": 1}))
    with pytest.raises(TypeError, match="int"):
        td.append(3)
    with pytest.raises(RuntimeError, match="lock"):
        td.lock_().append(extra)


def test_the_elements_of_a_stack_have_one_device():
    here, anywhere = TensorDict(a=1, device="cpu"), TensorDict(a=1)
    for make in (lazy_stack, lambda tds: LazyStackedTensorDict(*tds)):
        with pytest.raises(RuntimeError, match="devices differ, got cpu and None"):
            make([here, anywhere])
    for td, other in ((lazy_stack([here]), anywhere), (lazy_stack([anywhere]), here)):
        with pytest.raises(ValueError, match="Devices differ"):
            td.append(other)
    assert torch.stack([here, anywhere]).device == torch.device("cpu")


@pytest.mark.parametrize("index", [0, 1, 2, 99, -1, -99])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["plain", "named", "on a device", "of several sizes", "empty"])
def test_a_stack_that_grew_is_one_that_was_made_of_its_elements(kind, dim, index):
    sizes = [3, 4] if kind == "of several sizes" else [3, 3]
    device = "cpu" if kind == "on a device" else None
    names = ["time"] if kind == "named" else None

    def element(size):
        return TensorDict({"a": torch.zeros(size, 2)}, [size], device=device, names=names)

    tds = [element(size) for size in sizes]
    stack_name = "stack" if kind == "named" else None
    if kind == "empty":
        td = LazyStackedTensorDict(stack_dim=dim, batch_size=[3])
    else:
        td = LazyStackedTensorDict(*tds, stack_dim=dim, stack_dim_name=stack_name)
    td.insert(index, element(3))
    td.append(element(3))
    td.extend([element(3), element(3)])
    made = LazyStackedTensorDict(*td.tensordicts, stack_dim=dim, stack_dim_name=stack_name)
    assert (td.batch_size, td.device, td.names) == (made.batch_size, made.device, made.names)
    assert td.batch_size[dim] == len(td.tensordicts)


def test_appending_checks_only_the_new_element(monkeypatch):
    td, looked = even(), []
    extra = td[0].clone()
    with monkeypatch.context() as patched:
        patched.setattr(stack, "meta_of", lambda tds, *others: looked.append(len(tds)))
        for _ in range(5):
            td.append(extra)
    assert not looked and td.batch_size == (7, 3)


def test_incompatible_elements_are_refused():
    with pytest.raises(RuntimeError, match="batch sizes"):
        LazyStackedTensorDict(TensorDict({}, [3]), TensorDict({}, [3, 4]))
    with pytest.raises(TypeError, match="int"):
        LazyStackedTensorDict(TensorDict({}), 3)
    with pytest.raises(IndexError):
        LazyStackedTensorDict(TensorDict({}), stack_dim=1)
    mixed = LazyStackedTensorDict(TensorDict({"a": 1}), TensorDict({"a": {"b": 1}}))
    with pytest.raises(RuntimeError, match="nested tensordict"):
        mixed["a"]


def test_an_empty_stack_has_the_batch_size_that_it_is_given():
    assert LazyStackedTensorDict().batch_size == (0,)
    td = LazyStackedTensorDict(batch_size=[3])
    assert td.batch_size == (0, 3) and not list(td.keys())
    td.append(TensorDict({"a": torch.zeros(3)}, [3]))
    assert td["a"].shape == (1, 3)


def test_elements_of_other_names_are_refused():
    td = LazyStackedTensorDict(TensorDict({}, [3], names=["time"]))
    for names in (["other"], None):
        with pytest.raises(ValueError, match=r"\['time'\] and"):
            td.append(TensorDict({}, [3], names=names))
    assert len(td.tensordicts) == 1 and td.batch_size == (1, 3)


def test_names_stand_with_the_elements_and_the_stack_dim():
    td = LazyStackedTensorDict(*(TensorDict({}, [3], names=["x"]) for _ in range(2)), stack_dim=1, stack_dim_name="s")
    assert td.names == ["x", "s"]
    td.names = ["y", "t"]
    assert td.tensordicts[0].names == ["y"] and td.names == ["y", "t"]
    assert td.permute(1, 0).names == ["t", "y"] and td[:, :1].names == ["y", "t"]


def test_a_device_moves_the_elements():
    td = LazyStackedTensorDict(TensorDict({"a": 1}), device="cpu")
    assert td.device == td.tensordicts[0].device == torch.device("cpu")


def test_hooks_are_called_on_reads_and_writes():
    td = LazyStackedTensorDict(
        TensorDict({"a": 1.0, "n": {"b": 2.0}}), hook_out=lambda x: x + 1, hook_in=lambda x: x * 10
    )
    assert td["a"].tolist() == [2.0] and td["n", "b"].tolist() == [3.0]
    td["a"] = torch.tensor([5.0])
    assert td.tensordicts[0]["a"].item() == 50.0


def test_operations_run_on_elements_and_reductions_combine_them():
    td = ragged() * 2 + 1
    assert isinstance(td, LazyStackedTensorDict) and td[0]["own"].tolist() == [3.0, 3.0]
    scaled = ragged() + torch.tensor([1.0, 2.0])
    assert scaled[0]["a"].tolist() == [1.0] * 3 and scaled[1]["a"].tolist() == [3.0] * 4
    assert even().sum(dim=0)["a"].tolist() == [[1.0] * 4] * 3
    assert even(1).sum(dim=1)["a"].tolist() == [[1.0] * 4] * 3
    with pytest.raises(RuntimeError, match="as_list"):
        ragged().sum(dim=0)
    assert (ragged() == ragged()).all()


def test_operands_of_other_kinds_are_matched_by_key():
    lazy, dense = even(), torch.stack([even()[0], even()[1]])
    assert type(dense) is TensorDict
    assert (lazy + dense == dense + lazy).all()
    with pytest.raises(KeyError, match=r"mismatch|not found"):
        lazy + dense.exclude("n")
    with pytest.raises(KeyError, match=r"mismatch|not found"):
        lazy.exclude("n") + dense
    assert (lazy + even()[:1] == dense + dense[:1]).all()  # one row broadcasts, as in a dense tensordict
    with pytest.raises(RuntimeError, match="elements"):
        lazy + lazy_stack([*even().tensordicts, even()[0]])


def test_stacks_of_stacks_pair_their_elements():
    td = torch.stack([ragged(), ragged()])
    assert td.stack_dim == 1 and td.batch_size == (2, 2)
    assert torch.cat([ragged(), ragged()]).stack_dim == 0
    assert len(torch.cat([ragged(), ragged()]).tensordicts) == 4
    assert type(torch.stack([even(), even()])) is LazyStackedTensorDict
    dense = torch.stack([even(), even()[:].clone().densify()])
    assert type(dense) is TensorDict and dense["a"].shape == (2, 2, 3, 4)


def test_maybe_dense_stack_is_lazy_only_where_it_must():
    assert type(maybe_dense_stack([TensorDict({"a": 1})] * 2)) is TensorDict
    assert type(maybe_dense_stack([TensorDict({"a": 1}), TensorDict({"b": 1})])) is LazyStackedTensorDict


def test_a_single_element_is_squeezed_and_expanded():
    td = ragged()[:1]
    assert td.squeeze(0)["own"].shape == (2,)
    assert td.expand(3)["own"].shape == (3, 2)


def test_dense_forms():
    dense = even().densify()
    assert type(dense) is TensorDict and dense["a"].shape == (2, 3, 4) and type(dense["n"]) is TensorDict
    nested = ragged().densify(torch.jagged)
    assert nested["a"].is_nested
    outer = TensorDict({"l": ragged(), "t": torch.zeros(2)}, [2]).densify(torch.jagged)
    assert type(outer["l"]) is TensorDict and outer["l", "a"].is_nested
    plain = TensorDict({"a": torch.zeros(2)}, [2])
    assert plain.densify() is plain
    lazy = TensorDict({"a": torch.arange(6).reshape(2, 3)}, [2, 3]).to_lazystack(1)
    assert lazy.stack_dim == 1 and lazy["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_batch_sizes_change_beside_the_stack_dim_only():
    td = even()
    td = td.to(batch_size=[2])
    assert td.tensordicts[0].batch_size == () and td["a"].shape == (2, 3, 4)
    td.auto_batch_size_()
    assert td.batch_size == (2, 3)
    with pytest.raises(RuntimeError, match="stack dim"):
        td.to(batch_size=[])


def test_the_batch_size_of_a_stack_cannot_be_set():
    td = even()
    td.batch_size = [2, 3]
    for size in ([2], [], [2, 3, 4]):
        with pytest.raises(RuntimeError, match="Modifying the batch size of a lazy representation"):
            td.batch_size = size
    dense = td.to_tensordict()
    dense.batch_size = [2]
    assert dense.batch_size == (2,)


def test_update_takes_elements_from_another_stack():
    td = ragged()
    td.update(ragged() * 3 + 1)
    assert td[0]["own"].tolist() == [4.0, 4.0] and td[1]["a"].tolist() == [4.0] * 4
    td.update({"b": torch.tensor([1.0, 2.0])})
    assert td[1]["b"].item() == 2.0
    td.update_(ragged())
    assert td[0]["own"].tolist() == [1.0, 1.0]


def test_locks_hold_elements():
    td = even().lock_()
    assert td.tensordicts[0].is_locked and td.get("n").is_locked
    with pytest.raises(RuntimeError, match="locked graph"):
        td.tensordicts[0].unlock_()
    with pytest.raises(RuntimeError, match="lock"):
        td.tensordicts[0]["new"] = torch.zeros(3)
    td.unlock_()
    td.tensordicts[0].lock_().unlock_()


def test_apply_with_a_new_batch_size_combines_first():
    td = even().apply(lambda x: x[0], batch_size=[3])
    assert td.batch_size == (3,) and isinstance(td["a"], Tensor)


def test_an_element_that_does_not_fit_leaves_all_of_them_as_they_are():
    td = lazy_stack([TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(k + 1)}}) for k in range(3)])
    source = lazy_stack([TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(k + 1)}}) for k in (0, 1, 3)])
    with pytest.raises(RuntimeError, match=r"\('n', 'b'\), which has shape \[3\]"):
        td.update_(source)
    source[2].exclude(("n", "b"), inplace=True).set(("n", "c"), torch.ones(3))
    with pytest.raises(KeyError, match="'c'"):
        td.update_(source)
    assert not any(leaf.any() for leaf in td._leaves())


def test_a_lazy_stack_along_the_dimension_is_its_own_lazy_stack():
    for dim in (0, 1):
        td = even(dim)
        assert td.to_lazystack(dim) is td and td.to_lazystack(dim - 2) is td
        other = td.to_lazystack(1 - dim)
        assert other is not td and other.stack_dim == 1 - dim and (other == td).all()


def test_addresses_of_a_lazy_stack_are_those_of_its_elements():
    td = TensorDict({"n": even(), "x": torch.zeros(2), "s": "text"}, [2])
    found = td.data_ptr()
    assert sorted(found.keys(True, True), key=str) == [
        *(("n", i, *rest) for i in ("0", "1") for rest in (("a",), ("n", "b"))),
        "x",
    ]
    assert found["n", "1", "a"] == td["n"].tensordicts[1]["a"].data_ptr() and found.batch_size == ()
    row = td["x"][1:]
    assert TensorDict({"x": row}).data_ptr()["x"] == row.data_ptr() != found["x"]
    assert TensorDict({"x": row}).data_ptr(storage=True)["x"] == td.data_ptr(storage=True)["x"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda td: td.reshape(-1),
        lambda td: td.flatten(0, 1),
        lambda td: td.repeat(2, 1),
        lambda td: td.repeat(1, 2),
        lambda td: td.repeat_interleave(2, 1),
        lambda td: td[torch.tensor([[True, False], [False, True]])],
        lambda td: td.where(torch.tensor([[True, False], [False, True]]), 0),
    ],
    ids=["reshape", "flatten", "repeat", "repeat along others", "repeat_interleave", "mask", "where"],
)
def test_operations_on_a_lazy_stack_give_lazy_stacks_of_the_values_of_the_dense_one(operation):
    td = lazy_stack([TensorDict({"a": torch.arange(2) + i, "n": {"b": torch.ones(2) * i}}, [2]) for i in range(2)])
    result, dense = operation(td), operation(td.to_tensordict())
    assert type(result) is LazyStackedTensorDict and (result.to_tensordict() == dense).all()
    assert result.batch_size == dense.batch_size


def test_a_name_of_a_nested_dimension_is_not_given_twice():
    td = lazy_stack([TensorDict({"n": TensorDict({}, [2, 3], names=["x", "d"])}, [2]) for _ in range(2)])
    with pytest.raises(ValueError, match="'d'"):
        td.names = ["c", "d"]
    with pytest.raises(ValueError, match="'d'"):
        td[0].names = ["d"]


@pytest.mark.parametrize("make", [lambda td: lazy_stack([td, td]), lambda td: td._get_sub_tensordict(0)])
def test_programs_set_attributes_of_their_own(make):
    td = make(TensorDict({"a": torch.ones(2)}, [2]))
    td.origin = "worker"
    assert td.origin == "worker" and not hasattr(td.clone(), "origin")


def test_an_element_that_is_stacked_twice_changes_once():
    td = lazy_stack([TensorDict({"a": 1, "b": {"c": 2}})] * 2)
    assert td.rename_key_("a", ("b", "a")).sorted_keys == ["b"]
    assert td.separates(("b", "a"))["b", "a"].tolist() == [1, 1]
    moved, rest = td.split_keys([("b", "c")], inplace=True)
    assert moved["b", "c"].tolist() == [2, 2] and rest is td and td.is_empty()


@pytest.mark.parametrize(("part", "expected"), [(0, [1, 0, 0]), (slice(0, 2), [1, 1, 0])])
def test_a_new_entry_of_a_view_of_a_lazy_stack_is_in_all_elements(part, expected):
    td = lazy_stack([TensorDict({"a": row}) for row in range(3)])
    view = td._get_sub_tensordict(part)
    view["new"] = torch.ones(view.batch_size)
    view["n", "new"] = torch.ones(view.batch_size)
    assert (view["new"] == 1).all() and (view["n", "new"] == 1).all()
    assert td["new"].tolist() == td["n", "new"].tolist() == expected


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 1), (1, 3, 4, 5), ()])
@pytest.mark.parametrize("index", [slice(0, 2), torch.tensor([1]), [1, 0], None, torch.tensor([True, False])], ids=str)
def test_set_at_broadcasts_as_for_a_dense_tensordict(dim, shape, index):
    dense = TensorDict({"a": torch.zeros(2, 3, 4, 5)}, [2, 3, 4])
    stack = LazyStackedTensorDict(*dense.clone().unbind(dim), stack_dim=dim)
    value = torch.rand(shape)
    stack.set_at_("a", value, index)
    torch.testing.assert_close(stack["a"], dense.set_at_("a", value, index)["a"])


def test_set_at_refuses_what_a_dense_tensordict_refuses():
    for td in (even(), even().to_tensordict()):
        for shape in [(3,), (2, 3)]:
            with pytest.raises(RuntimeError):
                td.set_at_("a", torch.ones(shape), slice(0, 2))


SUBCLASS_RESULTS = {
    "arithmetic": lambda s: s + 1,
    "apply": lambda s: s.apply(torch.neg),
    "select": lambda s: s.select("a"),
    "cast": lambda s: s.double(),
    "copy": lambda s: s.clone(False),
    "view": lambda s: s.view(-1),
    "reshape": lambda s: s.reshape(-1),
    "repeat": lambda s: s.repeat(1, 2),
    "index": lambda s: s[:, 1:],
    "permute": lambda s: s.permute(1, 0),
    "cat": lambda s: torch.cat([s, s]),
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
}


class Episodes(LazyStackedTensorDict):
    """A subclass of users."""


@pytest.mark.parametrize("operation", SUBCLASS_RESULTS.values(), ids=SUBCLASS_RESULTS)
def test_results_of_a_subclass_are_of_the_subclass(operation):
    stack = Episodes(*(TensorDict({"a": torch.full((3,), float(i))}, [3]) for i in range(2)))
    plain = LazyStackedTensorDict(*stack.tensordicts)
    result = operation(stack)
    assert type(result) is Episodes
    assert (result == operation(plain)).all() and result.batch_size == operation(plain).batch_size
