"""Planner: how the time to plan a sharded save grows with the leaves and the ranks, as a table and a figure.

``python -m benchmarks.memmap.planner`` measures, fills the table of ``docs/distributed-checkpoints.md`` and draws the
figure beside it; with ``--draw`` it draws the table that is there. Ranks are simulated in one process, and times are
processor time, so other programs do not disturb them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.memmap.distributed import plan

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "distributed-checkpoints.md"
FIGURE = ROOT / "docs" / "_static" / "planner.svg"
LEAVES = (12_500, 25_000, 50_000, 100_000)
RANKS = (16, 32, 64)
START, END = "<!-- measured: planner -->\n", "<!-- end -->"

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 260, 50, 90, 14, 44
COLORS = ("#9db7d5", "#5c8fc7", "#2a6fbb")


def measure(repeats: int) -> dict[int, dict[int, tuple[float, float]]]:
    """The least seconds of the coordinator and of one rank, by leaves and ranks."""
    plan(1000, 2)  # imports
    return {
        leaves: {ranks: min(plan(leaves, ranks)[1::-1] for _ in range(repeats)) for ranks in RANKS} for leaves in LEAVES
    }


def table(times: dict[int, dict[int, tuple[float, float]]]) -> str:
    """The times as a Markdown table."""
    names = [f"coordinator of {ranks} ranks" for ranks in RANKS]
    lines = [f"| leaves | {' | '.join(names)} | each rank |", "|---:|" + "---:|" * (len(RANKS) + 1)]
    for leaves, by_ranks in times.items():
        own = min(one for _, one in by_ranks.values())
        cells = [f"{seconds:.2f} s" for seconds, _ in by_ranks.values()]
        lines.append(f"| {leaves:,} | {' | '.join(cells)} | {own:.2f} s |")
    return "\n".join(lines) + "\n"


def read(page: str) -> dict[int, list[float]]:
    """The seconds of the coordinator in the table of a page, by leaves, one for each of `RANKS`."""
    found = {}
    for line in page.partition(START)[2].partition(END)[0].splitlines()[2:]:
        leaves, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
        found[int(leaves.replace(",", ""))] = [float(cell.removesuffix(" s")) for cell in cells[: len(RANKS)]]
    return found


def draw(times: dict[int, list[float]]) -> str:
    """The figure of the times: a line for each number of ranks, over the number of leaves."""
    most, longest = max(times), max(map(max, times.values()))
    top = next(step for step in (0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0) if step >= longest)

    def x(leaves: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * leaves / most

    def y(seconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / top

    parts = []
    for part in range(5):
        seconds = top * part / 4
        parts.append(f'<path class="grid" d="M{LEFT} {y(seconds):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, y(seconds) + 4, f"{seconds:g} s", "end"))
    parts += [_text(x(leaves), HEIGHT - BOTTOM + 18, f"{leaves:,}", "middle") for leaves in times]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "leaves", "middle"))
    last = HEIGHT
    for number, (ranks, color) in reversed(list(enumerate(zip(RANKS, COLORS, strict=True)))):
        points = [(x(leaves), y(seconds[number])) for leaves, seconds in sorted(times.items())]
        line = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{line}"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{color}"/>' for across, up in points]
        place = points[-1][1] + 4 if last == HEIGHT else max(points[-1][1] + 4, last + 15)
        parts.append(_text(WIDTH - RIGHT + 8, place, f"{ranks} ranks", "start"))
        last = place
    style = (
        "text{font:12px system-ui,sans-serif;fill:#30343b}.grid{stroke:#8886;stroke-width:1}"
        "@media(prefers-color-scheme:dark){text{fill:#d5d9e0}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw the table of the page, without measuring")
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    page = PAGE.read_text()
    if not options.draw:
        before, _, rest = page.partition(START)
        page = before + START + table(measure(options.repeats)) + END + rest.partition(END)[2]
        PAGE.write_text(page)
    FIGURE.write_text(draw(read(page)))


if __name__ == "__main__":
    main()
