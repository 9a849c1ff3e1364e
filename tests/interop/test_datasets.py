"""Datasets that grow here are read and appended to by the reference, and the other way round."""

from __future__ import annotations

import pytest
import torch

import tensordict as reference
import tensordict_core as ours
from tensordict_memmap import MemmapDataset, append_memmap, load_memmap

pytestmark = pytest.mark.filterwarnings("ignore")


def rows(library, start, stop):
    number = torch.arange(start, stop)
    deep = library.TensorDict({"c": number[:, None].expand(-1, 3).to(torch.bfloat16)}, [stop - start])
    return library.TensorDict({"a": number, "b/d": number.bool(), "deep": deep, "s": "text"}, [stop - start])


def check(td, count):
    number = torch.arange(count)
    assert tuple(td.batch_size) == tuple(td["deep"].batch_size) == (count,) and td["s"] == "text"
    assert td["a"].tolist() == number.tolist() and td["b/d"].tolist() == number.bool().tolist()
    assert torch.equal(torch.as_tensor(td["deep", "c"]).clone(), number[:, None].expand(-1, 3).to(torch.bfloat16))


def test_the_reference_sees_the_rows_that_count(tmp_path):
    path = tmp_path / "x"
    with MemmapDataset.create(path, rows(ours, 0, 1)[0], capacity=50) as dataset:
        dataset.extend(rows(ours, 0, 7))
        dataset.extend(rows(ours, 7, 9), commit=False)
        check(reference.load_memmap(path), 7)  # files are longer than that
        dataset.commit()
        check(reference.load_memmap(path), 9)
    check(reference.load_memmap(path), 9)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_both_append_to_one_folder_in_turn(tmp_path, first):
    path = tmp_path / "x"
    library = ours if first == "ours" else reference
    rows(library, 0, 3).save(path)
    for start in range(3, 15, 4):
        append_memmap(path, rows(ours, start, start + 2))
        check(load_memmap(path), start + 2)
        check(reference.load_memmap(path), start + 2)
        reference.append_memmap(path, rows(reference, start + 2, start + 4))
        check(load_memmap(path), start + 4)
        check(reference.load_memmap(path), start + 4)


def test_the_reference_appends_to_a_dataset_with_room_to_spare(tmp_path):
    path = tmp_path / "x"
    MemmapDataset.create(path, rows(ours, 0, 1)[0], capacity=100).close()
    append_memmap(path, rows(ours, 0, 5))
    reference.append_memmap(path, rows(reference, 5, 8))
    check(load_memmap(path), 8)
    with MemmapDataset.open(path, "r+") as dataset:
        assert len(dataset) == 8
        dataset.extend(rows(ours, 8, 10))
    check(reference.load_memmap(path), 10)


WRONG = {
    "dtype": lambda td: td.set("a", td["a"].float()),
    "keys": lambda td: td.exclude("a"),
    "more keys": lambda td: td.set("z", torch.zeros(2)),
    "shape": lambda td: td.set(("deep", "c"), torch.zeros(2, 5, dtype=torch.bfloat16)),
    "no rows": lambda td: td[0],
    "value": lambda td: td.set("s", "other"),
}


@pytest.mark.parametrize("name", WRONG)
def test_both_refuse_the_same_rows(tmp_path, name):
    for library, append in ((ours, append_memmap), (reference, reference.append_memmap)):
        path = tmp_path / library.__name__
        rows(library, 0, 3).save(path)
        with pytest.raises(ValueError):
            append(path, WRONG[name](rows(library, 3, 5)))
        check(load_memmap(path), 3)


def test_both_refuse_folders_without_a_save_and_invalid_rows(tmp_path):
    rows(ours, 0, 3).save(tmp_path / "x")
    for append in (append_memmap, reference.append_memmap):
        with pytest.raises(ValueError):
            append(tmp_path / "nothing", rows(ours, 0, 1))
        with pytest.raises(TypeError):
            append(tmp_path / "x", 3)
