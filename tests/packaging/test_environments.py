"""Environments of the sessions: equal files are kept once on disk, and no environment sees changes of another."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "share_files.py"
if not SCRIPT.exists():
    pytest.skip("the tools of the repository are not here", allow_module_level=True)
_spec = importlib.util.spec_from_file_location("share_files", SCRIPT)
share_files = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(share_files)


def environment(folder: Path, digest: str, content: bytes) -> Path:
    """An environment in which pip has installed one distribution of one large and one small file."""
    site = folder / "lib" / "python3.11" / "site-packages"
    info = site / "torch-1.dist-info"
    info.mkdir(parents=True)
    (site / "large.so").write_bytes(content)
    (site / "small.py").write_bytes(b"pass")
    rows = [
        f"large.so,sha256={digest},{len(content)}",
        "small.py,sha256=s,4",
        "large.pyc,,",
        "torch-1.dist-info/RECORD,,",
    ]
    (info / "RECORD").write_text("\n".join(rows))
    return site


def test_equal_files_of_two_environments_are_one_file(tmp_path):
    first, second = (environment(tmp_path / name, "abc", b"x" * 9000) for name in ("first", "second"))
    for name in ("first", "second", "first"):
        share_files.share(tmp_path / name, tmp_path / "shared")
    assert (first / "large.so").samefile(second / "large.so")
    assert not (first / "small.py").samefile(second / "small.py")
    assert sorted(path.name for path in second.iterdir()) == ["large.so", "small.py", "torch-1.dist-info"]


def test_another_release_of_a_file_is_another_file(tmp_path):
    first, second = environment(tmp_path / "1", "abc", b"x" * 9000), environment(tmp_path / "2", "def", b"y" * 9000)
    for name in ("1", "2"):
        share_files.share(tmp_path / name, tmp_path / "shared")
    assert (first / "large.so").read_bytes() == b"x" * 9000
    assert (second / "large.so").read_bytes() == b"y" * 9000


def test_a_file_that_pip_replaces_stays_as_it_was_elsewhere_and_is_dropped_with_its_last_environment(tmp_path):
    first, second = (environment(tmp_path / name, "abc", b"x" * 9000) for name in ("1", "2"))
    for name in ("1", "2"):
        share_files.share(tmp_path / name, tmp_path / "shared")
    (first / "large.so").unlink()
    (first / "large.so").write_bytes(b"new" * 3000)
    assert (second / "large.so").read_bytes() == b"x" * 9000
    (second / "large.so").unlink()
    share_files.share(tmp_path / "2", tmp_path / "shared")
    assert list((tmp_path / "shared").iterdir()) == []


def test_without_hard_links_environments_stay_as_they_are(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links on this file system")

    monkeypatch.setattr(share_files.os, "link", refuse)
    site = environment(tmp_path / "1", "abc", b"x" * 9000)
    share_files.share(tmp_path / "1", tmp_path / "shared")
    assert (site / "large.so").read_bytes() == b"x" * 9000
