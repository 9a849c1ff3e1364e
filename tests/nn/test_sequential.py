"""Sequences: modules connected and selected by keys."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensordict_core import TensorDict, lazy_stack
from tensordict_nn import (
    TensorDictModule,
    TensorDictSequential,
    WrapModule,
)


def data() -> TensorDict:
    return TensorDict({"a": torch.ones(4, 2), "n": {"b": torch.full((4, 2), 2.0)}}, [4])


def plus_one(in_key="a", out_key="b", **kwargs) -> TensorDictModule:
    return TensorDictModule(lambda x: x + 1, [in_key], [out_key], **kwargs)


def chain(**kwargs) -> TensorDictSequential:
    return TensorDictSequential(
        plus_one("a", "h"), plus_one("h", "b"), TensorDictModule(torch.mul, ["h", "c"], ["d"]), **kwargs
    )


def test_keys_of_a_sequence():
    sequence = chain()
    assert sequence.in_keys == ["a", "c"] and sequence.out_keys == ["h", "b", "d"] and len(sequence) == 3
    td = data().set("c", torch.full((4, 2), 5.0))
    assert sequence(td) is td and (td["b"] == 3).all() and (td["d"] == 10).all()
    h, b, d = sequence(torch.zeros(1), torch.ones(1))
    assert (h.item(), b.item(), d.item()) == (1, 2, 1)


def test_functions_of_tensordicts_join_in():
    sequence = TensorDictSequential(
        plus_one(), lambda td: td.reshape(-1), WrapModule(lambda td: td[:2], out_keys=["z"])
    )
    assert sequence.out_keys == ["b", "z"] and sequence(data()).batch_size == (2,)
    into = WrapModule(lambda td: TensorDict({"new": td["a"]}), inplace=True)
    td = data()
    assert into(td) is td and "new" in td


def test_parts_by_position_name_and_slice():
    sequence = chain(partial_tolerant=True)
    assert sequence[0] is next(iter(sequence)) and sequence[-1] is list(sequence)[2]
    assert isinstance(sequence[:2], TensorDictSequential) and sequence[:2].out_keys == ["h", "b"]
    assert sequence[:2].partial_tolerant
    named = TensorDictSequential({"first": plus_one("a", "h"), "second": plus_one("h", "b")})
    assert named["first"] is named[0] and named[1:].in_keys == ["h"]
    assert [name for name, _ in named.named_children()] == ["module"]
    named["third"] = plus_one("b", "z")
    assert named.out_keys == ["h", "b", "z"]
    named[0] = plus_one("y", "h")
    assert named.in_keys == ["y"]
    del named["first"]
    assert named.in_keys == ["h"] and len(named) == 2
    with pytest.raises(KeyError, match="no module 'nobody'"):
        named["nobody"]
    del sequence[0]
    assert sequence.in_keys == ["h", "c"]


def test_subsequences():
    sequence = chain()
    assert sequence.select_subsequence(out_keys=["b"]).out_keys == ["h", "b"]
    assert sequence.select_subsequence(in_keys=["a"]).out_keys == ["h", "b"]
    assert sequence.select_subsequence(in_keys=["h", "c"]).out_keys == ["b", "d"]
    assert sequence.select_subsequence(out_keys=["b"])[0] is sequence[0]
    for kwargs in ({"in_keys": ["z"]}, {"out_keys": ["z"]}):
        with pytest.raises(ValueError, match="no module runs"):
            sequence.select_subsequence(**kwargs)


def test_subsequences_of_nested_sequences():
    sequence = TensorDictSequential(
        TensorDictSequential(plus_one("a", "b"), plus_one("b", "c")),
        TensorDictSequential(plus_one("b", "d"), plus_one("d", "e")),
    )
    part = sequence.select_subsequence(in_keys=["b", "d"], out_keys=["e"])
    assert len(part) == 1 and part[0].out_keys == ["d", "e"]


class Encoder(TensorDictSequential):
    """A sequence whose constructor takes something else than modules, as policies of published programs do."""

    def __init__(self, name):
        super().__init__(plus_one("a", "b"), plus_one("b", "c"))
        self.name = name
        self.scale = torch.nn.Parameter(torch.ones(1))


class Strict(TensorDictSequential):
    """A sequence whose constructor takes modules and no options."""

    def __init__(self, *modules):
        super().__init__(*modules)


def test_parts_of_a_subclass_with_its_own_constructor_keep_its_type_and_attributes():
    encoder = Encoder("first").eval()
    for part in (encoder[:1], encoder.select_subsequence(out_keys=["b"])):
        assert type(part) is Encoder and part.name == "first" and part.scale is encoder.scale and not part.training
        assert list(part) == [encoder[0]] and part.out_keys == ["b"] and part(a=torch.zeros(2)).tolist() == [1, 1]
    del part[0]
    assert len(encoder) == 2 and encoder.in_keys == ["a"]
    strict = Strict(plus_one("a", "b"), plus_one("b", "c"))
    assert type(strict[1:]) is Strict and strict[1:].in_keys == ["b"]


def test_parts_of_a_subclass_with_its_own_constructor_have_no_hooks_and_no_selection():
    encoder = Encoder("first").select_out_keys("c")
    calls = []
    encoder.register_forward_hook(lambda *args: calls.append(args))
    part = encoder.select_subsequence(out_keys=["b"])
    assert part.out_keys == ["b"] and "b" in part(data()) and not calls
    assert "b" not in encoder(data()) and len(calls) == 1


def test_a_nested_sequence_that_is_needed_as_a_whole_stays_itself():
    encoder = Encoder("first")
    sequence = TensorDictSequential(plus_one("z", "a"), encoder, plus_one("c", "d"))
    assert sequence.select_subsequence(out_keys=["c"])[1] is encoder
    assert sequence.select_subsequence(in_keys=["a"])[0] is encoder


def test_a_sequence_is_a_tensordict_module():
    sequence = chain()
    assert isinstance(sequence, TensorDictModule) and issubclass(TensorDictSequential, TensorDictModule)
    assert sequence.module is sequence._modules["module"] and sequence.device == torch.device("cpu")
    sequence.in_keys.append("more")
    assert sequence.in_keys == ["a", "c", "more"]


def test_partially_tolerant_sequences_skip_modules_that_cannot_run():
    with pytest.raises(KeyError, match="'c'"):
        chain()(data())
    td = chain(partial_tolerant=True)(data())
    assert "b" in td and "d" not in td
    with_c = data().set("c", torch.ones(4, 2))
    stacked = lazy_stack([data(), with_c], 0)
    out = chain(partial_tolerant=True)(stacked)
    assert "d" in out.tensordicts[1] and "d" not in out.tensordicts[0] and "b" in out.tensordicts[0]


def test_inplace_policies_of_a_sequence():
    for inplace, same, keys, size in [
        (None, True, {"a", "n", "h", "b"}, (4,)),
        (True, True, {"a", "n", "h", "b"}, (4,)),
        (False, False, {"h", "b"}, ()),
        ("empty", False, {"h", "b"}, (4,)),
    ]:
        td = data()
        out = TensorDictSequential(plus_one("a", "h"), plus_one("h", "b"), inplace=inplace)(td)
        assert (out is td) is same and set(out.keys()) == keys and out.batch_size == size
        assert ("b" in td) is same
    td = data()
    inner = TensorDictSequential(plus_one("a", "h", inplace=False), plus_one("h", "b", inplace=False), inplace=True)
    assert inner(td) is td and "b" in td and "h" not in td


def test_selected_keys_of_a_sequence():
    sequence = TensorDictSequential(plus_one("a", "h"), plus_one("h", "b"), selected_out_keys=["b"])
    assert sequence.out_keys == ["b"] and "h" not in sequence(data())
    assert sequence(torch.zeros(1)).item() == 2


def test_parameters_of_a_sequence_go_through_to_module():
    sequence = TensorDictSequential(
        TensorDictModule(nn.Linear(2, 3), ["a"], ["h"]), TensorDictModule(nn.Linear(3, 1), ["h"], ["b"])
    )
    params = TensorDict.from_module(sequence)
    assert set(params.keys(True, True)) >= {("module", "0", "module", "weight")}
    with (params * 0).to_module(sequence):
        assert (sequence(data())["b"] == 0).all()


@pytest.mark.parametrize("inplace", [True, False, "empty"])
def test_elements_of_a_lazy_stack_take_results_that_are_written_elsewhere(inplace):
    stacked = lazy_stack([data(), data().rename_key_("a", "z")])
    wrapped = WrapModule(lambda td: td.copy().set("w", td["b"] * 2), in_keys=["b"], out_keys=["w"])
    out = TensorDictSequential(plus_one("a", "b", inplace=inplace), wrapped, partial_tolerant=True)(stacked)
    assert [one.sorted_keys for one in out.tensordicts] == [["a", "b", "n", "w"], ["n", "z"]]
    assert out[0]["w"].unique().tolist() == [4]
