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

META_PT = "meta.pt"
LEAF_META = ".meta.pt"


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
        return _parse_stack(folder, place, key, record["stack_dim"], inside)
    if not isinstance(record.get("batch_size"), torch.Size):
        raise ValueError(f"{start}{META_PT} has no batch size; restore the file")
    if not is_possible(record["batch_size"], torch.uint8):
        raise ValueError(f"{start}{META_PT} gives an invalid batch size; restore the file")
    node = Dense(key, place, tuple(record["batch_size"]))
    for name in found:
        if name.endswith(LEAF_META):
            stem = name.removesuffix(LEAF_META)
            node.entries[stem] = _parse_leaf(folder, start + stem, (*key, stem), node.batch_size)
        elif name in inside:
            node.entries[name] = parse_oldest(folder, place=start + name, key=(*key, name))
    return node


def _parse_stack(folder: Folder, place: str, key: Path, stack_dim: Any, names: list[str]) -> Parts:
    """Return the schema of a lazy stack, whose elements are folders with their numbers as names."""
    start = place + "/" if place else ""
    numbers = [str(number) for number in range(len(names))]
    if set(numbers) != set(names):
        raise ValueError(f"{place or 'the folder'} is a stack with missing elements: it holds only {names}; restore it")
    if type(stack_dim) is not int:
        raise ValueError(f"{start}{META_PT} gives a stack dimension that is not a number; restore the file")
    stack = Parts(key, place, LazyStackedTensorDict, LAZY, {"stack_dim": stack_dim, "stack_dim_name": None})
    for number in numbers:
        stack.parts[number] = parse_oldest(folder, place=start + number, key=(*key, number))
    return stack


def _parse_leaf(folder: Folder, path: str, key: Path, batch_size: tuple[int, ...]) -> Leaf:
    """Return the schema of the leaf whose files have this path without a suffix."""
    about = _load(folder, path + LEAF_META, key)
    shape, dtype = about.get("shape"), about.get("dtype")
    where = f"{path}{LEAF_META}"
    if not (isinstance(shape, torch.Size) and isinstance(dtype, torch.dtype)):
        raise ValueError(f"{where} lacks the shape or dtype of key {show(key)}; restore the file")
    if dtype in QUANTIZED or not is_possible(shape, dtype):
        raise ValueError(f"{where} gives key {show(key)} an invalid shape or dtype; restore the file")
    if tuple(shape[: len(batch_size)]) != batch_size:
        raise ValueError(
            f"{where} gives key {show(key)} the shape {list(shape)}, which does not start with the batch size "
            f"{list(batch_size)}; restore the file"
        )
    return Leaf(key, path + LEAF, dtype, tuple(shape))


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
