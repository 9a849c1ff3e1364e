"""What a program gives, as data of both libraries that can be compared, and the differences between two of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

_SAME_NAME = {"_SubTensorDict": "SubTensorDict", "TensorDictView": "SubTensorDict", "_LockedNonTensorStack": ""}


_ITERABLES = ("view", "keys", "values", "items", "ator")


@dataclass(frozen=True)
class Difference:
    """One difference: where it is, of what kind, and what both libraries give there."""

    place: str
    kind: str
    theirs: str
    ours: str


@dataclass(frozen=True)
class Outcome:
    """The end of a program: an exception, or descriptions of the result and of the variables."""

    error: Exception | None = None
    line: int = 0
    values: dict[str, Any] | None = None
    before: dict[str, Any] | None = None


@dataclass(frozen=True)
class Leaf:
    """A tensor: its kind, properties and values, which are on the CPU."""

    kind: str
    on: str
    dtype: str
    shape: tuple[int, ...]
    grad: bool
    shares: bool
    data: torch.Tensor


@dataclass(frozen=True)
class Tree:
    """A container: its type, properties and entries."""

    kind: str
    batch: tuple[int, ...]
    device: str
    names: tuple[str | None, ...]
    locked: bool
    entries: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class Broken:
    """A part of a result that cannot be read."""

    error: str


def _kind(value: Any) -> str:
    name = type(value).__name__
    return _SAME_NAME.get(name, name)


def storages(value: Any) -> dict[int, Any]:
    """The storages of all tensors in a value, by address; while one is held, no other tensor gets its address."""
    out: dict[int, Any] = {}
    if type(value).__name__ == "UnbatchedTensor" and not isinstance(value, torch.Tensor):
        value = value.data
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(RuntimeError, NotImplementedError):
            storage = value.untyped_storage()
            out[storage.data_ptr()] = storage
    elif _is_tree(value) and not _is_computed(value):
        try:
            parts = value.tensordicts if hasattr(value, "tensordicts") else [value.get(key) for key in _keys(value)]
        except Exception:
            return out
        for part in parts:
            out |= storages(part)
    out.pop(0, None)
    return out


def _is_computed(value: Any) -> bool:
    """Whether entries are made when they are read, as of a lazy stack of tensorclasses: their memory says nothing."""
    if _kind(value) != "Point":
        return False
    for key in _keys(value):
        entry = value.get(key)
        if isinstance(entry, torch.Tensor):
            return entry is not value.get(key)
    return False


def _keys(value: Any) -> list[str]:
    """The keys; a tensordict itself iterates over its rows."""
    return list(value.keys())


def _is_tree(value: Any) -> bool:
    return hasattr(value, "batch_size") and hasattr(value, "to_tensordict") and not isinstance(value, type)


def describe(value: Any, source: dict[int, Any], depth: int = 0) -> Any:
    """The value as data; ``source`` holds the storages of the tensors that the program was given."""
    try:
        return _describe(value, source, depth)
    except Exception as error:
        return Broken(type(error).__name__)


def _describe(value: Any, source: dict[int, Any], depth: int) -> Any:
    if depth > 8:
        return "..."
    if type(value).__name__ == "UnbatchedTensor":
        return _unbatched(value, source)
    if _is_tree(value):
        return _tree(value, source, depth)
    if isinstance(value, torch.Tensor):
        return _leaf(value, source)
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, repr(value.tolist()))
    if isinstance(value, dict):
        return {key: describe(entry, source, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__ if type(value) in (list, tuple) else "namedtuple"] + [
            describe(entry, source, depth + 1) for entry in value
        ]
    if isinstance(value, str | int | float | complex | bool | None | torch.dtype | torch.device):
        return value
    if hasattr(value, "__iter__") and type(value).__name__.lower().endswith(_ITERABLES):
        return ["iterable"] + [describe(entry, source, depth + 1) for entry in value]
    if isinstance(value, type):
        return ("type", _SAME_NAME.get(value.__name__, value.__name__))
    return ("object", _kind(value))


def _leaf(value: torch.Tensor, source: dict[int, Any]) -> Any:
    kind = "Tensor" if type(value) is torch.Tensor else _kind(value)
    if value.is_nested:
        return ["nested"] + [_leaf(part, source) for part in value.unbind()]
    try:
        shares = not storages(value).keys().isdisjoint(source)
        data = value.detach().clone()
        data = data if data.device.type == "meta" else data.cpu()  # results of two devices are compared on one
        return Leaf(kind, str(value.device), str(value.dtype), tuple(value.shape), value.requires_grad, shares, data)
    except Exception as error:
        return Broken(type(error).__name__)


def _unbatched(value: Any, source: dict[int, Any]) -> Any:
    try:
        with torch._C.DisableTorchFunctionSubclass():
            data = value if isinstance(value, torch.Tensor) else value.data
            leaf = _leaf(data.as_subclass(torch.Tensor), source)
        return Tree("UnbatchedTensor", tuple(value.batch_size), "", (), False, (("data", leaf),))
    except Exception as error:
        return Broken(type(error).__name__)


def _tree(value: Any, source: dict[int, Any], depth: int) -> Any:
    kind = _kind(value)
    entries: list[tuple[Any, Any]] = []
    try:
        if kind == "NonTensorData":
            entries = [("data", describe(value.data, source, depth + 1))]
        elif kind == "NonTensorStack":
            entries = [("list", describe(value.tolist(), source, depth + 1))]
        elif kind != "Point" and hasattr(value, "tensordicts"):
            entries = [("stack_dim", value.stack_dim)]
            entries += [(i, describe(e, source, depth + 1)) for i, e in enumerate(value.tensordicts)]
        else:
            source = {} if _is_computed(value) else source
            entries = [(key, describe(value.get(key), source, depth + 1)) for key in _keys(value)]
            if kind == "TensorDictParams":  # nested nodes of other types are a row of the page, and no news
                entries = [(key, _plain(entry)) for key, entry in entries]
        names = tuple(value.names) if value.names is not None else ()
        return Tree(kind, tuple(value.batch_size), str(value.device), names, bool(value.is_locked), tuple(entries))
    except Exception as error:
        return Broken(type(error).__name__)


def _plain(entry: Any) -> Any:
    return replace(entry, kind="TensorDict") if isinstance(entry, Tree) and entry.kind == "TensorDictParams" else entry


def differences(theirs: Any, ours: Any, place: str = "result") -> Iterator[Difference]:
    """All differences between two descriptions."""
    if type(theirs) is not type(ours) and not (isinstance(theirs, int | float) and isinstance(ours, int | float)):
        yield Difference(place, "kind", _word(theirs), _word(ours))
    elif isinstance(theirs, Tree):
        for name in ("kind", "batch", "device", "names", "locked"):
            a, b = getattr(theirs, name), getattr(ours, name)
            if a != b:
                yield Difference(place, name, str(a), str(b))
        if _layout(theirs) != _layout(ours):
            yield from _other_layout(theirs, ours, place)
            return
        mine, yours = [key for key, _ in theirs.entries], [key for key, _ in ours.entries]
        if mine != yours:
            kind = "order" if set(mine) == set(yours) else "keys"
            yield Difference(place, kind, str(mine), str(yours))
        other = dict(ours.entries)
        for key, entry in theirs.entries:
            if key in other:
                yield from differences(entry, other[key], f"{place}.{key}")
    elif isinstance(theirs, Leaf):
        for name in ("kind", "on", "dtype", "shape", "grad", "shares"):
            a, b = getattr(theirs, name), getattr(ours, name)
            if a != b:
                yield Difference(place, name, str(a), str(b))
        if "meta" not in (theirs.on, ours.on) and theirs.shape == ours.shape and not _close(theirs.data, ours.data):
            yield Difference(place, "values", str(theirs.data.tolist()), str(ours.data.tolist()))
    elif isinstance(theirs, dict):
        if list(theirs) != list(ours):
            yield Difference(place, "keys", str(list(theirs)), str(list(ours)))
        for key in [key for key in theirs if key in ours]:
            yield from differences(theirs[key], ours[key], f"{place}.{key}")
    elif isinstance(theirs, list):
        if len(theirs) != len(ours):
            yield Difference(place, "length", str(len(theirs)), str(len(ours)))
            if _is_part(theirs, ours) or _is_part(ours, theirs):
                return
        for i, (a, b) in enumerate(zip(theirs, ours, strict=False)):
            yield from differences(a, b, f"{place}[{i - 1}]")
    elif isinstance(theirs, Broken):  # neither can be read
        return
    elif not _equal(theirs, ours):
        yield Difference(place, "value", _word(theirs), _word(ours))


def _is_part(short: list[Any], long: list[Any]) -> bool:
    """Whether a list is another one without some elements."""
    rest = iter(long)
    return all(any(not list(differences(a, b)) for b in rest) for a in short)


def _layout(tree: Tree) -> tuple[Any, ...]:
    """The dimension and the number of the elements of a lazy stack; nothing for another container."""
    is_stack = tree.entries and tree.entries[0][0] == "stack_dim"
    return (tree.entries[0][1], len(tree.entries)) if is_stack else ()


def _other_layout(theirs: Tree, ours: Tree, place: str) -> Iterator[Difference]:
    """The differences between the rows of two containers that store them in other ways, stacked or as elements."""
    if theirs.kind == ours.kind:
        yield Difference(f"{place}.stack_dim", "value", str(_layout(theirs)), str(_layout(ours)))
    if theirs.batch == ours.batch:
        for position in np.ndindex(*theirs.batch):
            one, other = rows(theirs, position), rows(ours, position)
            if one.keys() != other.keys():
                yield Difference(place, "rows", str(sorted(one)), str(sorted(other)))
                return
            if any(list(differences(one[path], other[path])) for path in one):
                yield Difference(place, "rows", str(one), str(other))
                return


def rows(tree: Any, position: tuple[int, ...]) -> dict[str, Any]:
    """The tensors and values at one position of the batch, by their paths."""
    if isinstance(tree, Leaf):
        part = tree.data[position]
        return {"": Leaf("Tensor", tree.on, tree.dtype, tuple(part.shape), False, False, part)}
    if not isinstance(tree, Tree):
        return {"": tree}
    if _layout(tree):
        dim = _layout(tree)[0]
        return rows(dict(tree.entries)[position[dim]], position[:dim] + position[dim + 1 :])
    if tree.kind == "NonTensorStack":
        value: Any = dict(tree.entries)["list"]
        for at in position:
            value = value[at + 1]
        return {"": value}
    if tree.kind == "UnbatchedTensor":
        return rows(dict(tree.entries)["data"], ())
    if tree.kind == "NonTensorData":
        value = dict(tree.entries)["data"]
        for n in reversed(tree.batch[len(position) :]):
            value = ["list", *[value] * n]
        return {"": value}
    out = {}
    for key, entry in tree.entries:
        for at in position if isinstance(entry, list) and _has_size(entry, tree.batch) else ():
            entry = entry[at + 1]  # of the values of a field
        out |= {f"{key}.{path}".rstrip("."): value for path, value in rows(entry, position).items()}
    return out


def _has_size(values: Any, size: tuple[int, ...]) -> bool:
    """Whether described lists are nested as a batch size says."""
    if not size:
        return True
    return isinstance(values, list) and len(values) == size[0] + 1 and all(_has_size(v, size[1:]) for v in values[1:])


def _word(value: Any) -> str:
    if isinstance(value, Tree | Leaf):
        return value.kind
    if isinstance(value, list) and value:
        return str(value[0])
    return repr(value)[:60]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if type(one) is not torch.Tensor or type(other) is not torch.Tensor:
        one, other = one.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor)
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other.to(one.dtype))
    return torch.allclose(one, other.to(one.dtype), rtol=1e-4, atol=1e-6, equal_nan=True)
