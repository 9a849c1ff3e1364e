"""The command line: ``python -m tensordict_memmap tree|verify|convert|diff``, for people and for scripts.

Exit codes: 0 where all is well or the same, 1 where something is damaged or differs, 2 where the command cannot be
done. Paths are those of `load_memmap`, addresses included. With ``--json`` one JSON object is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from tensordict_memmap.cli.convert import FORMATS, convert
from tensordict_memmap.formats.detect import kind_of
from tensordict_memmap.formats.tree import Dense, Leaf, Node, Value
from tensordict_memmap.loading.calls import describe_saved
from tensordict_memmap.loading.into import compare
from tensordict_memmap.loading.request import Request, open_any
from tensordict_memmap.remote.urls import here, is_remote

__all__ = ["main"]

_FINE, _DIFFERS, _USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        argv: its words; by default those of the process.

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
        return _USAGE
    if arguments.json:
        print(orjson.dumps(record).decode())
    elif text:
        print(text)
    return int(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tensordict_memmap",
        description="Looks at saved tensordicts, verifies, converts and compares them.",
        epilog="Exit codes: 0 fine or the same, 1 damaged or different, 2 the command cannot be done.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, text: str, *paths: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        for path in paths:
            added.add_argument(path, help="a path or an address, in any format")
        added.add_argument("--json", action="store_true", help="print one JSON object")
        added.set_defaults(run=run)
        return added

    shown = command("tree", _tree, "Shows the keys with their shapes, dtypes and bytes.", "path")
    shown.add_argument("--keys", action="append", metavar="PATTERN", help="show only what a pattern names")
    verified = command("verify", _verify, "Checks that all files are there and have their sizes.", "path")
    verified.add_argument("--full", action="store_true", help="read everything and compare it with its checksums")
    converted = command("convert", _convert, "Saves in another format what was saved.", "source", "target")
    converted.add_argument("--format", choices=FORMATS, help="by default the ending of the target says it")
    converted.add_argument("--compression", help="how an archive is compressed: deflate, bzip2 or lzma")
    converted.add_argument("--shard-size", type=int, metavar="BYTES", help="the most bytes in one safetensors file")
    converted.add_argument("--durable", action="store_true", help="wait until all is on the disk")
    converted.add_argument("--allow-pickle", action="store_true", help="unpickle values, which can run any code")
    compared = command("diff", _diff, "Compares two saves, values included.", "a", "b")
    compared.add_argument("--structure", action="store_true", help="compare keys, shapes and dtypes alone")
    compared.add_argument("--allow-pickle", action="store_true", help="unpickle values, which can run any code")
    return parser


_Outcome = tuple[int, str, dict[str, Any]]


def _tree(arguments: argparse.Namespace) -> _Outcome:
    entries = list(_entries(describe_saved(arguments.path, keys=arguments.keys)))
    kind = "" if is_remote(arguments.path) else kind_of(here(arguments.path))
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
    lines = [
        "  ".join([*(part.ljust(width) for part, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    lines.append(f"{len(entries)} entries, {total:,} bytes" + (f", {kind}" if kind else ""))
    record = {"path": arguments.path, "format": kind or None, "bytes": total, "entries": entries}
    return _FINE, "\n".join(line.rstrip() for line in lines), record


def _entries(node: Node | Leaf) -> Iterator[dict[str, Any]]:
    """The leaves and values of a tree in their order; nested tensors have no one shape."""
    if isinstance(node, Leaf):
        plain = node.layout == "strided"
        dtype = str(node.dtype).removeprefix("torch.")
        shape, nbytes = (list(node.shape), node.nbytes) if plain else (None, None)
        yield {"key": list(node.key), "dtype": dtype if plain else f"{dtype}, {node.layout}", "shape": shape} | {
            "bytes": nbytes
        }
    elif isinstance(node, Value):
        yield {"key": list(node.key), "dtype": None, "shape": None, "bytes": None}
    else:
        for entry in (node.entries if isinstance(node, Dense) else node.parts).values():
            yield from _entries(entry)


def _verify(arguments: argparse.Namespace) -> _Outcome:
    path = here(arguments.path)
    if not is_remote(path) and not os.path.exists(path):
        raise FileNotFoundError(f"what is verified was saved, and there is nothing at {path}")
    level = "full" if arguments.full else "size"
    problem = ""
    try:
        open_any(path, Request(mode="r", allow_pickle=None, verify=level))
    except (ValueError, FileNotFoundError) as error:
        problem = str(error)
    record = {"path": arguments.path, "level": level, "fine": not problem, "problem": problem or None}
    return (_DIFFERS, problem, record) if problem else (_FINE, f"{arguments.path} is fine ({level})", record)


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
    return _FINE, "", {"source": arguments.source, "target": arguments.target}


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
    return (_DIFFERS if report else _FINE), "\n".join(lines), record


def _dotted(key: str | tuple[str, ...]) -> str:
    return ".".join(_parts(key))


def _parts(key: str | tuple[str, ...]) -> list[str]:
    return [key] if isinstance(key, str) else list(key)
