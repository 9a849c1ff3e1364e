"""Command line: ``tensordict-memmap tree|ls|verify|convert|diff|completion``.

Exit codes: 0 for success or equal saves, 1 for a damaged save or a difference, 2 for a command that cannot run. Paths
are those of `load_memmap`, remote URLs included. ``--json`` prints one JSON object. ``tree``, ``ls`` and ``verify``
import torch only for saves that the quick reader cannot read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from tensordict_memmap_cli import completion, show
from tensordict_memmap_cli.quick import Entry, Save, check_present, read

PROG = "tensordict-memmap"
FORMATS = ("tree", "safetensors", "archive", "consolidated")
_SUCCESS, _FAILURE, _ERROR = 0, 1, 2

_Outcome = tuple[int, str, dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: Its arguments; those of the process by default.

    >>> _ = TensorDict({"a": torch.zeros(3), "b": {"c": torch.zeros(2, dtype=torch.int8)}}).save("shown")
    >>> main(["tree", "shown"])
    ├─ a     float32  [3]  12 B
    └─ b     1 entry        2 B
       └─ c  int8     [2]   2 B
    2 entries, 14 B, tree
    0
    """
    arguments = parser()[0].parse_args(argv)
    try:
        code, text, record = arguments.run(arguments)
        if arguments.json:
            print(json.dumps(record, separators=(",", ":")))
        elif text:
            print(show.encodable(text, getattr(sys.stdout, "encoding", None) or "utf-8"))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _SUCCESS
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        print(f"{PROG}: {text}", file=sys.stderr)
        return _ERROR
    return int(code)


def parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and those of its commands by name."""
    made = argparse.ArgumentParser(
        prog=PROG,
        description="Shows, verifies, converts and compares saved tensordicts.",
        epilog="Exit codes: 0 success or equal, 1 damaged or different, 2 error.",
    )
    made.add_argument("--version", action=_Version, help="show the version and exit")
    commands = made.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, text: str, *paths: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        for path in paths:
            added.add_argument(path, help="the path or URL of a save")
        added.add_argument("--json", action="store_true", help="print one JSON object")
        added.set_defaults(run=run)
        return added

    tree = command("tree", _tree, "Shows the keys as a nested tree, with shapes, dtypes and sizes.", "path")
    tree.add_argument("--depth", type=_positive, metavar="N", help="show only the first N levels")
    listed = command("ls", _ls, "Lists the keys, one per line, with shapes, dtypes and sizes.", "path")
    for added in (tree, listed):
        added.add_argument("--keys", action="append", metavar="PATTERN", help="show only the keys that match a pattern")
    verified = command("verify", _verify, "Checks that all files exist and have the right sizes.", "path")
    verified.add_argument("--full", action="store_true", help="read all data and verify the checksums")
    converted = command("convert", _convert, "Converts a save, or a .pt file, to another format.", "source", "target")
    converted.add_argument("--format", choices=FORMATS, help="the format; by default that of the file name extension")
    converted.add_argument("--force", action="store_true", help="replace an existing target")
    converted.add_argument("--checksum", action="store_true", help="record checksums, which verify --full compares")
    converted.add_argument("--compression", help="the compression of an archive: deflate, bzip2 or lzma")
    converted.add_argument(
        "--shard-size", type=_positive, metavar="BYTES", help="the maximum bytes of one safetensors file"
    )
    converted.add_argument("--durable", action="store_true", help="sync the target to disk before the command returns")
    compared = command("diff", _diff, "Compares two saves, values included.", "a", "b")
    compared.add_argument("--structure", action="store_true", help="compare only keys, shapes and dtypes")
    for added in (converted, compared):
        added.add_argument("--allow-pickle", action="store_true", help="unpickle values, which can run arbitrary code")
    completed = command("completion", _completion, "Prints a script that makes a shell complete the commands.")
    completed.add_argument("shell", choices=completion.SHELLS)
    return made, dict(commands.choices)


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> None:
        from importlib.metadata import version

        print(f"{PROG} {version(PROG)}")
        parser.exit()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


# --- commands


def _saved(arguments: argparse.Namespace) -> tuple[Save, dict[str, Any]]:
    """Return the entries to show, and the JSON record of them."""
    check_present(arguments.path)
    more: dict[str, Any] = {}
    save = None if arguments.keys else read(arguments.path)
    if save is None:
        from tensordict_memmap.cli.commands import describe

        kind, rows, more = describe(arguments.path, arguments.keys)
        save = Save(kind, [Entry(*row) for row in rows])
    entries = [{"key": list(key), "dtype": dtype, "shape": shape, "bytes": n} for key, dtype, shape, n in save.entries]
    nbytes = sum(entry.nbytes or 0 for entry in save.entries)
    return save, {"path": arguments.path, "format": save.format or None, "bytes": nbytes, "entries": entries, **more}


def _summary(save: Save, record: dict[str, Any]) -> str:
    delta = f"delta {record['depth']} over {record['base']}" if "base" in record else ""
    return ", ".join(filter(None, (show.total(save.entries), save.format, delta)))


def _tree(arguments: argparse.Namespace) -> _Outcome:
    save, record = _saved(arguments)
    return _SUCCESS, "\n".join([*show.tree(save.entries, arguments.depth), _summary(save, record)]), record


def _ls(arguments: argparse.Namespace) -> _Outcome:
    save, record = _saved(arguments)
    return _SUCCESS, "\n".join(show.lines(save.entries)), record


def _verify(arguments: argparse.Namespace) -> _Outcome:
    check_present(arguments.path)
    problem = ""
    if arguments.full or read(arguments.path, verify=True) is None:
        from tensordict_memmap.cli.commands import problem_of

        problem = problem_of(arguments.path, full=arguments.full)
    level = "full" if arguments.full else "size"
    record = {"path": arguments.path, "level": level, "fine": not problem, "problem": problem or None}
    return (_FAILURE, problem, record) if problem else (_SUCCESS, f"{arguments.path} is fine ({level})", record)


def _convert(arguments: argparse.Namespace) -> _Outcome:
    from tensordict_memmap.cli.commands import convert_to

    options = ("force", "checksum", "compression", "shard_size", "durable", "allow_pickle")
    target, kind = arguments.target, arguments.format
    convert_to(arguments.source, target, kind, **{name: getattr(arguments, name) for name in options})
    return _SUCCESS, "", {"source": arguments.source, "target": target}


def _diff(arguments: argparse.Namespace) -> _Outcome:
    from tensordict_memmap.cli.commands import difference

    record = difference(
        arguments.a, arguments.b, values=not arguments.structure, allow_pickle=arguments.allow_pickle or None
    )
    lines = [f"only in {arguments.a}: {show.dotted(key)}" for key in record["only_in_a"]]
    lines += [f"only in {arguments.b}: {show.dotted(key)}" for key in record["only_in_b"]]
    for what in ("shape", "dtype"):
        lines += [f"{what} of {show.dotted(one['key'])}: {one['a']} and {one['b']}" for one in record[f"{what}s"]]
    for one in record["differences"]:
        text = f"values of {show.dotted(one['key'])}"
        if one["count"] is not None:
            text += f": {one['count']:,} of {one['of']:,} differ"
        if one["largest"] is not None:
            text += f", by at most {one['largest']:.6g}"
        lines.append(text)
    if lines:
        lines.append(f"{len(lines)} {'difference' if len(lines) == 1 else 'differences'}")
    return (_SUCCESS if record["same"] else _FAILURE), "\n".join(lines), record


def _completion(arguments: argparse.Namespace) -> _Outcome:
    text = completion.script(arguments.shell, PROG, parser()[1])
    return _SUCCESS, text, {"shell": arguments.shell, "script": text}
