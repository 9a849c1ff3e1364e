"""Migration: the directive ``differences`` shows the rows of ``differences.md`` that belong to what a reader does.

Groups are patterns of the first column, tried in order, so that a new row has a place; the last group takes the rest.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PAGE = Path(__file__).parents[1] / "differences.md"
GROUPS = {
    "import": r"import |prototype|package is not installed|TensorDictPipe",
    "stores": r"h5|zarr|store|Persistent|parquet|json|pandas|csv|Redis",
    "modules": r"Params|to_module|from_module|EnsembleModule|Sequential|Probabilistic|out_keys|in_keys|get_dist"
    r"|Truncated|CudaGraph|load_state_dict|parameters of",
    "tensorclasses": r"tensorclass|TensorClass|TypedTensorDict|autocast|nocast|tensor_only|dataclass|tc[.\[]"
    r"|instance of a class|a field ",
    "disk": r"save|load|memmap|consolidat|file|pickle|append|Memory",
    "lazy": r"lazy|stack|Stack",
    "transforms": r"vmap|compile|export|UnbatchedTensor",
    "nontensor": r"NonTensor|non-tensor|MetaData|\"s\"|names\"\]|data\.where",
    "rest": r"",
}


def rows() -> list[list[str]]:
    """Returns the rows of the table of differences as cells."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[1:]]


def grouped() -> dict[str, list[list[str]]]:
    """Returns the rows by group."""
    found: dict[str, list[list[str]]] = {name: [] for name in GROUPS}
    for row in rows():
        found[next(name for name, pattern in GROUPS.items() if re.search(pattern, row[0]))].append(row)
    return found


class Differences(SphinxDirective):
    """Shows the rows of a group."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns the table."""
        self.env.note_dependency(str(PAGE))
        head = ["| case | the reference | these packages |", "|---|---|---|"]
        lines = head + [f"| {' | '.join(row[:3])} |" for row in grouped()[self.arguments[0]]]
        parent = nodes.Element()
        self.state.nested_parse(StringList(lines, str(PAGE)), 0, parent)
        return parent.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    app.add_directive("differences", Differences)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
