"""Tutorials: each is a page, and a notebook that is executed when the site is built.

A tutorial is Markdown. Its Python blocks become the cells of a notebook, whose outputs replace the ``text`` blocks
behind them. A comment ``<!-- figure: what it shows -->`` behind a block becomes the figure that the block draws.
"""

from __future__ import annotations

import base64
import doctest
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

OUTPUT = re.compile(r"\n*^```text\n.*?^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"^<!-- figure: (.*?)\s+-->$", re.MULTILINE | re.DOTALL)
TUTORIAL = "tutorial-"
SECONDS = 300
"""The longest time that a cell may take."""


def notebook(text: str) -> Any:
    """Returns the notebook of a page, without outputs."""
    import jupytext

    found = jupytext.reads(FIGURE.sub("", OUTPUT.sub("", text)), "md")
    found.cells = [part for cell in found.cells for part in without_prompts(cell)]
    found.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return found


def without_prompts(cell: Any) -> Iterator[Any]:
    """Yields a cell for each example of a block with prompts, and any other cell as it is."""
    from nbformat.v4 import new_code_cell

    if cell.cell_type != "code" or not cell.source.startswith(">>>"):
        yield cell
        return
    for example in doctest.DocTestParser().get_examples(cell.source + "\n"):
        tags = {} if example.exc_msg is None else {"tags": ["raises-exception"]}
        yield new_code_cell(example.source.rstrip(), metadata=tags)


def execute(found: Any) -> None:
    """Runs the cells in a kernel of this interpreter, in an empty folder."""
    from nbclient import NotebookClient

    here = Path(__file__).parent
    os.environ |= {
        "MATPLOTLIBRC": str(here / "matplotlibrc"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            found, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()


def figures(found: Any) -> list[bytes]:
    """Returns the figures of an executed notebook as PNG."""
    outputs = [output for cell in found.cells for output in cell.get("outputs", [])]
    return [base64.b64decode(o["data"]["image/png"]) for o in outputs if "image/png" in o.get("data", {})]


def build(app: Sphinx) -> None:
    """Executes the tutorials whose text has changed since they were executed last."""
    app.config.tutorials_built = {}
    if app.builder.name not in ("html", "dirhtml"):
        return
    try:
        import ipykernel  # noqa: F401 (whether it is installed)
        import jupytext  # noqa: F401 (whether it is installed)
        import nbclient  # noqa: F401 (whether it is installed)
        import nbformat
    except ImportError as error:
        logging.getLogger(__name__).info("tutorials are pages only: %s is not installed", error.name)
        return
    folder = Path(app.srcdir) / "_build" / "tutorials"
    folder.mkdir(parents=True, exist_ok=True)
    looks = (Path(__file__).parent / "matplotlibrc").read_text()
    for page in sorted(Path(app.srcdir).glob(f"{TUTORIAL}*.md")):
        text = page.read_text()
        mark = hashlib.sha256((text + looks + sys.version).encode()).hexdigest()
        path = folder / f"{page.stem}.ipynb"
        found = nbformat.read(path, 4) if path.exists() else None
        if found is None or found.metadata.get("source") != mark:
            found = notebook(text)
            execute(found)
            found.metadata["source"] = mark
            nbformat.write(found, path)
            for number, image in enumerate(figures(found)):
                (folder / f"{page.stem}-{number}.png").write_bytes(image)
        if len(figures(found)) != len(FIGURE.findall(text)):
            raise ValueError(
                f"{page.name}: {len(figures(found))} figures are drawn and {len(FIGURE.findall(text))} shown"
            )
        app.config.tutorials_built[page.stem] = True


def show(app: Sphinx, name: str, source: list[str]) -> None:
    """Puts the figures and a link to the notebook into a page."""
    if not name.startswith(TUTORIAL):
        return
    if name not in app.config.tutorials_built:
        source[0] = FIGURE.sub("", source[0])
        return
    numbers = iter(range(1000))
    shown = FIGURE.sub(lambda m: f"![{' '.join(m[1].split())}](_build/tutorials/{name}-{next(numbers)}.png)", source[0])
    title, purpose, rest = shown.split("\n\n", 2)
    link = f"{{download}}`Download this page as an executed notebook <_build/tutorials/{name}.ipynb>`"
    source[0] = f"{title}\n\n{purpose}\n\n{link}\n\n{rest}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_config_value("tutorials_built", {}, "")
    app.connect("builder-inited", build)
    app.connect("source-read", show)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
