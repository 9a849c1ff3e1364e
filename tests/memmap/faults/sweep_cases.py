"""Operations of the interrupt sweep: each acts, and checks what it finds whether or not it was interrupted."""

from __future__ import annotations

import os
import shutil

import torch

from tensordict_core import TensorDict
from tensordict_memmap import (
    MemmapDataset,
    MemoryMappedTensor,
    from_consolidated,
    load_memmap,
    make_memmap_from_tensor,
    memmap,
    save,
)
from tensordict_memmap.engine import tuning
from tensordict_memmap.storage.removal import remove_tree


def content(version):
    """A tensordict that tells its version in each of its parts; one leaf has several jobs, one is strided."""
    return TensorDict(
        {
            "a": torch.full((3,), version),
            "large": torch.full((300_000,), version % 251, dtype=torch.uint8),  # a full sweep makes thousands
            "inner": {f"only{version % 2}": torch.full((5, 4), version).T, "text": f"version {version}"},
        }
    )


def version_of(td):
    version = int(td["a"][0])
    expected = content(version)
    assert set(td.keys(True, True)) == set(expected.keys(True, True))
    assert all(torch.equal(td[key], leaf) for key, leaf in expected.items(True, True) if isinstance(leaf, torch.Tensor))
    assert td["inner", "text"] == f"version {version}"
    return version


class Save:
    """A save over an earlier one."""

    def __init__(self, folder, name="saved", load=load_memmap, foreign=False, fresh=False, **options):
        self.folder, self.path, self.load, self.foreign = folder, folder / name, load, foreign
        self.options, self.fresh, self.version = {"num_threads": 2, **options}, fresh, 0
        if not fresh:
            self.store(0)
        if foreign:
            (self.path / "notes.txt").write_text("mine")

    def store(self, version):
        save(content(version), self.path, **self.options)

    def act(self):
        self.store(self.version + 1)

    def check(self):
        expected = {self.version, self.version + 1}
        if self.fresh and not self.path.exists():
            found = self.version
        else:
            found = version_of(self.load(self.path))
        assert found in expected, (found, expected)
        self.version = found + 2
        self.store(self.version)
        assert version_of(self.load(self.path)) == self.version
        assert os.listdir(self.folder) == [self.path.name]
        if self.foreign:
            assert (self.path / "notes.txt").read_text() == "mine"
            assert not [name for name in os.listdir(self.path) if "tensordict-" in name or "journal" in name]
        if self.fresh:
            self.path = self.path.with_name(f"saved{self.version}")
            (self.folder / os.listdir(self.folder)[0]).rename(self.path)
            self.path = self.path.with_name("saved")
            _remove(self.folder)


def _remove(folder):
    for name in os.listdir(folder):
        shutil.rmtree(folder / name)


class Consolidate(Save):
    def store(self, version):
        content(version).consolidate(self.path, num_threads=2)


class Memmap(Save):
    def store(self, version):
        memmap(content(version), self.path, num_threads=2)


class InPlace(Save):
    """A save that overwrites files: an interrupted one says so."""

    def check(self):
        try:
            self.load(self.path)
        except ValueError as error:
            assert "overwrote files in place" in str(error)
            self.version += 1
            self.store(self.version)
        super().check()


class Load(Save):
    """A load changes nothing."""

    def act(self):
        self.load(self.path)

    def check(self):
        assert version_of(self.load(self.path)) == self.version


class LoadConsolidated(Load):
    def store(self, version):
        content(version).consolidate(self.path, num_threads=2)


class AddEntry(Save):
    def __init__(self, folder):
        super().__init__(folder)
        self.number = 0

    def act(self):
        make_memmap_from_tensor(load_memmap(self.path), f"more{self.number}", torch.full((7,), self.number))

    def check(self):
        td = load_memmap(self.path)
        if f"more{self.number}" not in td:
            self.act()
            td = load_memmap(self.path)
        assert all(td[f"more{n}"].tolist() == [n] * 7 for n in range(self.number + 1))
        self.number += 1
        if self.number == 20:
            self.number = 0
            self.store(0)
            assert os.listdir(self.folder) == ["saved"]


class SetValue(Save):
    def act(self):
        td = load_memmap(self.path)
        with td.unlock_():
            td["inner"].set_non_tensor("text", f"version {self.version + 1}")

    def check(self):
        assert load_memmap(self.path)["inner", "text"] in (f"version {self.version}", f"version {self.version + 1}")
        self.store(self.version)
        assert version_of(load_memmap(self.path)) == self.version and os.listdir(self.folder) == ["saved"]


class Update(Save):
    """An in-place update of mapped tensors, by their files and by their mappings."""

    nbytes = tuning.FILE_WRITE_MIN + 4096

    def __init__(self, folder):
        self.path, self.version = folder / "saved", 0
        self.fill()

    def fill(self):
        like = TensorDict({"a": torch.zeros(3), "large": torch.zeros(self.nbytes, dtype=torch.uint8)})
        self.td = like.memmap_like(self.path)

    def act(self):
        large = torch.full((self.nbytes,), 7, dtype=torch.uint8)
        self.td.update_(TensorDict({"a": torch.full((3,), 7.0), "large": large}))

    def check(self):
        large = self.td["large"]
        assert ((large == 0) | (large == 7)).all()
        self.act()
        assert (load_memmap(self.path)["large"] == 7).all() and self.td["a"].tolist() == [7] * 3
        self.fill()


class Append:
    """Rows that a writer appends and commits, which it opened before the exception or during it."""

    def __init__(self, folder, room=False):
        self.folder, self.path, self.room = folder, folder / "rows", room
        self.begin()

    def begin(self):
        """Make a dataset without rows: its files have room for some, or grow with each row."""
        self.rows = 0
        with MemmapDataset.create(self.path, self.row(0)) as writer:
            if self.room:
                writer.resize(MOST_ROWS + 3)
                writer.resize(0)

    def row(self, number):
        return TensorDict({"a": torch.full((3,), number), "b": {"c": torch.tensor(number)}, "text": "one for all"})

    def act(self):
        with MemmapDataset.open(self.path, "r+") as dataset:
            dataset.append(self.row(self.rows))

    def check(self):
        dataset = MemmapDataset.open(self.path)
        assert len(dataset) in (self.rows, self.rows + 1)
        self.rows = len(dataset)
        for _ in range(2):
            assert dataset["a"][:, 0].tolist() == dataset["b", "c"].tolist() == list(range(len(dataset)))
            if len(dataset) == self.rows:
                self.act()
                dataset = MemmapDataset.open(self.path)
                assert len(dataset) == self.rows + 1
        self.rows += 1
        if self.rows > MOST_ROWS:
            shutil.rmtree(self.path)
            self.begin()
        assert not [name for name in os.listdir(self.path) if name not in ROWS], os.listdir(self.path)


MOST_ROWS = 12

ROWS = ["a.memmap", "b", "meta.json", "tensordict.manifest.json", "tensordict.lock", "text"]


class KeepAppending(Append):
    """The writer goes on after the exception."""

    def begin(self):
        super().begin()
        self.writer = MemmapDataset.open(self.path, "r+")

    def act(self):
        self.writer.append(self.row(self.rows))

    def check(self):
        found = len(MemmapDataset.open(self.path))
        assert found in (self.rows, self.rows + 1)
        if found == self.rows:
            if self.writer._check_writer().written_rows > self.rows:  # written and not committed
                self.writer.commit()
            else:
                self.act()
        self.rows += 1
        dataset = MemmapDataset.open(self.path)
        assert dataset["a"][:, 0].tolist() == dataset["b", "c"].tolist() == list(range(self.rows))
        if self.rows > MOST_ROWS:
            self.writer.close()
            shutil.rmtree(self.path)
            self.begin()


class Map:
    """A tensor over a file, which is dropped again."""

    def __init__(self, folder):
        self.path = folder / "leaf.memmap"
        self.path.write_bytes(bytes(range(64)))

    def act(self):
        MemoryMappedTensor.from_filename(self.path, torch.uint8, [60], offset=4)

    def check(self):
        assert MemoryMappedTensor.from_filename(self.path, torch.uint8, [64]).tolist() == list(range(64))


class Remove:
    """The removal of a folder with folders and a link in it."""

    def __init__(self, folder):
        self.path, self.outside = folder / "gone", folder / "outside"
        self.outside.mkdir()
        (self.outside / "kept.txt").write_text("mine")
        self.fill()

    def fill(self):
        (self.path / "a" / "b").mkdir(parents=True)
        (self.path / "a" / "b" / "file").touch()
        (self.path / "link").symlink_to(self.outside)

    def act(self):
        remove_tree(str(self.path))

    def check(self):
        if self.path.exists():
            self.act()
        assert os.listdir(self.path.parent) == ["outside"] and os.listdir(self.outside) == ["kept.txt"]
        self.fill()


# with one thread, all jobs run in the thread that is interrupted
CASES = {
    "save of a tree": Save,
    "save of a tree by one thread": lambda folder: Save(folder, num_threads=1),
    "save of a new tree": lambda folder: Save(folder, fresh=True),
    "save of a tree, durable": lambda folder: Save(folder, durable=True, checksum=True),
    "save of a tree by a journal": lambda folder: Save(folder, foreign=True),
    "save of a tree in place": lambda folder: InPlace(folder, atomic=False, num_threads=1),
    "memmap of a tree": Memmap,
    "save of a safetensors file": lambda folder: Save(folder, "saved.safetensors"),
    "save of a safetensors file, durable": lambda folder: Save(
        folder, "x.safetensors", durable=True, checksum=True, num_threads=1
    ),
    "save of shards": lambda folder: Save(folder, format="safetensors", shard_size=100),
    "save of an archive": lambda folder: Save(folder, "saved.tdz"),
    "save of a compressed archive": lambda folder: Save(folder, "saved.tdz", compression="deflate"),
    "save of a consolidated file": lambda folder: Consolidate(folder, "saved.bin", from_consolidated),
    "load of a tree": Load,
    "load of a safetensors file": lambda folder: Load(folder, "saved.safetensors"),
    "load of shards": lambda folder: Load(folder, format="safetensors", shard_size=100),
    "load of an archive": lambda folder: Load(folder, "saved.tdz"),
    "load of a consolidated file": lambda folder: LoadConsolidated(folder, "saved.bin", from_consolidated),
    "read of a whole save": lambda folder: Load(folder, load=lambda path: load_memmap(path, eager=True)),
    "entry added to a tree": AddEntry,
    "value set in a tree": SetValue,
    "update in place": Update,
    "append of a row": Append,
    "append of a row where there is room": lambda folder: Append(folder, room=True),
    "append of a row by a writer that goes on": KeepAppending,
}
