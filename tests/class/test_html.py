"""What notebooks show of a tensorclass."""

from __future__ import annotations

import torch

from tensordict_class import TensorClass


class Point(TensorClass):
    x: torch.Tensor
    label: str = "k"


def test_a_tensorclass_is_shown_under_its_name_and_completes_its_fields():
    point = Point(torch.zeros(2))
    html = point._repr_html_()
    assert "<summary><strong>Point, batch_size=[]</strong>: 2 entries, 8 B</summary>" in html and "float32" in html
    assert point._ipython_key_completions_() == ["x", "label"]
