"""What is looked at by name and then opened by name may be another save's by then: each such moment, made to happen."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import shutil

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, MemoryMappedTensor, compare, load_memmap, memmap, pack_memmap, save
from tensordict_memmap.dataset import rows
from tensordict_memmap.engine import syscalls as system
from tensordict_memmap.remote.store import Store
from tensordict_memmap.saving.writer import Writer
from tensordict_memmap.storage import cleanup, journal, staging
from tensordict_memmap_cli.main import main


def content(number, size=3):
    return TensorDict({name: torch.full((size,), float(number)) for name in "abc"})


def numbers(td):
    """The numbers in what was loaded: one of each save that it is of."""
    return {value for leaf in td.values(True, True) for value in leaf.unique().tolist()}


SAVED_AS = {
    "tree": save,
    "shards": lambda td, path: save(td, path, format="safetensors", shard_size=16),
    "safetensors": lambda td, path: save(td, path, format="safetensors"),
    "archive": lambda td, path: save(td, path, archive=True),
    "deflated archive": lambda td, path: save(td, path, archive=True, compression="deflate"),
    "consolidated": lambda td, path: td.consolidate(path),
}
FILES = ["safetensors", "archive", "deflated archive", "consolidated"]


@pytest.fixture
def changing(tmp_path, before_opening):
    """A path whose save is replaced by one of the next format whenever it is opened."""

    def start(*formats):
        spares = []
        for number, name in enumerate(formats):
            spares.append(tmp_path / f"spare{number}")
            SAVED_AS[name](content(number, 10 - number), spares[-1])
        path = tmp_path / "x"
        os.rename(spares.pop(0), path)
        before_opening(path, *[functools.partial(replace, spare, path) for spare in spares])
        return path

    return start


def replace(spare, path):
    if spare.is_dir():
        shutil.rmtree(path)
    os.replace(spare, path)


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(FILES, 2)))
def test_a_file_of_another_format_whenever_it_is_opened_loads_as_one_save(changing, before_opening, first, second):
    loaded = load_memmap(changing(*[first, second] * 4))
    assert before_opening.done
    assert numbers(loaded) == {10 - loaded["a"].shape[0]}


@pytest.mark.parametrize(("first", "second"), [("tree", "shards"), ("shards", "tree")])
def test_a_folder_of_another_format_once_it_was_looked_at_loads_as_one_save(tmp_path, before_opening, first, second):
    SAVED_AS[first](content(1), tmp_path / "x")
    opened = {"tree": "meta.json", "shards": "model.safetensors.index.json"}[first]
    before_opening(tmp_path / "x" / opened, lambda: SAVED_AS[second](content(2), tmp_path / "x"))
    assert numbers(load_memmap(tmp_path / "x")) == {2} and before_opening.done


@pytest.mark.parametrize(
    "opened", ["meta.json", "sub/meta.json", "sub/b.memmap", "sub/in/meta.json", "sub/in/c.memmap"]
)
@pytest.mark.parametrize("whole", [content, lambda number: content(number).update({"more": torch.ones(5) * number})])
def test_a_part_that_is_saved_while_the_whole_loads_is_of_one_save(tmp_path, before_opening, opened, whole):
    def part(number):
        return whole(number).update({"in": whole(number)})

    save(TensorDict({"a": torch.zeros(3), "sub": part(1)}), tmp_path / "x")
    before_opening(tmp_path / "x" / opened, lambda: save(part(2).exclude("a"), tmp_path / "x" / "sub"))
    loaded = load_memmap(tmp_path / "x")
    assert before_opening.done
    assert numbers(loaded["sub"]) == {2} and "a" not in loaded["sub"]


def test_a_part_whose_save_was_stopped_half_committed_is_finished_by_a_load_of_the_whole(tmp_path, fork):
    save(TensorDict({"sub": content(1)}), tmp_path / "x")
    (tmp_path / "x" / "sub" / "notes.txt").write_text("because of a foreign file it is committed file by file")
    moved = []

    def die(source, destination, really=os.replace):
        if len(moved) == 2:
            os._exit(9)
        really(source, destination)
        moved.append(destination)

    def in_child():
        journal.os.replace = die
        save(content(2), tmp_path / "x" / "sub")

    assert fork(in_child).wait() == 9
    assert numbers(load_memmap(tmp_path / "x")) == {2}
    assert (tmp_path / "x" / "sub" / "notes.txt").exists()


def test_a_description_is_of_one_save(tmp_path, before_opening, capsys):
    """The first save has a node where the second has a tensor, so half of one and half of the other is none."""
    for work in (
        lambda: compare(tmp_path / "x", content(2)),
        lambda: main(["tree", str(tmp_path / "x")]),
        lambda: main(["diff", "--structure", str(tmp_path / "x"), str(tmp_path / "x")]),
    ):
        save(TensorDict({"a": {"b": torch.ones(3)}}), tmp_path / "x")
        before_opening(tmp_path / "x" / "a" / "meta.json", lambda: save(content(2), tmp_path / "x"))
        assert not work()
        assert "damaged" not in capsys.readouterr().err


# --- what a save gives back, and what it takes over from the save before


@pytest.fixture
def overtaken(monkeypatch):
    """Lets another save be made right after a function has returned, or right before it is called."""

    def start(owner, name, other, *, before=False):
        real, waiting = getattr(owner, name), [other]

        def function(*arguments, **options):
            if before and waiting:
                waiting.pop()()
            made = real(*arguments, **options)
            if waiting:
                waiting.pop()()
            return made

        monkeypatch.setattr(owner, name, function)

    return start


@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors"])
@pytest.mark.parametrize("size", [3, 7])
def test_a_save_returns_the_values_that_it_saved(tmp_path, overtaken, name, size):
    path = tmp_path / name
    overtaken(Writer, "run", lambda: save(content(2, size), path))
    mapped = memmap(content(1), path)
    assert numbers(mapped) == {1} and mapped.is_memmap() and mapped.saved_path == path
    assert numbers(load_memmap(path)) == {2}
    if name == "x":
        assert mapped["a"].filename == str(path / "a.memmap")


@pytest.mark.parametrize("size", [3, 7])
def test_a_consolidated_result_is_mapped_onto_its_own_file(tmp_path, overtaken, size):
    path = tmp_path / "x"
    overtaken(Writer, "run", lambda: content(2, size).consolidate(path))
    assert numbers(content(1).consolidate(path)) == {1}
    assert numbers(load_memmap(path)) == {2}


def test_a_tensor_that_gets_a_file_is_mapped_onto_that(tmp_path, overtaken):
    path = tmp_path / "x.memmap"
    other = functools.partial(MemoryMappedTensor.from_tensor, torch.zeros(5), filename=path, existsok=True)
    overtaken(staging, "put_in_place", other)
    mapped = MemoryMappedTensor.from_tensor(torch.ones(5), filename=path)
    assert mapped.filename == str(path) and mapped.sum() == 5
    assert path.read_bytes() == bytes(20)


def test_a_file_that_stays_as_it_is_is_the_one_that_is_mapped(tmp_path, overtaken):
    path = tmp_path / "x"
    mapped = memmap(content(1), path)
    more = mapped.clone(recurse=False).unlock_().set("d", torch.ones(3))
    overtaken(os, "link", lambda: save(content(2), path), before=True)
    saved = memmap(more, path)
    assert numbers(saved) == numbers(load_memmap(path, verify="size")) == {1}


@pytest.mark.parametrize("name", ["x", "x.tdz", "x.safetensors", "x.memmap"])
def test_a_save_that_must_be_new_replaces_no_concurrent_one(tmp_path, overtaken, name):
    path = tmp_path / name
    if name == "x.memmap":
        other = functools.partial(path.write_bytes, b"other")
        work = functools.partial(MemoryMappedTensor.from_tensor, torch.ones(5), filename=path)
    else:
        other = functools.partial(save, content(2), path)
        work = functools.partial(memmap, content(1), path, existsok=False)
    overtaken(*((cleanup, "wait") if name == "x" else (system, "rename_new")), other, before=True)
    with pytest.raises(RuntimeError, match="existsok=False"):
        work()
    assert path.read_bytes() == b"other" if name == "x.memmap" else numbers(load_memmap(path)) == {2}
    assert sorted(tmp_path.iterdir()) == [path]


def test_an_archive_is_of_one_save(tmp_path, before_opening):
    save(content(1), tmp_path / "x")
    before_opening(tmp_path / "x" / "b.memmap", lambda: save(content(2, 2), tmp_path / "x"))
    assert numbers(load_memmap(pack_memmap(tmp_path / "x", tmp_path / "x.tdz"))) == {2}


def test_a_pickled_tensor_is_never_another_one(tmp_path, before_opening):
    path = tmp_path / "x.memmap"
    sent = pickle.dumps(MemoryMappedTensor.from_tensor(torch.ones(5), filename=path))
    for other in (torch.zeros(5), torch.zeros(2)):
        before_opening(path, lambda: MemoryMappedTensor.from_tensor(other, filename=path, existsok=True))  # noqa: B023  # called in this round
        with pytest.raises(RuntimeError, match="removed or replaced"):
            pickle.loads(sent)


def test_rows_that_come_while_a_dataset_is_opened_are_seen_later(tmp_path, overtaken):
    row = TensorDict({"x": torch.zeros(3)})
    with MemmapDataset.create(tmp_path / "data", row) as writer:
        overtaken(rows, "load_memmap", lambda: writer.append(row))
        reader = MemmapDataset.open(tmp_path / "data")
        assert len(reader) == 0
        sent = pickle.loads(pickle.dumps(reader))
        assert reader.refresh() == 1
        assert len(sent) == 0 and sent.refresh() == 1


def test_a_file_that_appears_after_a_check_for_its_absence_is_not_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "lexists", lambda path: True)
    assert system.read_file(str(tmp_path / "absent")) is None


@pytest.mark.parametrize("name", ["x.safetensors", "x.tdz", "deflated.tdz", "x"])
@pytest.mark.parametrize("size", [3, 7])
def test_values_in_separate_files_are_of_one_save(tmp_path, overtaken, name, size):
    pytest.importorskip("fsspec", reason="the extra that this tests")
    options = {"compression": "deflate"} if name == "deflated.tdz" else {}
    url = f"memory://{tmp_path.name}/{name}"
    save(content(1), url, **options)
    overtaken(Store, "read_ranges", lambda: save(content(2, size), url, **options))
    loaded = load_memmap(url)
    assert numbers(loaded) == {2} and loaded["a"].shape == (size,)
