"""Datasets at URLs: rows through a bounded block cache that processes share, and errors that say what happened."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import tempfile
import uuid

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tensordict_core import NonTensorData, TensorDict, lazy_stack
from tensordict_memmap import MemmapDataset, RowSampler, load_memmap, save
from tensordict_memmap.dataset import mirror, remote
from tensordict_memmap.remote import block_cache
from tensordict_memmap.remote.block_cache import BLOCK_BYTES, BlockCache, CachedFile, Spans
from tensordict_memmap.remote.store import Store

fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")

ROWS, WIDTH = 3000, 1000


def content(rows=ROWS):
    number = torch.arange(rows)
    return TensorDict(
        {
            "x": (number[:, None] * 7 + torch.arange(WIDTH)) % 251,
            "deep": TensorDict({"label": number}, [rows]),
            "s": "text",
        },
        [rows],
    )


def ragged(start, stop):
    return lazy_stack(
        [
            TensorDict({"t": torch.arange(n % 700), "s": "w" * (n % 90) + str(n), "n": torch.tensor(n)})
            for n in range(start, stop)
        ]
    )


@pytest.fixture
def url():
    return f"memory://datasets/{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def saved():
    """The URL of a saved tensordict of 24 MB."""
    url = f"memory://datasets/{uuid.uuid4().hex}"
    save(content(), url)
    return url


def allocated(folder):
    return sum(os.stat(os.path.join(at, name)).st_blocks * 512 for at, _, names in os.walk(folder) for name in names)


def test_rows_are_read_as_from_a_local_dataset(saved):
    dataset, expected = MemmapDataset.open(saved), content()
    assert len(dataset) == ROWS and repr(dataset).endswith(f"rows={ROWS})")
    for index in (torch.tensor([5, 2999, 5]), slice(10, 2000, 400), [7, -1], range(3), torch.arange(ROWS) < 4):
        found = dataset[index]
        assert (found == expected[index]).all() and found.batch_size == expected[index].batch_size
        assert not found.is_locked
    assert (dataset.__getitems__([1, 2]) == expected[[1, 2]]).all()
    assert (dataset[17] == expected[17]).all() and dataset[17]["s"] == "text"
    assert dataset[[]].batch_size == (0,)


def test_only_the_blocks_of_the_rows_are_read_and_only_once(saved, monkeypatch):
    dataset = MemmapDataset.open(saved)
    seen, plain = [], Store.read_ranges
    monkeypatch.setattr(Store, "read_ranges", lambda self, wanted: seen.extend(wanted) or plain(self, wanted))
    rows = torch.tensor([0, 1, 1500])
    first = dataset[rows]
    assert 0 < sum(end - start for _, start, end in seen) <= 6 * BLOCK_BYTES
    seen.clear()
    assert (dataset[rows] == first).all() and not seen


def test_the_cache_stays_within_its_bound_and_rows_stay_right(saved, tmp_path):
    limit = 20 * BLOCK_BYTES
    dataset, expected = MemmapDataset.open(saved, cache=tmp_path / "cache", cache_bytes=limit), content()
    generator = torch.Generator().manual_seed(0)
    for size in (1, 5, 64, 256, 1000):  # the last ones need more blocks than the cache holds
        for _ in range(5):
            rows = torch.randint(ROWS, (size,), generator=generator)
            assert (dataset[rows] == expected[rows]).all()
            assert dataset._td.blocks.present_bytes <= limit
    assert allocated(tmp_path) <= limit + (1 << 18)


@pytest.mark.parametrize("width", [1, 8, 100, 256, 4096, 12_288, 65_536, 70_000])
def test_batches_are_right_while_two_readers_remove_the_blocks_of_each_other(url, tmp_path, width):
    """Rows are looked up in groups until a block is removed, also by another object or process."""
    count = 1_500_001 // width + 7
    expected = TensorDict(
        {"x": torch.randint(256, (count, width), dtype=torch.uint8), "n": torch.arange(count)}, [count]
    )
    save(expected, url)
    blocks = 16
    pair = [MemmapDataset.open(url, cache=tmp_path / "cache", cache_bytes=blocks * BLOCK_BYTES) for _ in range(2)]
    assert pair[0]._td.blocks.is_bounded
    generator = torch.Generator().manual_seed(0)
    for step in range(60):
        near = torch.randint(count, (1,), generator=generator) if step % 3 else 0  # often rows that are present
        spread = max(min(count, 300_000 // width), 1)
        rows = (near + torch.randint(spread, (3,), generator=generator)) % count - (count if step % 10 == 9 else 0)
        found = pair[step % 2].__getitems__(rows.tolist())
        assert (found == expected[rows]).all(), step
        assert pair[0]._td.blocks.present_bytes <= blocks * BLOCK_BYTES


def test_rows_beyond_the_last_one_are_refused_by_batches_too(url):
    save(TensorDict({"x": torch.zeros(1000, 100)}, [1000]), url)
    dataset = MemmapDataset.open(url, cache_bytes=4 * BLOCK_BYTES)
    last = dataset.__getitems__([998, 999])
    assert (last == dataset.__getitems__([-2, -1])).all()
    for number in (1000, -1001, 1 << 40):
        with pytest.raises(IndexError):
            dataset.__getitems__([999, number])


def test_the_cache_stays_within_its_bound_where_files_have_no_holes(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(block_cache, "_punch", lambda *_: False)
    limit = 20 * BLOCK_BYTES
    dataset, expected = MemmapDataset.open(saved, cache=tmp_path / "cache", cache_bytes=limit), content()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows = torch.randint(ROWS, (8,), generator=generator)
        assert (dataset[rows] == expected[rows]).all()
        assert dataset._td.blocks.present_bytes <= limit
    assert allocated(tmp_path) <= limit + (1 << 18)


def test_a_full_disk_is_an_error_and_leaves_the_cache_usable(saved, tmp_path, monkeypatch):
    dataset = MemmapDataset.open(saved, cache=tmp_path / "cache")
    plain = os.pwrite

    def fails(fd, data, offset):
        plain(fd, data[: len(data) // 2], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fails)
    with pytest.raises(OSError, match="No space left"):
        dataset[[5, 2000]]
    monkeypatch.undo()
    assert (dataset[[5, 2000]] == content()[[5, 2000]]).all()


@pytest.mark.parametrize(
    "index", [torch.ones(3), torch.ones(2, dtype=torch.bool), [[0, 1]], "x.y", None, ROWS, [-ROWS - 1]]
)
def test_an_index_that_selects_no_rows_is_an_error(saved, index):
    with pytest.raises((IndexError, RuntimeError)):
        MemmapDataset.open(saved)[index]


def test_a_cache_that_holds_no_row_is_refused(saved):
    with pytest.raises(ValueError, match="does not hold the blocks of one row"):
        MemmapDataset.open(saved, cache_bytes=BLOCK_BYTES)


def test_ragged_columns_are_read_within_the_bound_too(tmp_path, url):
    like = TensorDict({"t": torch.zeros(0, dtype=torch.int64), "s": "", "n": torch.tensor(0)})
    with MemmapDataset.create(tmp_path / "local", like, ragged=["t", "s"]) as local:
        local.extend(ragged(0, 1500))
        local.extend(ragged(5000, 5100), commit=False)
        local.upload(url)
        local.commit()
    dataset = MemmapDataset.open(url, cache_bytes=8 * BLOCK_BYTES)
    assert len(dataset) == 1500
    for rows in ([3, 1499, 0], list(range(0, 1500, 31)), list(range(200))):
        batch = dataset[torch.tensor(rows)]
        assert batch["n"].tolist() == rows and batch["s"] == ["w" * (n % 90) + str(n) for n in rows]
        assert [len(part) for part in batch["t"].unbind()] == [n % 700 for n in rows]
        assert all(torch.equal(part, torch.arange(len(part))) for part in batch["t"].unbind())
    assert dataset[95]["s"] == "w" * 5 + "95" and dataset[701]["t"].tolist() == [0]
    assert dataset._td.blocks.present_bytes <= 8 * BLOCK_BYTES


def test_a_copy_of_a_local_dataset_can_be_opened(tmp_path, url):
    with MemmapDataset.create(tmp_path / "local", content(1)[0], capacity=500) as local:
        local.extend(content(100))
        local.extend(content(50), commit=False)
        fs, root = fsspec.url_to_fs(url)
        fs.put(str(tmp_path / "local"), root, recursive=True)  # with rows after the committed ones
        local.commit()
    dataset = MemmapDataset.open(url)
    assert len(dataset) == 100 and (dataset[:] == content(100)).all()


def test_an_upload_loads_as_any_save_and_is_replaced_as_a_whole(tmp_path, url):
    with MemmapDataset.create(tmp_path / "local", content(1)[0], capacity=500) as local:
        local.extend(content(10))
        local.upload(url)
        local.extend(content(10))
        local.upload(url)
        with pytest.raises(RuntimeError, match="existsok=False"):
            local.upload(url, existsok=False)
    assert (load_memmap(url) == content(10)[list(range(10)) * 2]).all()
    assert len(MemmapDataset.open(url)) == 20


def test_a_dataset_without_rows_can_be_uploaded_and_opened(tmp_path, url):
    with MemmapDataset.create(tmp_path / "local", content(1)[0]) as local:
        local.upload(url)
    dataset = MemmapDataset.open(url)
    assert len(dataset) == 0 and dataset[[]].batch_size == (0,)


def test_writing_to_a_url_is_refused(saved, url):
    with pytest.raises(ValueError, match=r"is remote, where rows can be read only; .*upload"):
        MemmapDataset.open(saved, "r+")
    with pytest.raises(ValueError, match="create a local dataset and upload it"):
        MemmapDataset.create(url, content(1)[0])
    dataset = MemmapDataset.open(saved)
    for write in (
        lambda: dataset.extend(content(2)),
        lambda: dataset.append(content(1)[0]),
        lambda: dataset.resize(3),
        lambda: dataset.__setitem__(0, content(1)[0]),
    ):
        with pytest.raises(RuntimeError, match="is remote, where rows can be read only"):
            write()
    with pytest.raises(RuntimeError, match="is remote and read by rows"):
        _ = dataset.tensordict
    with pytest.raises(RuntimeError, match="'x' is a column of the remote dataset"):
        dataset["x"]


def test_one_file_and_nothing_are_refused(url):
    with pytest.raises(FileNotFoundError, match="no saved tensordict"):
        MemmapDataset.open(url)
    save(content(3), f"{url}.safetensors")
    with pytest.raises(ValueError, match="is one file"):
        MemmapDataset.open(f"{url}.safetensors")


def test_a_save_that_replaces_the_dataset_is_an_error_until_it_is_refreshed(url):
    save(content(500), url)
    dataset = MemmapDataset.open(url)
    first = dataset[0]
    save(content(600), url)
    assert (dataset[0] == first).all()  # its block is there
    with pytest.raises(RuntimeError, match="was replaced by another save since this dataset was opened"):
        dataset[499]
    assert dataset.refresh() == 600 and (dataset[599] == content(600)[599]).all()
    assert dataset.refresh() == 600


def test_a_file_that_is_overwritten_in_place_is_an_error(tmp_path, url):
    save(content(500), tmp_path / "local")
    fs, root = fsspec.url_to_fs(url)
    fs.put(str(tmp_path / "local"), root, recursive=True)
    dataset = MemmapDataset.open(url)
    fs.pipe_file(f"{root}/x.memmap", bytes(500 * WIDTH * 8))
    with pytest.raises(RuntimeError, match="was replaced by another save"):
        dataset[3]
    assert dataset.refresh() == 500 and dataset[3]["x"].sum() == 0


def test_refused_credentials_are_reported(saved, monkeypatch):
    class NoCredentialsError(Exception):
        pass

    dataset = MemmapDataset.open(saved)
    for error in (PermissionError("Forbidden"), NoCredentialsError("Unable to locate credentials")):

        def refuses(self, wanted, error=error):
            raise error

        monkeypatch.setattr(Store, "read_ranges", refuses)
        with pytest.raises(PermissionError, match=r"refused the request \(.*\); check the credentials"):
            dataset[0]
        with pytest.raises(PermissionError, match="check the credentials"):
            MemmapDataset.open(saved)


def test_a_temporary_cache_is_removed_with_its_dataset(saved):
    dataset = MemmapDataset.open(saved)
    folder = dataset.path
    dataset[0]
    assert folder.exists()
    del dataset
    gc.collect()
    assert not folder.exists()


def test_an_interrupted_open_leaves_no_temporary_cache(saved, tmp_path, monkeypatch):
    def interrupted(url, root):
        assert os.listdir(tmp_path) and os.stat(root).st_mode & 0o777 == 0o700
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(remote, "mirror", interrupted)
    with pytest.raises(KeyboardInterrupt):
        MemmapDataset.open(saved)
    gc.collect()
    assert not os.listdir(tmp_path)


def test_an_interrupted_open_leaves_nothing_in_the_cache(saved, tmp_path, monkeypatch):
    def interrupted(save, staged, identity):
        assert os.listdir(tmp_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(mirror, "_fill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        MemmapDataset.open(saved, cache=tmp_path)
    assert not os.listdir(tmp_path)


def test_a_cache_is_used_again_by_later_runs(saved, tmp_path, monkeypatch):
    rows = torch.arange(0, ROWS, 100)
    MemmapDataset.open(saved, cache=tmp_path)[rows]
    again = MemmapDataset.open(saved, cache=tmp_path)
    monkeypatch.setattr(BlockCache, "_fetch", lambda self, blocks: pytest.fail("reads again"))
    assert (again[rows] == content()[rows]).all()


def test_pickled_datasets_share_the_cache(saved):
    dataset = MemmapDataset.open(saved)
    other = pickle.loads(pickle.dumps(dataset))
    assert other.path == dataset.path and (other[5] == dataset[5]).all()


def test_a_dataset_that_is_sent_to_another_machine_makes_a_cache_there(url):
    save(content(500), url)
    dataset = MemmapDataset.open(url)
    sent, folder = pickle.dumps(dataset), dataset.path
    del dataset  # its cache is gone, as on another machine
    gc.collect()
    other = pickle.loads(sent)
    assert other.path != folder and (other[5] == content(500)[5]).all()
    save(content(400), url)
    del other
    gc.collect()
    with pytest.raises(RuntimeError, match="was replaced by another save"):
        pickle.loads(sent)


def whole(batch):
    return batch


@pytest.mark.parametrize("limit", [1 << 30, 40 * BLOCK_BYTES])
def test_workers_share_one_bounded_cache(saved, tmp_path, limit):
    dataset = MemmapDataset.open(saved, cache=tmp_path, cache_bytes=limit)
    sampler = RowSampler(dataset, 50, seed=1)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2, collate_fn=whole, multiprocessing_context="fork")
    expected = content()
    seen = []
    for batch in sampler.track(loader):
        rows = batch["deep", "label"]
        assert torch.equal(batch["x"], expected["x"][rows])
        seen += rows.tolist()
    assert sorted(seen) == list(range(ROWS))
    assert dataset._td.blocks.present_bytes <= limit


def _reads(url, cache, seed, failures):
    dataset = MemmapDataset.open(url, cache=cache, cache_bytes=12 * BLOCK_BYTES)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(60):
        rows = torch.randint(ROWS, (8,), generator=generator)
        if not torch.equal(dataset[rows]["x"], (rows[:, None] * 7 + torch.arange(WIDTH)) % 251):
            failures.put(seed)


def test_processes_that_remove_blocks_of_each_other_read_the_right_rows(saved, tmp_path):
    context = multiprocessing.get_context("fork")
    failures = context.SimpleQueue()
    workers = [context.Process(target=_reads, args=(saved, tmp_path, seed, failures)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0] and failures.empty()


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_spans_are_complete_while_they_are_copied(tmp_path_factory, data):
    """The law of the cache: whatever was read before, the copied bytes are those of the store."""
    root = str(tmp_path_factory.mktemp("law"))
    sizes = data.draw(st.lists(st.integers(1, 9 * BLOCK_BYTES), min_size=1, max_size=3))
    store = Store(f"memory://law/{uuid.uuid4().hex}")
    files, wholes = [], []
    for number, size in enumerate(sizes):
        wholes.append(np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8))
        store.write(f"f{number}", wholes[-1].tobytes())
        with open(f"{root}/f{number}", "wb") as file:
            file.truncate(size)
        files.append(CachedFile(f"f{number}", f"f{number}", size))
    limit = data.draw(st.integers(6, 30)) * BLOCK_BYTES
    cache = BlockCache(root, f"{root}/blocks", files, limit, lambda: store, lambda *_: None)
    for _ in range(data.draw(st.integers(1, 8))):
        spans = []
        for number, size in enumerate(sizes):
            pairs = data.draw(
                st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 3 * BLOCK_BYTES)), max_size=2)
            )
            if pairs:
                starts = np.array([start for start, _ in pairs])
                ends = np.minimum(starts + [length for _, length in pairs], size)
                spans.append(Spans(number, starts, ends))
        if not cache.fits(spans):
            continue

        def copy(spans=spans):
            out = []
            for number, starts, ends in spans:
                mapped = np.memmap(f"{root}/f{number}", np.uint8, "r")
                out += [bytes(mapped[a:b]) for a, b in zip(starts, ends, strict=True)]
            return out

        expected = [bytes(wholes[n][a:b]) for n, starts, ends in spans for a, b in zip(starts, ends, strict=True)]
        assert cache.read(spans, copy) == expected
        assert not cache.is_bounded or cache.present_bytes <= limit
    cache.close()


def test_values_that_are_pickled_need_permission_here_too(tmp_path, url):
    from fractions import Fraction

    with pytest.warns(UserWarning, match="is pickled"):
        save(TensorDict({"v": NonTensorData(Fraction(1, 2)), "a": torch.arange(3)}, [3]), url)
    assert MemmapDataset.open(url, allow_pickle=True)[1]["v"] == Fraction(1, 2)
    with pytest.raises(ValueError, match="allow_pickle"):
        MemmapDataset.open(url, allow_pickle=False)
