"""Counts lines of code (no docstrings, comments, blank lines): ``python tools/count_lines.py [--modules] [REVISION]``.

Without arguments it prints one line for each folder of the working tree and a total for each package. With a revision
it reads the files of that revision from git, so two states of the repository can be compared.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def code_lines(source: str) -> int:
    """The number of lines that hold a token which is no comment and no part of a string that stands by itself."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def git(*arguments: str) -> str:
    """What a git command prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def sources(revision: str | None) -> dict[str, str]:
    """The source of each module below ``packages`` by its path."""
    if revision is None:
        return {name: (ROOT / name).read_text() for name in git("ls-files", "packages/*.py").split()}
    names = git("ls-tree", "-r", "--name-only", revision, "packages").split()
    return {name: git("show", f"{revision}:{name}") for name in names if name.endswith(".py")}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("revision", nargs="?", help="a git revision; the working tree by default")
    parser.add_argument("--modules", action="store_true", help="one line for each module instead of each folder")
    options = parser.parse_args()
    rows: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for name, source in sources(options.revision).items():
        path = PurePosixPath(name)
        package = path.parts[1]
        inside = path.relative_to(PurePosixPath(*path.parts[:4])) if "src" in path.parts else path
        row = str(inside if options.modules else inside.parent)
        count = code_lines(source)
        rows[f"{package}: {row}"] += count
        packages[package] += count
        modules[package] += 1
    for row in sorted(rows):
        print(f"{rows[row]:>7,}  {row}")
    print()
    for package in sorted(packages):
        print(f"{packages[package]:>7,}  {package} ({modules[package]} modules)")
    print(f"{packages.total():>7,}  in all")


if __name__ == "__main__":
    main()
