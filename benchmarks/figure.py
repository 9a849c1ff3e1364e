"""Draws the figure of the README from the measured tables: ``python -m benchmarks.figure``.

`benchmarks.compare` fills ``docs/benchmarks.md``; this reads the table of one workload from there and draws the best
time of each library to save it and to open it, once for light and once for dark pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
FOLDER = ROOT / "docs" / "_static"
WORKLOAD = "A"
ROWS = {"save": "Save", "open": "Open"}
LIBRARIES = {
    "this library": ("ours, one file", "ours, a file per leaf"),
    "safetensors": ("safetensors",),
    "tensordict 0.15.3": ("reference, consolidated", "reference", "reference, 16 threads", "reference, archive"),
    "torch": ("torch.save, no CRC", "torch.save", "torch.load(mmap=True)"),
}
"""The bars, and the measured columns of which each shows the best."""

WIDTH, NARROW, HEIGHT, LEFT, BAR, GAP = 760, 400, 236, 150, 28, 10
PANEL = 48 + len(LIBRARIES) * (BAR + GAP)
COLORS = {
    "light": {"text": "#24292f", "soft": "#57606a", "ours": "#2a6fbb", "others": "#b6bdc6"},
    "dark": {"text": "#e6edf3", "soft": "#a3adb8", "ours": "#6cabf0", "others": "#59636e"},
}


def tables(page: str) -> dict[str, dict[str, dict[str, float]]]:
    """Returns the measured times of a page: milliseconds by workload, row and column."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    columns: list[str] = []
    title = ""
    for line in page.partition("<!-- measured: all -->")[2].partition("<!-- end -->")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-:"):
            continue
        if cells[0].endswith(", milliseconds"):
            title, columns = cells[0].removesuffix(", milliseconds"), cells[1:]
            found[title] = {}
        else:
            times = zip(columns, cells[1:], strict=False)
            found[title][cells[0]] = {name: float(time.replace(",", "")) for name, time in times if time}
    return found


def bars(page: str) -> tuple[str, dict[str, dict[str, float]]]:
    """Returns the title of the workload, and the best time of each library for each panel."""
    [title] = [name for name in tables(page) if re.match(rf"{WORKLOAD}: ", name)]
    times = tables(page)[title]
    panels = {
        panel: {name: min(times[row][c] for c in columns if c in times[row]) for name, columns in LIBRARIES.items()}
        for row, panel in ROWS.items()
    }
    return title.partition(": ")[2], panels


def drawn(title: str, panels: dict[str, dict[str, float]], scheme: str, narrow: bool = False) -> str:
    """Returns the figure as SVG in the colors of a scheme; in a narrow one the panels are below each other."""
    colors = COLORS[scheme]
    width, height = (NARROW, HEIGHT + PANEL + 20) if narrow else (WIDTH, HEIGHT)
    room = (width - LEFT) / (1 if narrow else len(panels))
    lines = [f"Milliseconds for {title}", "shorter is better"]
    texts = lines if narrow else [f"{lines[0]}; {lines[1]}"]
    parts = [_text(0, 18 + 20 * line, text, colors["text"], "title") for line, text in enumerate(texts)]
    for column, (panel, times) in enumerate(panels.items()):
        left = LEFT if narrow else LEFT + column * room
        top = 52 + (column * PANEL + 20 if narrow else 0)
        parts.append(_text(left, top, panel, colors["text"], "title"))
        for row, (name, time) in enumerate(times.items()):
            y = top + 12 + row * (BAR + GAP)
            length = max(2.0, (room - 90) * time / max(times.values()))
            first = name == next(iter(LIBRARIES))
            if narrow or column == 0:
                parts.append(_text(LEFT - 12, y + 19, name, colors["text"], "name" + " ours" * first))
            fill = colors["ours" if first else "others"]
            parts.append(f'<rect x="{left:.0f}" y="{y}" width="{length:.1f}" height="{BAR}" rx="3" fill="{fill}"/>')
            parts.append(_text(left + length + 8, y + 19, f"{time:.3g}", colors["text"], "ours" * first))
    parts.append(_text(0, height - 8, "Medians on 2 cores, files in the page cache", colors["soft"], "note"))
    style = (
        "text{font:14px system-ui,-apple-system,Segoe UI,sans-serif}.title{font-weight:600}.name{text-anchor:end}"
        ".ours{font-weight:600}.note{font-size:12px}"
    )
    label = f"Bar chart of the milliseconds to save and to open {title}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{escape(label)}">'
    )
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, color: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.0f}" fill="{color}" class="{kind}">{escape(text)}</text>'


def files(title: str, panels: dict[str, dict[str, float]]) -> dict[str, str]:
    """Returns the figure for each scheme and width, by file name."""
    return {
        f"save-and-open-{scheme}{'-narrow' * narrow}.svg": drawn(title, panels, scheme, narrow)
        for scheme in COLORS
        for narrow in (False, True)
    }


def main() -> None:
    title, panels = bars(PAGE.read_text())
    for name, text in files(title, panels).items():
        (FOLDER / name).write_text(text)
        print(f"wrote {(FOLDER / name).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
