"""The page about the command line shows what the commands print.

``python tests/docs/test_command_line.py`` records the session again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from tensordict_memmap_cli.main import main, parser

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def output_of(line: str, last: int) -> tuple[int, str]:
    """The exit code and the output of one line of the session; only those that the page needs are known."""
    words = shlex.split(line)
    if words == ["echo", "$?"]:
        return 0, f"{last}\n"
    if words[:2] == ["truncate", "-s"]:
        os.truncate(words[3], os.path.getsize(words[3]) + int(words[2]))
        return 0, ""
    assert words[0] == "tensordict-memmap"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words[1:])
    return code, printed.getvalue()


def record(page: str) -> str:
    """The page with the output that its commands print in the current folder."""
    names: dict[str, object] = {}
    code = 0

    def recorded(match: re.Match[str]) -> str:
        nonlocal code
        if match[1] == "python":
            exec(match[2], names)
            return match[0]
        lines = [line for line in match[2].splitlines() if line.startswith("$ ")]
        text = ""
        for line in lines:
            code, output = output_of(line[2:], code)
            text += f"{line}\n{output}"
        return f"```console\n{text}```"

    return FENCE.sub(recorded, page)


def test_the_recorded_session_is_what_the_commands_print(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    assert "$ tensordict-memmap tree run\n├─ " in page
    assert record(page) == page


def test_the_page_names_every_command():
    page = PAGE.read_text()
    assert all(f"| `{name} " in page for name in parser()[1])


if __name__ == "__main__":
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        recorded = record(page)
    PAGE.write_text(recorded)
    sys.exit(recorded != page)
