"""The checker of pages finds the faults that it looks for, each on a page that has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import PROGRAM, WHY_NOT, Chromium, serve

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
PAGES = {
    "good": "<p style='color: #333; background: #fff'>text</p>",
    "console": "<script>console.error('broken')</script>",
    "thrown": "<script>throw new Error('thrown')</script>",
    "missing": "<img src='missing.png'>",
    "leaving": "<script src='http://leaving.invalid/x.js'></script>",
    "wide": "<div id='wide' style='width: 900px'>text</div>",
    "scrolls": "<div style='overflow-x: auto'><div style='width: 900px'>text</div></div>",
    "pale": "<p style='color: #999'>text</p>",
    "through": "<div style='background: #777'><p style='background: rgb(255 255 255 / 0.1); color: #aaa'>x</p></div>",
    "hidden": "<p style='color: #eee; display: none'>text</p>",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as started:
        yield started


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("pages")
    for name, body in PAGES.items():
        head = "<!doctype html><meta name='viewport' content='width=device-width'><link rel='icon' href='data:,'>"
        (folder / f"{name}.html").write_text(f"{head}<title>{name}</title><body>{body}</body>")
    with serve(folder) as address:
        yield address


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("console", "console: broken"),
        ("thrown", "thrown"),
        ("missing", "failed request: 404"),
        ("leaving", "leaves the machine: http://leaving.invalid/x.js"),
        ("wide", "overflow at 400 px: div#wide"),
        ("pale", "contrast below 4.5: p 2.85"),
        ("through", "contrast below 4.5: p"),
    ],
)
def test_a_fault_is_found(browser: Chromium, url: str, name: str, fault: str) -> None:
    assert any(fault in found for found in browser.open(f"{url}/{name}.html", width=400).faults())


@pytest.mark.parametrize("name", ["good", "scrolls", "hidden"])
def test_a_page_without_a_fault_has_none(browser: Chromium, url: str, name: str) -> None:
    assert browser.open(f"{url}/{name}.html", width=400).faults() == []


def test_dark_colors_are_requested(browser: Chromium, url: str) -> None:
    page = browser.open(f"{url}/good.html", dark=True)
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
