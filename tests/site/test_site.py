"""The built site in a browser: no fault on wide and narrow windows, figures are there, search finds guides first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import PROGRAM, WHY_NOT, Chromium, serve

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site; python -m nox -s docs builds it"),
]
PAGES = [
    "index",
    "saving",
    "migration",
    "benchmarks",
    "reference/core",
    "reference/core-TensorDict",
    "reference/tensordict-shape",
    "tutorial-ensembles",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as started:
        yield started


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(SITE) as address:
        yield address


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_fault(browser: Chromium, url: str, name: str, width: int, dark: bool) -> None:
    assert browser.open(f"{url}/{name}.html", width=width, dark=dark).faults() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("index", 1),
        ("tutorial-checkpoints", 1),
        ("tutorial-ensembles", 2),
        ("tutorial-per-sample-gradients", 1),
        ("tutorial-policies", 1),
        ("tutorial-tensorclasses", 1),
    ],
)
def test_the_figures_of_a_page_are_shown(
    browser: Chromium, url: str, name: str, count: int, width: int, dark: bool
) -> None:
    page = browser.open(f"{url}/{name}.html", width=width, dark=dark)
    shown = "[...document.querySelectorAll('article img')].filter(i => i.checkVisibility() && i.naturalWidth > 300)"
    assert page.evaluate(f"{shown}.length") == count
    assert page.evaluate(f"{shown}.every(i => i.alt.length > 20)")


def test_a_tutorial_offers_its_notebook(browser: Chromium, url: str) -> None:
    page = browser.open(f"{url}/tutorial-ensembles.html")
    target = page.evaluate("document.querySelector('a.download').href")
    cells = page.evaluate(f"fetch({target!r}).then(answer => answer.json()).then(notebook => notebook.cells)")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"])


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("save", "saving"),
        ("load", "saving"),
        ("memmap", "saving"),
        ("crash", "saving"),
        ("index", "indexing"),
        ("dataset", "datasets"),
        ("redis", "stores-redis"),
        ("to_module", "parameters"),
        ("TensorDict", "getting-started"),
        ("faq", "faq"),
        ("benchmark", "benchmarks"),
    ],
)
def test_search_finds_guides_before_methods(browser: Chromium, url: str, query: str, first: str) -> None:
    page = browser.open(f"{url}/search.html?q={query}")
    results = "[...document.querySelectorAll('#search-results li a')].map(link => link.getAttribute('href'))"
    page.wait_for(f"{results}.length", 60)  # the best result is shown first, the summary after the last one
    found = [link.split("#")[0].split("?")[0] for link in page.evaluate(results)]
    assert found[0] == f"{first}.html"


def test_code_is_copied_without_prompts(browser: Chromium, url: str) -> None:
    page = browser.open(f"{url}/keys.html")
    assert page.evaluate("document.querySelectorAll('button.copybtn').length") > 3
    # a script may not copy by itself, so the command is caught with the text that it is given
    copied = page.evaluate(
        "new Promise(done => {"
        " document.execCommand = () => done([...document.querySelectorAll('textarea')].pop().value);"
        " document.querySelector('button.copybtn').click(); })"
    )
    assert copied.startswith("import torch") and ">>>" not in copied


def test_a_method_links_its_types_and_its_guide(browser: Chromium, url: str) -> None:
    page = browser.open(f"{url}/reference/tensordict-index.html")
    links = page.evaluate("[...document.querySelectorAll('article a')].map(link => link.getAttribute('href'))")
    assert "../indexing.html" in links
    assert any(link.startswith("https://docs.pytorch.org/docs/stable/") for link in links)


def test_a_guide_links_to_the_reference(browser: Chromium, url: str) -> None:
    page = browser.open(f"{url}/saving.html")
    links = page.evaluate("[...document.querySelectorAll('article a')].map(link => link.getAttribute('href'))")
    assert any(link.startswith("reference/tensordict-save.html#") for link in links)
