"""``map`` and ``map_iter``: chunks, workers, order of results, shared memory."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import numpy as np
import pytest
import torch

from tensordict_core import LazyStackedTensorDict, TensorDict, UnbatchedTensor, lazy_stack
from tensordict_core.ops.parallel.multiprocessing import chunks as chunks_module
from tensordict_core.ops.parallel.multiprocessing import progress as progress_module
from tensordict_core.ops.parallel.packing import pack, unpack

FORK = {"num_workers": 2, "mp_start_method": "fork"}


def rows(n: int = 10) -> TensorDict:
    return TensorDict({"a": torch.arange(n), "b": {"c": torch.arange(2.0 * n).reshape(n, 2)}, "s": "text"}, [n])


def double(td):
    return td * 2


def count(td):
    return TensorDict({"n": torch.full(td.shape, td.numel())}, td.shape)


def dims(td):
    return TensorDict({"dims": td.ndim})


def nothing(td):
    td["a"].add_(100)


def some(td):
    return None if td["a"][0] % 4 else td


def fail(td):
    if 5 in td["a"]:
        raise ValueError("five")
    return td


def die(td):
    os._exit(3)


def sample(td):
    drawn = torch.tensor([random.random(), np.random.random()], dtype=torch.float64)
    return TensorDict({"r": torch.rand(td.shape), "o": drawn.expand(*td.shape, 2)}, td.shape)


def ragged(td):
    return lazy_stack([TensorDict({"q": torch.zeros(int(i))}) for i in td["a"]])


def big(td):
    return TensorDict({"x": torch.ones(*td.shape, 1 << 18)}, td.shape)


class Elsewhere(Executor):
    """Executor that runs tasks on a pickled copy, like a machine that shares no memory."""

    def __init__(self):
        self.sizes = []

    def submit(self, fn, /, *args, **kwargs):
        task = pickle.dumps((fn, args, kwargs))
        self.sizes.append(len(task))
        fn, args, kwargs = pickle.loads(task)
        future = Future()
        try:
            future.set_result(pickle.loads(pickle.dumps(fn(*args, **kwargs))))
        except Exception as error:
            future.set_exception(error)
        return future


# chunks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({"chunksize": 3}, [3, 3, 3, 1]),
        ({"chunksize": 20}, [10]),
        ({"num_chunks": 3}, [4, 4, 2]),
        ({"num_chunks": 20}, [1] * 10),
    ],
)
def test_rows_are_cut_into_chunks(arguments, sizes):
    out = rows().map(count, num_workers=0, **arguments)
    assert out["n"].tolist() == [size for size in sizes for _ in range(size)]


def test_by_default_each_worker_gets_one_chunk():
    assert rows().map(count, **FORK)["n"].tolist() == [5] * 10


def test_chunksize_zero_gives_rows_without_the_dimension_and_stacks_results():
    assert rows().map(dims, chunksize=0, num_workers=0)["dims"].tolist() == [0] * 10
    td = TensorDict({"a": torch.arange(6).reshape(2, 3)}, [2, 3])
    out = td.map(double, 1, chunksize=0, num_workers=0)
    assert out.batch_size == torch.Size([2, 3]) and torch.equal(out["a"], td["a"] * 2)


@pytest.mark.parametrize("dim", [1, -1])
def test_any_batch_dimension_can_be_cut(dim):
    td = TensorDict({"a": torch.arange(8).reshape(2, 4)}, [2, 4])
    assert torch.equal(td.map(double, dim, chunksize=3, num_workers=0)["a"], td["a"] * 2)


def test_results_may_have_other_sizes_or_be_tensors_or_none():
    td = rows()
    assert td.map(lambda chunk: torch.cat([chunk, chunk]), chunksize=5, num_workers=0).batch_size == torch.Size([20])
    assert td.map(lambda chunk: chunk["a"], chunksize=3, num_workers=0).tolist() == list(range(10))
    assert td.map(lambda row: row["a"], chunksize=0, num_workers=0).tolist() == list(range(10))
    assert td.map(some, chunksize=2, num_workers=0)["a"].tolist() == [0, 1, 4, 5, 8, 9]
    assert td.map(lambda chunk: None, chunksize=3, num_workers=0) is None
    assert td[:0].map(double, chunksize=3, num_workers=0).batch_size == torch.Size([0])
    assert td[:0].map(double, chunksize=0, num_workers=0) is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"chunksize": 1, "num_chunks": 1}, ValueError, "chunksize and num_chunks"),
        ({"chunksize": -1}, ValueError, "chunksize=-1"),
        ({"num_chunks": 0}, ValueError, "less than 1"),
        ({"num_workers": -1}, ValueError, "0 for this process"),
        ({"dim": 3}, IndexError, "dim 3"),
        ({"pool": 3}, TypeError, "pool must be a multiprocessing pool or an executor"),
        ({"out": TensorDict({}, [3])}, RuntimeError, "out has batch size"),
    ],
)
def test_map_refuses_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        rows().map(double, **{"num_workers": 0} | arguments)


def test_threads_are_not_seeded(pools):
    with pytest.raises(ValueError, match="pool of processes"):
        rows().map(double, pool=pools["threads"], generator=torch.Generator())


def test_results_of_other_types_are_refused_by_map_and_yielded_by_map_iter():
    with pytest.raises(TypeError, match="map_iter"):
        rows().map(len, num_workers=0)
    assert list(rows().map_iter(len, num_workers=0, chunksize=4)) == [4, 4, 2]
    with pytest.raises(RuntimeError, match="at least one batch dimension"):
        TensorDict({}).map(double)


# workers -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pools():
    context = multiprocessing.get_context("fork")
    with (
        context.Pool(2) as pool,
        ProcessPoolExecutor(2, mp_context=context) as processes,
        ThreadPoolExecutor(2) as threads,
        ThreadPool(2) as old,
    ):
        yield {"pool": pool, "processes": processes, "threads": threads, "elsewhere": Elsewhere(), "thread pool": old}


POOLS = ["pool", "processes", "threads", "elsewhere", "thread pool"]


def test_results_of_processes_come_in_order():
    td = rows(50)
    out = td.map(double, chunksize=3, **FORK)
    assert torch.equal(out["a"], td["a"] * 2) and torch.equal(out["b", "c"], td["b", "c"] * 2) and out["s"] == "text"


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("index_with_generator", [False, True])
def test_a_pool_of_the_users_runs_the_chunks_and_stays_open(pools, name, index_with_generator):
    for _ in range(2):
        td = rows(20)
        out = td.map(double, chunksize=3, pool=pools[name], index_with_generator=index_with_generator)
        assert torch.equal(out["a"], td["a"] * 2) and out["s"] == "text"
    assert len(list(rows().map_iter(double, chunksize=3, pool=pools[name]))) == 4


def test_pickled_chunks_and_results_contain_only_their_rows():
    elsewhere = Elsewhere()
    td = TensorDict({"x": torch.zeros(100, 1000)}, [100])
    out = td.map(double, chunksize=1, pool=elsewhere)
    assert out["x"].shape == (100, 1000) and max(elsewhere.sizes) < 10_000
    assert not td.is_shared()


def test_workers_are_spawned_with_mp_start_method():
    td = rows()
    assert torch.equal(td.map(double, num_workers=1, mp_start_method="spawn")["a"], td["a"] * 2)


def test_in_place_writes_of_workers_are_visible(pools):
    for arguments in (FORK, {"pool": pools["pool"]}, {"pool": pools["processes"]}, {"num_workers": 0}):
        td = rows()
        assert td.map(nothing, chunksize=4, **arguments) is None
        assert td["a"].tolist() == list(range(100, 110))


@pytest.mark.parametrize("max_tasks", [1, 3])
def test_workers_are_replaced(max_tasks):
    out = rows().map(count, chunksize=2, max_tasks_per_child=max_tasks, **FORK)
    assert out["n"].tolist() == [2] * 10


@pytest.mark.parametrize("arguments", [FORK, {"num_workers": 0}, FORK | {"max_tasks_per_child": 2}])
def test_an_error_names_its_chunk(arguments):
    with pytest.raises(ValueError, match="five") as error:
        rows().map(fail, chunksize=2, **arguments)
    assert error.value.__notes__ == ["while mapping chunk 2 (rows 4 to 5 of dim 0)"]
    with pytest.raises(ValueError, match="five") as error:
        list(rows().map_iter(fail, chunksize=0, **arguments))
    assert error.value.__notes__ == ["while mapping chunk 5 (row 5 of dim 0)"]


def test_a_worker_that_dies_raises_an_error():
    with pytest.raises(Exception, match="terminated abruptly") as error:
        rows().map(die, chunksize=5, **FORK)
    assert "chunk 0" in error.value.__notes__[0]


def test_ragged_and_large_results_are_returned():
    out = rows(4).map(ragged, chunksize=2, **FORK)
    assert type(out) is LazyStackedTensorDict and out[3]["q"].shape == (3,)
    assert rows(8).map(big, chunksize=2, **FORK)["x"].sum() == 8 * (1 << 18)


def test_more_results_than_file_descriptors_are_returned(monkeypatch):
    import resource

    monkeypatch.setattr(chunks_module, "PACK_BELOW", 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    try:
        out = rows(300).map(double, chunksize=1, **FORK)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert torch.equal(out["a"], rows(300)["a"] * 2)


# out -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("chunksize", [0, 3])
def test_results_are_written_into_out(shared, chunksize):
    td, out = rows(), rows().zero_()
    if shared:
        out.share_memory_()
    assert td.map(double, out=out, chunksize=chunksize, **FORK) is out
    assert torch.equal(out["a"], td["a"] * 2)
    with pytest.raises(RuntimeError, match="as many rows"):
        td.map(lambda chunk: torch.cat([chunk, chunk]), out=out, chunksize=5, **FORK)


def test_rows_of_out_without_a_result_do_not_change():
    out = rows() * 0 - 1
    rows().map(some, out=out, chunksize=2, num_workers=0)
    assert out["a"].tolist() == [0, 1, -1, -1, 4, 5, -1, -1, 8, 9]


# random numbers ------------------------------------------------------------------------------------------------------


def test_random_numbers_depend_on_the_generator_and_not_on_the_workers(pools):
    def draw(**arguments):
        out = rows().map(sample, chunksize=5, **arguments)
        return torch.cat([out["r"], out["o"].flatten()])

    first = draw(generator=torch.Generator().manual_seed(0), **FORK)
    assert torch.equal(first, draw(generator=torch.Generator().manual_seed(0), num_workers=0))
    assert torch.equal(first, draw(generator=torch.Generator().manual_seed(0), pool=pools["processes"]))
    assert not torch.equal(first, draw(generator=torch.Generator().manual_seed(1), **FORK))
    assert first[0] != first[5]
    torch.manual_seed(3)
    drawn = draw(**FORK)
    assert not torch.equal(drawn, draw(**FORK))
    torch.manual_seed(3)
    assert torch.equal(drawn, draw(**FORK))


def test_the_random_state_of_the_calling_process_is_kept():
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    expected = random.random(), np.random.random()
    random.seed(0), np.random.seed(0)
    generator = torch.Generator().manual_seed(0)
    state = torch.get_rng_state()
    rows().map(sample, num_workers=0, generator=generator)
    assert torch.equal(torch.get_rng_state(), state) and (random.random(), np.random.random()) == expected


# iteration -----------------------------------------------------------------------------------------------------------


def test_map_iter_yields_results_in_order():
    found = [chunk["a"].tolist() for chunk in rows().map_iter(double, chunksize=4, **FORK)]
    assert found == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]


def test_shuffled_chunks_hold_every_row_once_in_the_order_of_the_generator():
    def order(seed, **arguments):
        generator = torch.Generator().manual_seed(seed)
        found = rows(20).map_iter(lambda chunk: chunk["a"], shuffle=True, generator=generator, **arguments)
        return [int(row) for chunk in found for row in chunk.reshape(-1)]

    first = order(0, chunksize=3, **FORK)
    assert sorted(first) == list(range(20)) != first
    assert first == order(0, chunksize=4, num_workers=0) == order(0, chunksize=0, num_workers=0)
    assert first != order(1, chunksize=3, num_workers=0)


def test_workers_stop_when_the_iterator_is_closed():
    others = set(multiprocessing.active_children())
    found = rows().map_iter(double, chunksize=1, **FORK)
    next(found)
    assert set(multiprocessing.active_children()) - others
    found.close()
    assert not set(multiprocessing.active_children()) - others


def test_workers_compute_a_bounded_number_of_chunks_ahead():
    begun = []
    with ThreadPoolExecutor(1) as pool:
        found = rows(100).map_iter(lambda chunk: begun.append(1), chunksize=1, pool=pool)
        next(found)
        assert len(begun) <= 5
        found.close()


# progress ------------------------------------------------------------------------------------------------------------


def test_progress_is_a_counter_without_tqdm(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    rows().map(double, num_workers=0, chunksize=4, pbar=True)
    assert "map: 3/3" in capsys.readouterr().err


def test_progress_is_a_bar_with_tqdm(capsys, monkeypatch):
    class Bar:
        def __init__(self, total, desc):
            self.total, self.done = total, 0

        def update(self, n=1):
            self.done += n

        def close(self):
            print(f"{self.done} of {self.total}", file=sys.stderr)

    module = type(sys)("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", type(sys)("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    rows().map(double, num_workers=0, chunksize=4, pbar=True)
    assert capsys.readouterr().err == "3 of 3\n"
    progress_module.progress(3, False).update()
    assert capsys.readouterr().err == ""


# sharing and packing -------------------------------------------------------------------------------------------------


def test_share_memory_is_visible_to_other_processes_and_locks():
    td = rows().share_memory_()
    assert td.is_shared() and td.is_locked and td["b"].is_locked
    assert not td.clone().is_shared()
    process = multiprocessing.get_context("fork").Process(target=lambda: td["b", "c"].fill_(7))
    process.start()
    process.join()
    assert (td["b", "c"] == 7).all()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine can pin memory")
def test_pinning_without_an_accelerator_is_refused():
    with pytest.raises(RuntimeError, match="needs an accelerator"):
        rows().pin_memory()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("threads", [None, 2])
def test_pinned_memory(threads):
    td = TensorDict({"a": torch.zeros(3), "u": UnbatchedTensor(torch.ones(2)), "l": lazy_stack([rows(), rows()])})
    pinned = td.pin_memory(threads)
    assert pinned["a"].is_pinned() and pinned["l"][1]["a"].is_pinned() and not td["a"].is_pinned()
    assert td.pin_memory_(threads or 0) is td and td["l"][1]["b", "c"].is_pinned() and td["u"].is_pinned()
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().pin_memory_()


def test_unpacking_inverts_packing():
    td = TensorDict(
        {
            "a": torch.arange(6.0).reshape(2, 3).T,
            "b": {"bf": torch.ones(3, dtype=torch.bfloat16), "s": "text", "flag": torch.tensor([True, False, True])},
            "none": torch.zeros(3, 0),
            "w": torch.ones(3, requires_grad=True),
            "p": torch.nn.Parameter(torch.ones(3)),
            "u": UnbatchedTensor(torch.zeros(7, dtype=torch.complex64)),
            "l": lazy_stack([TensorDict({"q": torch.full((i,), i)}) for i in range(3)]),
        },
        [3],
        names=["n"],
    )
    skeleton, buffer = pack(td)
    again = unpack(pickle.loads(pickle.dumps(skeleton)), buffer)
    assert again.names == ["n"] and again["b", "s"] == "text" and again["l"][2]["q"].tolist() == [2, 2]
    assert (
        torch.equal(again["a"], td["a"]) and again["b", "bf"].dtype is torch.bfloat16 and again["none"].shape == (3, 0)
    )
    assert again["w"].requires_grad and isinstance(again["p"], torch.nn.Parameter) and again["u"].shape == (7,)
    assert again["b", "flag"].tolist() == [True, False, True]
