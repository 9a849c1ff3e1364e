"""What notebooks show of tensordicts, in a browser: no fault on any width, and hostile keys are only text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.browser.chromium import PROGRAM, WHY_NOT, Chromium, Page, serve

from tensordict_class import TensorClass
from tensordict_core import TensorDict, lazy_stack
from tensordict_memmap import MemmapDataset

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT)
HOSTILE = "<img src=x onerror=document.title='run'>"
STYLE = """<style>:root{color-scheme:light dark} body{font:14px system-ui;margin:16px}
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}</style>"""


class Point(TensorClass):
    x: torch.Tensor
    label: str


def shown(folder: Path) -> list[Any]:
    """A tensordict, a mapped one, a lazy stack, a tensorclass and a dataset."""
    td = TensorDict({"obs": {"pixels": torch.zeros(8, 3, 4, 4)}, HOSTILE: torch.zeros(8), "text": HOSTILE}, [8])
    dataset = MemmapDataset.create(folder / "rows", TensorDict({"obs": {"pixels": torch.zeros(3, 4, 4)}}))
    stack = lazy_stack([TensorDict({"a": torch.zeros(n)}) for n in (1, 2)])
    return [td, td.memmap(folder / "saved"), stack, Point(torch.zeros(3), HOSTILE, batch_size=[3]), dataset]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("notebook")
    cells = "".join(f"<div>{one._repr_html_()}</div>" for one in shown(folder))
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
    (folder / "index.html").write_text(f"<!doctype html><title>cells</title>{head}{STYLE}{cells}")
    with serve(folder) as address:
        yield f"{address}/index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as started:
        yield started


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_tables_of_notebooks_have_no_fault(browser: Chromium, url: str, width: int, dark: bool) -> None:
    assert browser.open(url, width=width, dark=dark).faults() == []


@pytest.fixture(scope="module")
def page(browser: Chromium, url: str) -> Page:
    return browser.open(url)


def test_every_kind_of_container_is_shown_as_an_unfolded_table(page: Page) -> None:
    tables = "[...document.querySelectorAll('body > div')].map(cell => cell.querySelectorAll('table').length)"
    assert page.evaluate(tables) == [2, 2, 1, 1, 1]
    assert page.evaluate("[...document.querySelectorAll('table')].every(table => table.checkVisibility())")


def test_keys_and_values_run_nothing(page: Page) -> None:
    assert page.evaluate("document.title") == "cells"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE in page.evaluate("document.body.innerText")


def test_a_click_folds_a_table(page: Page) -> None:
    page.evaluate("document.querySelector('summary').click()")
    assert not page.evaluate("document.querySelector('table').checkVisibility()")
