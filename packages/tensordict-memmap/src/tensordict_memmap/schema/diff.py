"""Differences between two schemas: missing and unexpected keys, other shapes, dtypes and values.

Comparing schemas reads no tensor. Names and rules are those of ``Module.load_state_dict``: ``strict`` refuses missing
and unexpected keys, and other shapes are always refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tensordict_core import LazyStackedTensorDict, UnbatchedTensor
from tensordict_core.extension import Meta
from tensordict_core.extension import Node as TensorNode
from tensordict_memmap.schema.node import Dense, Leaf, Node, Parts, Path, Value, listed, nodes, plain, show
from tensordict_memmap.schema.plan import LAZY, plan

Key = str | Path


@dataclass(slots=True)
class Report:
    """The differences between a save and an expected structure; true if there are any.

    Attributes:
        missing: Expected keys that do not exist.
        unexpected: Existing keys that are not expected.
        shapes: For each key whose shape differs, the found and the expected shape.
        dtypes: For each key whose dtype differs, the found and the expected dtype.
        values: Keys whose values differ, if values were compared.
        loaded: The keys that `load_into` wrote.

    >>> report = Report(missing=["a"], shapes={("b", "c"): ((3,), (4,))})
    >>> bool(report), bool(Report())
    (True, False)
    >>> print(report)
    missing: a shape mismatch: b.c has [3], expected [4]
    """

    missing: list[Key] = field(default_factory=list)
    unexpected: list[Key] = field(default_factory=list)
    shapes: dict[Key, tuple[tuple[Any, ...], tuple[Any, ...]]] = field(default_factory=dict)
    dtypes: dict[Key, tuple[torch.dtype, torch.dtype]] = field(default_factory=dict)
    values: list[Key] = field(default_factory=list)
    loaded: list[Key] = field(default_factory=list)

    @property
    def skipped(self) -> dict[Key, tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """``shapes``: the entries that ``load_into(..., skip_mismatched=True)`` left unchanged.

        >>> Report(shapes={"a": ((3,), (4,))}).skipped
        {'a': ((3,), (4,))}
        """
        return self.shapes

    @property
    def missing_keys(self) -> list[Key]:
        """``missing``, under its name in ``Module.load_state_dict``.

        >>> from tensordict_memmap import compare
        >>> _ = TensorDict({"a": torch.ones(3)}).save("run")
        >>> compare("run", like=TensorDict({"a": torch.ones(3), "b": torch.ones(3)})).missing_keys
        ['b']
        """
        return self.missing

    @property
    def unexpected_keys(self) -> list[Key]:
        """``unexpected``, under its name in ``Module.load_state_dict``.

        >>> Report(unexpected=["a"]).unexpected_keys
        ['a']
        """
        return self.unexpected

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.shapes or self.dtypes or self.values)

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "no difference"

    def _lines(self) -> Iterator[str]:
        if self.missing:
            yield "missing: " + listed(map(_dotted, self.missing))
        if self.unexpected:
            yield "unexpected: " + listed(map(_dotted, self.unexpected))
        if self.shapes:
            yield "shape mismatch: " + listed(
                f"{_dotted(key)} has {list(found)}, expected {list(wanted)}"
                for key, (found, wanted) in self.shapes.items()
            )
        if self.dtypes:
            yield "dtype mismatch: " + listed(
                f"{_dotted(key)} has {found}, expected {wanted}" for key, (found, wanted) in self.dtypes.items()
            )
        if self.values:
            yield "value mismatch: " + listed(map(_dotted, self.values))


def _dotted(key: Key) -> str:
    return key if isinstance(key, str) else ".".join(key)


def fit(loaded: Any, like: Any, *, strict: bool, fill: float | None, cast: bool) -> Any:
    """Return a loaded tensordict in the structure of ``like``; see `load_memmap` for the arguments."""
    if not isinstance(like, TensorNode):
        raise TypeError(f"like= takes a tensordict with the expected structure, not a {type(like).__name__}")
    made: Any = like._clone(False)
    if made.is_locked:
        made.unlock_()
    old, new = plan(made), plan(loaded)
    report = differences(new, old)
    refuse(report, strict=strict, cast=cast, filled=fill is not None)
    _take(old, new, fill, cast)
    return _wrapped(old)


def refuse(report: Report, *, strict: bool, cast: bool, filled: bool = False, shapes: bool = True) -> None:
    """Raise an error if a report holds differences that are not allowed.

    Args:
        report: The differences.
        shapes: Whether other shapes are refused.
        strict: Whether missing and unexpected keys, and other dtypes, are refused.
        cast: Whether other dtypes are converted.
        filled: Whether missing keys are filled.
    """
    bad = Report(shapes=report.shapes if shapes else {})
    if strict:
        bad.unexpected = report.unexpected
        bad.missing = [] if filled else report.missing
        bad.dtypes = {} if cast else report.dtypes
    if bad:
        ways = "pass strict=False, or cast=True for dtypes"
        if bad.shapes:
            ways = "shapes are never converted; load_into(..., skip_mismatched=True) leaves such entries as they are"
        raise RuntimeError(f"the save does not have the expected structure: {bad}; {ways}")


# --- trees


def table(node: Node) -> dict[Path, Leaf | Value]:
    """Return the leaves and values of a schema by their keys, relative to its root."""
    found: dict[Path, Leaf | Value] = {}
    start = len(node.key)
    for one in nodes(node):
        if isinstance(one, Value):
            found[one.key[start:]] = one
        elif isinstance(one, Dense):
            found.update((entry.key[start:], entry) for entry in one.entries.values() if isinstance(entry, Leaf))
    return found


def differences(new: Node, old: Node) -> Report:
    """Return the differences between a schema and the expected one."""
    found, wanted = table(new), table(old)
    report = Report(
        [plain(key) for key in wanted if key not in found], [plain(key) for key in found if key not in wanted]
    )
    for key, want in wanted.items():
        have = found.get(key)
        if have is None:
            continue
        if isinstance(have, Value) and isinstance(want, Value):
            if have.batch_size != want.batch_size:
                report.shapes[plain(key)] = (have.batch_size, want.batch_size)
            continue
        if isinstance(have, Value) or isinstance(want, Value):
            report.missing.append(plain(key))
            report.unexpected.append(plain(key))
            continue
        if have.shape != want.shape or have.layout != want.layout:
            report.shapes[plain(key)] = (have.shape, want.shape)
        if have.dtype != want.dtype:
            report.dtypes[plain(key)] = (have.dtype, want.dtype)
    return report


def other_components(new: Node, old: Node) -> dict[Key, tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return the shapes of components of nested tensors that differ: the found and the expected ones."""
    found: dict[Key, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}
    twins = table(new)
    for key, want in table(old).items():
        have = twins.get(key)
        if isinstance(want, Leaf) and isinstance(have, Leaf) and want.layout == have.layout != "strided":
            shapes = _components(have), _components(want)
            if shapes[0] != shapes[1]:
                found[plain(key)] = shapes
    return found


def _components(leaf: Leaf) -> tuple[tuple[int, ...], ...]:
    assert leaf.source is not None
    return tuple(tuple(part.shape) for part in leaf.source.unbind())


# --- copies between trees


def _pairs(old: Node, new: Node) -> Iterator[tuple[Any, str, Leaf | Value, Any]]:
    """Yield each leaf and value of a schema: its container, its name, the entry, and that of ``new`` or None."""
    twins, start = table(new), len(old.key)
    for one in nodes(old):
        for name, entry in one.entries.items() if isinstance(one, Dense) else ():
            if isinstance(entry, Leaf | Value):
                yield one.origin, name, entry, twins.get(entry.key[start:])


def write(old: Node, new: Node, skip: Collection[Key] = ()) -> list[Key]:
    """Write the values of ``new`` over those of ``old``, in place, for keys that both have.

    Args:
        old: The schema with the tensors to write to.
        new: The schema with the values.
        skip: Keys to leave as they are.

    Returns:
        The keys that were written.
    """
    written: list[Key] = []
    start = len(old.key)
    for container, name, entry, twin in _pairs(old, new):
        if type(entry) is not type(twin) or plain(entry.key[start:]) in skip:
            continue
        written.append(plain(entry.key[start:]))
        if isinstance(entry, Leaf) and isinstance(twin, Leaf):
            assert entry.source is not None and twin.source is not None
            if entry.layout == "strided":
                entry.source.copy_(twin.source)
            else:
                for part, other in zip(entry.source.unbind(), twin.source.unbind(), strict=True):
                    part.copy_(other)
        elif isinstance(entry, Value) and isinstance(twin, Value):
            container._put_entry(name, None, twin.origin)
    return written


def _take(old: Node, new: Node, fill: float | None, cast: bool) -> None:
    for container, name, entry, twin in _pairs(old, new):
        if type(twin) is type(entry):
            taken: Any = twin.source if isinstance(twin, Leaf) else twin.origin
            if isinstance(entry, Leaf) and cast and taken.dtype != entry.dtype:
                taken = taken.to(entry.dtype)
            own = container._get(name)
            if type(own) is UnbatchedTensor:
                taken = UnbatchedTensor(taken, own.batch_size)
        elif isinstance(entry, Leaf) and fill is not None:
            assert entry.source is not None
            taken = torch.full_like(entry.source, fill, device="cpu")
            held = torch.full((), fill, dtype=entry.dtype, device="cpu")
            if not (held.is_floating_point() or held.is_complex() or held.item() == fill):
                raise ValueError(
                    f"entries are filled with a number that they can hold, and key {show(entry.key)} of {entry.dtype} "
                    f"cannot hold {fill}; pass another fill, or save the key"
                )
        elif isinstance(entry, Leaf) and entry.source is not None and entry.source.device.type == "meta":
            raise ValueError(
                f"what is not saved is taken from like=, whose key {show(entry.key)} is on the meta device and has no "
                "values; pass fill="
            )
        else:
            continue
        container._set(name, taken)
    device = next((one.origin._meta.device for one in nodes(new) if not isinstance(one, Parts)), None)
    for one in nodes(old):
        if not isinstance(one, Parts):
            meta = one.origin._meta
            one.origin._set_meta(Meta(meta.batch_size, device, meta.names))


def _wrapped(node: Node) -> Any:
    """Return the container of a schema whose entries were replaced; tensorclasses and stacks are rebuilt."""
    made = node.origin
    if isinstance(node, Dense):
        for name, entry in node.entries.items():
            if isinstance(entry, Parts | Dense):
                inner = _wrapped(entry)
                if inner is not entry.origin:
                    made._set(name, inner)
    elif isinstance(node, Parts):
        parts = {name: _wrapped(part) for name, part in node.parts.items()}
        if node.class_string != LAZY and node.cls is not None:
            made = node.cls._from_disk_form(node.facts, parts)
        elif any(part is not node.parts[name].origin for name, part in parts.items()):
            made = LazyStackedTensorDict(*parts.values(), **node.facts)
    return made


def refuse_other_keys(loaded: Any, td: Any, *, removes: bool = False) -> None:
    """Raise the error for a key that only one of a save and a locked tensordict has.

    Args:
        loaded: The tensordict that was loaded.
        td: The tensordict that takes its values.
        removes: Whether the entries of ``td`` that the save lacks would be removed; they are kept otherwise.

    Raises:
        KeyError: There is such a key; the error names it.
    """
    if not td.is_locked:
        return
    found = differences(plan(loaded), plan(td))
    if found.unexpected:
        raise KeyError(
            f"key {found.unexpected[0]!r} is not in the tensordict, which is locked; unlock it, or load with like= and "
            "strict=False, which leaves the key out"
        )
    if removes and found.missing:
        raise KeyError(
            f"key {found.missing[0]!r} is not in the save, and the tensordict is locked; unlock it to have the key "
            "removed, or pass it to load_memmap as out=, which keeps the key"
        )


def remove_old_keys(loaded: Any, td: Any) -> None:
    """Remove the entries of a tensordict that a save lacks, at every level."""
    if isinstance(td, LazyStackedTensorDict) and isinstance(loaded, LazyStackedTensorDict):
        for part, element in zip(loaded.tensordicts, td.tensordicts, strict=True):
            remove_old_keys(part, element)
        return
    saved = set(loaded.keys())
    for key in list(td.keys()):
        if key not in saved:
            td.del_(key)
        elif isinstance(value := td.get(key), TensorNode) and not value._is_opaque:
            remove_old_keys(loaded.get(key), value)
