"""`compare` a save with a structure, and `load_into` existing tensors."""

from __future__ import annotations

import os
from typing import Any

import torch

from tensordict_core.extension import Node as TensorNode
from tensordict_memmap.calls.load import describe_saved, load_memmap
from tensordict_memmap.formats.safetensors.dotted_names import by_names
from tensordict_memmap.schema.diff import Report, differences, other_components, refuse, table, write
from tensordict_memmap.schema.dtypes import as_bytes
from tensordict_memmap.schema.node import Leaf, Node, Value, plain
from tensordict_memmap.schema.plan import plan
from tensordict_memmap.schema.select import Keys, Rows

_BLOCK = 1 << 23


def compare(
    source: Any,
    like: Any,
    *,
    subpath: str | tuple[str, ...] | None = None,
    keys: Keys | None = None,
    values: bool = False,
    allow_pickle: bool | None = None,
) -> Report:
    """Compare the structure of a save, and on request its values, with another structure.

    Args:
        source: A path, a URL, or a tensordict.
        like: The expected structure: a tensordict (which may be on the ``meta`` device), a module, or a path.
        subpath: A nested key of the source to compare alone.
        keys: Patterns of the keys to compare; see `load_memmap`.
        values: Whether to read and compare values too, bit by bit.
        allow_pickle: Whether values may be unpickled to compare them.

    Raises:
        FileNotFoundError: There is no saved tensordict.

    >>> _ = TensorDict({"a": torch.zeros(3), "b": {"c": torch.zeros(2)}}).save("there")
    >>> print(compare("there", TensorDict({"a": torch.zeros(4), "b": {"d": torch.zeros(2)}})))
    missing: b.d unexpected: b.c shape mismatch: a has [3], expected [4]
    """
    if not values:
        return differences(
            _node(source, subpath=subpath, keys=keys), _node(like, keys=keys if _is_path(like) else None)
        )
    sides = []
    for side, part in ((source, subpath), (like, None)):
        if _is_path(side):
            side = load_memmap(side, mode="r", subpath=part, keys=keys, allow_pickle=allow_pickle)
        sides.append(_node(side))
    report = differences(*sides)
    found, wanted = map(table, sides)
    known = {*report.shapes, *report.dtypes}
    for key in found.keys() & wanted.keys():
        if plain(key) not in known and not _is_same(found[key], wanted[key]):
            report.values.append(plain(key))
    report.values.sort(key=str)
    return report


def load_into(
    target: Any,
    source: Any,
    *,
    strict: bool = True,
    cast: bool = False,
    skip_mismatched: bool = False,
    subpath: str | tuple[str, ...] | None = None,
    keys: Keys | None = None,
    rows: Rows | None = None,
    allow_pickle: bool | None = None,
) -> Report:
    """Write a save into the tensors of a tensordict or a module, after checking that it matches.

    Args:
        target: A tensordict, which may be locked, or a module.
        source: A path, a URL, or a tensordict.
        strict: Whether missing and unexpected keys raise an error; otherwise they are ignored.
        cast: Whether to convert dtypes; ``strict=False`` converts them too.
        skip_mismatched: Whether to skip entries whose shape differs, such as the head of a model with another number of
            classes; otherwise they raise an error.
        subpath: A nested key of the source to load alone.
        keys: Patterns of the keys to load; see `load_memmap`.
        rows: The rows to load.
        allow_pickle: Whether values without a JSON form may be unpickled.

    Returns:
        A report with the loaded keys in ``report.loaded``, the skipped keys with their found and expected shape in
        ``report.skipped``, and ``report.missing`` and ``report.unexpected``.

    Raises:
        RuntimeError: The structures differ; the error lists all differences, and nothing is written.

    >>> linear = torch.nn.Linear(2, 1)
    >>> _ = TensorDict({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}).save("linear")
    >>> print(load_into(linear, "linear"), linear.weight.tolist())
    no difference [[1.0, 1.0]]
    >>> report = load_into(torch.nn.Linear(2, 3), "linear", skip_mismatched=True)
    >>> report.loaded, report.skipped
    ([], {'weight': (torch.Size([1, 2]), torch.Size([3, 2])), 'bias': (torch.Size([1]), torch.Size([3]))})
    """
    if _is_path(source):
        source = load_memmap(source, mode="r", subpath=subpath, keys=keys, rows=rows, allow_pickle=allow_pickle)
    old, new = _node(target), _node(source)
    report = differences(new, old)
    report.shapes |= other_components(new, old)
    refuse(report, strict=strict, cast=cast, shapes=not skip_mismatched)
    with torch.no_grad():
        report.loaded = write(old, new, report.shapes)
    return report


# --- both sides as trees


def _is_path(side: Any) -> bool:
    return isinstance(side, str | os.PathLike)


def _node(side: Any, *, subpath: str | tuple[str, ...] | None = None, keys: Keys | None = None) -> Node:
    if _is_path(side):
        node = describe_saved(side, subpath=subpath, keys=keys)
        if isinstance(node, Leaf):
            raise TypeError(f"{subpath!r} of {side} is a tensor, and only tensordicts are compared; pass its parent")
        return node
    if isinstance(side, torch.nn.Module) and not isinstance(side, TensorNode):
        side = by_names({name: one for name, one in side.state_dict().items() if isinstance(one, torch.Tensor)})
    if not isinstance(side, TensorNode):
        raise TypeError(f"{type(side).__name__} has no structure to compare; pass a tensordict, a module or a path")
    return plan(side)


# --- values


def _is_same(one: Leaf | Value, two: Leaf | Value) -> bool:
    if isinstance(one, Value) or isinstance(two, Value):
        assert isinstance(one, Value) and isinstance(two, Value)
        a, b = one.origin.tolist(), two.origin.tolist()
        try:
            return bool(a == b) or repr(a) == repr(b)
        except (ValueError, RuntimeError, TypeError):  # ``==`` of arrays with several elements has no truth value
            return repr(a) == repr(b)
    a, b = one.source, two.source
    assert a is not None and b is not None
    if one.layout != "strided":
        return all(_same_bits(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True))
    return _same_bits(a, b)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape:
        return False
    x, y = (as_bytes(one.detach().as_subclass(torch.Tensor)) for one in (a, b))
    y = y.to(x.device)
    return all(torch.equal(x[n : n + _BLOCK], y[n : n + _BLOCK]) for n in range(0, len(x), _BLOCK))
