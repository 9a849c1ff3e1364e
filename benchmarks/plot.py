"""Bar charts of times as SVG, without a plotting library: a panel for each row, shorter is better."""

from __future__ import annotations

from html import escape
from statistics import median

WIDTH, LEFT, RIGHT, BAR, GAP, TITLE = 860, 190, 90, 16, 4, 30
OURS, OTHERS, LIMIT = "#2a6fbb", "#b9bec6", "#e2b34d"


def bars(times: dict[str, dict[str, dict[str, list[float]]]], rows: tuple[str, ...]) -> str:
    """Draws the medians of some rows.

    Args:
        times: milliseconds by workload, row and column.
        rows: the rows to draw, each in a panel with its own scale.
    """
    parts: list[str] = []
    y = 10
    for title, found in times.items():
        for row in rows:
            cells = {column: median(samples) for column, samples in found.get(row, {}).items() if samples}
            if not cells:
                continue
            parts.append(_text(10, y + 18, f"{row[:1].upper()}{row[1:]}: {title}", "title"))
            y += TITLE
            longest = max(cells.values())
            for column, time in sorted(cells.items(), key=lambda cell: cell[1]):
                length = max(1.0, (WIDTH - LEFT - RIGHT) * time / longest)
                color = OURS if column.startswith("ours") else LIMIT if column.startswith("limit") else OTHERS
                parts.append(_text(LEFT - 6, y + BAR - 4, column, "name"))
                parts.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{color}"/>')
                parts.append(_text(LEFT + length + 6, y + BAR - 4, _milliseconds(time), "time"))
                y += BAR + GAP
            y += 12
    style = (
        "text{font:12px system-ui,sans-serif;fill:#30343b}.title{font-weight:600}.name{text-anchor:end}"
        "@media(prefers-color-scheme:dark){text{fill:#d5d9e0}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>", ""])


def _milliseconds(time: float) -> str:
    return f"{time:,.0f} ms" if time >= 100 else f"{time:.3g} ms"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}">{escape(text)}</text>'
