"""Order of system calls: strace shows that a durable save syncs every file and folder before what makes them count.

The calls are replayed on a model of the disk: a file that was written to and a folder in which a name has changed are
dirty until they are synced. A power failure may keep or lose each dirty one, independently of the others. So nothing of
a save may be dirty when a rename makes it count, nor when it returns; and a journal may only go once what it moved is
clean, and only then its staging folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tensordict_memmap.storage.manifest import NAME
from tensordict_memmap.storage.ownership import JOURNAL
from tensordict_memmap.storage.rows_committed import LOCK

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

PROGRAM = """
import os, sys, torch
from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, save

path, kind, stage = sys.argv[1:]
w = torch.ones(2)
td = TensorDict({"a": torch.arange(3), "b": {"c": torch.zeros(1 << 20), "d": torch.ones(50, 40).T}, "s": "text"})
td["tied"], td["w"] = w, w
options = {"in place": {"atomic": False}, "shards": {"format": "safetensors", "shard_size": 1000}}.get(kind, {})
if kind == "checksums":
    options = {"checksum": True}
if kind == "compressed":
    options = {"compression": "deflate"}

def store():
    if kind == "rows":
        row = TensorDict({"a": torch.zeros(3), "b": {"c": torch.zeros(2)}})
        if not os.path.exists(path):
            MemmapDataset.create(path, row, durable=True).close()
        with MemmapDataset.open(path, "r+", durable=True) as dataset:
            dataset.extend(row.expand(5))
    else:
        save(td, path, durable=True, num_threads=3, **options)

if stage == "before":
    if kind != "fresh":
        store()
    if kind == "journal":
        open(path + "/notes.txt", "w").close()
else:
    store()
    os.stat("/the end")
"""

CALLS = "openat,mkdir,link,rename,renameat2,unlink,rmdir,unlinkat,fsync,fdatasync,write,pwrite64,pwritev,ftruncate"
LINE = re.compile(r"(?:\[pid +\d+\] +|\d+ +)?(\w+)\((.*)\) += (-?\d+).*")
KINDS = {
    "fresh": "x",
    "exchange": "x",
    "checksums": "x",
    "journal": "x",
    "in place": "x",
    "shards": "x",
    "rows": "x",
    "safetensors": "x.safetensors",
    "archive": "x.tdz",
    "compressed": "x.tdz",
}


def traced(folder, path, kind):
    """The calls of a save that succeeded, in order: the name, the arguments as text, and the result."""
    log = folder.parent / "trace"
    run = [sys.executable, "-c", PROGRAM, str(path), kind]
    subprocess.run([*run, "before"], check=True)
    strace = ["strace", "-f", "-y", "-qq", "-o", str(log), "-e", f"trace={CALLS},stat,newfstatat"]
    subprocess.run([*strace, *run, "save"], check=False, capture_output=True)
    begun, found = {}, []
    for line in log.read_text(errors="replace").splitlines():
        pid, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[pid] = text.removesuffix("<unfinished ...>")
            continue
        resumed = re.match(r"<\.\.\. \w+ resumed>(.*)", text)
        if resumed:
            text = begun.pop(pid) + resumed[1]
        if '"/the end"' in text:
            break
        match = LINE.fullmatch(text)
        if match and int(match[3]) >= 0 and str(folder) in match[2]:
            found.append((match[1], match[2]))
    return found


class Disk:
    """What is dirty: files that were written to, and folders in which names have changed."""

    def __init__(self, folder, grows):
        self.folder, self.grows = str(folder), grows
        self.files, self.folders = set(), set()
        self.commits, self.journals, self.synced = 0, 0, 0

    def below(self, path):
        return {one for one in self.files | self.folders if one == path or one.startswith(path + "/")}

    def apply(self, name, text):
        found = [one.removesuffix(" (deleted)") for one in re.findall(r'[<"]([^<>"]*)[>"]', text)]
        paths = [os.path.normpath(one) for one in found if one.startswith(self.folder)]
        if not paths:
            return
        path = paths[0]
        if path.endswith(LOCK) or (name == "ftruncate" and self.grows):
            return  # a file that stays empty, and room for rows, of which commits say nothing
        if name in ("write", "pwrite64", "pwritev", "ftruncate"):
            self.files.add(path)
        elif name in ("fsync", "fdatasync"):
            self.synced += 1
            self.files.discard(path)
            self.folders.discard(path)
        elif name == "openat":
            if "O_CREAT" in text:
                self.folders.add(os.path.dirname(path))
            if "O_TRUNC" in text or "O_CREAT" in text:
                self.files.add(path)
        elif name == "mkdir":
            self.folders |= {os.path.dirname(path), path}
        elif name == "link":
            self.folders.add(os.path.dirname(paths[1]))
        elif name in ("unlink", "rmdir", "unlinkat"):
            if path.endswith(JOURNAL):
                assert not self.below(os.path.dirname(path)), "what the journal moved is clean"
            self.files.discard(path)
            self.folders -= self.below(path)
            self.folders.add(os.path.dirname(path))
        else:
            self.rename(*paths, exchange="RENAME_EXCHANGE" in text)

    def rename(self, source, target, *, exchange):
        needed = os.path.dirname(target) if self.grows and os.path.basename(target) == NAME else source
        dirty = self.below(needed) - ({needed} if needed != source else set())
        assert not dirty, f"{dirty} are dirty when {target} counts"
        if os.path.basename(target) == JOURNAL:
            stage = os.path.dirname(source)
            dirty = self.below(stage) - {stage}  # the journal itself was made there
            assert not dirty and os.path.dirname(stage) not in self.folders, "all that the journal names is clean"
            self.journals += 1
        self.commits += 1
        moved = self.below(target) if exchange else set()
        self.files -= moved
        self.folders -= moved
        self.folders |= {os.path.dirname(source), os.path.dirname(target)}


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_durable_save_wrote_is_synced_before_it_counts(tmp_path, kind):
    folder = tmp_path / "place"
    folder.mkdir()
    path = folder / KINDS[kind]
    disk = Disk(folder, kind == "rows")
    calls = traced(folder, path, kind)
    for name, text in calls:
        if name not in ("stat", "newfstatat"):
            disk.apply(name, text)
    removed = {one for one in disk.folders if not os.path.isdir(one)}
    assert disk.commits and disk.synced >= 2 and disk.journals == (kind == "journal")
    assert not disk.files and not disk.folders - removed - {str(folder)} - _of_locks(disk, kind, path)
    assert kind == "exchange" or str(folder) not in disk.folders or _is_removal_last(calls)
    print(f"{kind}: {len(calls)} calls, {disk.synced} syncs, {disk.commits} renames")


def _of_locks(disk, kind, path):
    """The folder of a dataset, in which a lock file is opened that may be lost."""
    return {str(path)} if kind == "rows" else set()


def _is_removal_last(calls):
    """Whether the folder above changed last because a replaced save or a staging folder was removed there."""
    changes = [text for name, text in calls if name in ("rename", "renameat2", "mkdir", "rmdir", "unlink", "fsync")]
    return ".tensordict-" in changes[-1]
