"""Parser of the tree format: from the ``meta.json`` of each node to a schema, with every field checked.

Files may come from the reference, from an older version, or from an attacker: a damaged description raises an error
that names the key, no name in it may lead out of the folder, no class is imported because a file names it, and nothing
is unpickled here. A missing leaf file, or one of another size, is detected when the leaf is opened.
"""

from __future__ import annotations

from typing import Any, Protocol

from tensordict_core import LazyStackedTensorDict
from tensordict_memmap.formats import tree
from tensordict_memmap.formats.names import LEAF, META, RESERVED_FIELDS, SHAPES, encode_key, is_escape
from tensordict_memmap.schema import nontensor
from tensordict_memmap.schema.dtypes import dtype_from_name, is_possible
from tensordict_memmap.schema.node import (
    WRAPPED,
    Dense,
    Leaf,
    Node,
    Parts,
    Path,
    Value,
    are_names,
    find_class,
    nearest,
    show,
    subject,
)
from tensordict_memmap.schema.plan import LAZY

_MOST_DIMS = 64
"""The most dimensions of a tensor in torch."""


class Folder(Protocol):
    """The part of a saved folder that the parser needs; paths are relative, with ``/`` between folders."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a regular file; None where there is none."""

    def has(self, path: str) -> bool:
        """Return whether a file or folder has that path."""

    def names(self, path: str) -> list[str]:
        """Return the names of the files and folders in a folder."""

    def numbered(self, path: str) -> list[int]:
        """Return the folders in a folder that are named by numbers, as sorted numbers."""


def damaged(key: Path, folder: str, what: str) -> ValueError:
    """Return the error for an invalid description."""
    where = subject(key, "the saved tensordict")
    place = f"{folder}/{META}" if folder else META
    return ValueError(f"{where} is described in {place}, which {what}; restore the file or save again")


def parse(folder: Folder, *, place: str = "", key: Path = (), around: tuple[int, ...] = (), only: Path = ()) -> Node:
    """Return the schema of a saved folder, or of the nodes that lead to one nested key of it.

    Args:
        folder: The folder, which reads its files.
        place: The node's path under it.
        key: The node's nested key.
        around: The batch size of the node that holds it, which non-tensor data takes.
        only: A nested key from here on: other entries are left out, and nothing about them is read.

    Raises:
        KeyError: There is nothing under ``only``.
        ValueError: A description is missing or damaged; the error names the key.
    """
    try:
        return _parse(folder, place=place, key=key, around=around, only=only)
    except RecursionError:  # also from errors that show what they find
        raise damaged(key, place, "is nested too deeply") from None


def _parse(folder: Folder, *, place: str, key: Path, around: tuple[int, ...] = (), only: Path = ()) -> Node:
    document = folder.read(_inside(place, META)) if not place or folder.has(place) else None
    if document is None:
        raise damaged(key, place, "is missing")
    record = _record(document, key, place)
    class_string = record.get("_type", tree.DENSE)
    if not isinstance(class_string, str):
        raise damaged(key, place, f"names the class {class_string!r}")
    kind = class_string.removesuffix("'>").rpartition(".")[2] if class_string.startswith("<class 'tensordict.") else ""
    if kind in ("NonTensorData", "NonTensorStack", "MetaData"):
        record = _record(document, key, place, exact=True)
        if only:
            raise KeyError(f"there is nothing below key {show(key)}, which is non-tensor data; leave {only} out")
        node = _parse_value(folder, record, place, key, around, stack=kind == "NonTensorStack")
        node.metadata = kind == "MetaData"
        return node
    if kind == "LazyStackedTensorDict":
        return _parse_lazy(folder, record, place, key, only)
    if "shape" in record:
        return _parse_dense(folder, record, place, key, only)
    return _parse_wrapper(folder, record, class_string, place, key, only)


def _record(document: bytes, key: Path, place: str, *, exact: bool = False) -> dict[str, Any]:
    try:
        record = nontensor.loads(document) if exact else nontensor.quick_loads(document)
    except ValueError as error:
        raise damaged(key, place, f"is not JSON ({error})") from None
    if not isinstance(record, dict):
        raise damaged(key, place, "is not a JSON object")
    return record


def _inside(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def _sizes(value: Any, key: Path, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(n) is not int or not 0 <= n < 1 << 63 for n in value):
        raise damaged(key, place, f"gives the invalid shape {value!r:.100}")
    return tuple(value)


# --- dictionaries


def _parse_dense(folder: Folder, record: dict[str, Any], place: str, key: Path, only: Path) -> Dense:
    names = record.get("_names")
    size = _sizes(record["shape"], key, place)
    if names is not None and not are_names(names, size):
        raise damaged(key, place, f"gives the invalid dimension names {names!r:.100}")
    owner = record.get("_owner")
    node = Dense(key, place, size, None if names is None else tuple(names))
    node.owner = owner if isinstance(owner, str) else None
    entries = node.entries
    for name, about in record.items():
        if only and name != only[0]:
            continue
        if type(about) is not dict or (name in RESERVED_FIELDS and not _is_entry(about)):
            continue
        if "dtype" in about:
            stem = _stem(folder, place, name, LEAF)
            entries[name] = _parse_leaf(about, (*key, name), place, stem, size)
        elif "type" in about:
            inside = _inside(place, _stem(folder, place, name, ""))
            entries[name] = _parse(folder, place=inside, key=(*key, name), around=size, only=only[1:])
    escaped = record.get("_entries")
    if type(escaped) is dict and not _is_entry(escaped):
        _parse_escaped(folder, escaped, node, only)
        order = record.get("_key_order")
        if isinstance(order, list) and sorted(map(str, order)) == sorted(entries):
            node.entries = {name: entries[name] for name in order}
    _check_sizes(node, place)
    if only and only[0] not in entries:
        raise _missing(only[0], key, record, escaped)
    return node


def _missing(name: str, key: Path, *tables: Any) -> KeyError:
    """Report that a node has no entry of a name; its entries are described by one or two tables."""
    described = [pair for table in tables if isinstance(table, dict) for pair in table.items()]
    known = [other for other, about in described if type(about) is dict and _is_entry(about)]
    where = f"under {show(key)}" if key else "there"
    return KeyError(f"no entry {name!r} was saved {where}; the nearest are {nearest(name, known)}")


def _check_sizes(node: Dense, place: str) -> None:
    """Refuse entries that do not start with the batch size of their node."""
    size, dims = node.batch_size, len(node.batch_size)
    for entry in node.entries.values() if dims else ():
        own = size if isinstance(entry, Parts) else entry.shape if isinstance(entry, Leaf) else entry.batch_size
        if own[:dims] != size and not (isinstance(entry, Leaf) and entry.layout != "strided" and own[:1] == size):
            raise damaged(
                entry.key,
                place,
                f"gives it the shape {list(own)}, which does not start with the batch size {list(size)}",
            )


def _is_entry(about: dict[str, Any]) -> bool:
    """Return whether a record describes an entry: the reference lets entries have any name."""
    return isinstance(about.get("dtype"), str) or isinstance(about.get("type"), str)


def _stem(folder: Folder, place: str, name: str, ending: str) -> str:
    """Return the name of the files of a key: the encoded key, or the key itself where ``robust_key=False`` wrote it."""
    stem = encode_key(name)
    if stem == name or folder.has(_inside(place, stem + ending)):
        return stem
    safe = not {"/", "\\", "\0"} & set(name) and name not in ("", ".", "..")
    return name if safe and folder.has(_inside(place, name + ending)) else stem


def _parse_escaped(folder: Folder, escaped: dict[str, Any], node: Dense, only: Path) -> None:
    for name, about in escaped.items():
        if only and name != only[0]:
            continue
        key = (*node.key, name)
        stem = about.get("file") if isinstance(about, dict) else None
        if not is_escape(stem) or not isinstance(stem, str):
            raise damaged(key, node.folder, f"names the invalid file {stem!r:.100}")
        node.escaped[name] = stem
        if "dtype" in about:
            node.entries[name] = _parse_leaf(about, key, node.folder, stem, node.batch_size)
        else:
            place = _inside(node.folder, stem)
            node.entries[name] = _parse(folder, place=place, key=key, around=node.batch_size, only=only[1:])


def _parse_leaf(about: dict[str, Any], key: Path, place: str, stem: str, around: tuple[int, ...]) -> Leaf:
    shape = about.get("shape")
    if type(shape) is not list:
        raise damaged(key, place, f"gives the invalid shape {shape!r:.100}")
    for n in shape:
        if type(n) is not int or not 0 <= n < 1 << 63:
            raise damaged(key, place, f"gives the invalid shape {shape!r:.100}")
    try:
        dtype = dtype_from_name(about["dtype"])
    except (ValueError, AttributeError) as error:
        raise damaged(key, place, f"gives a dtype that cannot be read ({error})") from None
    leaf = Leaf(key, f"{place}/{stem}{LEAF}" if place else stem + LEAF, dtype, tuple(shape))
    if not is_possible(leaf.shape, dtype):
        raise damaged(key, place, f"gives the shape {shape!r:.100}, which is too large")
    if about.get("is_nested"):
        leaf.layout = "jagged" if about.get("layout") == "torch.jagged" else "nested"
        ragged = about.get("ragged", 1)
        known = len(leaf.shape) == 2 and type(ragged) is int and leaf.shape[1] <= _MOST_DIMS
        count, dims = leaf.shape if known else (0, 0)
        # Strided nested tensors may hold numbers, and have no dimensions if they have no components; jagged ones have
        # some in a dataset without rows.
        held = count or (leaf.layout == "jagged" and around == (0,))
        if not known or not ((held and 1 <= ragged <= dims) or (leaf.layout == "nested" and not dims)):
            raise damaged(key, place, f"gives the invalid shape {shape!r:.100} for a nested tensor")
        leaf.ragged = ragged
        leaf.shapes_file = leaf.file.removesuffix(LEAF) + SHAPES
    return leaf


# --- what is made of other nodes


def _parse_lazy(folder: Folder, record: dict[str, Any], place: str, key: Path, only: Path) -> Parts:
    dim, name = record.get("stack_dim"), record.get("stack_dim_name")
    if type(dim) is not int or not isinstance(name, str | None):
        raise damaged(key, place, f"gives the invalid stack dimension {dim!r:.100}")
    node = Parts(key, place, LazyStackedTensorDict, LAZY, {"stack_dim": dim, "stack_dim_name": name})
    for number in map(str, _elements(folder, record, place, key)):
        if not only or number == only[0]:
            node.parts[number] = _parse(folder, place=_inside(place, number), key=(*key, number), only=only[1:])
    if only and not node.parts:
        raise KeyError(
            f"key {show(key) if key else 'of the whole'} is a lazy stack, whose elements are numbered, not {only[0]!r}"
        )
    return node


def _elements(folder: Folder, record: dict[str, Any], place: str, key: Path) -> range:
    """Return the numbers of the elements of a stack, none of which may be missing."""
    found = folder.numbered(place)
    count = record.get("_count", len(found))
    if type(count) is not int or not 0 <= count <= len(found) or found[:count] != list(range(count)):
        missing = next((number for number, real in enumerate(found) if number != real), len(found))
        where = show(key) if key else "the saved lazy stack"
        raise ValueError(
            f"a stack has all of its elements, and element {missing} of {where} has no folder "
            f"{_inside(place, str(missing))}; "
            "restore it or save again"
        )
    return range(count)


def _parse_wrapper(
    folder: Folder, record: dict[str, Any], class_string: str, place: str, key: Path, only: Path
) -> Parts:
    content_place = _inside(place, WRAPPED)
    if not folder.has(content_place):
        raise damaged(key, place, f"names the class {class_string!r:.100}, which this version cannot load")
    content = _parse(folder, place=content_place, key=key, only=only)
    owner = content.owner if isinstance(content, Dense) else None
    cls = find_class(class_string, owner)
    facts = {name: value for name, value in record.items() if name != "_type"}
    if isinstance(content, Dense):
        # before non-tensor fields were entries of the content, they were beside the type
        for name in [name for name in facts if not name.startswith("_")]:
            inner = (*key, name)
            content.entries.setdefault(name, Value(inner, place, content.batch_size, value=facts.pop(name)))
    return Parts(key, place, cls, class_string, facts, {WRAPPED: content})


# --- values


def _parse_value(
    folder: Folder, record: dict[str, Any], place: str, key: Path, around: tuple[int, ...], *, stack: bool
) -> Value:
    extra: Any = record if stack else record.get("_metadata")
    if not isinstance(extra, dict):
        extra = {}
    size = _sizes(extra["shape"], key, place) if "shape" in extra else around
    node = Value(key, place, size, stack)
    if stack and "data" not in record:  # an older layout: a folder an element
        elements = [
            _parse(folder, place=_inside(place, str(number)), key=(*key, str(number)))
            for number in _elements(folder, record, place, key)
        ]
        if not all(isinstance(element, Value) and element.pickle is None for element in elements):
            raise damaged(key, place, "describes a stack of values with elements that are not values")
        node.value = [element.value for element in elements if isinstance(element, Value)]
    elif stack and record["data"] == tree.STACK_PICKLE:
        node.pickle = _inside(place, tree.STACK_PICKLE)
        return node
    elif "data" not in record and folder.has(_inside(place, tree.OTHER_PICKLE)):
        node.pickle = _inside(place, tree.OTHER_PICKLE)
        return node
    else:
        exact = extra.get("exact")
        try:
            node.value = nontensor.from_forms(record.get("data"), exact)
        except (ValueError, EOFError, KeyError) as error:
            raise ValueError(f"the value of key {show(key)} cannot be read: {error}" if key else str(error)) from error
    if stack:
        if not isinstance(node.value, list):
            raise damaged(key, place, "holds values that are not a list")
        node.batch_size = nontensor.stack_size(node.value, size)
    return node
