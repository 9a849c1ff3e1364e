"""Manifest: the list of the files of a saved folder, with sizes and checksums, as JSON beside its ``meta.json``.

It is written last, so its presence shows that the save is complete. Readers that do not know it ignore it. If a folder
inside a saved folder has a manifest of its own, that one applies to it. This module opens no file.

The file, version 1::

    {"tensordict_manifest": 1, "complete": true,
     "files": {"a.memmap": 48, "b/c.memmap": [16, "xxh3_64/4194304:..."], "b/meta.json": 120, "meta.json": 95},
     "names": {"b": {"x.shape": "x%2Eshape.memmap"}}, "aliases": {"tied.memmap": "a.memmap"},
     "save_id": "0f3c...", "seal": "xxh3_64/4194304:..."}

- ``files``: the size of each file, or its size and checksum. Paths are relative, with ``/`` between names.
- ``names``: by folder, the file names of keys that are escaped.
- ``aliases``: for each file that has the content of another, the path of that other file.
- ``growing``: the rows of a growing dataset, whose files may be longer than listed (`rows_committed`).
- ``save_id``: the id of a save by several ranks, which its safetensors files hold too.
- ``seal``: the last field, present if files have checksums: the checksum of all bytes before the comma in front of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tensordict_memmap.engine.checksums import checksum_of
from tensordict_memmap.formats.names import MANIFEST, PATH, check_path
from tensordict_memmap.schema import nontensor
from tensordict_memmap.storage.rows_committed import RowsCommitted

NAME = MANIFEST
"""The name of the manifest in the folder that it describes."""

VERSION = 1
_SEAL = b',"seal":"'


class Entry(NamedTuple):
    """One file: its size in bytes, and its checksum in the form of `engine.checksums`, or None."""

    size: int
    checksum: str | None = None


@dataclass(slots=True)
class Manifest:
    """The files of a saved folder.

    Args:
        files: All files by their paths, except the manifest itself.
        names: By folder (``""`` is the root), the file name of each key whose name is escaped.
        aliases: For each file that is a hard link to, or a copy of, another one, the path of that other file.
        complete: False while files are overwritten in place.
        rows_committed: The rows of a growing dataset; None for other saves.
        save_id: The id of a save by several ranks; None for other saves.

    >>> manifest = Manifest({"meta.json": Entry(95), "b/meta.json": Entry(120)})
    >>> Manifest.loads(manifest.dumps()) == manifest
    True
    >>> list(manifest.under("b").files)
    ['meta.json']
    """

    files: dict[str, Entry]
    names: dict[str, dict[str, str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    complete: bool = True
    rows_committed: RowsCommitted | None = None
    save_id: str | None = None

    def dumps(self) -> bytes:
        """Return the manifest as JSON."""
        files = {
            path: size if checksum is None else (size, checksum)
            for path, (size, checksum) in sorted(self.files.items())
        }
        record: dict[str, Any] = {"tensordict_manifest": VERSION, "complete": self.complete, "files": files}
        if self.names:
            record["names"] = self.names
        if self.aliases:
            record["aliases"] = self.aliases
        if self.rows_committed is not None:
            record["growing"] = self.rows_committed.record()
        if self.save_id is not None:
            record["save_id"] = self.save_id
        text = nontensor.quick_dumps(record)
        return text[:-1] + _SEAL + checksum_of(text[:-1]).encode() + b'"}' if self.is_sealed() else text

    def is_sealed(self) -> bool:
        """Return whether any file has a checksum."""
        return any(entry.checksum is not None for entry in self.files.values())

    @classmethod
    def loads(cls, data: bytes, *, where: str = "the manifest") -> Manifest:
        """Parse and validate a manifest.

        Args:
            data: The content of its file.
            where: The name of the file in errors.

        Raises:
            ValueError: The JSON is invalid or has duplicate keys, the version is unknown, a path leads out of the
                folder, a size is invalid, or the seal does not match.
        """
        try:
            record = _DECODER.decode(data.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not valid JSON: {error}; save again") from error
        if not isinstance(record, dict) or record.get("tensordict_manifest") != VERSION:
            raise ValueError(
                f"{where} is not a manifest of version {VERSION}, the one that is supported; upgrade tensordict-memmap"
            )
        try:
            manifest = cls(
                files={check_path(path): _entry(entry) for path, entry in record["files"].items()},
                names={
                    check_path(folder) if folder else "": {str(key): _name(name) for key, name in names.items()}
                    for folder, names in record.get("names", {}).items()
                },
                aliases={check_path(path): check_path(other) for path, other in record.get("aliases", {}).items()},
                complete=record["complete"] is True,
                rows_committed=RowsCommitted.read(record["growing"]) if "growing" in record else None,
                save_id=str(record["save_id"]) if "save_id" in record else None,
            )
            unknown = [path for path, other in manifest.aliases.items() if not {path, other} <= manifest.files.keys()]
            if unknown:
                raise ValueError(f"the alias {unknown[0]!r}, or the file that it names, is not listed")
            _check_seal(data, record.get("seal"), manifest.is_sealed())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where} is broken: {error}; restore it, or save again") from error
        return manifest

    def under(self, folder: str) -> Manifest:
        """Return the part of the manifest about a folder inside, with paths relative to that folder."""
        start = folder + "/"
        cut = len(start)
        return Manifest(
            {path[cut:]: entry for path, entry in self.files.items() if path.startswith(start)},
            {place[cut:]: names for place, names in self.names.items() if (place + "/").startswith(start)},
            {
                path[cut:]: other[cut:]
                for path, other in self.aliases.items()
                if path.startswith(start) and other.startswith(start)
            },
            self.complete,
            None if self.rows_committed is None else replace(self.rows_committed, meta=()),
        )

    def replaced_under(self, folder: str, part: Manifest) -> Manifest:
        """Return the manifest with the entries under a folder inside replaced by those of another manifest."""
        start = folder + "/"

        def outside(path: str) -> bool:
            return not (path + "/").startswith(start)

        return Manifest(
            {path: entry for path, entry in self.files.items() if outside(path)}
            | {start + path: entry for path, entry in part.files.items()},
            {place: names for place, names in self.names.items() if outside(place)}
            | {(start + place).rstrip("/"): names for place, names in part.names.items()},
            {path: other for path, other in self.aliases.items() if outside(path) and outside(other)}
            | {start + path: start + other for path, other in part.aliases.items()},
            self.complete,
            self.rows_committed,
            self.save_id,
        )


def folders(paths: Iterable[str]) -> set[str]:
    """Return all parent folders of some relative paths.

    >>> sorted(folders(["a/b/c", "d"]))
    ['a', 'a/b']
    """
    found: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _check_seal(data: bytes, seal: object, needed: bool) -> None:
    """Refuse a manifest whose bytes changed since it was written: a corrupt checksum could hide a corrupt file."""
    if needed or seal is not None:
        body, found, _ = data.rpartition(_SEAL)
        if not found or checksum_of(body) != seal:
            raise ValueError("its seal does not match its content; restore it")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key occurs twice in an object")
    return record


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


def _name(name: str) -> str:
    if "/" in name or PATH.fullmatch(name) is None:
        raise ValueError(f"{name[:200]!r} is not the name of a file")
    return name


def _entry(record: Any) -> Entry:
    size, checksum = record if type(record) is list else (record, None)
    if type(size) is not int or not 0 <= size < 1 << 63 or not (checksum is None or type(checksum) is str):
        raise ValueError(f"{record!r} is not a size in bytes, or a size and a checksum")
    return Entry(size, checksum)
