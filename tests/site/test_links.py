"""The links of the built site: every page, file and anchor that a page points to is there."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
built = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site; python -m nox -s docs builds it")


class Links(HTMLParser):
    """Collects what a page points to, and the anchors that it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value and (name in ("id", "name") and tag != "meta"):
                self.anchors.add(value)
            if value and name in ("href", "src"):
                self.targets.add(value)


def broken(site: Path) -> list[str]:
    """The links of all pages of a site that lead nowhere; links to other sites are left out."""
    pages = {page.resolve(): Links(page) for page in site.rglob("*.html") if "_sources" not in page.parts}
    found = []
    for page, links in pages.items():
        for target in sorted(links.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            if not file.exists():
                found.append(f"{page.relative_to(site.resolve())}: {target}")
            elif anchor and file in pages and anchor not in pages[file].anchors:
                found.append(f"{page.relative_to(site.resolve())}: {target} (no such anchor)")
    return found


@built
def test_every_internal_link_of_the_site_leads_somewhere():
    assert len(list(SITE.rglob("*.html"))) > 100
    assert broken(SITE) == []


def test_links_to_absent_pages_and_anchors_are_found(tmp_path):
    (tmp_path / "there.html").write_text('<h1 id="here">x</h1><a href="#nowhere">1</a><a href="#here">2</a>')
    links = (
        '<a href="there.html#here">1</a><a href="there.html#gone">2</a><img src="gone.png"><a href="https://x.y">3</a>'
    )
    (tmp_path / "index.html").write_text(links)
    assert broken(tmp_path) == [
        "index.html: gone.png",
        "index.html: there.html#gone (no such anchor)",
        "there.html: #nowhere (no such anchor)",
    ]
