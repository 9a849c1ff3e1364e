"""Transfers against plain Python: what is in the file, or in memory, is what the tensor holds."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch

from tensordict_memmap.engine import direct, executor, jobs, tuning, write_plan
from tensordict_memmap.engine.kernels import loader
from tensordict_memmap.engine.sources import FileRange
from tensordict_memmap.engine.write_plan import FileWrite, write_files
from tensordict_memmap.schema.dtypes import DTYPES
from tensordict_memmap.tensor.indexing import gather_rows, scatter_rows
from tensordict_memmap.tensor.update import copy_into

pytestmark = pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support is experimental")

ALL_DTYPES = [
    dtype
    for name, dtype in sorted(DTYPES.items())
    if not any(part in name for part in ("quint", "qint", "bits", "uint1", "uint2", "uint3", "uint5", "uint7"))
    and name not in {"torch.uint4", "torch.uint6"}
    and not any(name == f"torch.int{bits}" for bits in range(1, 8))
]


def bits(shape, dtype, seed=0):
    """A tensor of random bits (of 0 and 1 for bool, whose other values mean nothing)."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)


def raw(tensor):
    """What the file must hold: the oracle."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return b"" if tensor.numel() == 0 else tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def written(tmp_path, source, **options):
    path = tmp_path / "file"
    write_files([FileWrite(path, [FileRange("x", source)])], **options)
    return path.read_bytes()


LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.T,
    "every third": lambda t: t[:, ::3],
    "a window": lambda t: t[1:, 2:-1],
    "expanded": lambda t: t[:, :1].expand(-1, 50),
    "expanded in front": lambda t: t[0].expand(7, -1),
    "one item": lambda t: t[2, 3],
    "nothing": lambda t: t[:0],
}


def wait_for(child, seconds=60):
    """The exit status of a child, which is killed where it hangs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


@pytest.fixture(params=[True, False], ids=["kernels", "no kernels"])
def with_kernels(request, monkeypatch):
    """Both ways for strided sources, whatever their size."""
    if request.param:
        for name in ("KERNEL_CALL_MIN", "KERNEL_LOAD_MIN", "KERNEL_COMPILE_MIN"):
            monkeypatch.setattr(tuning, name, 0)
        monkeypatch.setattr(jobs, "KERNEL_CALL_MIN", 0)
    else:
        monkeypatch.setattr(write_plan, "load_kernels", lambda nbytes, widths: None)
    return request.param


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_dtype_and_layout_is_written_bit_for_bit(tmp_path, dtype, name, with_kernels):
    source = LAYOUTS[name](bits((33, 29), dtype))
    assert written(tmp_path, source) == raw(source)


@pytest.mark.parametrize("permutation", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 3, 1, 2), (2, 3, 0, 1), (1, 0, 3, 2)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.complex128], ids=str)
def test_permutations_that_need_several_jobs_and_stagings(tmp_path, permutation, dtype, monkeypatch, with_kernels):
    monkeypatch.setattr(jobs, "JOB_BYTES", 3000)
    for module in (jobs, direct):
        monkeypatch.setattr(module, "STAGING_BYTES", 2048)
    monkeypatch.setattr(direct, "_local", threading.local())
    source = bits((5, 31, 7, 12), dtype).permute(permutation)
    assert written(tmp_path, source, threads=3) == raw(source)


@pytest.mark.parametrize("shape", [(3, 100_001), (100_001, 3), (9, 4097), (2, 3, 70_000)])
def test_transposes_of_long_and_flat_matrices(tmp_path, shape, with_kernels):
    source = bits(shape, torch.int16).transpose(0, -1)
    assert written(tmp_path, source) == raw(source)


def test_a_transpose_whose_rows_are_longer_than_a_job_is_split(tmp_path, with_kernels):
    source = bits((300_000, 17), torch.int32).T
    assert written(tmp_path, source) == raw(source)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_lazy_conjugates_and_negatives_are_resolved(tmp_path, dtype):
    source = torch.randn(40, 30, dtype=dtype)
    assert written(tmp_path, source.conj()) == raw(source.conj().resolve_conj())
    negative = torch._neg_view(source)
    assert negative.is_neg()
    assert written(tmp_path, negative) == raw(negative.resolve_neg())
    assert written(tmp_path, source.conj().T) == raw(source.conj().resolve_conj().T)


def test_a_dtype_is_converted_on_the_way(tmp_path):
    source = torch.randn(1000, 1500)
    path = tmp_path / "half"
    write_files([FileWrite(path, [FileRange("x", source.T, 16, torch.float16)])])
    assert path.read_bytes() == bytes(16) + raw(source.T.half())


NUMPY = {
    "reversed": lambda a: a[::-1],
    "both reversed": lambda a: a[::-1, ::-2],
    "overlapping": lambda a: np.lib.stride_tricks.sliding_window_view(a.reshape(-1), 9),
    "unaligned field": lambda a: np.frombuffer(b"x" + a.tobytes(), dtype=np.dtype(a.dtype), offset=1),
    "big endian": lambda a: a.astype(">i4"),
    "zero dimensions": lambda a: a[0, 0, ...],
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_sources_of_any_strides(tmp_path, name, with_kernels):
    source = NUMPY[name](np.arange(3000, dtype=np.int32).reshape(50, 60))
    assert written(tmp_path, source) == source.astype("=i4").tobytes()


def test_bytes_tensors_and_gaps_share_a_file(tmp_path):
    tensors = [bits((n,), torch.uint8, seed=n) for n in (0, 1, 7, 300, 400_000, 5, 9_000_001, 2)]
    ranges, expected, offset = [FileRange("head", b"HEAD")], bytearray(b"HEAD"), 4
    for number, tensor in enumerate(tensors):
        gap = 3 if number == 3 else 0
        ranges.append(FileRange(number, tensor, offset + gap))
        expected += bytes(gap) + raw(tensor)
        offset += gap + tensor.nbytes
    path = tmp_path / "packed"
    write_files([FileWrite(path, ranges[::-1], size=offset + 10)])
    assert path.read_bytes() == bytes(expected) + bytes(10)


def test_thousands_of_small_ranges_share_system_calls(tmp_path):
    tensors = [torch.full((n % 50,), n, dtype=torch.int32) for n in range(5000)]
    ranges, offset = [], 0
    for number, tensor in enumerate(tensors):
        ranges.append(FileRange(number, tensor, offset))
        offset += tensor.nbytes
    write_files([FileWrite(tmp_path / "packed", ranges)])
    assert (tmp_path / "packed").read_bytes() == b"".join(map(raw, tensors))


def test_an_empty_file_is_made_and_a_longer_one_is_cut(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    inode = path.stat().st_ino
    write_files([FileWrite(path, [FileRange("x", torch.arange(5, dtype=torch.uint8))], fresh=False)])
    assert path.read_bytes() == bytes(range(5))
    assert path.stat().st_ino == inode
    write_files([FileWrite(path, [])])
    assert path.read_bytes() == b""


@pytest.mark.parametrize("source", [torch.eye(3).to_sparse(), torch.empty(3, device="meta"), np.array(["a", None])])
def test_sources_without_plain_memory_are_refused_before_anything_is_written(tmp_path, source):
    files = [
        FileWrite(tmp_path / "a", [FileRange("a", torch.ones(3))]),
        FileWrite(tmp_path / "b", [FileRange("bad", source)]),
    ]
    with pytest.raises(TypeError, match="'bad'"):
        write_files(files)
    assert not list(tmp_path.iterdir())


def test_progress_counts_every_byte_and_cancel_stops(tmp_path):
    seen = []
    files = [FileWrite(tmp_path / str(n), [FileRange(n, bits((3_000_000,), torch.uint8))]) for n in range(6)]
    write_files(files, progress=seen.append, durable=True)
    assert sum(seen) == 18_000_000
    with pytest.raises(CancelledError):
        write_files(files, cancelled=lambda: len(seen) > 8, progress=seen.append)
    assert sum(seen) < 36_000_000


def test_a_full_disk_is_an_oserror_that_names_the_key_and_no_signal(tmp_path):
    script = textwrap.dedent("""
        import errno, resource, sys, torch
        from tensordict_memmap.engine import syscalls
        from tensordict_memmap.engine import tuning
        from tensordict_memmap.engine.sources import FileRange
        from tensordict_memmap.engine.write_plan import FileWrite, write_files
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        source = torch.zeros(1024, 1024)
        for reserved in True, False:
            if not reserved:
                syscalls.reserve = lambda fd, offset, nbytes: False
            for threshold in tuning.KERNEL_LOAD_MIN, 0:
                tuning.KERNEL_LOAD_MIN = tuning.KERNEL_COMPILE_MIN = threshold
                for tensor in source, source.T, source.T.to(torch.complex64).conj():
                    try:
                        write_files([FileWrite(sys.argv[1], [FileRange(("obs", "x"), tensor)])])
                    except OSError as error:
                        assert error.errno == errno.EFBIG, error
                        assert "('obs', 'x')" in str(error) and error.filename == sys.argv[1], error
                        print("refused")
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * 12), done.stderr


def test_small_saves_import_no_numba(tmp_path):
    script = textwrap.dedent("""
        import sys, torch
        from tensordict_memmap.engine.sources import FileRange
        from tensordict_memmap.engine.write_plan import FileWrite, write_files
        ranges = [FileRange("x", torch.ones(500, 500).T), FileRange("y", torch.ones(9), 1 << 20)]
        write_files([FileWrite(sys.argv[1], ranges)])
        print("numba" in sys.modules)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_where_numba_cannot_compile_there_is_one_warning_and_the_same_bytes(tmp_path):
    script = textwrap.dedent("""
        import sys, warnings, torch
        sys.modules["numba"] = None
        from tensordict_memmap.engine.sources import FileRange
        from tensordict_memmap.engine import tuning
        from tensordict_memmap.engine.write_plan import FileWrite, write_files
        tuning.KERNEL_LOAD_MIN = tuning.KERNEL_COMPILE_MIN = 0
        source = torch.randn(700, 500).T
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                write_files([FileWrite(sys.argv[1], [FileRange("x", source)])])
        assert open(sys.argv[1], "rb").read() == source.contiguous().numpy().tobytes()
        print(len(caught), caught[0].category.__name__)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "nothing is kept here")},
    )
    assert done.stdout == "1 RuntimeWarning\n", done.stderr


def test_strided_sources_take_little_memory_beside_themselves(tmp_path):
    script = textwrap.dedent("""
        import resource, sys, torch
        from tensordict_memmap.engine import tuning
        from tensordict_memmap.engine.sources import FileRange
        from tensordict_memmap.engine.write_plan import FileWrite, write_files
        source = torch.ones(100, 1024, 256).permute(2, 1, 0)
        if sys.argv[2] == "numpy":
            tuning._kernels_broken = True
        elif sys.argv[2] == "loaded kernels":
            write_files([FileWrite(sys.argv[1], [FileRange("x", source)])])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        write_files([FileWrite(sys.argv[1], [FileRange("x", source)])], threads=2)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """)
    loader.functions(4)  # compiled, if they were not: the first process to load them is meant, not the first to compile
    for way in ("kernels", "loaded kernels", "numpy"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "x"), way], capture_output=True, text=True, check=True
        )
        assert int(done.stdout) < 64, way


def test_the_pool_is_rebuilt_after_a_fork(tmp_path, with_kernels):
    source, other = bits((3000, 1000), torch.uint8), bits((3000, 1000), torch.uint8, seed=1)
    written(tmp_path, source.T, threads=4)
    expected = raw(other.T)
    child = os.fork()
    if child == 0:  # where torch itself may not use its threads any more
        status = 1
        try:
            status = 0 if written(tmp_path, other.T, threads=4) == expected else 2
        finally:
            os._exit(status)
    assert wait_for(child) == 0


def test_eight_python_threads_write_at_once(tmp_path):
    sources = [bits((1000, 700), torch.int32, seed=n).T for n in range(8)]
    failures = []

    def save(number):
        for repeat in range(3):
            path = tmp_path / f"{number}-{repeat}"
            write_files([FileWrite(path, [FileRange("x", sources[number])])], threads=4)
            if path.read_bytes() != raw(sources[number]):
                failures.append(path)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_first_error_stops_the_other_jobs():
    ran = []

    def fail():
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        executor.run([[fail, *[lambda: ran.append(1)] * 50]], threads=1)
    assert not ran


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_job_of_every_queue_runs_once(threads):
    ran = []
    queues = [[functools.partial(ran.append, (queue, job)) for job in range(queue % 5)] for queue in range(60)]
    executor.run(queues, threads=threads)
    assert sorted(ran) == [(queue, job) for queue in range(60) for job in range(queue % 5)]
    executor.run([], threads=threads)


def test_threads_take_separate_queues_while_there_are_enough():
    meet = threading.Barrier(2, timeout=120)
    executor.run([[meet.wait, meet.wait], [meet.wait, meet.wait]], threads=2)  # in one queue they would wait for ever


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_rows_of_every_dtype_are_gathered_and_scattered_as_indexing_would(dtype):
    table = bits((40, 3, 2), dtype)
    index = torch.tensor([[3, -1], [0, 3]])
    rows = [[row % 40 for row in line] for line in index.tolist()]
    assert raw(gather_rows(table, index)) == b"".join(raw(table[row]) for line in rows for row in line)

    values = bits((2, 2, 3, 2), dtype, seed=1)
    expected = table.clone()
    for line, sources in zip(rows, values, strict=True):
        for row, source in zip(line, sources, strict=True):
            expected[row] = source
    scatter_rows(table, index, values)
    assert raw(table) == raw(expected)


@pytest.mark.parametrize("cold", [True, False])
def test_rows_that_are_on_disk_equal_those_in_memory(monkeypatch, cold):
    from tensordict_memmap.tensor import indexing as rows

    monkeypatch.setattr(rows, "READ_AHEAD_MIN", 0)
    monkeypatch.setattr(rows, "is_cold", lambda src, index: cold)
    table = torch.arange(600, dtype=torch.int16).reshape(100, 6)[:, 1:5]
    index = torch.tensor([5, 99, -100, 5, 42] * 30)
    assert torch.equal(gather_rows(table, index), table[index])
    assert torch.equal(gather_rows(table, index[:0]), table[index[:0]])
    values = torch.arange(150 * 4, dtype=torch.int16).reshape(150, 4)
    expected = table.clone()
    for row, value in zip(index.tolist(), values, strict=True):
        expected[row] = value
    scatter_rows(table, index, values)
    assert torch.equal(table, expected)


def test_rows_outside_are_refused():
    table = torch.zeros(5, 2)
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=str(wrong)):
            gather_rows(table, torch.tensor([0, wrong]))
        with pytest.raises(IndexError, match=str(wrong)):
            scatter_rows(table, torch.tensor([0, wrong]), torch.ones(2))
    with pytest.raises(IndexError, match="bool"):
        gather_rows(table, torch.ones(5, dtype=torch.bool))


def test_copy_into_converts_and_broadcasts():
    target = torch.zeros(3, 4, dtype=torch.float64)
    copy_into(target, torch.arange(4))
    assert target.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 3


def test_no_file_is_left_open(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    written(tmp_path, torch.ones(10))
    before = len(os.listdir("/proc/self/fd"))
    write_files([FileWrite(tmp_path / str(n), [FileRange("x", torch.ones(10))]) for n in range(50)])
    with pytest.raises(OSError):
        write_files([FileWrite(tmp_path / "0" / "x", [FileRange("x", torch.ones(10))])])
    assert len(os.listdir("/proc/self/fd")) == before
