"""Progress bars: by default on a terminal and after two seconds, otherwise as ``pbar=`` says."""

from __future__ import annotations

import io

import pytest
import torch

from tensordict_core import TensorDict
from tensordict_memmap import MemmapDataset, convert
from tensordict_memmap.cli.convert import save_as
from tensordict_memmap.engine import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def td():
    return TensorDict({str(n): torch.zeros(1 << 18) for n in range(8)})


def errors_on(shown, monkeypatch):
    """Makes it the standard error, with a delay that any save exceeds; pytest undoes that of a fixture."""
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(progress, "_DELAY", 1e-9)
    return shown


@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz"])
def test_a_long_save_shows_a_bar_on_a_terminal_by_default(tmp_path, td, monkeypatch, name):
    terminal = errors_on(Terminal(), monkeypatch)
    td.save(tmp_path / name, pbar=False)
    assert not terminal.getvalue()
    td.save(tmp_path / name)
    assert "save" in terminal.getvalue() and "100%" in terminal.getvalue()


def test_conversion_shows_one_too(tmp_path, td, monkeypatch):
    terminal = errors_on(Terminal(), monkeypatch)
    td.save(tmp_path / "x", pbar=False)
    convert(tmp_path / "x", tmp_path / "y.safetensors", pbar=False)
    assert not terminal.getvalue()
    convert(tmp_path / "x", tmp_path / "z.bin", "consolidated")
    assert "save" in terminal.getvalue()


@pytest.mark.parametrize("ring", [False, True])
def test_so_do_rows_of_a_dataset(tmp_path, monkeypatch, ring):
    terminal = errors_on(Terminal(), monkeypatch)
    rows = TensorDict({"x": torch.zeros(4, 1 << 20)}, [4])
    dataset = MemmapDataset.create(tmp_path / "x", rows[0], capacity=8, ring=ring)
    dataset.extend(rows, pbar=False)
    assert not terminal.getvalue()
    dataset.extend(rows)
    assert "100%" in terminal.getvalue()


def test_a_short_save_shows_none(tmp_path, td, monkeypatch):
    terminal = errors_on(Terminal(), monkeypatch)
    monkeypatch.setattr(progress, "_DELAY", 60)
    td.save(tmp_path / "x")
    assert not terminal.getvalue()


def test_a_save_in_the_background_shows_one_on_request_only(tmp_path, td, monkeypatch):
    terminal = errors_on(Terminal(), monkeypatch)
    td.save(tmp_path / "x", return_early=True).result()
    assert not terminal.getvalue()
    td.save(tmp_path / "y", return_early=True, pbar=True).result()
    assert "save" in terminal.getvalue()


def test_elsewhere_a_bar_is_shown_on_request_only(tmp_path, td, monkeypatch):
    shown = errors_on(io.StringIO(), monkeypatch)
    td.save(tmp_path / "x")
    assert not shown.getvalue()
    td.save(tmp_path / "y", pbar=True)
    assert "save" in shown.getvalue()


def test_a_process_without_standard_error_saves_all_the_same(tmp_path, td, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    save_as(td, tmp_path / "x", None, compression=None, shard_size=None, num_threads=None, pbar=None)
    assert (tmp_path / "x" / "meta.json").exists()
