"""Non-tensor values that processes share, and stacks that hold one value for each row."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys

import pytest
import torch

from tensordict_core import NonTensorData, NonTensorStack, TensorDict, lazy_stack
from tensordict_core.containers.nontensor.shared import SharedValue


def _write(td, value):
    td.update_(value)


def in_a_child(td, value, method="fork"):
    process = multiprocessing.get_context(method).Process(target=_write, args=(td, value))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("value", "new"),
    [
        (NonTensorData("a"), NonTensorData("else")),
        (NonTensorStack("a", "b"), NonTensorStack("c", "d")),
        (NonTensorData(["a"]), NonTensorData({"k": 1})),
    ],
)
def test_the_write_of_a_child_process_reaches_the_parent(value, new):
    old = value.tolist()
    td = TensorDict({"n": {"v": value}, "x": torch.zeros(2)}).share_memory_()
    assert td.is_shared() and td.get(("n", "v")).is_shared() and td.is_locked
    shallow, deep = td.clone(False), td.clone()
    in_a_child(td, TensorDict({"n": {"v": new}}))
    assert td["n", "v"] == shallow["n", "v"] == new.tolist()
    assert deep["n", "v"] == old and not deep.get(("n", "v")).is_shared()


def test_a_started_process_gets_the_shared_value():
    td = TensorDict({"v": "a"}).share_memory_()
    in_a_child(td, TensorDict({"v": "else"}), "spawn")
    assert td["v"] == "else"


def test_values_without_tensors_are_shared_too():
    td = TensorDict({"v": "a"}).share_memory_()
    assert td.is_shared() and not TensorDict({"v": "a"}).is_shared()
    assert TensorDict({}).share_memory_().is_shared() and not TensorDict({}).is_shared()
    assert NonTensorStack("a", "b").share_memory_().is_shared()
    assert not pickle.loads(pickle.dumps(td)).get("v").is_shared() and not copy.deepcopy(td).is_shared()


def test_one_shared_value_for_all_rows_is_not_split():
    td = TensorDict({"v": NonTensorData(0, batch_size=[4])}, [4]).share_memory_()
    for write in (
        lambda: td.__setitem__(slice(1, None, 2), TensorDict({"v": NonTensorData(1, batch_size=[2])}, [2])),
        lambda: td.update_(TensorDict({"v": NonTensorStack(1, 2, 3, 4)}, [4])),
    ):
        with pytest.raises(RuntimeError, match="share one non-tensor value"):
            write()
    assert td["v"] == 0
    td.update_({"v": NonTensorData(5, batch_size=[4])})
    assert td["v"] == 5


def test_a_value_that_does_not_fit_is_refused_and_the_old_one_stays():
    td = TensorDict({"v": "a"}).share_memory_()
    with pytest.raises(RuntimeError, match="has room for"):
        td.update_({"v": "x" * 100_000})
    assert td["v"] == "a"


def test_a_reader_never_takes_half_a_write():
    cell = SharedValue("a")
    cell._header[1] += 1  # as in the middle of a write
    cell._header[0] += 1
    with pytest.raises(RuntimeError, match="two processes"):
        cell.news()


# a value for each row ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combine", [torch.stack, lazy_stack])
def test_a_stack_of_batches_holds_one_value_for_each(combine):
    rows = [TensorDict({"s": name}, [4]) for name in ("a", "b", "a")]
    stack = combine(rows)
    assert stack["s"] == [["a"] * 4, ["b"] * 4, ["a"] * 4]
    for row in (stack[1], stack.unbind(0)[1], stack[1:][0], stack.clone()[1], stack.unsqueeze(0)[0, 1]):
        assert type(row.get("s")) is NonTensorData and row["s"] == "b" and row.batch_size == (4,)
    assert stack[:, 0]["s"] == ["a", "b", "a"] and stack[2, 3]["s"] == "a"
    assert torch.stack(stack.unbind(1), 1)["s"] == stack["s"]


def test_an_expanded_value_is_itself_in_each_row():
    td = TensorDict({"s": "a"}, [4])
    for large in (td.expand(3, 4), td.unsqueeze(0).expand(3, 4), torch.stack([td] * 3)):
        assert large["s"] == [["a"] * 4] * 3 and type(large[0].get("s")) is NonTensorData
    assert td.unsqueeze(0)["s"] == [["a"] * 4] and td.unsqueeze(0).squeeze(0)["s"] == "a"


def test_writes_go_to_one_position():
    stack = torch.stack([TensorDict({"s": name}, [2]) for name in "ab"])
    values = stack["s"]
    values[0][1] = "x"
    values[1][0] = "y"
    assert stack["s"] == values == [["a", "x"], ["y", "b"]] and stack[0]["s"] == ["a", "x"]
    other = torch.stack([TensorDict({"s": name}, [2]) for name in "ab"])
    other[0, 1] = TensorDict({"s": "z"})
    assert other["s"] == [["a", "z"], ["b", "b"]]


def test_a_million_positions_hold_one_string_for_each_row():
    rows = [TensorDict({"s": "".join(["text"] * 10)}, [1000]) for _ in range(1000)]
    stack = torch.stack(rows).get("s")
    assert stack.batch_size == (1000, 1000) and len(stack._rows) == 1000
    assert len({id(value) for value in stack._rows}) == 1, "equal strings are one object"
    flat = torch.stack([TensorDict({"s": "".join(["text"] * 10)}) for _ in range(1000)]).get("s")
    assert len({id(value) for value in flat._rows}) == 1
    large = NonTensorData("text").expand(1_000_000)
    assert sys.getsizeof(large._rows) < 9_000_000 and len({id(value) for value in large._rows}) == 1


def test_the_batch_size_may_shrink_to_that_of_the_rows_and_grow():
    td = TensorDict({"s": ["a", "b"], "x": torch.zeros(2, 3)}, [2])
    td.batch_size = [2, 3]
    assert td["s"] == [["a"] * 3, ["b"] * 3] and td[0].get("s").batch_size == (3,)
    again = pickle.loads(pickle.dumps(td))
    assert again["s"] == td["s"] and type(again[1].get("s")) is NonTensorData


def test_pickles_of_releases_with_a_value_for_each_position_load():
    from tensordict_core.ops.io.pickling import _new

    new = NonTensorStack("a", "b").__getstate__()
    earlier = {"_flat": new.pop("_held"), **{key: new[key] for key in new if key != "_row_dims"}}

    class Earlier:
        def __reduce__(self):
            return _new, (NonTensorStack,), earlier

    loaded = pickle.loads(pickle.dumps(Earlier()))
    assert loaded.tolist() == ["a", "b"] and loaded[1].data == "b"


def test_nested_tensordicts_without_tensors_are_shared_with_their_root():
    td = TensorDict({"a": torch.zeros(2), "e": {"f": {}}, "n": lazy_stack([TensorDict({}), TensorDict({})])})
    assert not td["e"].is_shared()
    td.share_memory_()
    nodes = [td, td["e"], td["e", "f"], td["n"], *td["n"].tensordicts]
    assert all(node.is_shared() and not node.is_memmap() for node in nodes)
    assert not td.unlock_()["e"].is_shared()


@pytest.mark.parametrize(
    "write",
    [
        lambda td: td.get("s")[0].update_(NonTensorData("new")),
        lambda td: setattr(td.get("s")[0], "data", "new"),
        lambda td: td.get("s").tensordicts[0].update(NonTensorData("new"), inplace=True),
        lambda td: td[0:2].__setitem__(0, TensorDict({"s": "new"})),
        lambda td: td.get("s")[0:2].update_at_(NonTensorData("new"), 0),
    ],
)
def test_a_write_to_a_value_that_was_read_from_a_shared_stack_is_refused(write):
    td = TensorDict({"s": ["a", "b", "c"]}, [3]).share_memory_()
    with pytest.raises(RuntimeError, match="write through"):
        write(td)
    assert td["s"] == ["a", "b", "c"]


def test_rows_that_an_index_copies_from_a_shared_stack_are_written():
    td = TensorDict({"s": ["a", "b", "c"]}, [3]).share_memory_()
    rows = td[torch.tensor([0, 2])]
    rows[0] = TensorDict({"s": "new"})
    copied = td[0:2].clone()
    copied[0] = TensorDict({"s": "new"})
    assert rows["s"] == ["new", "c"] and copied["s"] == ["new", "b"] and td["s"] == ["a", "b", "c"]
