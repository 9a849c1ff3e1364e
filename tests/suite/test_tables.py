"""Tensorclasses as tables."""

from __future__ import annotations

import torch

from tensordict import TensorClass, TensorDict, to_arrow


class Sample(TensorClass):
    x: torch.Tensor
    label: str


def test_a_tensorclass_is_an_arrow_table():
    table = to_arrow(Sample(x=torch.zeros(2, 3), label=["a", "b"], batch_size=[2]))
    assert table["label"].to_pylist() == ["a", "b"]


def test_a_nested_tensorclass_is_a_column_of_its_rows():
    frame = TensorDict({"p": Sample(x=torch.arange(2), label=["a", "b"], batch_size=[2])}, [2]).to_pandas()
    assert type(frame["p"][1]).__name__ == "Sample" and frame["p"][1].x == 1


def test_a_class_reads_instances_from_tables_and_stores(tmp_path):
    rows = Sample(x=torch.arange(2.0), label=["a", "b"], batch_size=[2])
    rows.to_json(tmp_path / "rows.json")
    again = Sample.from_json(tmp_path / "rows.json")
    assert type(again) is Sample and again.x.tolist() == [0.0, 1.0] and again.label == ["a", "b"]
    stored = rows.to_h5(tmp_path / "rows.h5")
    assert type(stored) is Sample and stored[1].x == 1
