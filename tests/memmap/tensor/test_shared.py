"""Shared memory and processes: tensordicts that are sent, seen by both, freed with the last owner, read in workers."""

from __future__ import annotations

import gc
import os
import pickle

import pytest
import torch
import torch.multiprocessing as mp

from tensordict_core import LazyStackedTensorDict, TensorDict
from tensordict_memmap import MemmapDataset, MemoryMappedTensor, load_memmap, save

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts what /proc shows")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared_mappings() -> int:
    """How many mappings of shared memory without a name this process has."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:tensordict-memmap" in line for line in maps)


def shared_files() -> set[str]:
    """The named shared memory of this process, which bears its number where torch makes it; others come and go."""
    found = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in found if str(os.getpid()) in name}


def content() -> TensorDict:
    return TensorDict({"a": torch.arange(6).reshape(3, 2), "b": {"c": torch.zeros(3)}, "s": "text"}, [3])


def answer_and_change(td, queue) -> None:
    queue.put((td["a"].sum().item(), td["s"], td.batch_size, td.is_memmap()))
    td["b", "c"].fill_(7)
    td["a"][0] = -1


@pytest.mark.parametrize("named", [True, False], ids=["in a folder", "without a name"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_tensordict_is_sent_by_handle_and_both_processes_see_one_memory(tmp_path, method, named):
    td = content().memmap(tmp_path / "shared" if named else None)
    context = mp.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=answer_and_change, args=(td, queue))
    process.start()
    assert queue.get() == (15, "text", torch.Size([3]), True)
    process.join(60)
    assert process.exitcode == 0
    assert td["b", "c"].tolist() == [7, 7, 7] and td["a"].tolist() == [[-1, -1], [2, 3], [4, 5]]


def send_and_leave(queue, told) -> None:
    queue.put(TensorDict({"a": torch.full((1000,), 3.0)}).memmap())
    told.get()  # what was sent has arrived; then its first owner goes


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_memory_stays_while_anybody_owns_it(method):
    context = mp.get_context(method)
    queue, told = context.Queue(), context.SimpleQueue()
    process = context.Process(target=send_and_leave, args=(queue, told))
    process.start()
    td = queue.get(timeout=60)
    told.put(None)
    process.join(60)
    assert process.exitcode == 0
    assert td["a"].sum() == 3000


@needs_proc
def test_a_thousand_shared_tensors_leave_no_descriptor_mapping_or_file():
    gc.collect()
    before = descriptors(), shared_mappings(), shared_files()
    made = [MemoryMappedTensor.from_tensor(torch.full((5000,), n)) for n in range(1000)]
    held = [tensor[1:3] for tensor in made[:10]]
    assert shared_mappings() >= before[1] + 1000
    assert shared_files() == before[2]  # they have no name that could be left behind
    del made
    gc.collect()
    assert [view.tolist() for view in held] == [[n, n] for n in range(10)]
    assert shared_mappings() <= before[1] + 10
    del held
    gc.collect()
    assert (descriptors(), shared_mappings(), shared_files()) == before


def take_all(queue, answer) -> None:
    total = 0
    for _ in range(200):
        total += int(queue.get().sum())
    gc.collect()
    answer.put((total, shared_mappings()))


@needs_proc
def test_tensors_that_were_sent_are_freed_on_both_sides():
    gc.collect()
    before = descriptors(), shared_mappings()
    context = mp.get_context("fork")
    queue, answer = context.Queue(), context.SimpleQueue()
    process = context.Process(target=take_all, args=(queue, answer))
    process.start()
    for n in range(200):
        queue.put(MemoryMappedTensor.full((100,), n))
    total, mapped = answer.get()
    process.join(60)
    queue.close()
    queue.join_thread()
    del queue, answer, process
    gc.collect()
    assert total == 100 * sum(range(200)) and mapped <= before[1] + 1
    assert shared_mappings() == before[1] and descriptors() <= before[0] + 2  # the resource sharer keeps a socket


def test_a_tensordict_in_a_folder_pickles_in_constant_size(tmp_path):
    sizes = []
    for number in (10, 100_000):
        td = TensorDict({"a": torch.zeros(number), "b": {"c": torch.zeros(number, 2)}}).memmap(tmp_path / str(number))
        sizes.append(len(pickle.dumps(td["a"])) + len(pickle.dumps(td["b", "c"])))
        again = pickle.loads(pickle.dumps(td))
        again["a"][0] = 5
        assert td["a"][0] == 5 and isinstance(again["a"], MemoryMappedTensor)
    assert abs(sizes[0] - sizes[1]) < 50 and max(sizes) < 2000


def test_a_handle_of_a_tensordict_that_was_saved_over_is_an_error(tmp_path):
    held = pickle.dumps(content().memmap(tmp_path / "x"))
    pickle.loads(held)
    save(content(), tmp_path / "x")
    with pytest.raises(RuntimeError, match="removed or replaced"):
        pickle.loads(held)


# --- datasets in the workers of a loader


def as_it_is(batch):
    return batch


@pytest.mark.parametrize("kind", ["dataset", "tensordict"])
@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_loader_read_rows_in_one_indexing(tmp_path, method, workers, kind):
    number = torch.arange(300)
    td = TensorDict({"x": number[:, None].expand(-1, 5), "deep": {"y": number.to(torch.bfloat16)}}, [300])
    with MemmapDataset.create(tmp_path / "data", td[0]) as dataset:
        dataset.extend(td, threads=4)
    source = MemmapDataset.open(tmp_path / "data") if kind == "dataset" else load_memmap(tmp_path / "data")
    loader = torch.utils.data.DataLoader(
        source, batch_size=64, shuffle=True, num_workers=workers, collate_fn=as_it_is, multiprocessing_context=method
    )
    batches = list(loader)
    assert [len(batch) for batch in batches] == [64, 64, 64, 64, 44]
    found = torch.cat(batches)
    found = found[found["x"][:, 0].argsort()]
    assert torch.equal(found["x"], td["x"]) and torch.equal(found["deep", "y"], td["deep", "y"])


def test_a_loader_whose_dataset_writes_reads_in_its_workers(tmp_path):
    number = torch.arange(100)
    with MemmapDataset.create(tmp_path / "data", TensorDict({"x": torch.tensor(0)})) as dataset:
        dataset.extend(TensorDict({"x": number}, [100]))
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=50, num_workers=2, collate_fn=as_it_is, multiprocessing_context="fork"
        )
        assert torch.equal(torch.cat([batch["x"] for batch in loader]), number)
        dataset.extend(TensorDict({"x": number}, [100]))
    assert len(load_memmap(tmp_path / "data")) == 200


PARTS_OF_A_SAVE = {
    "slice": lambda td: td[:2],
    "select": lambda td: td.select("a"),
    "clone(False)": lambda td: td.clone(False),
    "nested": lambda td: TensorDict({"x": td}, []),
    "leaf": lambda td: TensorDict({"a": td["a"]}, [4]),
    "lazy": lambda td: LazyStackedTensorDict(*td.unbind(0), stack_dim=0),
}


@pytest.mark.parametrize("part", PARTS_OF_A_SAVE.values(), ids=PARTS_OF_A_SAVE)
@pytest.mark.parametrize("copy_existing", [True, False])
@pytest.mark.parametrize("method", ["memmap", "memmap_"])
def test_a_part_of_a_save_in_shared_memory_is_a_copy(tmp_path, part, method, copy_existing):
    saved = TensorDict({"a": torch.arange(4.0), "n": {"b": torch.ones(4)}}, [4]).memmap(tmp_path / "td")
    shared = getattr(part(saved), method)(copy_existing=copy_existing)
    assert shared.is_memmap()
    shared.zero_()
    on_disk = load_memmap(tmp_path / "td")
    assert on_disk["a"].tolist() == [0, 1, 2, 3] and on_disk["n", "b"].tolist() == [1] * 4


def test_a_save_stays_in_its_files(tmp_path):
    saved = TensorDict({"a": torch.arange(4.0)}, [4]).memmap(tmp_path / "td")
    assert saved.memmap()["a"] is saved["a"]
    assert saved.memmap_()["a"].filename == str(tmp_path / "td" / "a.memmap")


def test_from_tensor_without_a_filename_copies_what_is_in_a_file(tmp_path):
    in_file = MemoryMappedTensor.from_tensor(torch.arange(4.0), filename=tmp_path / "x.memmap")
    for source in (in_file, in_file[1:]):
        MemoryMappedTensor.from_tensor(source).zero_()
    assert in_file.tolist() == [0, 1, 2, 3]
    shared = MemoryMappedTensor.from_tensor(in_file)
    assert MemoryMappedTensor.from_tensor(shared) is shared
    assert MemoryMappedTensor(in_file) is in_file
