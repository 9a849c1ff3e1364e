"""The pictures of the demo: bars as text and as a PNG, and a page with rows of the dataset."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch

OURS, OTHERS = "#1f6feb", "#8b949e"


@dataclass
class Shown:
    """What the page shows of the dataset and the training."""

    images: torch.Tensor
    labels: torch.Tensor
    predicted: torch.Tensor
    accuracy: float
    losses: list[float]
    facts: dict[str, str]


def bars(title: str, row: dict[str, float], width: int = 40) -> str:
    """Draws milliseconds as text, the shortest first.

    >>> print(bars("save", {"torch": 24.0, "ours": 12.0}, width=4).replace(chr(0x2588), "#"))
      save, milliseconds
        ours   ## 12
        torch  #### 24
    """
    longest, names = max(row.values()), max(map(len, row))
    lines = [f"  {title}, milliseconds"]
    for name, value in sorted(row.items(), key=lambda item: item[1]):
        length = max(1, round(width * value / longest))
        lines.append(f"    {name:{names}}  {chr(0x2588) * length} {number(value)}")
    return "\n".join(lines)


def number(value: float) -> str:
    """Formats a number with three significant digits.

    >>> [number(value) for value in (1234.5, 12.34, 0.5678)]
    ['1,234', '12.3', '0.568']
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def chart(times: dict[str, dict[str, float]], path: Path) -> None:
    """Writes the bars as a PNG: a panel for saves and one for opens, each with its own scale."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(times), figsize=(11, 3.2), layout="constrained")
    for panel, (title, row) in zip(panels, times.items(), strict=True):
        found = sorted(row.items(), key=lambda item: -item[1])
        colors = [OURS if name.startswith("ours") else OTHERS for name, _ in found]
        drawn = panel.barh([name for name, _ in found], [value for _, value in found], color=colors)
        panel.bar_label(drawn, [f"{number(value)} ms" for _, value in found], padding=4, fontsize=9)
        panel.set_title(f"{title}: shorter is better", loc="left", fontsize=11)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.set_xticks([])
        panel.margins(x=0.18)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def png(image: torch.Tensor) -> bytes:
    """Encodes grey levels from 0 (paper) to 16 (ink) as a PNG (ISO/IEC 15948)."""
    height, width = image.shape
    grey = (255 - image.to(torch.int64) * 255 // 16).clamp(0, 255)
    lines = b"".join(b"\0" + bytes(line) for line in grey.tolist())

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def inline(data: bytes) -> str:
    """Returns a PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


def pictures(shown: Shown, count: int = 60) -> str:
    """Returns the first test digits as figures, those that were misread in front."""
    wrong = (shown.predicted != shown.labels).nonzero().flatten().tolist()
    rows = [*wrong, *(i for i in range(len(shown.labels)) if i not in wrong)][:count]
    figures = []
    for i in rows:
        label, predicted = int(shown.labels[i]), int(shown.predicted[i])
        kind, said = ("right", f"{label}") if label == predicted else ("wrong", f"{predicted}, is {label}")
        image = f'<img src="{inline(png(shown.images[i]))}" alt="a {label}">'
        figures.append(f'<figure class="{kind}">{image}<figcaption>{said}</figcaption></figure>')
    return "".join(figures)


def page(shown: Shown, times: dict[str, dict[str, float]], picture: bytes) -> str:
    """Returns the whole page, which needs no other file and no network."""
    losses = ", ".join(f"{loss:.3f}" for loss in shown.losses)
    right = f"{shown.accuracy:.1%} accuracy on {len(shown.labels)} test digits"
    told = shown.facts | {"training": f"mean loss of each epoch {losses}; {right}"}
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in told.items())
    head = "".join(f"<th>{escape(title)}, ms</th>" for title in times)
    rows = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{number(row[name])}</td>' for row in times.values())}</tr>"
        for name in next(iter(times.values()))
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Results of the demo</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<h1>Results of the demo</h1>
<dl>{facts}</dl>
<h2>Rows of the dataset, and the predictions of the classifier</h2>
<div class="rows">{pictures(shown)}</div>
<h2>Time to save and to open the same weights, measured in this run</h2>
<img class="chart" src="{inline(picture)}" alt="Bars of the times in the table below">
<div class="wide"><table><thead><tr><th>library</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<p>Medians over the rounds; each round runs every library once, in random order. A save writes to a new path, in the
page cache. Opening maps the file in each library (torch with <code>mmap=True</code>): values are read on first use.</p>
</body>
</html>
"""


STYLE = """
body{margin:0 auto;max-width:1000px;padding:24px 20px 60px;background:#fff;color:#1c2128;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:clamp(26px,5vw,40px);line-height:1.2}
h2{margin-top:36px;font-size:20px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:6px 20px}
dt{font-weight:600}
dd{margin:0}
.rows{display:grid;grid-template-columns:repeat(auto-fill,minmax(76px,1fr));gap:10px}
figure{margin:0;text-align:center;border:1px solid #d0d7de;border-radius:6px;padding:6px}
figure img{width:56px;height:56px;image-rendering:pixelated}
figcaption{font-size:14px}
.wrong{border-color:#b3261e;background:#fdf0ef}
.wrong figcaption{color:#b3261e;font-weight:600}
.chart{max-width:100%;height:auto}
.wide{overflow-x:auto}
table{border-collapse:collapse}
th,td{padding:6px 14px;border:1px solid #d0d7de;text-align:right}
th:first-child,td:first-child{text-align:left}
@media(max-width:600px){dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:10px}}
"""
