"""Commands: their implementation with the complete readers and writers; `tensordict_memmap_cli` parses and prints."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import torch

from tensordict_core import TensorDict
from tensordict_memmap.calls.compare import compare
from tensordict_memmap.calls.load import describe_saved, load_memmap
from tensordict_memmap.cli.convert import convert, save_as
from tensordict_memmap.formats.detect import TREE, format_by_name
from tensordict_memmap.loading.delta import read_delta
from tensordict_memmap.loading.detect import format_of
from tensordict_memmap.loading.open import open_any
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.schema.dtypes import as_bits
from tensordict_memmap.schema.node import Dense, Leaf, Node, Value
from tensordict_memmap_cli.quick import check_present

_PICKLED = (".pt", ".pth")
"""The endings of files of `torch.save`."""

_ENDINGS = ("", ".safetensors", ".json", ".tdz")
"""The endings that name a format; ``.json`` is that of the index of shards."""

_ELEMENTS = 1 << 22
"""The elements of two tensors that are compared at a time."""

_Row = tuple[tuple[str, ...], str | None, list[int] | None, int | None]


def describe(path: str, keys: list[str] | None) -> tuple[str, list[_Row], dict[str, Any]]:
    """Return the format of a save, its entries (key, dtype, shape, bytes), and the facts about a delta."""
    check_present(local_path(path))
    rows = list(_rows(describe_saved(path, keys=keys)))
    if is_remote(path):
        return "", rows, {}
    delta = read_delta(local_path(path))
    return format_of(local_path(path)), rows, {} if delta is None else {"base": delta.base, "depth": delta.depth}


def _rows(node: Node | Leaf) -> Iterator[_Row]:
    """Yield the leaves and values of a schema in order; nested tensors have no single shape."""
    if isinstance(node, Leaf):
        dtype = str(node.dtype).removeprefix("torch.")
        if node.layout == "strided":
            yield node.key, dtype, list(node.shape), node.nbytes
        else:
            yield node.key, f"{dtype}, {node.layout}", None, None
    elif isinstance(node, Value):
        yield node.key, None, None, None
    else:
        for entry in (node.entries if isinstance(node, Dense) else node.parts).values():
            yield from _rows(entry)


def problem_of(path: str, *, full: bool) -> str:
    """Return a description of the damage of a save; an empty text if there is none.

    Raises:
        FileNotFoundError: There is no save.
    """
    place = local_path(path)
    check_present(place)
    try:
        open_any(place, LoadRequest(mode="r", allow_pickle=None, verify="full" if full else "size"))
    except (ValueError, FileNotFoundError) as error:
        return str(error) if is_remote(place) else str(error).replace(os.path.abspath(place), str(place))
    return ""


# --- conversion


def convert_to(source: str, target: str, format: str | None, *, force: bool, **options: Any) -> None:
    """Convert a save, or a file of `torch.save`, and show the progress of long conversions.

    Raises:
        FileExistsError: There is something at the target, and ``force`` is False.
        ValueError: The ending of the target names no format, or the source holds no tensors by name.
    """
    if not target:
        raise ValueError("the target is an empty path; give the path of a folder or a file")
    ending = os.path.splitext(target.rstrip("/"))[1]
    if format is None and ending not in _ENDINGS:
        raise ValueError(
            f"unknown ending {ending!r} of {target}; end it with .safetensors or .tdz, or pass --format "
            f"({format_by_name(target)} for example)"
        )
    if not force and not is_remote(target) and os.path.lexists(local_path(target)):
        raise FileExistsError(f"{target} exists; pass --force to replace it")
    if is_remote(source) or not source.endswith(_PICKLED) or format_of(source) == TREE:
        convert(source, target, format, **options)
    else:
        del options["allow_pickle"]
        save_as(_from_torch(source), target, format, num_threads=None, pbar=None, **options)


def _from_torch(path: str) -> TensorDict:
    """Return the content of a file of `torch.save`, whose tensors stay mapped; nothing of it is run."""
    try:
        # files of the form before torch 1.6 are no archives, and cannot be mapped
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # pickle's errors, and torch's, which are of many types
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise ValueError(
                f"{path} holds {refused[1]}, which is neither a tensor nor a plain value; if you trust the file, save "
                "what torch.load(..., weights_only=False) returns"
            ) from None
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} is damaged, or not a file of torch.save: {reason}") from None
    if not isinstance(loaded, dict):
        raise ValueError(
            f"{path} holds a {type(loaded).__name__}, and a dict of tensors can be converted; save one with torch.save"
        )
    td: TensorDict = TensorDict.from_dict(loaded, auto_batch_size=False)
    names = [key for key in loaded if isinstance(key, str)]
    prefixes = {name[:cut] for name in names for cut, sign in enumerate(name) if sign == "."}
    if any("." in name for name in names) and all(all(name.split(".")) for name in names):
        td = td if prefixes & set(names) else td.unflatten_keys(".")  # names of parameters, as in safetensors files
    return td


# --- comparison


def difference(a: str, b: str, *, values: bool, allow_pickle: bool | None) -> dict[str, Any]:
    """Compare two saves; tensors of the same shape and dtype that differ are counted element by element."""
    report = compare(a, b, values=values, allow_pickle=allow_pickle)
    return {
        "same": not report,
        "only_in_a": [_parts(key) for key in report.unexpected],
        "only_in_b": [_parts(key) for key in report.missing],
        "shapes": [{"key": _parts(key), "a": list(one), "b": list(two)} for key, (one, two) in report.shapes.items()],
        "dtypes": [{"key": _parts(key), "a": str(one), "b": str(two)} for key, (one, two) in report.dtypes.items()],
        "values": [_parts(key) for key in report.values],
        "differences": [_counted(a, b, tuple(_parts(key))) for key in report.values],
    }


def _counted(a: str, b: str, key: tuple[str, ...]) -> dict[str, Any]:
    """Count the elements that differ at a key, and find the largest difference; None if either is not a tensor."""
    record: dict[str, Any] = {"key": list(key), "count": None, "of": None, "largest": None}
    one, two = (load_memmap(path, mode="r", subpath=key or None, allow_pickle=None) for path in (a, b))
    if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)) or one.is_nested or two.is_nested:
        return record
    one, two = one.contiguous().flatten(), two.contiguous().flatten()
    count, largest = 0, 0.0
    for start in range(0, one.numel(), _ELEMENTS):
        x, y = one[start : start + _ELEMENTS], two[start : start + _ELEMENTS]
        other = as_bits(x) != as_bits(y)
        count += int(other.sum())
        if x.dtype is not torch.bool and other.any():
            wide = torch.complex128 if x.is_complex() else torch.float64
            apart = (x[other].to(wide) - y[other].to(wide)).abs()
            largest = max(largest, float(apart.nan_to_num(nan=torch.inf).max()))
    return record | {"count": count, "of": one.numel(), "largest": None if one.dtype is torch.bool else largest}


def _parts(key: str | tuple[str, ...]) -> list[str]:
    return [key] if isinstance(key, str) else list(key)
