"""Memory: a save takes little beside the tensors, whatever their size, layout and format."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tensordict_memmap.engine import syscalls as system

pytestmark = pytest.mark.skipif(not system.LINUX, reason="/proc says how much memory a process has of its own")

CODE = textwrap.dedent(
    """
    import sys, threading, torch
    from tensordict_core import TensorDict

    path, layout, size, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), eval(sys.argv[4])
    rows = size // 4096 // 4
    LAYOUTS = {
        "contiguous": lambda: torch.ones(rows, 4096),
        "transposed": lambda: torch.ones(4096, rows).T,
        "permuted": lambda: torch.ones(16, 256, rows).permute(2, 1, 0),
        "every second": lambda: torch.ones(rows, 8192)[:, ::2],
        "expanded": lambda: torch.ones(1, 4096).expand(rows, 4096),
        "conjugate": lambda: torch.ones(rows, 2048, dtype=torch.complex64).conj(),
        "lazy": lambda: [torch.ones(rows // 8, 4096) for _ in range(8)],
    }

    def own():
        with open("/proc/self/status") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("RssAnon")) // 1024

    def tensordict(source):
        if isinstance(source, list):
            return TensorDict.lazy_stack([TensorDict({"a": one}) for one in source])
        return TensorDict({"a": source})

    warm = tensordict(torch.ones(6000, 5000).T)
    warm.save(path, **options)  # what is imported and compiled is there now
    del warm
    td, peak, stop = tensordict(LAYOUTS[layout]()), 0, threading.Event()
    before = own()

    def watch():
        global peak
        while not stop.wait(0.002):
            peak = max(peak, own())

    watcher = threading.Thread(target=watch)
    watcher.start()
    td.save(path, **options)
    stop.set()
    watcher.join()
    print(max(peak, own()) - before)
    """
)

LAYOUTS = ["contiguous", "transposed", "permuted", "every second", "expanded", "conjugate", "lazy"]


def peak(path, layout, size, **options):
    command = [sys.executable, "-W", "ignore", "-c", CODE, str(path), layout, str(size), repr(options)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("name", ["x", "x.safetensors"])
def test_a_strided_save_takes_less_than_64_mib(tmp_path, name):
    assert peak(tmp_path / name, "transposed", 128 << 20) < 64


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"checksum": True}, {"durable": True}], ids=["plain", "checksum", "durable"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["x", "x.safetensors", "x.tdz"])
def test_a_gibibyte_of_any_layout_takes_less_than_64_mib(tmp_path, name, layout, options):
    assert peak(tmp_path / name, layout, 1 << 30, **options) < 64
