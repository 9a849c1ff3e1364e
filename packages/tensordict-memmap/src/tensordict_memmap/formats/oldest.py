"""Parser of the oldest layout (tensordict up to 0.2): ``meta.pt`` for each node, ``x.meta.pt`` for each leaf.

These files are read with ``weights_only=True``, which runs no code from them. The layout is only read, never written.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from tensordict_core import LazyStackedTensorDict
from tensordict_memmap.formats.names import LEAF
from tensordict_memmap.formats.parse_tree import Folder
from tensordict_memmap.schema.dtypes import QUANTIZED, is_possible
from tensordict_memmap.schema.node import Dense, Leaf, Node, Parts, Path, show
from tensordict_memmap.schema.plan import LAZY

__all__ = ["META_PT", "parse_oldest"]

META_PT = "meta.pt"


def parse_oldest(folder: Folder, *, place: str = "", key: Path = ()) -> Node:
    """Return the schema of a folder in the oldest layout.

    Args:
        folder: The folder.
        place: The path of the node in the folder.
        key: The nested key of the node.

    Raises:
        ValueError: A ``.pt`` file is missing or damaged; the error names the key.
    """
    start = place + "/" if place else ""
    record = _load(folder, start + META_PT, key)
    found = sorted(folder.names(place))
    # a symbolic link could lead out of the saved folder
    inside = [name for name in found if folder.has(f"{start}{name}") and folder.has(f"{start}{name}/{META_PT}")]
    if "stack_dim" in record:
        count = len(inside)
        if {str(number) for number in range(count)} != set(inside):
            raise ValueError(
                f"{place or 'the folder'} is a stack with missing elements: it holds only {inside}; restore it"
            )
        if type(record["stack_dim"]) is not int:
            raise ValueError(f"{start}{META_PT} gives a stack dimension that is not a number; restore the file")
        facts = {"stack_dim": record["stack_dim"], "stack_dim_name": None}
        stack = Parts(key, place, LazyStackedTensorDict, LAZY, facts)
        for number in map(str, range(count)):
            stack.parts[number] = parse_oldest(folder, place=start + number, key=(*key, number))
        return stack
    if not isinstance(record.get("batch_size"), torch.Size):
        raise ValueError(f"{start}{META_PT} has no batch size; restore the file")
    if not is_possible(record["batch_size"], torch.uint8):
        raise ValueError(f"{start}{META_PT} gives an invalid batch size; restore the file")
    node = Dense(key, place, tuple(record["batch_size"]))
    for name in found:
        if name.endswith(".meta.pt"):
            stem = name.removesuffix(".meta.pt")
            about = _load(folder, start + name, (*key, stem))
            if not (isinstance(about.get("shape"), torch.Size) and isinstance(about.get("dtype"), torch.dtype)):
                raise ValueError(
                    f"{start}{name} lacks the shape or dtype of key {show((*key, stem))}; restore the file"
                )
            if about["dtype"] in QUANTIZED or not is_possible(about["shape"], about["dtype"]):
                raise ValueError(
                    f"{start}{name} gives key {show((*key, stem))} an invalid shape or dtype; restore the file"
                )
            if tuple(about["shape"][: len(node.batch_size)]) != node.batch_size:
                raise ValueError(
                    f"{start}{name} gives key {show((*key, stem))} the shape {list(about['shape'])}, which does not "
                    f"start with the batch size {list(node.batch_size)}; restore the file"
                )
            node.entries[stem] = Leaf((*key, stem), f"{start}{stem}{LEAF}", about["dtype"], tuple(about["shape"]))
        elif name in inside:
            node.entries[name] = parse_oldest(folder, place=start + name, key=(*key, name))
    return node


def _load(folder: Folder, path: str, key: Path) -> dict[str, Any]:
    document = folder.read(path)
    where = f"of key {show(key)}" if key else "of the saved tensordict"
    if document is None:
        raise ValueError(f"the description {where}, {path}, is missing; restore it")
    try:
        record = torch.load(io.BytesIO(document), weights_only=True)
    except Exception as error:  # damaged pickles make the reader fail in any way
        raise ValueError(
            f"the description {where}, {path}, holds more than shapes and dtypes or is damaged: {error}"
        ) from None
    if not isinstance(record, dict):
        raise ValueError(f"the description {where}, {path}, is not a dictionary; restore it")
    return record
