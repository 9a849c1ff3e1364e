"""Adding an entry to a saved folder: it and its descriptions come together, and what others saved stays."""

from __future__ import annotations

import itertools
import os
import warnings

import pytest
import torch

from tensordict_core import LazyStackedTensorDict, NonTensorData, TensorDict
from tensordict_memmap import load_memmap, save
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.storage import transaction
from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.ownership import JOURNAL, read_manifest


@pytest.fixture
def added(monkeypatch):
    """Whether each entry could be added, without a save of all."""
    seen = []
    add = transaction.add_files

    def watched(*arguments):
        seen.append(add(*arguments))
        return seen[-1]

    monkeypatch.setattr(transaction, "add_files", watched)
    return seen


def _size(folder):
    return os.path.getsize(os.path.join(folder, "meta.json"))


def problems(folder):
    """The files that are not as the manifest of a folder says, or that it does not list."""
    sizes = {
        os.path.relpath(os.path.join(place, name), folder): os.path.getsize(os.path.join(place, name))
        for place, _, names in os.walk(folder)
        for name in names
    }
    del sizes[NAME]
    listed = {name: entry.size for name, entry in read_manifest(folder).files.items()}
    return sorted(name for name, _ in sizes.items() ^ listed.items())


def test_added_entries_equal_saved_ones(target, added):
    td = TensorDict({"z": torch.ones(2, 3), "b": TensorDict({"c": torch.arange(2)}, [2])}, [2], names=["n"])
    td = td.memmap(target)
    td.make_memmap("x", (2, 5), dtype=torch.int16)[0] = 7
    td.make_memmap(("b", "d e"), (2,)).fill_(3)
    td.make_memmap(("new", "er", "y"), (2, 1)).fill_(4)
    td.make_memmap_from_tensor("t", torch.arange(2))
    td.make_memmap("nothing", (2, 0))
    assert added == [True] * 5 and not problems(target)
    again = load_memmap(target)
    assert (again == td).all() and list(again.keys()) == ["z", "b", "x", "new", "t", "nothing"] == list(td.keys())
    assert again.names == ["n"] and again["x"][0].tolist() == [7] * 5 and again["t"].tolist() == [0, 1]
    other = target + " anew"
    save(td, other)
    with open(os.path.join(target, "meta.json")) as one, open(os.path.join(other, "meta.json")) as two:
        assert one.read() == two.read()
    assert read_manifest(target).files == read_manifest(other).files


def test_entries_that_several_add_are_all_there(target, added):
    first = TensorDict({"a": torch.ones(2)}).memmap(target)
    second = load_memmap(target)
    first.make_memmap("one", (1,)).fill_(1)
    second.make_memmap("two", (1,)).fill_(2)
    assert load_memmap(target).sum().to_dict() == {"a": 2, "one": 1, "two": 2} and added == [True, True]
    first.memmap_refresh_()["two"].fill_(3)
    assert second["two"].item() == 3


def test_of_two_concurrent_entries_of_a_name_the_later_is_kept(target, added):
    first = TensorDict({"a": torch.ones(2)}).memmap(target)
    second = load_memmap(target)
    first.make_memmap("one", (3,))
    second.make_memmap("one", (1,)).fill_(2)
    assert load_memmap(target)["one"].tolist() == [2] and added == [True, False] and not problems(target)


@pytest.mark.parametrize("kind", ["class", "lazy", "value", "odd key", "in memory", "replaced", "gone", "foreign file"])
def test_where_an_entry_cannot_just_be_added_all_is_saved(target, added, kind):
    other = {
        "class": lambda: torch.ones(2),
        "lazy": lambda: LazyStackedTensorDict(TensorDict({"i": torch.ones(1)}), TensorDict({"i": torch.ones(2)})),
        "value": lambda: NonTensorData("text"),
    }.get(kind, lambda: torch.ones(2))()
    source = TensorDict({"a": torch.ones(2), "o": other, **({"shape": torch.ones(1)} if kind == "odd key" else {})})
    td = source.memmap(target)
    if kind == "in memory":
        td.unlock_()["p"] = torch.zeros(2)
    if kind == "replaced":
        save(TensorDict({"q": torch.ones(1)}), target)
    if kind == "gone":
        os.unlink(os.path.join(target, NAME))
    if kind == "foreign file":
        os.mkdir(os.path.join(target, "x.memmap"))
        with pytest.raises(OSError, match="remove it"):
            td.make_memmap("x", (2,))
        os.rmdir(os.path.join(target, "x.memmap"))
    td.make_memmap("x", (2,)).fill_(5)
    again = load_memmap(target)
    assert set(again.keys()) == {*td.keys()} >= {*source.keys(), "x"}
    assert again["x"].tolist() == [5, 5] and not problems(target)
    if kind == "in memory":
        assert again["p"].tolist() == [0, 0]
    usual = kind in ("class", "lazy", "value")
    assert added[-1:] == ([] if kind == "in memory" else [usual or kind == "foreign file"])


def test_a_part_that_was_saved_again_is_described_in_two_places(target, added):
    td = TensorDict({"a": torch.ones(1), "b": {"c": torch.ones(1)}}).memmap(target)
    part = os.path.join(target, "b")
    save(TensorDict({"c": torch.zeros(1)}), part)
    inner = load_memmap(part)
    inner.make_memmap("d", (1,)).fill_(2)
    assert added == [False] and load_memmap(target)["b", "d"].item() == 2
    td.make_memmap("x", (1,))
    assert load_memmap(target)["b", "d"].item() == 2 and added == [False, True]
    sizes = {name: entry.size for name, entry in read_manifest(target).under("b").files.items()}
    assert sizes == {"c.memmap": 4, "d.memmap": 4, "meta.json": _size(part)}


@pytest.mark.skipif(not system.POSIX, reason="children are forked and killed")
@pytest.mark.parametrize("key", ["x", ("b", "x"), ("b", "new", "x")])
def test_an_addition_killed_before_any_of_its_steps_is_whole_or_never_was(target, killed_at, leftovers, key):
    source = TensorDict({"a": torch.ones(1), "b": {"c": torch.ones(1)}})
    seen = set()
    for step in itertools.count():
        save(source, target)
        td = load_memmap(target)
        killed = killed_at(step, lambda: td.make_memmap(key, (3,)))  # noqa: B023  # called at once
        again = load_memmap(target)
        seen.add(key in again.keys(True))
        assert (again.exclude(key) == source).all() if key != ("b", "new", "x") else again["b", "c"].item() == 1
        assert not os.path.exists(os.path.join(target, JOURNAL)) and not problems(target)
        save(source, target)
        assert not leftovers(target), "the next save cleans up"
        if not killed:
            break
    assert step > 8 and seen == {False, True}


def test_an_error_on_the_way_leaves_nothing(target, monkeypatch, leftovers):
    td = TensorDict({"a": torch.ones(1)}).memmap(target)

    def fail(*arguments, **options):
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(system, "write_file", fail)
        with pytest.raises(OSError, match="no space"):
            td.make_memmap("x", (3,))
    assert "x" not in td and "x" not in load_memmap(target)
    assert not leftovers(target) and not problems(target)


def test_many_processes_add_at_once(target, fork):
    TensorDict({"a": torch.ones(1)}).save(target)

    def add(number):
        td = load_memmap(target)
        for entry in range(8):
            td.make_memmap(f"{number}-{entry}", (1,)).fill_(number)

    children = [fork(add, number) for number in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    again = load_memmap(target)
    assert len(again.keys()) == 33 and not problems(target)
    assert all(again[f"{number}-{entry}"].item() == number for number in range(4) for entry in range(8))


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_nested_entry_is_made_without_a_warning_of_torch_about_nested_tensors(tmp_path, in_folder):
    td = TensorDict({"a": torch.ones(2)}, [2]).memmap(tmp_path if in_folder else None)
    rows = torch.tensor([[2, 3], [4, 3]])
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch warns once in a process otherwise
    try:
        with warnings.catch_warnings(action="error"):
            td.make_memmap_from_storage("n", torch.arange(18.0).untyped_storage(), rows)
            td.make_memmap("z", rows)
    finally:
        torch.set_warn_always(always)
    assert not any(part.count_nonzero() for part in td["z"].unbind())
