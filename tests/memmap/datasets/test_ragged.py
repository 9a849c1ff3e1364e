"""Columns that differ in size by row: jagged tensors, strings, bytes and JSON values, appended and committed."""

from __future__ import annotations

import os
import pickle
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict_core import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, lazy_stack
from tensordict_memmap import MemmapDataset, append_memmap, load_memmap, save
from tensordict_memmap.dataset import ragged

RAGGED = ["text", "raw", "facts", ("deep", "tokens"), "boxes"]


def row(number):
    """A row whose every entry follows from its number; sizes differ."""
    return TensorDict(
        {
            "id": torch.tensor(number),
            "text": "ä" * (number % 5) + str(number),
            "raw": bytes([number % 256]) * (number % 3),
            "facts": NonTensorData({"n": number, "pair": (number, None)}),
            "deep": TensorDict({"tokens": torch.arange(number % 4) + number, "half": torch.ones(2) * number}),
            "boxes": torch.full((number % 3, 4), number, dtype=torch.int16),
            "split": "train",
        }
    )


def rows(start, stop):
    return lazy_stack([row(number) for number in range(start, stop)])


def check(batch, numbers):
    assert batch["id"].tolist() == list(numbers) and batch.batch_size == (len(numbers),)
    found = {key: batch.get(key) for key in RAGGED}
    assert found["text"].tolist() == [row(n)["text"] for n in numbers]
    assert found["raw"].tolist() == [row(n)["raw"] for n in numbers]
    assert found["facts"].tolist() == [row(n)["facts"] for n in numbers]
    for key in (("deep", "tokens"), "boxes"):
        parts = found[key].unbind()
        assert found[key].layout is torch.jagged and len(parts) == len(numbers)
        assert all(torch.equal(part, row(n)[key]) for part, n in zip(parts, numbers, strict=True))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def dataset(path):
    with MemmapDataset.create(path, row(0), ragged=RAGGED) as made:
        yield made


def test_rows_of_several_sizes_are_appended_and_read(path, dataset):
    dataset.append(row(0))
    dataset.extend(rows(1, 20))
    dataset.extend(rows(20, 30))
    for one in (dataset, MemmapDataset.open(path), pickle.loads(pickle.dumps(MemmapDataset.open(path)))):
        assert len(one) == 30
        check(one[torch.tensor([29, 3, 3, 0])], [29, 3, 3, 0])
        check(one[5:9], range(5, 9))
        check(one[[True] * 2 + [False] * 28], [0, 1])
        check(one.__getitems__([7, -1]), [7, 29])
        assert one[4]["text"] == "ääää4" and one[-1]["facts"] == {"n": 29, "pair": (29, None)}
        assert torch.equal(one[5]["boxes"], row(5)["boxes"]) and one[5]["split"] == "train"
        assert one["text"][3] == "äää3" and one["deep", "tokens"].unbind()[2].tolist() == [2, 3]


def test_a_batch_may_hold_jagged_tensors_and_stacks_of_values(path):
    like = TensorDict({"x": torch.zeros(0, 2), "s": "", "n": torch.tensor(0)})
    parts = [torch.ones(n, 2) * n for n in (3, 0, 1)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    batch = TensorDict({"x": jagged, "s": NonTensorStack("a", "b", ""), "n": torch.arange(3)}, [3])
    with MemmapDataset.create(path, like, ragged=["x", "s"]) as dataset:
        dataset.extend(batch)
        dataset.extend(TensorDict({"x": torch.ones(2, 5, 2), "s": "same", "n": torch.arange(2)}, [2]))
        dataset.extend(dataset[torch.tensor([2, 0])])
    read = MemmapDataset.open(path)
    assert [len(part) for part in read["x"].unbind()] == [3, 0, 1, 5, 5, 1, 3]
    assert read["s"] == ["a", "b", "", "same", "same", "", "a"]


def test_a_folder_with_ragged_columns_is_an_ordinary_save(path, dataset):
    assert load_memmap(path)["boxes"].size(0) == 0
    dataset.extend(rows(0, 8))
    dataset.extend(rows(8, 12), commit=False)
    loaded = load_memmap(path)
    assert [part.tolist() for part in loaded["boxes"].unbind()] == [row(n)["boxes"].tolist() for n in range(8)]
    assert bytes(loaded["text"].unbind()[4].tolist()).decode() == row(4)["text"]
    whole = dataset.tensordict
    assert whole.is_locked and torch.equal(whole["text"].values(), loaded["text"].values())


def test_a_save_with_a_jagged_tensor_grows(path):
    first = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    save(TensorDict({"x": first}, [2]), path)
    append_memmap(path, TensorDict({"x": torch.zeros(1, 4, 3)}, [1]))
    assert [tuple(part.shape) for part in load_memmap(path)["x"].unbind()] == [(2, 3), (1, 3), (4, 3)]
    assert MemmapDataset.open(path)[-1]["x"].shape == (4, 3)


def test_readers_see_committed_rows_only(path, dataset):
    reader = MemmapDataset.open(path)
    dataset.extend(rows(0, 6), commit=False)
    assert len(reader) == reader.refresh() == 0
    dataset.commit()
    assert reader.refresh() == 6
    dataset.extend(rows(6, 9))
    check(reader[0:6], range(6))
    assert reader.refresh() == 9
    check(reader[0:9], range(9))


def test_rows_that_were_not_committed_are_overwritten_by_the_next_writer(path):
    MemmapDataset.create(path, row(0), ragged=RAGGED).close()
    with pytest.raises(ZeroDivisionError), MemmapDataset.open(path, "r+") as dataset:
        dataset.extend(rows(0, 3))
        dataset.extend(rows(50, 70), commit=False)
        raise ZeroDivisionError
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.extend(rows(3, 5))
    check(MemmapDataset.open(path)[:], range(5))


def test_a_write_that_fails_leaves_nothing_between_rows(path, dataset, monkeypatch):
    dataset.extend(rows(0, 3))
    plain, calls = ragged.RaggedWriter.write, []

    def fails(self, written, threads):
        calls.append(self)
        plain(self, written, threads)
        if len(calls) == 3:
            raise OSError("disk full")

    monkeypatch.setattr(ragged.RaggedWriter, "write", fails)
    with pytest.raises(OSError, match="disk full"):
        dataset.extend(rows(30, 40))
    monkeypatch.undo()
    dataset.extend(rows(3, 6))
    check(MemmapDataset.open(path)[:], range(6))


def test_a_killed_writer_loses_only_rows_that_were_not_committed(path, fork):
    MemmapDataset.create(path, row(0), ragged=RAGGED).close()

    def work():
        dataset = MemmapDataset.open(path, "r+")
        for start in range(0, 30, 3):
            dataset.extend(rows(start, start + 3), commit=start % 2 == 0)
        dataset.extend(rows(30, 60), commit=False)
        os.kill(os.getpid(), signal.SIGKILL)

    assert fork(work).wait() == -signal.SIGKILL
    kept = len(MemmapDataset.open(path))
    assert kept == 27
    check(MemmapDataset.open(path)[:], range(27))
    with MemmapDataset.open(path, "r+") as dataset:
        dataset.extend(rows(27, 40))
    check(MemmapDataset.open(path)[:], range(40))


def test_resize_drops_rows_and_adds_empty_ones(path, dataset):
    dataset.extend(rows(0, 10))
    dataset.resize(4)
    dataset.extend(rows(4, 6))
    check(dataset[:], range(6))
    dataset.resize(8)
    assert len(dataset) == 8 and dataset[7]["boxes"].shape == (0, 4)
    assert dataset[7]["facts"] is None and dataset[7]["text"] == ""
    assert [tuple(part.shape) for part in load_memmap(path)["boxes"].unbind()][-1] == (0, 4)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("text", NonTensorData(b"x"), "key 'text' is b'x' where the saved rows have values of type str"),
        ("facts", NonTensorData(object()), "never pickle"),
        (
            "boxes",
            torch.zeros(2, 3, dtype=torch.int16),
            r"key 'boxes' has a row of torch.int16 \[2, 3\] where .*\[n, 4\]",
        ),
        ("boxes", torch.zeros(2, 4), "torch.float32"),
        ("boxes", NonTensorData("x"), "key 'boxes' is NonTensorData where the saved rows have a ragged tensor"),
    ],
)
def test_a_row_that_does_not_match_is_refused_before_it_is_written(path, dataset, key, value, message):
    with pytest.raises(ValueError, match=message):
        dataset.append(row(1).set(key, value))
    dataset.append(row(0))
    check(dataset[:], [0])


def test_unsupported_operations_of_ragged_columns_are_refused(path, dataset):
    with pytest.raises(RuntimeError, match="cannot be overwritten"):
        dataset[0] = row(0)
    dataset.extend(rows(0, 3))
    with pytest.raises(IndexError, match=r"shape \[1, 2\]"):
        dataset[torch.tensor([[0, 1]])]
    with pytest.raises(IndexError, match="row 3 is not one of 3"):
        dataset[3]
    with pytest.raises(IndexError, match="does not select some of 3 rows"):
        dataset[torch.tensor([5])]
    dataset.close()
    with pytest.raises(ValueError, match="is a ragged column"):
        MemmapDataset.open(path, "r+", part=(3, 9))


def test_examples_of_ragged_rows_are_checked(path):
    like = TensorDict({"a": torch.tensor(0), "b": TensorDict({"c": torch.zeros(1)})})
    with pytest.raises(KeyError, match="no key 'x'"):
        MemmapDataset.create(path, like, ragged=["x"])
    with pytest.raises(ValueError, match="key 'a' is a number"):
        MemmapDataset.create(path, like, ragged=["a"])
    with pytest.raises(ValueError, match="key 'b' is a tensordict"):
        MemmapDataset.create(path, like, ragged=["b"])
    assert not path.exists()


def test_damaged_shapes_are_an_error_that_names_the_key(path, dataset):
    dataset.extend(rows(0, 4))
    os.truncate(path / "boxes.shape.memmap", 16)
    with pytest.raises(ValueError, match="4 rows of key 'boxes'"):
        MemmapDataset.open(path)


def whole(batch):
    return batch


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_ragged_rows(path, dataset, context):
    dataset.extend(rows(0, 12))
    loader = torch.utils.data.DataLoader(
        MemmapDataset.open(path), batch_size=4, num_workers=1, collate_fn=whole, multiprocessing_context=context
    )
    found = [text for batch in loader for text in batch.get("text").tolist()]
    assert found == [row(n)["text"] for n in range(12)]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(values, st.text(), st.integers(0, 5)), max_size=12), st.data())
def test_appended_values_are_read_back_for_any_batches(tmp_path_factory, content, data):
    path = tmp_path_factory.mktemp("law") / "data"
    like = TensorDict({"v": NonTensorData(None), "s": "", "t": torch.zeros(0)})
    with MemmapDataset.create(path, like, ragged=["v", "s", "t"]) as dataset:
        start = 0
        while start < len(content):
            stop = data.draw(st.integers(start + 1, len(content)))
            made = [
                TensorDict({"v": NonTensorData(v), "s": s, "t": torch.full((n,), float(n))})
                for v, s, n in content[start:stop]
            ]
            dataset.extend(LazyStackedTensorDict(*made, stack_dim=0), commit=data.draw(st.booleans()))
            start = stop
    read = MemmapDataset.open(path)
    assert len(read) == len(content)
    for number, (v, s, n) in enumerate(content):
        one = read[number]
        assert one.get("v").data == v and type(one.get("v").data) is type(v)
        assert one["s"] == s and one["t"].tolist() == [float(n)] * n
