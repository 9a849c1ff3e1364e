"""Command line: ``python -m tensordict_memmap tree|verify|convert|diff``.

Exit codes: 0 for success or equal saves, 1 for a damaged save or a difference, 2 for a command that cannot run. Paths
are those of `load_memmap`, remote URLs included. ``--json`` prints one JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from tensordict_memmap.cli.convert import FORMATS, convert
from tensordict_memmap.loading.calls import describe_saved
from tensordict_memmap.loading.delta import read_delta
from tensordict_memmap.loading.detect import kind_of
from tensordict_memmap.loading.into import compare
from tensordict_memmap.loading.open import open_any
from tensordict_memmap.loading.request import LoadRequest
from tensordict_memmap.remote.urls import is_remote, local_path
from tensordict_memmap.schema.node import Dense, Leaf, Node, Value

__all__ = ["main"]

_SUCCESS, _FAILURE, _ERROR = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        argv: its arguments; those of the process by default.

    >>> _ = TensorDict({"a": torch.zeros(3), "b": {"c": torch.zeros(2, dtype=torch.int8)}}).save("shown")
    >>> main(["tree", "shown"])
    a    float32  [3]  12 B
    b.c  int8     [2]  2 B
    2 entries, 14 bytes, tree
    0
    """
    arguments = _parser().parse_args(argv)
    try:
        code, text, record = arguments.run(arguments)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        print(f"tensordict_memmap: {text}", file=sys.stderr)
        return _ERROR
    if arguments.json:
        print(orjson.dumps(record).decode())
    elif text:
        print(text)
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tensordict_memmap",
        description="Shows, verifies, converts and compares saved tensordicts.",
        epilog="Exit codes: 0 success or equal, 1 damaged or different, 2 error.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, text: str, *paths: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        for path in paths:
            added.add_argument(path, help="the path or URL of a save")
        added.add_argument("--json", action="store_true", help="print one JSON object")
        added.set_defaults(run=run)
        return added

    shown = command("tree", _tree, "Shows the keys with their shapes, dtypes and sizes in bytes.", "path")
    shown.add_argument("--keys", action="append", metavar="PATTERN", help="show only the keys that match a pattern")
    verified = command("verify", _verify, "Checks that all files exist and have the right sizes.", "path")
    verified.add_argument("--full", action="store_true", help="read all data and verify the checksums")
    converted = command("convert", _convert, "Converts a save to another format.", "source", "target")
    converted.add_argument("--format", choices=FORMATS, help="the format; by default from the suffix of the target")
    converted.add_argument("--compression", help="the compression of an archive: deflate, bzip2 or lzma")
    converted.add_argument("--shard-size", type=int, metavar="BYTES", help="the most bytes in one safetensors file")
    converted.add_argument("--durable", action="store_true", help="wait until all data is on the disk")
    compared = command("diff", _diff, "Compares two saves, values included.", "a", "b")
    compared.add_argument("--structure", action="store_true", help="compare only keys, shapes and dtypes")
    for added in (converted, compared):
        added.add_argument("--allow-pickle", action="store_true", help="unpickle values, which can run arbitrary code")
    return parser


_Outcome = tuple[int, str, dict[str, Any]]


def _tree(arguments: argparse.Namespace) -> _Outcome:
    entries = list(_entries(describe_saved(arguments.path, keys=arguments.keys)))
    kind = "" if is_remote(arguments.path) else kind_of(local_path(arguments.path))
    delta = None if is_remote(arguments.path) else read_delta(local_path(arguments.path))
    total = sum(entry["bytes"] or 0 for entry in entries)
    rows = [
        (
            ".".join(entry["key"]),
            entry["dtype"] or "value",
            "" if entry["shape"] is None else str(entry["shape"]),
            "" if entry["bytes"] is None else f"{entry['bytes']:,} B",
        )
        for entry in entries
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows]
    lines.append(f"{len(entries)} entries, {total:,} bytes" + (f", {kind}" if kind else ""))
    record = {"path": arguments.path, "format": kind or None, "bytes": total, "entries": entries}
    if delta is not None:
        lines[-1] += f", delta {delta.depth} over {delta.base}"
        record["base"] = delta.base
    return _SUCCESS, "\n".join(lines), record


def _entries(node: Node | Leaf) -> Iterator[dict[str, Any]]:
    """The leaves and values of a tree in order; nested tensors have no single shape."""
    if isinstance(node, Leaf):
        plain = node.layout == "strided"
        dtype = str(node.dtype).removeprefix("torch.")
        shape, nbytes = (list(node.shape), node.nbytes) if plain else (None, None)
        dtype = dtype if plain else f"{dtype}, {node.layout}"
        yield {"key": list(node.key), "dtype": dtype, "shape": shape, "bytes": nbytes}
    elif isinstance(node, Value):
        yield {"key": list(node.key), "dtype": None, "shape": None, "bytes": None}
    else:
        for entry in (node.entries if isinstance(node, Dense) else node.parts).values():
            yield from _entries(entry)


def _verify(arguments: argparse.Namespace) -> _Outcome:
    path = local_path(arguments.path)
    if not is_remote(path) and not os.path.exists(path):
        raise FileNotFoundError(f"no saved tensordict at {path}; give the path that it was saved to")
    level = "full" if arguments.full else "size"
    problem = ""
    try:
        open_any(path, LoadRequest(mode="r", allow_pickle=None, verify=level))
    except (ValueError, FileNotFoundError) as error:
        problem = str(error)
    record = {"path": arguments.path, "level": level, "fine": not problem, "problem": problem or None}
    return (_FAILURE, problem, record) if problem else (_SUCCESS, f"{arguments.path} is fine ({level})", record)


def _convert(arguments: argparse.Namespace) -> _Outcome:
    convert(
        arguments.source,
        arguments.target,
        arguments.format,
        compression=arguments.compression,
        shard_size=arguments.shard_size,
        durable=arguments.durable,
        allow_pickle=arguments.allow_pickle,
    )
    return _SUCCESS, "", {"source": arguments.source, "target": arguments.target}


def _diff(arguments: argparse.Namespace) -> _Outcome:
    report = compare(
        arguments.a, arguments.b, values=not arguments.structure, allow_pickle=arguments.allow_pickle or None
    )
    lines = [f"only in {arguments.a}: {_dotted(key)}" for key in report.unexpected]
    lines += [f"only in {arguments.b}: {_dotted(key)}" for key in report.missing]
    for key, (a, b) in report.shapes.items():
        lines.append(f"shape of {_dotted(key)}: {list(a)} and {list(b)}")
    for key, (one, two) in report.dtypes.items():
        lines.append(f"dtype of {_dotted(key)}: {one} and {two}")
    lines += [f"values of {_dotted(key)}" for key in report.values]
    record = {
        "same": not report,
        "only_in_a": [_parts(key) for key in report.unexpected],
        "only_in_b": [_parts(key) for key in report.missing],
        "shapes": [{"key": _parts(key), "a": list(a), "b": list(b)} for key, (a, b) in report.shapes.items()],
        "dtypes": [{"key": _parts(key), "a": str(one), "b": str(two)} for key, (one, two) in report.dtypes.items()],
        "values": [_parts(key) for key in report.values],
    }
    return (_FAILURE if report else _SUCCESS), "\n".join(lines), record


def _dotted(key: str | tuple[str, ...]) -> str:
    return ".".join(_parts(key))


def _parts(key: str | tuple[str, ...]) -> list[str]:
    return [key] if isinstance(key, str) else list(key)
