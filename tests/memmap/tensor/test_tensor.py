"""MemoryMappedTensor: constructors, views that know their file, writes that reach it, and pickles of them."""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import os
import pickle
import signal
import time

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

from tensordict_memmap.engine import syscalls
from tensordict_memmap.schema.dtypes import DTYPES
from tensordict_memmap.tensor import update
from tensordict_memmap.tensor.mapping import Mapping
from tensordict_memmap.tensor.memmap import MemoryMappedTensor

PLAIN_DTYPES = [
    DTYPES[f"torch.{name}"] for name in ("bool", "uint8", "int64", "bfloat16", "float8_e4m3fn", "complex128")
]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "x.memmap")


def mapped(path, shape=(4, 3)):
    return MemoryMappedTensor.from_tensor(torch.arange(float(np.prod(shape))).reshape(shape), filename=path)


# --- constructors


def test_constructors_and_indexing_as_documented(tmp_path):
    t = torch.arange(12).reshape(4, 3)
    m = MemoryMappedTensor.from_tensor(t, filename=str(tmp_path / "t.memmap"))
    assert (m == t).all() and m.filename == str(tmp_path / "t.memmap")
    assert (m[torch.tensor([2, 0])] == t[[2, 0]]).all()
    again = MemoryMappedTensor.from_filename(tmp_path / "t.memmap", dtype=t.dtype, shape=t.shape)
    again[0] = -1
    assert (m[0] == -1).all()
    z = MemoryMappedTensor.zeros((2, 3), dtype=torch.float64)
    assert z.shape == (2, 3) and z.dtype == torch.float64 and (z == 0).all()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("dtype", PLAIN_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 7)])
def test_every_dtype_and_shape_round_trips(path, dtype, shape, named):
    source = torch.randint(0, 2, shape).to(dtype)
    made = MemoryMappedTensor.from_tensor(source, filename=path if named else None)
    assert made.dtype == dtype and made.shape == source.shape and made.clone().tolist() == source.tolist()
    if named:
        assert os.path.exists(path) == bool(source.numel())
        again = MemoryMappedTensor.from_filename(path, dtype, shape)
        assert again.clone().tolist() == source.tolist()


def test_shapes_are_given_as_numbers_or_sequences():
    for made in (
        MemoryMappedTensor.empty(2, 3),
        MemoryMappedTensor.zeros([2, 3]),
        MemoryMappedTensor.zeros(torch.Size([2, 3])),
        MemoryMappedTensor.zeros(shape=(2, 3)),
    ):
        assert made.shape == (2, 3) and made.dtype == torch.float32 and not made.any()
    assert MemoryMappedTensor.ones(2, dtype=torch.bfloat16).tolist() == [1, 1]
    assert MemoryMappedTensor.full((2,), 3).dtype == torch.float32
    assert MemoryMappedTensor.full(2, 1, fill_value=2.5).tolist() == [[2.5], [2.5]]
    with pytest.raises(TypeError, match="shape"):
        MemoryMappedTensor.empty()
    with pytest.raises(TypeError, match="fill"):
        MemoryMappedTensor.full()


@pytest.mark.parametrize("number", [bool, int, float])
def test_python_types_of_numbers_are_dtypes_as_in_torch(path, number):
    dtype = torch.zeros(3, dtype=number).dtype
    made = MemoryMappedTensor.empty(3, dtype=number, filename=path)
    for mapped in (
        made,
        MemoryMappedTensor.zeros((3,), dtype=number),
        MemoryMappedTensor.empty_like(made.byte(), dtype=number),
    ):
        assert mapped.dtype == dtype
    assert MemoryMappedTensor.from_filename(path, number, (3,)).dtype == dtype


def test_like_constructors_take_shape_and_dtype(path):
    like = torch.zeros(2, 3, dtype=torch.int16)
    assert MemoryMappedTensor.ones_like(like, filename=path).tolist() == [[1] * 3] * 2
    assert MemoryMappedTensor.zeros_like(like).dtype == torch.int16
    assert MemoryMappedTensor.empty_like(like, dtype=torch.int8).dtype == torch.int8
    assert MemoryMappedTensor.full_like(like, 7).tolist() == [[7] * 3] * 2


def test_the_class_itself_copies_numbers_arrays_and_tensors(path):
    assert MemoryMappedTensor([1, 2]).tolist() == [1, 2]
    assert MemoryMappedTensor(np.ones(2), dtype=torch.float32, filename=path).filename == path
    assert MemoryMappedTensor(torch.tensor(1), shape=(2, 2), index=0).tolist() == [1, 1]
    source = torch.zeros(3)
    made = MemoryMappedTensor(source)
    made[0] = 1
    assert source[0] == 0
    shared = MemoryMappedTensor(handler=made.handler, dtype=torch.float32, shape=(3,))
    assert shared[0] == 1
    with pytest.raises(RuntimeError, match="CPU"):
        MemoryMappedTensor([1], device="cuda")


def test_preallocating_takes_no_disk_space(path):
    made = MemoryMappedTensor.from_tensor(torch.ones(1000, 1000), filename=path, copy_data=False)
    assert not made.any()
    assert os.path.getsize(path) == 4_000_000
    if syscalls.LINUX:
        assert os.stat(path).st_blocks == 0


def test_shape_broadcasts_a_value(path):
    made = MemoryMappedTensor.from_tensor(torch.tensor([1.0, 2.0]), filename=path, shape=(3, 2))
    assert made.tolist() == [[1.0, 2.0]] * 3


def test_a_file_is_replaced_only_on_request_and_its_readers_keep_the_old_one(path):
    old = mapped(path)
    with pytest.raises(RuntimeError, match="existsok=True"):
        MemoryMappedTensor.zeros(4, filename=path)
    new = MemoryMappedTensor.from_tensor(old[0] + 10, filename=path, existsok=True)
    assert new.tolist() == [10.0, 11.0, 12.0]
    assert old[3].tolist() == [9.0, 10.0, 11.0]
    assert os.listdir(os.path.dirname(path)) == ["x.memmap"]


def test_a_mapped_tensor_is_copied_to_another_file_only_on_request(path):
    made = mapped(path)
    assert MemoryMappedTensor.from_tensor(made, filename=path) is made
    assert MemoryMappedTensor(made) is made
    with pytest.raises(RuntimeError, match="copy_existing=True"):
        MemoryMappedTensor.from_tensor(made, filename=path + "2")
    copied = MemoryMappedTensor.from_tensor(made, filename=path + "2", copy_existing=True)
    assert copied.filename == path + "2" and torch.equal(copied, made)
    unnamed = MemoryMappedTensor.from_tensor(torch.ones(2))
    assert MemoryMappedTensor.from_tensor(unnamed, filename=path + "3").filename == path + "3"


def test_tensors_that_cannot_be_mapped_are_refused(path):
    with pytest.raises(TypeError, match=r"torch\.as_tensor"):
        MemoryMappedTensor.from_tensor([1, 2])
    with pytest.raises(RuntimeError, match="detach"):
        MemoryMappedTensor.from_tensor(torch.zeros(2, requires_grad=True), filename=path)
    with pytest.raises(FileNotFoundError):
        MemoryMappedTensor.zeros(3, filename=os.path.join(path, "absent", "x"))


def test_opening_never_changes_a_file_and_refuses_a_short_one(path):
    mapped(path)
    before = os.stat(path)
    with pytest.raises(ValueError, match=r"48 bytes .* needs 480"):
        MemoryMappedTensor.from_filename(path, torch.float32, (40, 3))
    with pytest.raises(FileNotFoundError):
        MemoryMappedTensor.from_filename(path + "-absent", torch.float32, (4, 3))
    assert not os.path.exists(path + "-absent")
    with pytest.raises(ValueError, match="unknown mode 'w'; the modes of a mapping are 'r', 'c', 'r\\+'"):
        MemoryMappedTensor.from_filename(path, torch.float32, (4, 3), mode="w")
    MemoryMappedTensor.from_filename(path, torch.float32, (4, 3)).clone()
    after = os.stat(path)
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


def test_modes_decide_whether_writes_reach_the_file(path):
    mapped(path)
    private = MemoryMappedTensor.from_filename(path, torch.float32, (4, 3), mode="r")
    private[0] = -1
    assert not private.is_shared()
    assert MemoryMappedTensor.from_filename(path, torch.float32, (4, 3), 0).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_file_that_may_not_be_written_to_is_mapped_for_reading(path, monkeypatch, code):
    mapped(path)
    really_open = os.open

    def refuse_to_write(name, flags, *arguments, **options):
        if flags & os.O_RDWR:
            raise OSError(code, os.strerror(code), name)
        return really_open(name, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse_to_write)
    assert not MemoryMappedTensor.from_filename(path, torch.float32, (4, 3)).is_shared()
    with pytest.raises(OSError, match=os.strerror(code)):
        MemoryMappedTensor.from_filename(path, torch.float32, (4, 3), mode="r+")


def test_part_of_a_file_at_any_byte(path):
    with open(path, "wb") as file:
        file.write(b"abc" + torch.arange(6, dtype=torch.int32).numpy().tobytes())
    made = MemoryMappedTensor.from_filename(path, torch.int32, (2, 2), offset=7)
    assert made.tolist() == [[1, 2], [3, 4]] and made.offset == 7 and made[1, 1].offset == 19


def test_storages_that_torch_mapped(path):
    whole = mapped(path)
    storage = torch.UntypedStorage.from_file(path, True, 48)
    made = MemoryMappedTensor.from_storage(storage, dtype=torch.float32, shape=(4, 3))
    del storage
    made[0, 0] = 5
    assert whole[0, 0] == 5 and made.filename == path
    typed = torch.TypedStorage([1, 2, 3], dtype=torch.int64, _internal=True)
    assert MemoryMappedTensor.from_storage(typed).tolist() == [1, 2, 3]


# --- views


def test_views_by_position_stay_mapped_and_know_where(path):
    made = mapped(path)
    views = {
        "row": (made[1], made[1].clone(), 1),
        "slice": (made[1:3], made[1:3].clone(), slice(1, 3)),
        "column": (made[:, 1], made[:, 1].clone(), (slice(None), 1)),
        "unbind": (made.unbind(0)[2], made[2].clone(), 2),
        "split": (made.split(3)[1], made[3:].clone(), slice(3, 4)),
        "chunk": (made.chunk(3, 1)[2], made[:, 2:].clone(), (slice(None), slice(2, 3))),
    }
    for name, (view, expected, index) in views.items():
        assert type(view) is MemoryMappedTensor, name
        assert view.filename == path and view.index == index and view.parent_shape == (4, 3), name
        assert torch.equal(view, expected), name
    assert made.index is None and made.parent_shape == (4, 3)
    assert made[1:3][1].index == 1 and made[1:3][1].offset == 24
    assert [row.index for row in made] == [0, 1, 2, 3]


def test_copies_are_plain(path):
    made = mapped(path)
    for copied in (
        made[[0, 2]],
        made[made > 3],
        made[torch.tensor([1])],
        made + 1,
        made.clone(),
        made.double(),
        torch.stack([made, made]),
        torch.zeros_like(made),
        copy.deepcopy(made),
        made.view(-1),
    ):
        assert type(copied) is torch.Tensor
    assert type(made.add_(1)) is MemoryMappedTensor
    assert repr(MemoryMappedTensor([1])) == "MemoryMappedTensor([1])"


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_copy_of_a_module_with_mapped_parameters_has_parameters(requires_grad: bool) -> None:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(MemoryMappedTensor([1.0, 2.0]), requires_grad=requires_grad)
    copied = copy.deepcopy(module).weight
    assert type(copied) is torch.nn.Parameter and copied.requires_grad is requires_grad
    with torch.no_grad():
        module.weight.add_(1)
    assert copied.tolist() == [1, 2]


def test_large_row_gathers_and_scatters_equal_indexing():
    plain = torch.arange(300 * 500).reshape(300, 500)
    made = MemoryMappedTensor.from_tensor(plain)
    index = torch.randint(-300, 300, (100,))
    for rows in (index, index.reshape(4, 25), index.int(), index.tolist(), index.numpy()):
        assert torch.equal(made[rows], plain[rows])
    distinct = torch.randperm(300)[:100]
    made[distinct] = -made[distinct]
    plain[distinct] = -plain[distinct]
    assert torch.equal(made, plain)
    made[distinct] = torch.tensor(3)
    assert (made[distinct] == 3).all()
    with pytest.raises(IndexError):
        made[torch.tensor([300] * 10)]


def test_writes_reach_the_file(path):
    made = mapped(path)
    made[1:3] = torch.full((2, 3), 9.0)
    made[3, 0] = -1
    made[[0]] = torch.zeros(3)
    made.mul_(2)
    made.flush()
    with open(path, "rb") as file:
        assert np.frombuffer(file.read(), np.float32).tolist() == [0, 0, 0, 18, 18, 18, 18, 18, 18, -2, 20, 22]


@pytest.mark.parametrize("named", [True, False])
def test_a_large_copy_into_pages_that_are_not_there_yet(path, named, monkeypatch):
    source = torch.randn(1000, 1500)
    made = MemoryMappedTensor.zeros(1500, 1000, filename=path if named else None)
    ways = []
    for name in ("write_at", "write_ranges_at"):
        write = getattr(syscalls, name)
        monkeypatch.setattr(syscalls, name, lambda *arguments, write=write: (ways.append("file"), write(*arguments))[1])
    monkeypatch.setattr(update.write_plan, "load_kernels", lambda nbytes, widths: None)  # which write by themselves
    made.copy_(source.T)
    assert torch.equal(made, source.T)
    assert bool(ways) == syscalls.LINUX, "the first filling goes to the file"
    ways.clear()
    version = made._version
    made.copy_(source.T + 1)
    made[...] = source.T + 1
    assert not ways and made._version > version, "the next ones go to the mapping"
    assert torch.equal(made, source.T + 1)
    part = made[100:]
    part.copy_(torch.tensor(2, dtype=torch.int8))
    assert (made[100:] == 2).all() and torch.equal(made[:100], source.T[:100] + 1)


def test_a_large_copy_to_a_private_mapping_leaves_the_file_alone(path):
    MemoryMappedTensor.zeros(3_000_000, filename=path)
    private = MemoryMappedTensor.from_filename(path, torch.float32, (3_000_000,), mode="r")
    private.copy_(torch.ones(3_000_000))
    assert private.all() and not MemoryMappedTensor.from_filename(path, torch.float32, (3_000_000,)).any()


def test_a_large_copy_after_the_file_was_replaced_reaches_the_mapping(path):
    made = MemoryMappedTensor.zeros(3_000_000, filename=path)
    os.replace(path, path + "-old")
    other = MemoryMappedTensor.zeros(3_000_000, filename=path)
    made.copy_(torch.ones(3_000_000))
    assert made.all() and not other.any()


def test_gradients_flow_through_reads(path):
    made = mapped(path)
    weight = torch.ones(3, requires_grad=True)
    (made @ weight).sum().backward()
    assert weight.grad.tolist() == made.sum(0).tolist()
    parameter = torch.nn.Parameter(made)
    (parameter[0] * 2).sum().backward()
    assert parameter.grad.sum() == 6 and parameter.data_ptr() == made.data_ptr()


def test_numpy_and_the_handler_share_the_memory(path):
    made = mapped(path)
    made.numpy()[0, 0] = 42
    array = made.handler.array()
    assert isinstance(array, np.memmap) and array.view(np.float32)[0] == 42
    assert made.is_shared() and made.share_memory_() is made
    assert made.handler.filename == path
    with pytest.raises(RuntimeError, match="no file"):
        MemoryMappedTensor.zeros(2).filename  # noqa: B018  # asking is what raises


def test_memory_lives_as_long_as_a_view_of_it_and_no_longer():
    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc")

    def held():
        with open("/proc/self/maps") as file:
            maps = file.read().count("memfd:tensordict-memmap")
        return maps, sum("tensordict-memmap" in link for link in map(readlink, os.listdir("/proc/self/fd")))

    def readlink(fd):
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{fd}")
        return ""

    gc.collect()
    before = held()
    view = MemoryMappedTensor.full((1000,), 7.0).view(10, 100)[3]
    gc.collect()
    assert view.sum() == 700
    assert held()[0] > before[0]
    del view
    gc.collect()
    assert held() == before


def test_thousands_of_files_hold_no_descriptors(path):
    mapped(path)
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    before = len(os.listdir("/proc/self/fd"))
    many = [MemoryMappedTensor.from_filename(path, torch.float32, (4, 3)) for _ in range(2000)]
    assert len(os.listdir("/proc/self/fd")) == before and len(many) == 2000


# --- pickling


def test_a_pickle_is_small_and_restores_the_position_in_the_file(path):
    made = mapped(path, (1000, 300))
    for view in (made, made[3], made[5:900:7, 10:], made[:, 2]):
        data = pickle.dumps(view)
        assert len(data) < 700
        again = pickle.loads(data)
        assert torch.equal(again, view) and again.filename == path and again.stride() == view.stride()
    pickle.loads(pickle.dumps(made[3]))[0] = -5
    assert made[3, 0] == -5


@pytest.mark.parametrize("how", ["replaced", "made anew", "deleted"])
def test_a_pickle_of_a_file_that_was_replaced_is_an_error(path, how):
    data = pickle.dumps(mapped(path))
    gc.collect()
    if how == "replaced":
        mapped(path + "-new")
        os.replace(path + "-new", path)
    else:
        os.unlink(path)
        if how == "made anew":
            time.sleep(0.02)  # the clock of the file system ticks slowly, and its inode may be the same
            mapped(path)
    with pytest.raises(RuntimeError, match="removed or replaced"):
        pickle.loads(data)


@pytest.mark.parametrize("protocol", [2, 5])
def test_values_are_pickled_where_no_file_holds_them(path, protocol):
    unnamed = MemoryMappedTensor([[1, 2], [3, 4]])
    private = mapped(path)
    private = MemoryMappedTensor.from_filename(path, torch.float32, (4, 3), mode="r")
    private[0] = 77
    replaced = mapped(path + "2")
    os.unlink(path + "2")
    for tensor in (unnamed, unnamed[:, 1], private, replaced, MemoryMappedTensor.zeros(0, 2), private[0, 0]):
        again = pickle.loads(pickle.dumps(tensor, protocol))
        assert type(again) is MemoryMappedTensor and torch.equal(again, tensor) and again.handler.filename is None


def _change(tensor, answer):
    tensor[0] = 5
    answer.put(tensor.sum().item())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_both_processes_see_one_memory(path, method):
    context = mp.get_context(method)
    for tensor in (mapped(path), MemoryMappedTensor.zeros(4, 3)):
        answer = context.SimpleQueue()
        process = context.Process(target=_change, args=(tensor, answer))
        process.start()
        assert answer.get() == tensor.sum().item()
        process.join()
        assert tensor[0].tolist() == [5, 5, 5]


def _send(queue):
    queue.put(MemoryMappedTensor.full((3,), 2.0))
    time.sleep(0.2)


def test_memory_without_a_name_outlives_the_tensor_that_was_sent():
    context = mp.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_send, args=(queue,))
    process.start()
    received = queue.get(timeout=120)
    process.join()
    assert received.tolist() == [2.0, 2.0, 2.0]


class _Rows(torch.utils.data.Dataset):
    def __init__(self, tensor):
        self.tensor = tensor

    def __len__(self):
        return len(self.tensor)

    def __getitem__(self, index):
        return self.tensor[index]

    def __getitems__(self, indices):
        return list(self.tensor[torch.tensor(indices)])


def test_data_loader_with_forked_workers_after_a_parallel_save(path):
    source = torch.randn(64, 40_000)
    made = MemoryMappedTensor.from_tensor(source.T.contiguous().T, filename=path)
    update.copy_into(made, source.flip(0))
    loader = torch.utils.data.DataLoader(_Rows(made), batch_size=16, num_workers=2, multiprocessing_context="fork")
    signal.alarm(100)  # a hang is a failure
    try:
        assert torch.equal(torch.cat(list(loader)), source.flip(0))
    finally:
        signal.alarm(0)


def test_mappings_reject_ranges_outside_the_file():
    mapping = Mapping.anonymous(10)
    with pytest.raises(ValueError, match="byte 12 of a mapping of 10"):
        MemoryMappedTensor.from_handler(mapping, torch.float32, (3,))
    with pytest.raises(ValueError, match="of a mapping of"):
        MemoryMappedTensor.from_handler(mapping, torch.uint8, (3,), offset=8)
