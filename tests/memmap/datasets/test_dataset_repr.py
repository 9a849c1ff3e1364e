"""What a dataset says about itself: columns, shapes, rows and bytes, as text and as HTML."""

from __future__ import annotations

import os
import shutil

import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset

ROW = TensorDict({"image": torch.zeros(2, 3), "about": {"label": torch.tensor(0)}})


def test_the_text_names_columns_shapes_bytes_and_rows(tmp_path):
    dataset = MemmapDataset.create(tmp_path / "x", ROW)
    dataset.extend(ROW.expand(5))
    for one in (dataset, MemmapDataset.open(tmp_path / "x")):
        assert repr(one) == (
            "MemmapDataset(\n    image: float32[2, 3], 120 bytes,\n    about.label: int64[], 40 bytes,\n"
            f"    path={os.path.realpath(tmp_path / 'x')!r}, bytes=160, rows=5)"
        )


def test_rings_and_ragged_columns_are_described_too(tmp_path):
    ring = MemmapDataset.create(tmp_path / "ring", TensorDict({"a": torch.tensor(0)}), capacity=3, ring=True)
    ring.extend(TensorDict({"a": torch.arange(2)}, [2]))
    assert "a: int64[], 16 bytes" in repr(ring) and repr(ring).endswith("bytes=16, rows=2)")
    row = TensorDict({"text": "", "tokens": torch.zeros(0, dtype=torch.int64), "n": torch.tensor(0)})
    with MemmapDataset.create(tmp_path / "texts", row, ragged=["text", "tokens"]) as texts:
        texts.append(TensorDict({"text": "ab", "tokens": torch.arange(3), "n": torch.tensor(1)}))
    said = repr(MemmapDataset.open(tmp_path / "texts"))
    assert "tokens: int64[*], 24 bytes" in said and "text: str, 2 bytes" in said and "n: int64[], 8 bytes" in said


def test_the_html_escapes_keys_and_paths(tmp_path):
    dataset = MemmapDataset.create(tmp_path / "<i>", TensorDict({"<script>": torch.zeros(1)}))
    html = dataset._repr_html_()
    assert "&lt;script&gt;" in html and "<script" not in html and "<i>" not in html and "0 rows" in html


def test_a_dataset_whose_folder_was_removed_has_a_repr(tmp_path):
    dataset = MemmapDataset.create(tmp_path / "x", ROW)
    shutil.rmtree(tmp_path / "x")
    assert repr(dataset).startswith("MemmapDataset('")
