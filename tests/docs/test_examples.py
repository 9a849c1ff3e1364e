"""The pages show what happens: every Python example of a README or of the docs runs, and prints what stands there.

An example with prompts (``>>>``) is a doctest. One without is run as it stands, and a block marked ``text`` right
behind it is what it prints. The examples of one page share their names, from the top of the page to its end.
"""

from __future__ import annotations

import doctest
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md")), *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?=(?:\n+```text\n(.*?)^```$)?)", re.MULTILINE | re.DOTALL)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(text: str) -> list[tuple[int, str, str | None]]:
    """The Python examples of a page: line, code, and the output that stands behind it."""
    found = [(text[: m.start()].count("\n") + 2, m[1], m[2], m[3]) for m in FENCE.finditer(text)]
    return [(line, code, output) for line, language, code, output in found if language == "python"]


def run(code: str, output: str | None, names: dict[str, object], where: str, line: int) -> None:
    """Runs one example in the names of its page."""
    if ">>>" in code:
        test = doctest.DocTestParser().get_doctest(code, names, where, where, line - 1)
        test.globs = names  # the parser took a copy, and the next example continues
        report = StringIO()
        failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write, clear_globs=False).failed
        assert not failed, report.getvalue()
        return
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile("\n" * (line - 1) + code, where, "exec"), names)
    if output is not None:
        assert doctest.OutputChecker().check_output(output, printed.getvalue(), FLAGS), printed.getvalue()


@pytest.mark.parametrize("page", [p for p in PAGES if p.exists()], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_examples_of_a_page_run_and_print_what_they_show(page, tmp_path, monkeypatch, request):
    if page.name == "stores-redis.md":
        request.getfixturevalue("redis_for_pages")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")  # figures of tutorials are drawn and not shown
    names: dict[str, object] = {"__name__": "__main__"}
    for line, code, output in examples(page.read_text()):
        run(code, output, names, str(page), line)


@pytest.mark.parametrize(
    "text",
    [
        "```python\n>>> 1 + 1\n3\n```",
        "```python\nassert False\n```",
        "```python\nprint(1)\n```\n\n```text\n2\n```",
        "```python\nx = 1\n```\n\n```python\n>>> x\n2\n```",
    ],
)
def test_a_wrong_example_is_found(text):
    with pytest.raises(AssertionError):
        names: dict[str, object] = {}
        for line, code, output in examples(text):
            run(code, output, names, "page", line)
