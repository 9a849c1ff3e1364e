"""Layout: the file and offset of each tensor of a distributed save, and the other content of the files.

The coordinator computes it, and sends the part about the tensors to every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import orjson

from tensordict_memmap.distributed.plan import pack, unpack
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.formats.safetensors.header import INDEX_NAME, SAVE_ID, Form, dump_header, file_order
from tensordict_memmap.saving.safetensors import shard_index, shard_names, split
from tensordict_memmap.saving.tree import TreeFile
from tensordict_memmap.storage.header_checksums import CHECKSUMS, reserve_checksums


@dataclass(slots=True)
class Layout:
    """The files of a save.

    Args:
        files: Their paths in the staged folder; ``""`` is the staged file itself.
        sizes: Their sizes in bytes.
        file_of: The number of the file of each tensor.
        offsets: The offset of the first byte of each tensor in its file.
        texts: The first bytes of files, such as headers, by path; for the coordinator only.
        whole: The files that the coordinator writes alone; for the coordinator only.
        owned: The numbers of files that only one rank writes, which makes them.
    """

    files: list[str]
    sizes: list[int]
    file_of: list[int]
    offsets: list[int]
    texts: dict[str, bytes] = field(default_factory=dict)
    whole: list[TreeFile] = field(default_factory=list)
    owned: set[int] = field(default_factory=set)

    def dumps(self) -> bytes:
        """Return the layout as a message to every rank.

        >>> layout = Layout([""], [10], [0, 0], [2, 6])
        >>> Layout.loads(layout.dumps()) == layout
        True
        """
        offsets = np.diff(np.array(self.offsets, dtype=np.int64), prepend=0)
        file_of = np.diff(np.array(self.file_of, dtype=np.int32), prepend=0).astype(np.int32)
        head = orjson.dumps([self.files, self.sizes, sorted(self.owned)])
        return pack(head, file_of.tobytes(), offsets.tobytes())

    @classmethod
    def loads(cls, message: bytes) -> Layout:
        """Return the layout of a message."""
        head, file_of, offsets = unpack(message)
        files, sizes, owned = orjson.loads(head)
        return cls(
            files,
            sizes,
            np.cumsum(np.frombuffer(file_of, dtype=np.int32)).tolist(),
            np.cumsum(np.frombuffer(offsets, dtype=np.int64)).tolist(),
            owned=set(owned),
        )


def path_in(folder: str, path: str) -> str:
    """Return the path of a file in a staged folder, or the staged file."""
    return f"{folder}/{path}" if path else folder


def packed_layout(
    names: Sequence[str],
    forms: Sequence[Form],
    texts: Callable[[list[str] | None], dict[str, str]],
    save_id: str,
    shard_size: int | None = None,
    *,
    checksum: bool = False,
) -> Layout:
    """Return the layout of tensors in one safetensors file, or in shards and their index.

    Args:
        names: The names of the tensors.
        forms: The dtype and shape of each.
        texts: The metadata of the file with the structure; its argument is the names in the order of their bytes, where
            one file holds all.
        save_id: The id of the save, which each file holds.
        shard_size: The most bytes of tensors in a shard.
        checksum: Whether the headers have room for checksums.

    >>> forms = [Form(torch.uint8, (3,)), Form(torch.float32, (2,))]
    >>> layout = packed_layout(["a", "b"], forms, lambda names: {"format": "pt"}, "0123")
    >>> len(layout.texts[""]) % 64, [offset - len(layout.texts[""]) for offset in layout.offsets]
    (0, [8, 0])
    """
    sizes = [form.nbytes for form in forms]
    groups = [range(len(names))] if shard_size is None else split(sizes, shard_size)
    paths = [""] if shard_size is None else shard_names(len(groups))
    made = Layout(paths, [], [0] * len(names), [0] * len(names))
    for number, (path, group) in enumerate(zip(paths, groups, strict=True)):
        numbers = file_order([forms[n] for n in group])
        order = group if numbers is None else [group[n] for n in numbers]
        ends = list(accumulate(sizes[n] for n in order))
        told = [names[n] for n in order]
        metadata = texts(told if shard_size is None else None) if not number else {"format": "pt"}
        metadata = metadata | {SAVE_ID: save_id}
        if checksum:
            metadata[CHECKSUMS] = reserve_checksums(sum(sizes[n] > 0 for n in order))
        header = dump_header(told, [forms[n] for n in order], ends, metadata)
        for n, end in zip(order, ends, strict=True):
            made.file_of[n], made.offsets[n] = number, len(header) + end - sizes[n]
        made.sizes.append(len(header) + (ends[-1] if ends else 0))
        made.texts[path] = header
    if len(paths) > 1:
        index = shard_index(names, paths, groups, sum(sizes), save_id)
        made.whole.append(TreeFile(INDEX_NAME, [FileRange("the index", index)], len(index)))
    return made
