"""Dashboard: publishes the tracked results as pages that need no network, with a landing page of our own.

``python -m benchmarks.dashboard`` builds asv's pages into ``benchmarks/html/asv``, replaces the scripts that they load
from elsewhere by the copies in ``benchmarks/dashboard/vendor``, and writes ``benchmarks/html/index.html``: "Are we
still faster?" with one card for each workload. A machine beside the first one gets a page of its own.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from html import escape
from pathlib import Path
from urllib.parse import quote

from benchmarks.dashboard.series import BEFORE, LEVEL, RESULTS, ROOT, Series, called, load, machines

CONFIGURATION = ROOT / "asv.conf.json"
VENDOR = Path(__file__).parent / "vendor"
SCRIPTS = {
    "jquery-": "jquery.min.js",
    "jquery.flot.min": "jquery.flot.js",
    "jquery.flot.time": "jquery.flot.time.js",
    "jquery.flot.selection": "jquery.flot.selection.js",
    "jquery.flot.categories": "jquery.flot.categories.js",
    "jquery.flot.orderBars": "jquery.flot.orderBars.js",
    "stupidtable": "stupidtable.min.js",
    "md5": "md5.min.js",
    "bootstrap.min.js": "bootstrap.min.js",
    "bootstrap.min.css": "bootstrap.min.css",
}
"""The copy that stands in for an address of asv's page, by a part of its last segment."""
BASELINES = (
    r".*\('(torch|safetensors|reference)'\)",
    r".*(_reference|_plain|_torch|_torch_again|_by_hand)(\(.*\))?(@.*)?$",
)
"""Benchmarks of other libraries: their changes are no regressions of ours."""

LEGIBLE = """
.navbar-default .navbar-text,.navbar-default .navbar-nav>li>a,.navbar-default .navbar-brand{color:#3d4248}
.navbar-default a,#regressions-body a,#summarylist-body a{color:#0550ae}
.btn-default.active,.btn-default.active:hover{background:#2b5f73;color:#fff}
.feed-div{display:none}
"""
"""Colors of asv's pages that its own style makes too pale to read; the feed of regressions is not built."""

WIDTH, HEIGHT, TOP, BOTTOM, SIDE = 340, 132, 10, 10, 8


def configuration(found: list[Series], html: Path, results: Path = RESULTS) -> dict[str, object]:
    """Returns asv's configuration with a threshold for each benchmark, from the noise of its own results."""
    text = CONFIGURATION.read_text()
    known: dict[str, object] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    thresholds = {}
    for series in found:
        logs = [math.log(value) for value in series.seconds["ours"] if value]
        steps = sorted(abs(b - a) for a, b in itertools.pairwise(logs))
        if steps:
            noise = 1.4826 * steps[len(steps) // 2] / math.sqrt(2)
            thresholds[f"{re.escape(series.name)}.*"] = round(max(0.05, math.expm1(3 * noise)), 3)
    return known | {
        "repo": str(ROOT),
        "benchmark_dir": str(ROOT / "benchmarks"),
        "env_dir": str(ROOT / ".asv" / "env"),
        "results_dir": str(results),
        "html_dir": str(html),
        "regressions_first_commits": dict.fromkeys(BASELINES),
        "regressions_thresholds": thresholds,
    }


def publish(found: list[Series], html: Path, results: Path = RESULTS) -> None:
    """Builds asv's pages, and makes them work offline."""
    document = ROOT / ".asv" / "dashboard.conf.json"
    document.parent.mkdir(exist_ok=True)
    document.write_text(json.dumps(configuration(found, html, results), indent=4))
    subprocess.run([sys.executable, "-m", "asv", "publish", "--config", str(document)], cwd=ROOT, check=True)
    keep_confirmed_regressions(found, html)
    shutil.copytree(VENDOR, html / "vendor", dirs_exist_ok=True)
    page = html / "index.html"
    text = re.sub(r'<link rel="alternate"[^>]*>', "", page.read_text())
    page.write_text(offline(text).replace("</head>", f"<style>{LEGIBLE}</style>\n</head>"))


def keep_confirmed_regressions(found: list[Series], html: Path) -> None:
    """Removes from asv's list, which looks at times, the regressions that the ratios to other libraries contradict.

    A commit that was measured on a slower or busier machine has longer times of all libraries, and equal ratios. The
    feed of the same list is removed: nobody subscribes to a folder.
    """
    commits = json.loads((html / "index.json").read_text())["revision_to_hash"]
    known = {series.name: series for series in found}
    path = html / "regressions.json"
    document = json.loads(path.read_text())
    kept = []
    for name, *rest, jumps in document["regressions"]:
        series = known.get(name.split("(")[0])
        real = [jump for jump in jumps if series is None or series.is_slower_since(commits[str(jump[1])])]
        if real:
            kept.append([name, *rest, real])
    path.write_text(json.dumps(document | {"regressions": kept}))
    (html / "regressions.xml").unlink(missing_ok=True)


def offline(page: str) -> str:
    """Replaces every script and style of another host by the copy of it here.

    Raises:
        ValueError: if there is no copy of one, which happens when asv has been updated.
    """

    def local(tag: re.Match[str]) -> str:
        name = tag["url"].rsplit("/", 1)[-1]
        copies = [copy for part, copy in SCRIPTS.items() if part in name]
        if len(copies) != 1:
            raise ValueError(f"no copy of {tag['url']!r} in dashboard/vendor, and a page of asv loads it; add one")
        if tag["name"] == "link":
            return f'<link rel="stylesheet" href="vendor/{copies[0]}">'
        return f'<script src="vendor/{copies[0]}" onerror="js_load_failure()">'

    return re.sub(r'<(?P<name>script|link) [^>]*(?:src|href)="(?P<url>https?://[^"]*)"[^>]*>', local, page)


def graph_address(series: Series, machine: str) -> str:
    """The address of asv's graph of a benchmark, with all contenders in it."""
    chosen = [f"machine={quote(machine)}", *(f"p-contender={quote(repr(name))}" for name in series.seconds)]
    return f"asv/index.html#{series.name}?{'&'.join(chosen)}"


def times(value: float) -> str:
    """Writes a ratio as people say it, with a multiplication sign.

    >>> [times(value)[:-1] for value in (0.8123, 1.5, 23.4)]
    ['0.81', '1.50', '23']
    """
    digits = 0 if value >= 10 else 1 if value >= 3 else 2
    return f"{value:.{digits}f}\N{MULTIPLICATION SIGN}"


def sparkline(series: Series) -> str:
    """Draws the ratios of all contenders over the commits, on a logarithmic axis, with a line where ours is as fast."""
    columns = {name: series.ratios(name) for name in series.seconds if name != "ours"}
    logs = [math.log(value) for column in columns.values() for value in column if value] + [0.0]
    low, high = min(logs) - 0.08, max(logs) + 0.08

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log(value)) / (high - low)

    def x(place: int) -> float:
        return SIDE + (WIDTH - 2 * SIDE) * place / max(1, len(series.commits) - 1)

    one = y(1)
    label = f"{series.title}: time of each contender over the time of ours, at {len(series.commits)} commits"
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    parts.append(f'<rect class="ahead" x="0" y="0" width="{WIDTH}" height="{max(0.0, one):.1f}"/>')
    parts.append(f'<line class="even" x1="0" x2="{WIDTH}" y1="{one:.1f}" y2="{one:.1f}"/>')
    for name, column in columns.items():
        points = [(x(place), y(value)) for place, value in enumerate(column) if value]
        kind = f"{name}{' limit' if name in series.limits else ''}"
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline class="{kind}" points="{path}"/>')
        for place, value in enumerate(column):
            if value:
                commit = series.commits[place]
                told = (
                    f"{commit[:8]} {series.subjects.get(commit, '')}\n{called(name)}: {times(value)} the time of ours"
                )
                title = f"<title>{escape(told)}</title>"
                parts.append(f'<circle class="{name}" cx="{x(place):.1f}" cy="{y(value):.1f}" r="2">{title}</circle>')
    return "".join([*parts, "</svg>"])


def card(series: Series, machine: str) -> str:
    """A workload: its verdict, the ratio to the fastest rival, the graph, and the ratio to each contender."""
    state, verdict = series.verdict()
    ratio, rival = series.headline() or (math.nan, "any rival")
    legend = []
    for name in series.seconds:
        level = series.level(name) if name != "ours" else None
        if level is not None:
            note = f" ({series.less})" if name in series.limits else ""
            legend.append(f'<li><i class="{name}"></i>{called(name)}{note} <b>{times(level)}</b></li>')
    allowed = series.allowed_change()
    limit = f"red if it gets more than {allowed:.0%} slower" if allowed < 10 else "too noisy for a threshold"
    return f"""<article class="{state}">
<h2><a href="{escape(graph_address(series, machine))}">{escape(series.title)}</a></h2>
<p class="about">{escape(series.about)}</p>
<p class="headline"><strong>{times(ratio)}</strong> <span>the speed of {called(rival)}</span></p>
<p class="verdict">{escape(verdict)}</p>
{sparkline(series)}
<ul>{"".join(legend)}</ul>
<p class="note">{escape(series.note)}</p>
<p class="noise">{limit}</p>
</article>"""


def landing(found: list[Series], machine: str, others: dict[str, str]) -> str:
    """The page of one machine.

    Args:
        found: Its benchmarks.
        machine: Its name.
        others: The pages of other machines, by their names.
    """
    states = {series.name: series.verdict()[0] for series in found}
    ordered = sorted(found, key=lambda series: ("red", "grey", "green").index(states[series.name]))
    counts = {state: list(states.values()).count(state) for state in ("green", "red", "grey")}
    answer = (
        f"In {counts['green']} of {len(found)} workloads." if counts["red"] else f"Yes, in {counts['green']} workloads."
    )
    explained = sum(series.loses_by_its_note() for series in found)
    if explained:
        more = f" In {explained}" if explained < counts["red"] else " In the others"
        answer += f"{more}, a library that does less is faster: the red cards say what it leaves out."
    if not counts["red"] and counts["grey"]:
        answer += f" {counts['grey']} are too noisy to tell."
    commits = max((len(series.commits) for series in found), default=0)
    newest = found[0].commits[-1] if found else ""
    links = "".join(f' <a href="{escape(page)}">{escape(name)}</a>' for name, page in others.items())
    rows = "".join(
        f"<tr><td>{escape(series.title)}</td><td>{_time(series.seconds['ours'][-1])}</td>"
        + "".join(f"<td>{_cell(series, name)}</td>" for name in ("torch", "safetensors", "reference"))
        + f"<td>{series.noise():.0%}</td><td>{states[series.name]}</td></tr>"
        for series in found
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Are we still faster?</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>Are we still faster?</h1>
<p class="answer {"mixed" if counts["red"] else "all"}">{answer}</p>
<p>Each graph shows how many times as long another library takes as ours for the same work, at {commits} commits
of this repository, oldest on the left, newest (<code>{newest[:8]}</code>) on the right. Above the dashed line ours is
faster; <code>tensordict</code> is the package of that name on PyPI. At each commit, all libraries were measured in
turns, so a busy or slower machine slows all of them down and leaves the ratios as they are.</p>
<nav><a href="asv/index.html">All graphs of asv</a> <a href="asv/index.html#/regressions">Regressions</a>{links}
<span>machine: {escape(machine)}</span></nav>
</header>
<main>
{"".join(card(series, machine) for series in ordered)}
</main>
<section>
<h2>The numbers</h2>
<div class="wide"><table>
<thead><tr><th>workload</th><th>ours</th><th>torch / ours</th><th>safetensors / ours</th><th>tensordict / ours</th>
<th>noise</th><th>state</th></tr></thead>
<tbody>{rows}</tbody>
</table></div>
<p>A ratio is the median of the last {LEVEL} commits; a ratio in parentheses is to plain torch without a tensordict,
which does less and is no rival. Noise is the standard deviation of the ratio when a commit is measured again. A
workload is red if ours is slower than a rival, or slower than it was at the {BEFORE} commits before, by more than three
standard errors and five percent.</p>
</section>
</body>
</html>
"""


def _cell(series: Series, name: str) -> str:
    level = series.level(name) if name in series.seconds else None
    if level is None:
        return ""
    return f"({times(level)})" if name in series.limits else times(level)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


STYLE = """
:root{color-scheme:light dark;--page:#f7f8fa;--card:#fff;--ink:#1c2128;--soft:#57606a;--line:#d0d7de;--link:#0550ae;
--good:#1a6f37;--bad:#b3261e;--torch:#b35900;--safetensors:#0f766e;--reference:#7a3fb3;--ahead:#eaf5ee}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--card:#161b22;--ink:#e6edf3;--soft:#a3adb8;--line:#30363d;
--link:#79b8ff;--good:#56d364;--bad:#ff8f87;--torch:#f0a35e;--safetensors:#4fd1c5;--reference:#c9a4f2;--ahead:#14261b}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1400px;padding:24px 20px 60px;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{margin:0;font-size:clamp(28px,5vw,44px);line-height:1.15}
header p{max-width:75ch;margin:12px 0;color:var(--soft)}
header .answer{font-size:22px;font-weight:600;color:var(--good)}
header .answer.mixed{color:var(--ink)}
nav{display:flex;flex-wrap:wrap;gap:6px 20px;color:var(--soft)}
a{color:var(--link)}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));column-gap:16px;
margin:24px 0 40px}
article{margin-bottom:16px}
article{background:var(--card);border:1px solid var(--line);border-left:6px solid var(--good);border-radius:8px;
padding:14px 16px;min-width:0;display:grid;grid-template-rows:subgrid;grid-row:span 8;row-gap:0;align-content:start}
article.red{border-left-color:var(--bad)}
article.grey{border-left-color:var(--soft)}
article h2{font-size:17px;line-height:1.3;margin:0}
article h2 a{color:inherit;text-decoration:none}
article h2 a:hover,article h2 a:focus{text-decoration:underline}
article p{margin:4px 0}
.about,.noise,.note{color:var(--soft);font-size:13px}
.headline strong{font-size:32px;line-height:1.1}
.headline span{color:var(--soft);font-size:14px}
.verdict{font-weight:600;color:var(--good)}
.red .verdict{color:var(--bad)}
.grey .verdict{color:var(--soft)}
svg{width:100%;height:auto;display:block;margin:6px 0;border:1px solid var(--line);border-radius:4px}
svg .ahead{fill:var(--ahead)}
svg .even{stroke:var(--soft);stroke-dasharray:4 3}
polyline{fill:none;stroke-width:2;stroke-linejoin:round}
polyline.limit{stroke-dasharray:2 3}
polyline.torch{stroke:var(--torch)}circle.torch{fill:var(--torch)}i.torch{background:var(--torch)}
polyline.safetensors{stroke:var(--safetensors)}circle.safetensors{fill:var(--safetensors)}
i.safetensors{background:var(--safetensors)}
polyline.reference{stroke:var(--reference)}circle.reference{fill:var(--reference)}i.reference{background:var(--reference)}
article ul{list-style:none;display:flex;flex-wrap:wrap;align-content:start;gap:2px 16px;margin:4px 0;padding:0;
font-size:14px}
article i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;background:var(--card)}
th,td{padding:6px 12px;border:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
section p{max-width:75ch;color:var(--soft)}
@media(max-width:600px){th,td{padding:5px 6px;font-size:13px}
td:first-child{white-space:normal;min-width:110px}th{white-space:normal}}
"""


def build(html: Path, results: Path = RESULTS, order: list[str] | None = None) -> Path:
    """Builds all pages into a folder, and returns the landing page."""
    found = machines(results)
    if not found:
        raise SystemExit("no results to show: measure some commits by python -m benchmarks.dashboard.history")
    all_series = {machine: load(machine, results, order) for machine in found}
    shutil.rmtree(html, ignore_errors=True)
    publish(all_series[found[0]], html / "asv", results)
    pages = {machine: "index.html" if i == 0 else f"{machine}.html" for i, machine in enumerate(found)}
    for machine, page in pages.items():
        others = {name: other for name, other in pages.items() if name != machine}
        (html / page).write_text(landing(all_series[machine], machine, others))
    return html / "index.html"
