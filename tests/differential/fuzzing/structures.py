"""Random containers, described by trees that print as Python source.

A tree is changed and printed again, so a failing program can be made smaller entry by entry.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

Path = tuple[str, ...]
NAMES = ("a", "b", "c", "n", "m")
POOLS = {"float": ("float32",) * 3 + ("float64",), "int": ("int64",) * 3 + ("int32",), "bool": ("bool",)}


@dataclass(frozen=True)
class Tensor:
    """A tensor leaf, with numbered values."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    start: int = 0
    grad: bool = False

    def __str__(self) -> str:
        parts = [repr(list(self.shape))]
        if self.dtype != "float32" or self.grad or self.start:
            parts.append(repr(self.dtype))
        if self.start or self.grad:
            parts.append(str(self.start))
        return f"t({', '.join(parts)}{', grad=True' if self.grad else ''})"


@dataclass(frozen=True)
class Value:
    """A non-tensor value, the same for all positions."""

    value: Any
    batch: tuple[int, ...]

    def __str__(self) -> str:
        return f"NonTensorData({self.value!r}, batch_size={list(self.batch)})"


@dataclass(frozen=True)
class Values:
    """A non-tensor value for each position of the first dimension."""

    values: tuple[Any, ...]
    batch: tuple[int, ...]

    def __str__(self) -> str:
        rest = list(self.batch[1:])
        return f"NonTensorStack({', '.join(f'NonTensorData({v!r}, batch_size={rest})' for v in self.values)})"


@dataclass(frozen=True)
class Unbatched:
    """A tensor without the batch dimensions."""

    shape: tuple[int, ...]
    start: int = 0

    def __str__(self) -> str:
        return f"UnbatchedTensor({Tensor(self.shape, start=self.start)})"


@dataclass(frozen=True)
class Node:
    """A container: ``kind`` is ``dense``, ``class``, ``params``, or ``lazy`` or ``stacked`` with elements."""

    kind: str
    batch: tuple[int, ...]
    entries: dict[str, Any] = field(default_factory=dict)
    elements: tuple[Node, ...] = ()
    dim: int = 0
    names: tuple[str | None, ...] | None = None
    device: str | None = None
    suffix: str = ""

    def __str__(self) -> str:
        return self._base() + self.suffix

    def _base(self) -> str:
        if self.kind == "lazy":
            return f"lazy_stack([{', '.join(map(str, self.elements))}], {self.dim})"
        if self.kind == "stacked":
            return f"torch.stack([{', '.join(map(str, self.elements))}], {self.dim})"
        options = f", batch_size={list(self.batch)}"
        if self.device:
            options += f", device={self.device!r}"
        if self.names:
            options += f", names={list(self.names)}"
        if self.kind == "class":
            fields = ", ".join(f"{name}={value}" for name, value in self.entries.items())
            return f"Point({fields}{options})"
        source = "{" + ", ".join(f"{name!r}: {value}" for name, value in self.entries.items()) + "}"
        dense = f"TensorDict({source}{options})"
        return f"TensorDictParams({dense})" if self.kind == "params" else dense

    @property
    def label(self) -> str:
        """What kind of container it is, for clusters of differences."""
        kinds = {self.kind}
        for entry in self.entries.values():
            if isinstance(entry, Node):
                kinds.add("nested")
                kinds |= set(entry.label.split("+")) - {"dense"}
            elif not isinstance(entry, Tensor):
                kinds.add(type(entry).__name__)
        for element in self.elements:
            kinds |= set(element.label.split("+")) - {"dense"}
        if self.kind == "lazy" and not _alike(self.elements):
            kinds.add("ragged")
        if self.suffix:
            kinds.add("locked" if "lock_" in self.suffix else "view")
        if self.names:
            kinds.add("names")
        return "+".join([self.kind, *sorted(kinds - {self.kind})])


def _alike(elements: tuple[Node, ...]) -> bool:
    def form(entry: Any) -> Any:
        if isinstance(entry, Node):
            return entry.kind, entry.batch, {key: form(value) for key, value in entry.entries.items()}
        return type(entry), getattr(entry, "shape", None), getattr(entry, "dtype", None)

    return all(form(element) == form(elements[0]) for element in elements)


def paths(node: Node, leaves_only: bool = False) -> Iterator[Path]:
    """The paths of all entries, those of elements counted once."""
    seen: set[Path] = set()
    for source in (node, *node.elements):
        for key, entry in source.entries.items():
            if (key,) not in seen and not (leaves_only and isinstance(entry, Node)):
                seen.add((key,))
                yield (key,)
            if isinstance(entry, Node):
                for path in paths(entry, leaves_only):
                    if (key, *path) not in seen:
                        seen.add((key, *path))
                        yield (key, *path)


def without(node: Node, path: Path) -> Node:
    """The container without an entry."""
    entries = dict(node.entries)
    first, *rest = path
    if not rest:
        entries.pop(first, None)
    elif isinstance(entries.get(first), Node):
        entries[first] = without(entries[first], tuple(rest))
    return replace(node, entries=entries, elements=tuple(without(element, path) for element in node.elements))


def filled(node: Node) -> Node:
    """The container with a tensor in each node that has neither a tensor nor a nested node."""
    entries = {key: filled(entry) if isinstance(entry, Node) else entry for key, entry in node.entries.items()}
    if node.kind != "lazy" and not any(isinstance(entry, Tensor | Node) for entry in entries.values()):
        entries = entries | {"x" if node.kind == "class" else "t": Tensor(node.batch)}
    elements = tuple(map(filled, node.elements))
    kept = [{key for key, entry in element.entries.items() if isinstance(entry, Tensor)} for element in elements]
    if node.kind == "lazy" and elements and not set.intersection(*kept) and elements[0].kind == "dense":
        elements = tuple(replace(e, entries=e.entries | {"t": Tensor(e.batch)}) for e in elements)
    return replace(node, entries=entries, elements=elements)


def like(node: Any, step: int = 1, dtype: str | None = None) -> Any:
    """The same structure with other values, unlocked."""
    if isinstance(node, Tensor):
        return replace(node, start=node.start + step, grad=False, dtype=dtype or node.dtype)
    if isinstance(node, Unbatched):
        return node
    if isinstance(node, Value | Values):
        return node
    entries = {key: like(entry, step, dtype) for key, entry in node.entries.items()}
    suffix = "" if "lock_" in node.suffix else node.suffix
    kind = "dense" if node.kind == "params" else node.kind
    return replace(
        node, kind=kind, entries=entries, elements=tuple(like(e, step, dtype) for e in node.elements), suffix=suffix
    )


# random trees --------------------------------------------------------------------------------------------------------


def container(rng: random.Random) -> Node:
    """A random container."""
    pool = rng.choices(("float", "int", "bool", "mixed"), (6, 2, 1, 2))[0]
    batch = tuple(rng.choice((1, 2, 3, 3, 4)) for _ in range(rng.choices((0, 1, 2, 3), (2, 5, 5, 1))[0]))
    kind = rng.choices(("dense", "lazy", "ragged", "class", "params"), (10, 4, 2, 3, 2))[0]
    if kind in ("lazy", "ragged"):
        node = _lazy(rng, batch or (2,), pool, kind == "ragged")
    elif kind == "class":
        node = _point(rng, batch, pool)
    else:
        node = _dense(rng, batch, pool if kind != "params" else "float", kind)
    if node.kind == "dense" and batch and rng.random() < 0.15:
        names = list("xyz"[: len(batch)])
        if len(names) > 1 and rng.random() < 0.3:
            node = replace(node, names=(None, *names[1:]))
        else:
            node = replace(node, names=tuple(names))
    if node.kind == "dense" and rng.random() < 0.15:
        node = replace(node, device="cpu")
    if rng.random() < 0.15:
        node = replace(node, suffix=_suffix(rng, node))
    return node


def _suffix(rng: random.Random, node: Node) -> str:
    choices = [".lock_()"]
    if node.kind != "params" and node.batch:
        choices += ["[:]", ".unsqueeze(0)[0]"]
        if len(node.batch) > 1 and node.kind == "dense":
            choices += [".transpose(0, 1).transpose(0, 1)"]
        if node.kind == "dense" and node.batch == (1,):
            choices += [".expand(1)"]
    return rng.choice(choices)


def _leaf(rng: random.Random, batch: tuple[int, ...], pool: str, plain: bool = False) -> Any:
    kind = "tensor" if plain else rng.choices(("tensor", "value", "values", "unbatched"), (14, 1, 1, 1))[0]
    if kind == "value":
        return Value(rng.choice(("text", 1, None, 2.5)), batch)
    if kind == "values" and batch:
        return Values(tuple(rng.choice(("p", "q", 3)) for _ in range(batch[0])), batch)
    if kind == "unbatched":
        return Unbatched((rng.choice((2, 5)),))
    dtypes = POOLS[rng.choice(("float", "int", "bool")) if pool == "mixed" else pool]
    shape = (*batch, *(rng.choice((1, 2, 3)) for _ in range(rng.choices((0, 1, 2), (4, 4, 1))[0])))
    dtype = rng.choice(dtypes)
    grad = dtype.startswith("float") and rng.random() < 0.05
    return Tensor(shape, dtype, rng.choice((0, 0, 1, 5)), grad)


def _dense(rng: random.Random, batch: tuple[int, ...], pool: str, kind: str = "dense", depth: int = 2) -> Node:
    entries: dict[str, Any] = {}
    plain = kind == "params" or rng.random() < 0.6
    for name in rng.sample(NAMES, rng.choices((0, 1, 2, 3), (1, 10, 14, 8))[0]):
        if depth and rng.random() < 0.25:
            if not plain and batch and rng.random() < 0.2:
                entries[name] = _lazy(rng, batch, pool, rng.random() < 0.3)
            elif not plain and rng.random() < 0.15:
                entries[name] = _point(rng, batch, pool)
            else:
                longer = (*batch, rng.choice((1, 2))) if rng.random() < 0.2 else batch
                entries[name] = _dense(rng, longer, pool, depth=depth - 1)
        else:
            entries[name] = _leaf(rng, batch, pool, plain)
    return Node(kind, batch, entries)


def _point(rng: random.Random, batch: tuple[int, ...], pool: str) -> Node:
    entries: dict[str, Any] = {"x": _leaf(rng, batch, pool, True), "y": _leaf(rng, batch, pool, True)}
    if rng.random() < 0.3:
        entries["z"] = Value("text", batch)
    elif rng.random() < 0.2:
        entries["z"] = _dense(rng, batch, pool, depth=0)
    return Node("class", batch, entries)


def _lazy(rng: random.Random, batch: tuple[int, ...], pool: str, ragged: bool) -> Node:
    dim = rng.randrange(len(batch)) if rng.random() < 0.4 else 0
    inner = batch[:dim] + batch[dim + 1 :]
    first = _point(rng, inner, pool) if rng.random() < 0.1 else _dense(rng, inner, pool, depth=1)
    elements = [first]
    for step in range(1, batch[dim]):
        element = like(first, step)
        if ragged and element.kind == "dense":
            entries = dict(element.entries)
            change = rng.choice(("extra", "missing", "shape", "shape"))
            tensors = [key for key, entry in entries.items() if isinstance(entry, Tensor)]
            if change == "extra":
                entries["e"] = Tensor(inner)
            elif change == "missing" and len(entries) > 1:
                entries.popitem()
            elif tensors:
                shape = entries[tensors[0]].shape
                entries[tensors[0]] = replace(entries[tensors[0]], shape=(*inner, step + 1, *shape[len(inner) + 1 :]))
            element = replace(element, entries=entries)
        elements.append(element)
    return Node("lazy", batch, elements=tuple(elements), dim=dim)
