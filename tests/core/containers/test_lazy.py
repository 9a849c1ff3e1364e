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
    set_capture_non_tensor_stack,
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


def test_a_ragged_entry_is_an_error_that_names_the_ways_to_read_it():
    with pytest.raises(RuntimeError, match=r"'a'.*as_list=True.*as_nested_tensor=True.*as_padded_tensor=True"):
        ragged()["a"]


def test_a_ragged_entry_is_read_as_a_list_padded_or_nested():
    td = ragged()
    assert [len(part) for part in td.get("a", as_list=True)] == [3, 4]
    padded = td.get("a", as_padded_tensor=True, padding_value=-1)
    assert padded.tolist() == [[0, 0, 0, -1], [1, 1, 1, 1]]
    left = td.get("a", as_padded_tensor=True, padding_side="left", padding_value=-1)
    assert left.tolist() == [[-1, 0, 0, 0], [1, 1, 1, 1]]
    nested = td.get("a", as_nested_tensor=True)
    assert nested.is_nested and [len(part) for part in nested.unbind()] == [3, 4]
    assert [len(part) for part in td.get_nestedtensor("a").unbind()] == [3, 4]
    assert td.get("absent", 7, as_list=True) == 7


def test_ragged_reads_reach_through_nested_keys_and_nested_stacks():
    outer = TensorDict({"l": lazy_stack([ragged(), ragged()])}, [2])
    assert outer.get(("l", "a"), as_padded_tensor=True).shape == (2, 2, 4)
    assert [[len(x) for x in row] for row in outer.get(("l", "a"), as_list=True)] == [[3, 4], [3, 4]]


def test_padding_and_nesting_refuse_unsupported_entries():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(3, n)}, [3]) for n in (1, 2)), stack_dim=1)
    assert td.get("a", as_padded_tensor=True).shape == (3, 2, 2)
    assert [part.shape for part in td.get("a", as_nested_tensor=True).unbind()] == [(3, 1), (3, 2)]
    with pytest.raises((ValueError, RuntimeError), match="stack dim is 1"):
        td.get_nestedtensor("a")
    with pytest.raises(ValueError, match="stack dim is 1"):
        td.densify()
    with pytest.raises(ValueError, match="padding_side"):
        ragged().get("a", as_padded_tensor=True, padding_side="top")
    ranks = lazy_stack([TensorDict({"a": torch.zeros(1)}), TensorDict({"a": torch.zeros(1, 1)})])
    with pytest.raises(ValueError, match="one rank"):
        ranks.get("a", as_padded_tensor=True)


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


def test_an_entry_of_several_shapes_moves_to_another_level():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n), "n": {"b": torch.ones(1)}}) for n in (1, 2)))
    td.rename_key_("a", ("n", "c"))
    assert td[1]["n", "c"].shape == (2,) and list(td.keys()) == ["n"]
    with pytest.raises(KeyError, match="already present"):
        td.rename_key_(("n", "c"), ("n", "b"), safe=True)


def test_lazy_stacks_of_other_keys_and_shapes_are_concatenated_along_their_stack_dim():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n), f"own {n}": torch.ones(1)}) for n in (1, 2)))
    whole = torch.cat([td[:0], td, td[:1], td.exclude("own 1")], 0)
    assert [list(element.keys()) for element in whole.tensordicts] == [
        ["a", "own 1"], ["a", "own 2"], ["a", "own 1"], ["a"], ["a", "own 2"],
    ]  # fmt: skip  # shorter than one a line


def test_the_shape_and_class_of_a_ragged_entry_are_known_without_reading_it():
    td = LazyStackedTensorDict(*(TensorDict({"n": {"a": torch.ones(3, n)}}) for n in (1, 2)), stack_dim=0)
    assert td.get_item_shape(("n", "a")) == torch.Size([2, 3, -1]) and td.entry_class(("n", "a")) is torch.Tensor
    twice = LazyStackedTensorDict(td, td)
    assert twice.get_item_shape(("n", "a")) == torch.Size([2, 2, 3, -1])
    with pytest.raises(KeyError, match="absent"):
        td.get_item_shape("absent")
    td[0]["n", "a"] = torch.ones(3)
    with pytest.raises(RuntimeError, match="do not stack"):
        td.get_item_shape(("n", "a"))


@pytest.mark.parametrize("lazy", [False, True])
def test_nothing_is_cut_into_as_many_pieces_as_a_tensor_is(lazy):
    td = TensorDict({"a": torch.zeros(0, 2)}, [0, 2])
    td = LazyStackedTensorDict(*td.unbind(1), stack_dim=1) if lazy else td
    assert (
        [piece.batch_size for piece in td.chunk(2)] == [(0, 2), (0, 2)] == [t.shape for t in torch.zeros(0, 2).chunk(2)]
    )


def test_where_writes_into_a_ragged_lazy_stack():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(n)}) for n in (1, 2)))
    out = td.clone()
    assert td.where(torch.tensor([True, False]), td * 2, out=out) is out
    assert out[0]["a"].tolist() == [1.0] and out[1]["a"].tolist() == [2.0, 2.0]


def test_softmax_along_a_dimension_of_the_elements_takes_entries_of_several_shapes():
    td = LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(2, n)}, [2]) for n in (1, 2)))
    assert td.softmax(-1)[1]["a"].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    with pytest.raises(RuntimeError, match="do not stack"):
        td.softmax(0)


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
    with pytest.raises(ValueError, match="batch size"):
        td.append(TensorDict({"a": 1}))
    with pytest.raises(TypeError, match="int"):
        td.append(3)
    with pytest.raises(RuntimeError, match="lock"):
        td.lock_().append(extra)


@pytest.mark.parametrize("index", [0, 1, 2, 99, -1, -99])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["plain", "named", "on a device", "of several sizes", "of several devices", "empty"])
def test_a_stack_that_grew_is_one_that_was_made_of_its_elements(kind, dim, index):
    sizes = [3, 4] if kind == "of several sizes" else [3, 3]
    devices = {"on a device": ["cpu", "cpu"], "of several devices": ["cpu", None]}.get(kind, [None, None])
    names = ["time"] if kind == "named" else None

    def element(size, device=None, names=None):
        return TensorDict({"a": torch.zeros(size, 2)}, [size], device=device, names=names)

    tds = [element(*one, names) for one in zip(sizes, devices, strict=True)]
    stack_name = "stack" if kind == "named" else None
    td = LazyStackedTensorDict(
        *([] if kind == "empty" else tds), stack_dim=dim, batch_size=[3], stack_dim_name=stack_name
    )
    td.insert(index, element(3, None, names))
    td.append(element(3, None, names))
    td.extend([element(3, None, names), element(3, "cpu", names)])
    made = LazyStackedTensorDict(*td.tensordicts, stack_dim=dim, stack_dim_name=stack_name)
    assert (td.batch_size, td.device, td.names) == (made.batch_size, made.device, made.names)
    assert td.batch_size[dim] == len(td.tensordicts)


def test_appending_checks_only_the_new_element(monkeypatch):
    td, looked = even(), []
    extra = td[0].clone()
    with monkeypatch.context() as patched:
        patched.setattr(stack, "_meta_of", lambda tds, *others: looked.append(len(tds)))
        for _ in range(5):
            td.append(extra)
    assert not looked and td.batch_size == (7, 3)


def test_elements_of_one_length_of_batch_size_read_as_minus_one_where_they_differ():
    tds = [TensorDict({"a": torch.zeros(n, 2)}, [n]) for n in (2, 3)]
    td = LazyStackedTensorDict(*tds)
    assert td.batch_size == (2, -1)
    assert td[1].batch_size == (3,) and td[:, :2].batch_size == (2, 2)
    assert td.permute(1, 0).stack_dim == 1 and td.unsqueeze(0).batch_size == (1, 2, -1)
    assert (td + 1)[0]["a"].all()
    with pytest.raises(RuntimeError, match="strict_shape"):
        LazyStackedTensorDict(*tds, strict_shape=True)
    with pytest.raises(RuntimeError, match="batch size"):
        td.reshape(-1)


def of_batch_sizes(*values, dim=0):
    """A lazy stack of elements of batch sizes [1], [2] ... with a value or values each."""
    tds = [TensorDict({"a": torch.full((n, 2), float(n)), "s": s}, [n]) for n, s in enumerate(values, 1)]
    return LazyStackedTensorDict(*tds, stack_dim=dim)


def test_equal_values_of_elements_of_several_batch_sizes_are_lists_as_others_are():
    td = of_batch_sizes("v", "v", "v")
    expected = [["v"], ["v", "v"], ["v", "v", "v"]]
    assert td["s"] == td.get("s").data == td.clone()["s"] == pickle.loads(pickle.dumps(td))["s"] == expected
    assert td[:, :1]["s"] == [["v"]] * 3 and td.get("s").batch_size == (3,)
    with set_capture_non_tensor_stack(True):
        assert td["s"] == td.get("s").data == "v" and "data=v" in repr(td)


def test_values_of_elements_of_several_batch_sizes_are_nested_lists_where_they_differ():
    td = of_batch_sizes("v", ["w", "x"])
    assert td["s"] == td.get("s").tolist() == td.get("s", as_list=True).data == (td + 1)["s"] == [["v"], ["w", "x"]]
    assert td.get("s")[1].data == ["w", "x"] and td[1]["s"] == ["w", "x"] and td[:, 1:].batch_size == (2, -1)
    assert td.densify()["s"] == [["v"], ["w", "x"]] and "['w', 'x']" in repr(td)
    assert td.unsqueeze(0)["s"] == [[["v"], ["w", "x"]]]
    assert torch.cat([td, td])["s"] == [["v"], ["w", "x"], ["v"], ["w", "x"]]
    below = TensorDict({"n": td}, [2]).lock_()
    assert below["n", "s"] == [["v"], ["w", "x"]] and below.get(("n", "s")).is_locked


def test_values_stand_at_their_positions_in_stacks_of_stacks_of_several_batch_sizes():
    parts = of_batch_sizes("v", "v"), of_batch_sizes("w", "x")
    assert lazy_stack(parts)["s"] == [[["v"], ["v", "v"]], [["w"], ["x", "x"]]]
    assert lazy_stack(parts, 1)["s"] == [[["v"], ["w"]], [["v", "v"], ["x", "x"]]]
    longer = [TensorDict({"s": s}, [2, n]) for n, s in ((1, "v"), (2, "w"))]
    assert lazy_stack(longer, 1)["s"] == [[["v"], ["w", "w"]]] * 2
    behind = of_batch_sizes("v", ["w", "x"], dim=1)
    assert behind["s"] == behind.permute(1, 0).permute(1, 0)["s"] == [["v", "w"], [None, "x"]]


def test_values_are_written_to_elements_of_several_batch_sizes():
    td = of_batch_sizes("v", "w")
    td["one"], td["each"], td["same"] = "x", [["p"], ["q", "r"]], td.get("s")
    assert td["one"] == [["x"], ["x", "x"]] and td[1].get("one").batch_size == (2,)
    assert td["each"] == [["p"], ["q", "r"]] and td[1, 1]["each"] == "r"
    assert td["same"] == td["s"] and td[1].get("same").batch_size == (2,)
    deep = lazy_stack([td, td.clone()])
    deep["each"] = deep["s"]
    assert deep["each"] == deep["s"] and deep[0, 1].get("each").batch_size == (2,)
    for wrong in ([["p"], ["q"]], ["p", "q"]):
        with pytest.raises(ValueError, match="not of the shape"):
            td["each"] = wrong


@pytest.mark.parametrize("write", ["update_", "copy_", "update"])
@pytest.mark.parametrize("where", ["alone", "in a tensordict", "in a stack"])
def test_writing_in_place_takes_ragged_elements_one_by_one(write, where):
    place = {
        "alone": lambda td: td,
        "in a tensordict": lambda td: TensorDict({"n": td}),
        "in a stack": lambda td: lazy_stack([TensorDict({"n": td}), TensorDict({"n": td.clone()})]),
    }[where]
    for make in (lambda: of_batch_sizes("v", "w"), ragged):
        td, source = place(make()), place(make() + 1)
        leaves = td._leaves()
        getattr(td, write)(source, **({"inplace": True} if write == "update" else {}))
        assert all(one is other for one, other in zip(td._leaves(), leaves, strict=True))
        assert (td == source).all()


def test_chosen_keys_of_ragged_elements_are_written_in_place():
    td = TensorDict({"n": of_batch_sizes("v", "w")})
    td.update_(TensorDict({"n": of_batch_sizes("x", "y") + 1}), keys_to_update=[("n", "a")])
    assert td["n"][1]["a"].eq(3).all() and td["n", "s"] == [["v"], ["w", "w"]]


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
    mixed = LazyStackedTensorDict(TensorDict({"a": 1}, device="cpu"), TensorDict({"a": 1}))
    assert mixed.device is None


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


def test_reshaping_ragged_stacks_moves_rows_and_copies_nothing():
    td = lazy_stack([ragged(), ragged()])
    flat = td.reshape(-1)
    assert flat.batch_size == (4,) and flat[3]["a"].data_ptr() == td[1, 1]["a"].data_ptr()
    td = even()
    td.view(6)[5]["a"].fill_(7)
    assert td[1]["a"][2].tolist() == [7.0] * 4


def test_a_single_element_is_squeezed_and_expanded():
    td = ragged()[:1]
    assert td.squeeze(0)["own"].shape == (2,)
    assert td.expand(3)["own"].shape == (3, 2)


def test_dense_forms():
    dense = even().densify()
    assert type(dense) is TensorDict and dense["a"].shape == (2, 3, 4) and type(dense["n"]) is TensorDict
    nested = ragged().densify()
    assert nested["a"].is_nested
    outer = TensorDict({"l": ragged(), "t": torch.zeros(2)}, [2]).densify()
    assert type(outer["l"]) is TensorDict and outer["l", "a"].is_nested
    plain = TensorDict({"a": torch.zeros(2)}, [2])
    assert plain.densify() is plain
    lazy = TensorDict({"a": torch.arange(6).reshape(2, 3)}, [2, 3]).to_lazystack(1)
    assert lazy.stack_dim == 1 and lazy["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_batch_sizes_change_beside_the_stack_dim_only():
    td = even()
    td.batch_size = [2]
    assert td.tensordicts[0].batch_size == () and td["a"].shape == (2, 3, 4)
    td.auto_batch_size_()
    assert td.batch_size == (2, 3)
    with pytest.raises(RuntimeError, match="stack dim"):
        td.batch_size = []


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


def test_printing_shows_ragged_and_exclusive_entries():
    text = repr(ragged())
    assert "torch.Size([2, -1])" in text and "exclusive_fields={0: ['own']}" in text and "stack_dim=0" in text


def test_apply_with_a_new_batch_size_combines_first():
    td = even().apply(lambda x: x[0], batch_size=[3])
    assert td.batch_size == (3,) and isinstance(td["a"], Tensor)


def test_an_element_that_does_not_fit_leaves_all_of_them_as_they_are():
    td = lazy_stack([TensorDict({"a": torch.zeros(2), "n": {"b": torch.zeros(k + 1)}}) for k in range(3)])
    source = lazy_stack([TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(k + 1)}}) for k in (0, 1, 3)])
    with pytest.raises(RuntimeError, match=r"\('n', 'b'\) has shape \[3\]"):
        td.update_(source)
    source[2].exclude(("n", "b"), inplace=True).set(("n", "c"), torch.ones(3))
    with pytest.raises(KeyError, match="'c'"):
        td.update_(source)
    assert not any(leaf.any() for leaf in td._leaves())


def test_sizes_that_ragged_elements_find_read_as_minus_one():
    dicts = [{"a": torch.zeros(3, 2), "b": torch.zeros(3)}, {"a": torch.zeros(4, 2), "b": torch.zeros(4)}]
    for td in (
        TensorDict.from_list(dicts, auto_batch_size=True),
        LazyStackedTensorDict.from_dict(dicts, auto_batch_size=True),
        lazy_stack([TensorDict(one) for one in dicts]).auto_batch_size_(),
    ):
        assert td.batch_size == (2, -1) and [one.batch_size for one in td.tensordicts] == [(3,), (4,)]
    assert TensorDict.from_list(dicts, batch_dims=1).batch_size == (2,)
    differing = [{"a": torch.zeros(3, 2)}, {"a": torch.zeros(4)}]
    assert TensorDict.from_list(differing, auto_batch_size=True).batch_size == (2, -1)


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


def test_a_list_of_ragged_tensors_gives_one_to_each_element():
    td = lazy_stack([TensorDict({}), TensorDict({})])
    td["b"] = [torch.ones(2), torch.ones(1)]
    assert td[1]["b"].shape == (1,) and td.get("b", as_padded_tensor=True).tolist() == [[1, 1], [1, 0]]


def test_a_dense_node_that_takes_ragged_entries_becomes_a_lazy_stack():
    td = TensorDict({"n": {"x": torch.ones(2, 1), "y": torch.ones(2)}}, [2])
    td.update(lazy_stack([TensorDict({"n": {"x": torch.ones(n)}}) for n in (2, 3)]))
    assert td["n"][1]["x"].shape == (3,) and td["n", "y"].tolist() == [1, 1]


def test_a_name_of_a_nested_dimension_is_not_given_twice():
    td = lazy_stack([TensorDict({"n": TensorDict({}, [2, 3], names=["x", "d"])}, [2]) for _ in range(2)])
    with pytest.raises(ValueError, match="'d'"):
        td.names = ["c", "d"]
    with pytest.raises(ValueError, match="'d'"):
        td[0].names = ["d"]
