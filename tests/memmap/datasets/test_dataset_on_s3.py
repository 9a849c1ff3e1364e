"""Datasets on S3: rows by range requests against a server of the S3 protocol, replacement, and refused credentials."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from tensordict_core import TensorDict, lazy_stack
from tensordict_memmap import MemmapDataset, RowSampler
from tensordict_memmap.remote.block_cache import BLOCK_BYTES
from tensordict_memmap.remote.store import Store

s3fs = pytest.importorskip("s3fs", reason="s3:// needs s3fs")


def row(number):
    return TensorDict({"x": torch.full((500,), number), "s": str(number), "t": torch.arange(number % 4)})


@pytest.fixture
def url(bucket, tmp_path):
    with MemmapDataset.create(tmp_path / "local", row(0), ragged=["s", "t"]) as local:
        local.extend(lazy_stack([row(number) for number in range(400)]))
        local.upload(f"{bucket}/{tmp_path.name}")
    return f"{bucket}/{tmp_path.name}"


def check(batch, numbers):
    assert batch["s"] == [str(n) for n in numbers] and batch["x"][:, 0].tolist() == list(numbers)
    assert [part.tolist() for part in batch["t"].unbind()] == [list(range(n % 4)) for n in numbers]


def test_rows_are_read_by_few_requests_and_then_from_the_cache(url, monkeypatch):
    dataset = MemmapDataset.open(url, cache_bytes=10 * BLOCK_BYTES)
    seen, plain = [], Store.read_ranges
    monkeypatch.setattr(Store, "read_ranges", lambda self, wanted: seen.extend(wanted) or plain(self, wanted))
    check(dataset[[5, 399, 5]], [5, 399, 5])
    assert 0 < len(seen) <= 5
    seen.clear()
    check(dataset[[6, 398]], [6, 398])
    assert not seen
    check(dataset[:], range(400))
    assert dataset._td.blocks.present_bytes <= 10 * BLOCK_BYTES


def whole(batch):
    return batch


def test_forked_workers_read_through_one_cache(url):
    dataset = MemmapDataset.open(url)
    dataset[0]  # the parent has a connection, which workers cannot use
    sampler = RowSampler(dataset, 50, seed=3)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2, collate_fn=whole, multiprocessing_context="fork")
    assert sorted(int(text) for batch in sampler.track(loader) for text in batch["s"]) == list(range(400))


def test_a_replaced_dataset_is_an_error_until_it_is_refreshed(url, tmp_path):
    dataset = MemmapDataset.open(url)
    with MemmapDataset.open(tmp_path / "local", "r+") as local:
        local.resize(100)
        local.upload(url)
    with pytest.raises(RuntimeError, match="was replaced by another save"):
        dataset[300]
    assert dataset.refresh() == 100
    check(dataset[[99]], [99])


def test_missing_credentials_are_reported(url, monkeypatch):
    import fsspec

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = fsspec.config.conf["s3"]
    monkeypatch.setitem(fsspec.config.conf, "s3", {k: v for k, v in options.items() if k not in ("key", "secret")})
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(PermissionError, match="check the credentials"):
        MemmapDataset.open(url)
    s3fs.S3FileSystem.clear_instance_cache()
