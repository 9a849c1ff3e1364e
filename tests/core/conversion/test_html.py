"""``_repr_html_`` and key completion: what notebooks show of a tensordict."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import torch

from tensordict_core import TensorDict, UnbatchedTensor, lazy_stack

VOID = {"br", "hr", "img"}


class Balanced(HTMLParser):
    """Collects the texts of cells, and checks that each tag is closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.cells, self.tags = [], [], set()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        if tag in ("td", "summary"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "summary"} & set(self.open[-2:]):
            self.cells[-1] += data


def cells(td):
    return Balanced(td._repr_html_()).cells


def test_a_row_shows_shape_dtype_device_bytes_and_storage():
    td = TensorDict({"a": torch.zeros(3, 2), "b": {"c": torch.ones(3).share_memory_()}, "s": "text"}, [3])
    found = cells(td)
    assert found[0] == "TensorDict, batch_size=[3]: 3 entries, 36 B"
    assert found[1:7] == ["a", "[3, 2]", "float32", "cpu", "24 B", "memory"]
    assert found[7:9] == ["s", "str 'text'"]
    assert found[9:] == [
        "b · TensorDict, batch_size=[3]: 1 entry, 12 B",
        *("c", "[3]", "float32", "cpu", "12 B", "shared memory"),
    ]


def test_lazy_stacks_show_sizes_that_differ_and_keys_of_some_elements():
    parts = [TensorDict({"q": torch.zeros(n), **({"own": torch.zeros(4)} if n == 2 else {})}) for n in (1, 2)]
    found = cells(lazy_stack(parts))
    assert "LazyStackedTensorDict, batch_size=[2], stack_dim=0: 1 entry, 28 B" in found
    assert found[1:7] == ["q", "[2, *]", "float32", "cpu", "12 B", "memory"]
    assert any("own" in text for text in found)


@pytest.mark.parametrize("key", ["<script>alert(1)</script>", "</td></table>", "\"'&<", "<img src=x onerror=y>"])
def test_keys_and_values_are_only_ever_text(key):
    td = TensorDict({key: torch.zeros(1), "n": {key: {key: torch.zeros(1)}}, "v": key})
    html = td._repr_html_()
    assert Balanced(html).tags <= {"div", "details", "summary", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert key in Balanced(html).cells and f"str {key!r}" in Balanced(html).cells


def test_a_value_whose_repr_raises_hides_no_other_entry():
    class Broken:
        def __repr__(self):
            raise RuntimeError("no repr")

    page = TensorDict({"broken": Broken(), "x": torch.zeros(3)})._repr_html_()
    assert "Broken whose repr raises RuntimeError" in page and "float32" in page


def test_deeply_nested_tensordicts_can_be_printed():
    td = TensorDict({"a": torch.zeros(1)})
    for _ in range(170):
        td = TensorDict({"n": td})
    assert repr(td).count("n: TensorDict(") == 170
    assert td._repr_html_().count("<details") == 171


def test_nested_tables_are_unfolded_in_small_tensordicts():
    small = TensorDict({"a": {"b": torch.zeros(1)}})
    large = TensorDict({"a": {str(n): torch.zeros(1) for n in range(20)}})
    assert small._repr_html_().count("<details open") == 2
    assert large._repr_html_().count("<details open") == 1 and large._repr_html_().count("<details") == 2


def test_nothing_is_read_or_copied(monkeypatch):
    td = lazy_stack([TensorDict({"a": torch.zeros(1000)}) for _ in range(2)])
    monkeypatch.setattr(torch, "stack", lambda *a, **k: pytest.fail("a stack was copied"))
    assert "7.8 KiB" in td._repr_html_()


def test_views_ragged_and_unbatched_entries_and_long_tensordicts_are_shown():
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    td = TensorDict({"n": ragged, "u": UnbatchedTensor(torch.zeros(2))}, [2])
    assert "20 B" in cells(td)
    view = TensorDict({"a": torch.zeros(3, 2)}, [3])._get_sub_tensordict(0)
    assert cells(view)[1:3] == ["a", "[2]"]
    many = TensorDict({str(n): torch.zeros(1) for n in range(1000)})
    assert re.search("and 800 more entries", many._repr_html_())


def test_notebooks_complete_nested_keys():
    td = TensorDict({"a": torch.zeros(1), "b": {"c": {"d": torch.zeros(1)}}})
    assert td._ipython_key_completions_() == ["a", "b", ("b", "c"), ("b", "c", "d")]
