"""Nested tensors as leaves: the jagged layout, and the strided one, which has no shape."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")

PARTS = [torch.arange(2.0), torch.arange(3.0) + 10, torch.arange(1.0) + 20]


@pytest.fixture(params=[torch.jagged, torch.strided], ids=["jagged", "strided"])
def td(request):
    return TensorDict({"j": torch.nested.nested_tensor(PARTS, layout=request.param), "x": torch.arange(3)}, [3])


def parts(leaf):
    return [part.tolist() for part in leaf.unbind()]


WHOLE = [part.tolist() for part in PARTS]


@pytest.mark.parametrize("index", [slice(1), slice(None, None, 2), [0, 2], torch.tensor([True, False, True])])
def test_rows_are_selected(td, index):
    kept = torch.arange(3)[index].tolist()
    assert parts(td[index]["j"]) == [WHOLE[i] for i in kept] and td[index]["x"].tolist() == kept


def test_they_are_split_and_concatenated(td):
    first, second = td.split(2)
    assert parts(first["j"]) == WHOLE[:2] and parts(second["j"]) == WHOLE[2:]
    assert parts(torch.cat([first, second])["j"]) == WHOLE
    assert [row["j"].tolist() for row in td.unbind(0)] == WHOLE


def test_they_are_stored_by_every_way(td):
    leaf = td["j"]
    assert parts(TensorDict({}, [3]).set("j", leaf)["j"]) == WHOLE
    assert parts(TensorDict({}, [3]).update({"j": leaf})["j"]) == WHOLE
    assert parts(td.apply(lambda x: x + 1)["j"])[0] == [1.0, 2.0]
    again = TensorDict({"j": leaf})
    again.batch_size = [3]
    assert again.batch_size == (3,) and "j" in repr(again)
    with pytest.raises(RuntimeError, match="does not start with the batch size"):
        TensorDict({"j": leaf}, [4])


def test_a_batch_size_of_minus_one_marks_a_size_that_differs():
    leaf = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(3, 6)])
    td = TensorDict({"n": leaf}, [2, 3, -1])
    assert td.batch_size == (2, 3, -1) and td.to_padded_tensor().batch_size == (2, 3, 6)
    assert TensorDict({"n": leaf}).auto_batch_size_().batch_size == (2, 3)
    with pytest.raises(RuntimeError, match="does not start with the batch size"):
        TensorDict({"n": leaf}, [2, 4])
    with pytest.raises(RuntimeError, match="does not start with the batch size"):
        TensorDict({"a": torch.ones(2, 3)}, [2, -1])


def test_they_are_filled_with_zeros_in_place(td):
    leaf = td["j"]
    assert parts(td.zero_()["j"]) == [[0.0] * len(part) for part in PARTS] and td["j"] is leaf


WRITES = {
    "update_": lambda td, source: td.update_(source),
    "copy_": lambda td, source: td.copy_(source),
    "set_": lambda td, source: td.set_("j", source["j"]),
    "load_state_dict": lambda td, source: td.load_state_dict(source.state_dict()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_components_of_the_same_shapes_are_written_in_place(td, write):
    target = TensorDict({"j": torch.nested.nested_tensor([part * 0 for part in PARTS], layout=td["j"].layout)}, [3])
    leaf = target["j"]
    write(target, td.select("j"))
    assert parts(leaf) == WHOLE and target["j"] is leaf


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_components_of_other_shapes_are_not_written_in_place(write):
    layout = torch.jagged
    source = TensorDict({"j": torch.nested.nested_tensor(PARTS, layout=layout)}, [3])
    target = TensorDict({"j": torch.nested.nested_tensor([part * 0 for part in PARTS[::-1]], layout=layout)}, [3])
    with pytest.raises(RuntimeError):
        write(target, source)
    assert not target["j"].values().any()
