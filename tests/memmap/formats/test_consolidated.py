"""Consolidated tensordicts: one storage in memory or in a file, and files that are damaged."""

from __future__ import annotations

import json
import pickle
import random

import pytest
import torch

from tensordict_core import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    assert_close,
)
from tensordict_memmap import SaveFuture, from_consolidated, is_consolidated


def nested():
    return TensorDict(
        {
            "odd": torch.arange(3, dtype=torch.int8),
            "wide": torch.rand(3, 2, dtype=torch.complex128),
            "t": torch.rand(5, 3).T,
            "none": torch.zeros(3, 0),
            "inner": TensorDict(
                {"half": torch.rand(3, 4).bfloat16(), "float8": torch.ones(3).to(torch.float8_e5m2)}, [3]
            ),
        },
        [3],
        names=["time"],
    )


def storages(td):
    return {leaf.untyped_storage().data_ptr() for leaf in td.values(True, True) if leaf.numel()}


def same(one, two):
    assert one.batch_size == two.batch_size and one.names == two.names
    keys = set(one.keys(True, True))
    assert keys == set(two.keys(True, True))
    for key in keys:
        assert one[key].dtype == two[key].dtype and one[key].shape == two[key].shape
        assert one[key].reshape(-1).view(torch.uint8).equal(two[key].reshape(-1).view(torch.uint8))


def test_all_leaves_become_views_of_one_storage():
    td = nested()
    made = td.consolidate()
    same(td, made)
    assert len(storages(made)) == 1 and made.is_consolidated() and made.is_locked and made.consolidate() is made
    assert not td.is_consolidated() and not td.is_locked and made.device is None
    made.unlock_()["new"] = torch.ones(3)
    assert not is_consolidated(made)


def test_in_place_the_tensordict_itself_is_consolidated():
    td = nested()
    inner = td["inner"]
    assert (
        td.consolidate(inplace=True) is td and td["inner"] is inner and td.is_consolidated() and len(storages(td)) == 1
    )


@pytest.mark.parametrize("seed", range(20))
def test_tensors_of_any_order_of_dtypes_and_shapes_keep_their_values(seed, tmp_path):
    pick = random.Random(seed)
    dtypes = [torch.uint8, torch.bool, torch.float16, torch.float32, torch.float64, torch.complex128]
    forms = [(pick.choice(dtypes), [pick.randrange(4) for _ in range(pick.randrange(4))]) for _ in range(6)]
    found = [pick.choice(forms) for _ in range(30) for _ in range(pick.choice([1, 1, 5]))]
    td = TensorDict({str(n): torch.randint(0, 2, shape).to(dtype) for n, (dtype, shape) in enumerate(found)})
    for made in (td.consolidate(), td.consolidate(tmp_path / "x"), from_consolidated(tmp_path / "x")):
        same(td, made)
        assert all(leaf.is_contiguous() and leaf.data_ptr() % leaf.itemsize == 0 for leaf in made.values())


def test_writes_that_autograd_records_in_a_leaf_concern_no_other_leaf(tmp_path):
    td = TensorDict({"a": torch.ones(3), "b": torch.ones(3), "c": torch.ones(2, 2), "d": torch.ones(())})
    for made in (td.consolidate(), td.consolidate(tmp_path / "x")):
        weight = torch.ones(3, requires_grad=True)
        result = (made["a"] * weight).sum()
        made["b"].add_(1)
        result.backward()  # raises if the write to "b" counts as one to "a"
        assert weight.grad.tolist() == [1, 1, 1]
        made["a"].mul_(weight)
        assert [made[key].requires_grad for key in "abcd"] == [True, False, False, False]


@pytest.mark.parametrize("options", [{}, {"use_buffer": True}, {"num_threads": 2}], ids=str)
def test_a_file_is_loaded_as_it_was_saved(tmp_path, options):
    td = nested()
    made = td.consolidate(tmp_path / "x", **options)
    same(td, made)
    back = TensorDict.from_consolidated(tmp_path / "x")
    same(td, back)
    assert made.is_consolidated() and back.is_consolidated() and made.device.type == "cpu" and back.device is None


def test_writes_to_the_result_reach_the_file_and_writes_to_a_load_do_not(tmp_path):
    td = TensorDict({"a": torch.arange(3)}).consolidate(tmp_path / "x")
    td["a"].add_(1)
    from_consolidated(tmp_path / "x")["a"].zero_()
    assert from_consolidated(tmp_path / "x")["a"].tolist() == [1, 2, 3]
    from_consolidated(tmp_path / "x", mode="r+")["a"].zero_()
    assert td["a"].tolist() == [0, 0, 0]
    buffered = TensorDict({"a": torch.arange(3)}).consolidate(tmp_path / "y", use_buffer=True)
    buffered["a"].zero_()
    assert from_consolidated(tmp_path / "y")["a"].tolist() == [0, 1, 2]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    td = TensorDict({"a": torch.arange(3)}).consolidate(tmp_path / "x")
    (td + 1).consolidate(tmp_path / "x")
    assert td["a"].tolist() == [0, 1, 2] and from_consolidated(tmp_path / "x")["a"].tolist() == [1, 2, 3]


def test_memory_may_be_shared_with_other_processes():
    td = TensorDict({"a": torch.arange(3)}).consolidate(share_memory=True)
    assert td["a"].tolist() == [0, 1, 2] and td.is_consolidated()


def test_a_future_gives_the_result():
    future = TensorDict({"a": torch.arange(3)}).consolidate(num_threads=2, return_early=True)
    assert isinstance(future, SaveFuture) and future.result().is_consolidated()


def test_options_that_exclude_one_another_are_refused(tmp_path):
    td = TensorDict({"a": torch.arange(3)})
    with pytest.raises(RuntimeError, match="filename or device"):
        td.consolidate(tmp_path / "x", device="meta")
    with pytest.raises(ValueError, match="return_early"):
        td.consolidate(return_early=True, num_threads=2, non_blocking=True)


VALUES = [None, 1, "text", [1, {"a": 2}], (1, (2, b"x")), {1: 2}, float("inf"), {"$": "tuple", "items": []}]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_come_back_as_they_were(tmp_path, value):
    td = TensorDict(
        {
            "v": NonTensorData(value, batch_size=[2]),
            "s": NonTensorStack({"a": value}, "x"),
            "b": {"v": NonTensorData(value)},
        },
        [2],
    )
    td.consolidate(tmp_path / "x")
    back = from_consolidated(tmp_path / "x")
    for key in ("v", "s", ("b", "v")):
        assert back.get(key).tolist() == td.get(key).tolist() and type(back.get(key)) is type(td.get(key))
        assert json.dumps(back.get(key).tolist(), default=repr) == json.dumps(td.get(key).tolist(), default=repr)


def test_lazy_stacks_and_jagged_tensors_come_back(tmp_path):
    jagged = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=torch.jagged)
    parts = [TensorDict({"a": torch.rand(n)}) for n in (2, 3)]
    td = TensorDict({"j": jagged, "t": jagged.transpose(1, 2), "l": LazyStackedTensorDict(*parts)}, [2])
    for back in (td.consolidate(), td.consolidate(tmp_path / "x"), from_consolidated(tmp_path / "x")):
        for key in ("j", "t"):
            for one, two in zip(back[key].unbind(), td[key].unbind(), strict=True):
                assert torch.equal(one, two)
            assert back[key]._ragged_idx == td[key]._ragged_idx
        for one, two in zip(back.get("l").tensordicts, parts, strict=True):
            assert_close(one, two)


def test_unbatched_tensors_stay_so_in_memory_and_have_no_place_in_the_file(tmp_path):
    td = TensorDict({"a": torch.zeros(3), "table": UnbatchedTensor(torch.arange(5))}, [3])
    back = td.consolidate()
    assert type(back.get("table")) is UnbatchedTensor and back[0]["table"].tolist() == [0, 1, 2, 3, 4]
    assert len(storages(back)) == 1 and is_consolidated(back)
    with pytest.raises(TypeError, match=r"'table'.*safetensors"):
        td.consolidate(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_complex_numbers_that_are_not_aligned_are_refused_rather_than_used(tmp_path):
    leaves = {"a": ["torch.complex128", [1], 8, 24, 0]}
    text = json.dumps(
        {
            "cls": "TensorDict",
            "non_tensors": {},
            "leaves": leaves,
            "cls_metadata": {"device": None, "names": None, "batch_size": [], "is_locked": False},
        }
    ).encode()
    (tmp_path / "x").write_bytes(bytes(24) + text + len(text).to_bytes(8, "little"))
    with pytest.raises(ValueError, match=r"'a'.*multiple"):
        from_consolidated(tmp_path / "x")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_entries_that_the_file_cannot_hold_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"'n'.*jagged"):
        TensorDict(
            {"n": torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=torch.strided)}
        ).consolidate()
    with pytest.raises(ValueError, match="'cls'"):
        TensorDict({"cls": {"a": torch.rand(1)}}).consolidate(tmp_path / "x")
    with pytest.raises(TypeError, match="'o'"):
        TensorDict({"o": NonTensorData(object())}).consolidate(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    leaf = TensorDict({"cls": torch.rand(1), "leaves": NonTensorData(1)})
    leaf.consolidate(tmp_path / "x")
    assert set(from_consolidated(tmp_path / "x").keys()) == {"cls", "leaves"}


def test_a_damaged_file_is_reported_as_damaged(tmp_path):
    path = tmp_path / "x"
    TensorDict(
        {
            "a": torch.arange(3),
            "b": {"c": torch.ones(2), "s": (1, 2)},
            "l": LazyStackedTensorDict(TensorDict({"a": torch.ones(1)})),
        }
    ).consolidate(path)
    whole = path.read_bytes()
    start = 48
    chance = random.Random(0)
    refused = 0
    for _ in range(500):
        damaged = bytearray(whole)
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(whole)) :]
        for _ in range(chance.randrange(1, 4)):
            if len(damaged) > start:
                damaged[chance.randrange(start, len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            from_consolidated(path)
        except ValueError:
            refused += 1
    assert refused > 250


def record(**leaf):
    about = ["torch.int64", [1], 0, 8, 0]
    for number, value in leaf.items():
        about[int(number[1:])] = value
    metadata = {"device": None, "names": [], "batch_size": [], "is_locked": False}
    return {"cls": "TensorDict", "non_tensors": {}, "leaves": {"a": about}, "cls_metadata": metadata}


def row(**more):
    """A description with one row, to which nested entries are added."""
    return {**record(), "cls_metadata": {"batch_size": [1]}, **more}


def stack(*parts, dim=0):
    metadata = {"stack_dim": dim, "stack_dim_name": None}
    nodes = {str(number): part for number, part in enumerate(parts)}
    return {"cls": "LazyStackedTensorDict", "non_tensors": {}, "leaves": {}, "cls_metadata": metadata, **nodes}


def test_nested_entries_start_with_the_batch_size(tmp_path):
    text = json.dumps(row(non_tensors={"v": [1, [1, 2], None]}, inner=row(), stack=stack(record()))).encode()
    (tmp_path / "x").write_bytes(bytes(8) + text + len(text).to_bytes(8, "little"))
    back = from_consolidated(tmp_path / "x")
    assert [back.get(key).batch_size for key in ("v", "inner", "stack")] == [(1, 2), (1,), (1,)]


@pytest.mark.parametrize(
    "bad",
    [
        *(row(inner=record()), row(non_tensors={"v": [1, [2], None]}), row(non_tensors={"v": [1, "x", None]})),
        *(row(stack=stack(record(), record())), row(stack=stack()), stack(record(), dim=3), stack(record(), row())),
        *(record(_0="os.system"), record(_0=1), record(_1=[2]), record(_1=[-1]), record(_1=[True]), record(_1=3)),
        *(record(_2=8, _3=16), record(_2=-8, _3=0), record(_3=16, _4=8), record(_3=4, _4=-4), record(_2=0.0)),
        *(record(_1=[1 << 61], _3=1 << 64), {**record(), "cls": "<class 'antigravity.X'>"}, {**record(), "x": 1}),
        *(
            {**record(), "cls_metadata": {}},
            {**record(), "cls_metadata": {"batch_size": [5]}},
            {**record(), "leaves": []},
        ),
        [1],
    ],
    ids=lambda bad: json.dumps(bad)[:150],
)
def test_a_description_that_cannot_be_is_an_error(tmp_path, bad):
    text = json.dumps(bad).encode()
    (tmp_path / "x").write_bytes(bytes(8) + text + len(text).to_bytes(8, "little"))
    with pytest.raises(ValueError, match=r"consolidated|damaged|registered|cannot be rebuilt"):
        from_consolidated(tmp_path / "x")


@pytest.mark.parametrize("lock", [False, True])
def test_a_pickle_of_a_consolidated_tensordict_holds_its_storage_once(lock):
    td = TensorDict(
        {str(i): torch.randn(1000) for i in range(10)} | {"none": torch.zeros(0), "n": {"name": "text"}}
    ).consolidate()
    td = td.lock_() if lock else td.unlock_()
    data = pickle.dumps(td)
    assert len(data) < 1.2 * 10 * 1000 * 4
    again = pickle.loads(data)
    assert not again.is_locked
    assert (again == td).all()
    assert len({again[str(i)].untyped_storage().data_ptr() for i in range(10)}) == 1


@pytest.mark.parametrize("lock", [False, True])
@pytest.mark.parametrize("file", [False, True], ids=["memory", "file"])
def test_a_tensordict_that_was_locked_before_it_was_consolidated_is_locked_after_unpickling(lock, file, tmp_path):
    td = TensorDict({"a": torch.randn(3), "n": {"b": torch.ones(3)}, "s": "text"}, [3])
    one = (td.lock_() if lock else td).consolidate(tmp_path / "x" if file else None)
    again = pickle.loads(pickle.dumps(one))
    further = pickle.loads(pickle.dumps(again))
    assert [again.is_locked, again["n"].is_locked, further.is_locked] == [lock] * 3


def test_a_pickle_of_an_earlier_version_which_says_that_it_was_locked_is_not():
    make, (skeleton, buffer, _) = TensorDict({"a": torch.randn(3)}).consolidate().__reduce__()
    assert not make(skeleton, buffer, True).is_locked


def test_torch_save_takes_a_consolidated_tensordict_of_several_dtypes(tmp_path):
    td = TensorDict({"a": torch.arange(3), "b": torch.ones(3, dtype=torch.bool), "n": {"c": torch.randn(3)}}, [3])
    torch.save(td.consolidate(), tmp_path / "data.pt")
    loaded = torch.load(tmp_path / "data.pt", weights_only=True)
    assert (loaded == td).all()
    assert loaded["n"].batch_size == torch.Size([3])
    loaded.unlock_()["a"] = torch.zeros(3)
    changed = pickle.loads(pickle.dumps(loaded))
    assert changed["a"].dtype == torch.float32


@pytest.mark.parametrize("inplace", [False, True])
def test_consolidation_in_memory_is_one_graph(inplace):
    torch._dynamo.reset()

    def run(td):
        one = td.consolidate(inplace=inplace)
        return one, one.to("cpu")["n", "b"] + 1

    td = TensorDict({"a": torch.arange(3), "n": {"b": torch.ones(3), "flag": torch.tensor(True)}, "s": "text"})
    one, more = torch.compile(run, fullgraph=True, backend="eager")(td)
    assert more.tolist() == [2, 2, 2] and (one is td) is inplace
    assert one.is_locked and one.is_consolidated() and one["s"] == "text"
    assert one["a"].tolist() == [0, 1, 2] and one["n", "flag"]
    nothing = torch.compile(run, fullgraph=True, backend="eager")
    assert nothing(TensorDict({"n": {"b": torch.zeros(0)}}))[0].is_consolidated()
