"""Rows that tell which they are, and a dataset of them."""

from __future__ import annotations

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset


def _rows(start: int, stop: int) -> TensorDict:
    """Rows that say in every leaf which they are."""
    number = torch.arange(start, stop)
    return TensorDict(
        {
            "id": number,
            "image": number.to(torch.uint8)[:, None, None].expand(-1, 4, 5),
            "deep": {"half": number.to(torch.bfloat16)[:, None].expand(-1, 3), "er": {"done": number % 2 == 0}},
            "split": "train",
        },
        batch_size=[stop - start],
    ).auto_batch_size_(1)


def _row(number: int) -> TensorDict:
    return _rows(number, number + 1)[0]


def _alike(a, b) -> bool:
    return list(a.keys(True, True)) == list(b.keys(True, True)) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(a.values(True, True), b.values(True, True), strict=True)
    )


@pytest.fixture(scope="session")
def rows():
    """Makes the rows from one number to another."""
    return _rows


@pytest.fixture(scope="session")
def row():
    """Makes one row."""
    return _row


@pytest.fixture(scope="session")
def alike():
    """Whether two tensordicts have the same keys and values."""
    return _alike


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def dataset(path):
    with MemmapDataset.create(path, _row(0)) as made:
        yield made
