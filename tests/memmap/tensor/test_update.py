"""Many tensors that map files, written in one call: to the files while pages are not there, else to the memory."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict
from tensordict_memmap import MemoryMappedTensor, load_memmap, memmap_like
from tensordict_memmap.engine import syscalls
from tensordict_memmap.engine.tuning import FILE_WRITE_MIN
from tensordict_memmap.tensor import update

LARGE = FILE_WRITE_MIN
"""Elements of a leaf that is written to its file, whatever its dtype."""


def sources() -> dict[str, torch.Tensor]:
    """Leaves of every layout that a copy meets, and the values that they stand for."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(LARGE, 2, generator=generator)
    flags = numbers > 0
    complex_numbers = torch.view_as_complex(numbers)
    return {
        "plain": numbers[:, 0].clone(),
        "strided": numbers.T,
        "steps": numbers[:, 1],
        "repeated": numbers[:1].expand(LARGE, 2),
        "flags": flags,
        "every other flag": flags[:, 0],
        "half": numbers.bfloat16(),
        "half, transposed": numbers.bfloat16().T,
        "complex": complex_numbers,
        "conjugate": complex_numbers.conj(),
        "negative": complex_numbers.conj().imag,
        "small": torch.arange(5),
        "none": torch.zeros(0, 3),
    }


@pytest.fixture
def written_to_files(monkeypatch):
    """Which leaves went to their files."""
    seen = []
    write = update.write_plan.write_into

    def write_into(targets, **options):
        seen.extend(one.key for _, one in targets)
        write(targets, **options)

    monkeypatch.setattr(update.write_plan, "write_into", write_into)
    return seen


@pytest.fixture(params=[False, True], ids=["by torch", "on threads"])
def copied(request, monkeypatch):
    """How copies in memory are made; the sizes of those on threads, or None."""
    if not request.param:
        return None
    seen, copy = [], syscalls.copy

    def count(target, source, nbytes):
        seen.append(nbytes)
        copy(target, source, nbytes)

    monkeypatch.setattr(syscalls, "copy", count)
    monkeypatch.setattr(update, "THREADED_COPY_MIN", 0)
    return seen


def exactly_equal(a, b):
    return a.dtype == b.dtype and torch.equal(a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg())


def test_the_first_fill_takes_every_layout_and_reaches_the_files(tmp_path, written_to_files):
    source = TensorDict(sources()).lock_()
    disk = memmap_like(source, tmp_path / "disk")
    assert disk.is_locked
    disk.update_(source)
    large = {key for key, leaf in source.items() if leaf.numel() >= LARGE}
    assert set(written_to_files) == (large if syscalls.LINUX else set())
    for key, leaf in source.items():
        assert exactly_equal(disk[key], leaf), key
        assert exactly_equal(load_memmap(tmp_path / "disk")[key], leaf), key


def test_the_next_fill_writes_to_memory(tmp_path, written_to_files, copied):
    source = TensorDict(sources())
    disk = memmap_like(source, tmp_path / "disk")
    disk.update_(source)
    written_to_files.clear()
    assert exactly_equal(disk["strided"], source["strided"])
    versions = {key: leaf._version for key, leaf in disk.items()}
    disk.update_(source.apply(lambda x: x.flip(0)))
    assert not written_to_files
    assert all(exactly_equal(disk[key], leaf.flip(0)) for key, leaf in source.items())
    assert all(leaf._version > versions[key] for key, leaf in disk.items() if leaf.numel())
    if copied is not None:
        assert sum(copied) >= source["plain"].nbytes + source["complex"].nbytes

    disk["plain"].copy_(source["plain"])
    assert exactly_equal(disk["plain"], source["plain"])
    with pytest.raises(RuntimeError, match="size"):
        disk["plain"].copy_(source["plain"][1:])


def test_dtypes_are_converted_on_the_way(tmp_path):
    disk = memmap_like(
        TensorDict({"a": torch.zeros(LARGE), "b": torch.zeros(LARGE, dtype=torch.int16)}), tmp_path / "d"
    )
    values = torch.arange(LARGE) % 100
    disk.update_({"a": values, "b": values.double()})
    assert exactly_equal(disk["a"], values.float()) and exactly_equal(disk["b"], values.short())


@pytest.mark.parametrize("threads", [1, 3])
def test_leaves_of_one_file_are_written_together(tmp_path, threads, written_to_files):
    whole = MemoryMappedTensor.zeros(5, LARGE, dtype=torch.uint8, filename=tmp_path / "x")
    keys, rows = list("abcde"), torch.arange(1, 6, dtype=torch.uint8)
    update.write_leaves(keys, whole.unbind(), rows[:, None].expand(5, LARGE).unbind(), threads=threads)
    assert sorted(written_to_files) == keys or not syscalls.LINUX
    assert torch.equal(whole, rows[:, None].expand(5, LARGE))
    assert np.array_equal(np.fromfile(tmp_path / "x", np.uint8).reshape(5, LARGE), whole.numpy())


def test_more_files_than_are_opened_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(update, "_MOST_OPEN_FILES", 2)
    source = TensorDict({f"{i}": torch.full((LARGE,), i, dtype=torch.uint8) for i in range(5)})
    disk = memmap_like(source, tmp_path / "disk")
    before = len(os.listdir("/proc/self/fd")) if syscalls.LINUX else 0
    disk.update_(source)
    assert (disk == source).all()
    assert not syscalls.LINUX or len(os.listdir("/proc/self/fd")) == before


def test_nothing_is_written_where_something_is_wrong(tmp_path):
    disk = memmap_like(TensorDict({"a": torch.zeros(LARGE), "n": {"b": torch.zeros(LARGE)}}), tmp_path / "disk")
    for wrong, error in (({"b": torch.ones(3)}, RuntimeError), ({"c": torch.ones(3)}, KeyError)):
        with pytest.raises(error, match=next(iter(wrong))):
            disk.update_({"a": torch.ones(LARGE), "n": wrong})
        assert not disk["a"].any()


def test_nothing_is_written_to_a_full_disk(tmp_path, monkeypatch):
    source = TensorDict({"a": torch.ones(LARGE), "n": {"b": torch.ones(LARGE)}, "small": torch.ones(3)})
    disk = memmap_like(source, tmp_path / "disk")
    calls = []

    def full(fd, offset, nbytes):
        calls.append(nbytes)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return False

    monkeypatch.setattr(syscalls, "reserve", full)
    with pytest.raises(OSError, match=r"No space left.*\('n', 'b'\)"):
        disk.update_(source)
    assert not disk["a"].any() and not disk["n", "b"].any() and not disk["small"].any()


def test_leaves_that_lie_in_each_other_are_written_in_order(tmp_path, written_to_files, copied):
    made = MemoryMappedTensor.zeros(2 * LARGE, dtype=torch.uint8, filename=tmp_path / "x")
    td = TensorDict({"first": made[: LARGE + 10], "second": made[LARGE:]})
    td.update_({"first": torch.full((LARGE + 10,), 1, dtype=torch.uint8), "second": torch.full((LARGE,), 2).byte()})
    assert not written_to_files
    assert (made[:LARGE] == 1).all() and (made[LARGE:] == 2).all()
    swapped = TensorDict({"first": made[:LARGE], "second": made[LARGE:]})
    swapped.update_({"first": made[LARGE:], "second": made[:LARGE]})
    assert (made == 2).all()
    assert not copied


def test_values_with_gradients_are_seen_by_autograd(tmp_path, copied):
    disk = memmap_like(TensorDict({"a": torch.zeros(LARGE), "b": torch.zeros(LARGE)}), tmp_path / "disk")
    weight = torch.ones(LARGE, requires_grad=True)
    td = TensorDict({"a": disk["a"] * 1, "b": disk["b"]})
    td.update_({"a": weight * 2, "b": torch.ones(LARGE)})
    td["a"].sum().backward()
    assert weight.grad[0] == 2 and disk["b"].all()


@pytest.mark.parametrize("size", [3, LARGE])
def test_files_that_take_values_with_gradients_pass_them_on(tmp_path, size):
    disk = memmap_like(TensorDict({"a": torch.zeros(size), "b": torch.zeros(size)}), tmp_path / "disk")
    weight = torch.ones(size, requires_grad=True)
    disk.update_({"a": weight * 2, "b": weight * 3})
    (disk["a"].sum() + disk["b"].sum()).backward()
    assert weight.grad[0] == 5 and (disk["b"] == 3).all()


def test_versions_notify_autograd_of_every_leaf(tmp_path):
    disk = memmap_like(TensorDict({"a": torch.zeros(LARGE), "b": torch.zeros(3)}), tmp_path / "disk")
    before = {key: leaf._version for key, leaf in disk.items()}
    disk.update_({"a": torch.ones(LARGE), "b": torch.ones(3)})
    assert all(leaf._version > before[key] for key, leaf in disk.items())


@pytest.mark.parametrize("index", [slice(1, 3), (slice(None), 0), 2, (1, None)])
def test_slices_of_all_leaves_are_written_in_one_call(tmp_path, index, monkeypatch):
    calls = []
    write = update.write_plan.write_into
    monkeypatch.setattr(update.write_plan, "write_into", lambda t, **o: (calls.append(len(t)), write(t, **o)))
    zeros = TensorDict({key: torch.zeros(4, 1, LARGE, dtype=torch.uint8) for key in "abc"}, [4, 1])
    disk = memmap_like(zeros, tmp_path / "disk")
    batch = zeros[index].apply(lambda x: x + 3)
    disk[index] = batch
    disk.update_at_(batch + 1, index)
    expected = zeros.clone()
    expected[index] = batch + 1
    assert (disk == expected).all()
    assert not syscalls.LINUX or calls[0] == 3


def test_elements_of_a_lazy_stack_are_written_in_one_call(tmp_path, written_to_files):
    elements = [TensorDict({"a": torch.full((LARGE,), i + 1, dtype=torch.uint8)}) for i in range(3)]
    disk = LazyStackedTensorDict(*(memmap_like(td, tmp_path / str(i)) for i, td in enumerate(elements)))
    disk.update_(torch.stack(elements))
    assert written_to_files == ["a"] * 3 or not syscalls.LINUX
    assert [np.fromfile(tmp_path / str(i) / "a.memmap", np.uint8)[-1] for i in range(3)] == [1, 2, 3]
